// A sound in a live view: its wave, the words of the transcript where a head hears them, and what the model writes.

/**
 * A timeline of a sound: {seconds, frame, peaks, source}; `chosen(position)` is called with the token of a word that is clicked.
 * Returns its element, and functions that show the weights of a token, words with their begins, and transcripts of the model.
 */
function soundTimeline(sound, chosen) {
  const canvas = html("canvas", { width: sound.peaks.length, height: 64, role: "img", "aria-label": t`The sound, coloured by the weight of the chosen token` });
  const words = html("div", { class: "words" }), note = html("p", { class: "muted", role: "status" }), said = html("div", { class: "said" }), track = html("div", {}, canvas, words);
  const element = html("section", { class: "timeline" }, html("audio", { controls: "", src: sound.source, "aria-label": t`Sound` }), html("div", { class: "track" }, track), note, said);

  /** The wave; `weights` of frames colour it, the largest orange. */
  function showWeights(weights) {
    const pen = canvas.getContext("2d"), each = sound.seconds / sound.peaks.length / sound.frame, most = weights ? Math.max(...weights, 1e-9) : 1;
    pen.clearRect(0, 0, canvas.width, canvas.height);
    sound.peaks.forEach((peak, x) => {
      const some = weights?.subarray(Math.floor(x * each), Math.max(Math.floor(x * each) + 1, Math.floor((x + 1) * each))) ?? [], share = Math.max(0, ...some) / most;
      pen.fillStyle = "rgb(128 128 128 / 55%)";
      pen.fillRect(x, 32 - 30 * peak, 1, 60 * peak + 1);
      pen.fillStyle = `rgb(213 94 0 / ${Math.round(100 * Math.sqrt(share))}%)`;
      pen.fillRect(x, 0, 1, 64);
    });
  }
  /** Words where they begin, in three lines so that neighbours do not cover each other; null for a head that hears none. */
  function showWords(found) {
    note.textContent = found ? t`Words stand where they begin by this head: dynamic time warping of its weights, as Whisper has it.` : t`Open a head of the decoder that attends to the sound to see when it hears each word.`;
    track.style.minWidth = `${2.2 * (found ?? []).length}em`; // what does not fit on a phone is scrolled
    words.replaceChildren(...(found ?? []).map(({ word, position, begin }, i) => {
      const made = html("button", { type: "button", style: `left:${(100 * begin) / sound.seconds}%;top:${(i % 3) * 1.5}em`, title: t`${say(begin)} s` }, word);
      made.addEventListener("click", () => chosen(position));
      return made;
    }));
  }
  function showTranscripts({ before, after }) {
    const lines = [html("p", {}, t`The model writes:`, " ", html("q", {}, before))];
    if (after !== null) lines.push(html("p", {}, after === before ? t`Without the heads: the same.` : html("span", {}, t`Without the heads:`, " ", html("q", {}, after))));
    said.replaceChildren(...lines);
  }
  showWeights(null);
  return { element, showWeights, showWords, showTranscripts, wait: () => { said.classList.add("late"); }, ready: () => said.classList.remove("late") };
}
