// The lesson on translation: a fixed vector against attention, in four trained translators that run in this page.
const { vocabulary: KNOWN, written: WRITTEN, translations: TRANSLATIONS, names: NAMES, task: TASK, sentences: SENTENCES, longest: LONGEST, measured: MEASURED } = lesson.numbers;
const MODELS = Object.fromEntries(Object.entries(lesson.numbers.models).map(([kind, model]) => [kind, { ...model, tensors: unpack(model) }]));
const START = 1, STOP = 2, ATTENDING = ["dot", "bilinear", "additive"];
const KIND_NAMES = { fixed: t`fixed vector`, dot: t`dot product`, bilinear: t`bilinear`, additive: t`additive` };
const KIND_COLOURS = { fixed: "#d55e00", dot: "#009e73", bilinear: "#cc79a7", additive: "#0072b2" };
const chosen = { sentence: "", words: [], order: null, kind: "dot", step: 0, sources: {}, own: {}, teacher: {} };

/** Translate a sentence with all models; of one with unknown words only these are returned. */
function take(sentence) {
  const words = wordsOf(sentence.toLowerCase()), unknown = words.filter((word) => !Object.hasOwn(KNOWN, word));
  if (unknown.length || !words.length || words.length > LONGEST) return { unknown, length: words.length };
  const ids = [...words.map((word) => KNOWN[word]), STOP], order = orderOf(words, TASK);
  const right = order && order.map((at) => TRANSLATIONS[words[at]]), reads = right && [START, ...right.map((word) => WRITTEN[word])];
  Object.assign(chosen, { sentence, words, order, right, reads });
  for (const [kind, model] of Object.entries(MODELS)) {
    chosen.sources[kind] = encodeSource(model, ids);
    chosen.own[kind] = translate(model, chosen.sources[kind], { start: START, stop: STOP, longest: 2 * words.length + 10 });
    chosen.teacher[kind] = right && forced(model, chosen.sources[kind], reads);
  }
  chosen.step = Math.min(chosen.step, shownSteps().length - 1);
  return { unknown, length: words.length };
}
/** What the drawings of one translation show: the right words, where they are known, else the model's own. */
const shownSteps = (kind = chosen.kind) => chosen.teacher[kind]?.slice(0, -1) ?? chosen.own[kind].filter(({ word }) => word !== STOP);
const shownWords = (kind = chosen.kind) => chosen.right ?? chosen.own[kind].map(({ word }) => NAMES[word]).filter((word) => word !== "</s>");
const percent = (p) => `${decimal(100 * p, p > 0.0995 && (p < 0.985 || p > 0.9995) ? 0 : 1)}%`;
const position = (i) => chosen.words[i] ?? "</s>";

draw("bottleneck", (box) => {
  const at = (length) => SENTENCES.findIndex((sentence) => wordsOf(sentence).length >= length), short = at(6), long = at(16);
  const controls = row(box, "moves");
  const input = html("input", { type: "text", name: "sentence", autocomplete: "off", spellcheck: "false", "aria-label": t`Sentence`, lang: "en" });
  const length = slider(controls, { name: "length", label: t`Words in the sentence`, low: 0, high: SENTENCES.length - 1, step: 1, value: long, show: (i) => String(wordsOf(SENTENCES[i]).length) }, (i) => { input.value = SENTENCES[i]; read(); });
  const form = html("form", { class: "sentence" }, input), status = html("p", { role: "status", class: "status" });
  form.addEventListener("submit", (event) => event.preventDefault());
  const place = html("div", { class: "translations" }), says = html("p", { class: "say", "data-says": "bottleneck" });
  const words = html("details", { class: "vocabulary" }, html("summary", {}, t`The ${Object.keys(KNOWN).length} words and marks that the models know`), html("p", { lang: "en", translate: "no" }, Object.keys(KNOWN).join("  ")));
  const examples = row(box, "tries");
  for (const [text, i] of [[t`A short sentence`, short], [t`A long sentence`, long]]) button(examples, text, () => { length.value = i; length.dispatchEvent(new Event("input")); });
  box.append(form, status, place, says);
  const measured = figure(box, t`BLEU by length of the source: ${MEASURED.sentences} held-out sentences, 95% intervals`);
  box.append(words);
  function read() {
    const { unknown, length: count } = take(input.value), names = [...new Set(unknown)].map((name) => `“${name}”`).join(", ");
    words.open ||= unknown.length > 0;
    status.textContent = unknown.length ? t`The models do not know ${names}. Below: the last sentence of words that they know.` : count > LONGEST ? t`The sentence has ${count} words; this page reads at most ${LONGEST}.` : "";
    input.setAttribute("aria-invalid", String(Boolean(status.textContent)));
    redraw();
  }
  input.addEventListener("input", read);
  input.value = SENTENCES[long];
  take(input.value);
  return () => {
    const lines = ["fixed", "dot"].map((kind) => {
      const own = chosen.own[kind].map(({ word }) => NAMES[word]).filter((word) => word !== "</s>"), right = chosen.right;
      const marks = own.map((word, i) => html("span", { class: right && right[i] !== word ? "token-out off" : "token-out" }, word));
      const wrong = right ? Array.from({ length: Math.max(own.length, right.length) }, (_, i) => own[i] !== right[i]).filter(Boolean).length : null;
      return { kind, wrong, line: html("div", { class: "translation", "data-kind": kind, "data-wrong": String(wrong) }, html("b", {}, kind === "fixed" ? t`Fixed vector c` : t`Attention cₜ`), html("p", { translate: "no" }, ...marks)) };
    });
    const right = html("div", { class: "translation" }, html("b", {}, t`Right`), html("p", { translate: "no" }, ...(chosen.right ? chosen.right.map((word) => html("span", { class: "token-out" }, word)) : [t`not a list of dates and numbers: no right translation is known`])));
    place.replaceChildren(right, ...lines.map(({ line }) => line));
    const [fixed, attention] = lines.map(({ wrong }) => wrong), total = chosen.right?.length;
    says.textContent = chosen.right ? t`${chosen.words.length} words. Of ${total} words of the translation, the fixed vector gets ${fixed} wrong and attention ${attention}. Places are compared one by one, so a missing or an additional word counts too, and every word behind it that has moved.` : t`${chosen.words.length} words. Both translations are the models' own.`;
    const buckets = MEASURED.buckets.map(({ low, high }) => (low + high) / 2), first = MEASURED.buckets[0].low, last = MEASURED.buckets.at(-1).high;
    curves(measured, { label: t`BLEU by length`, x: { label: t`words in the source`, low: first, high: last }, y: { label: "BLEU", low: 0, high: 100 }, at: Math.min(last, Math.max(first, chosen.words.length)),
      lines: Object.keys(MODELS).map((kind) => ({ name: KIND_NAMES[kind], colour: KIND_COLOURS[kind], points: buckets.map((x, i) => [x, MEASURED.bleu[kind][i]]), dashed: kind === "bilinear" || kind === "additive", ends: MEASURED.bleu_ends[kind] })) });
  };
});

/** A control for one of the models that attend. */
function kinds(place, name) {
  choice(place, { name, label: t`Score function`, options: ATTENDING.map((kind) => [kind, KIND_NAMES[kind]]), value: chosen.kind }, (kind) => { chosen.kind = kind; redraw(); });
  return () => { for (const input of place.querySelectorAll(`[name="${name}"]`)) input.checked = input.value === chosen.kind; };
}
function stepSlider(place, name) {
  const input = slider(place, { name, label: t`Step t of the decoder`, low: 1, high: 2, step: 1, value: 1, show: (x) => `${x} “${shownWords()[x - 1] ?? ""}”` }, (x) => { chosen.step = x - 1; redraw(); });
  return () => {
    input.max = shownSteps().length;
    input.value = chosen.step + 1;
    input.told();
  };
}

draw("alignment", (box) => {
  const controls = row(box, "moves"), shown = kinds(controls, "kind-alignment"), moved = stepSlider(controls, "step-alignment");
  const place = figure(box, t`α: a row for each word of the translation, a column for each word of the source; framed: the word that it translates`);
  const pictures = row(box), weights = figure(pictures, t`The chosen row: scores e and weights α`), says = html("p", { class: "say", "data-says": "alignment" });
  box.append(says);
  return () => {
    shown();
    moved();
    const steps = shownSteps(), targets = shownWords(), sources = [...chosen.words, "</s>"], cell = 21, top = 84, left = 84, colour = weightRamp();
    const width = left + cell * sources.length + 40, picture = svg("svg", { viewBox: `0 0 ${width} ${top + cell * steps.length + 4}`, class: "alignment", role: "group", "aria-label": t`Weights α`, style: `width: ${width}px` });
    sources.forEach((name, i) => picture.append(svg("text", { transform: `translate(${left + cell * (i + 0.65)} ${top - 6}) rotate(-55)` }, name)));
    steps.forEach(({ alpha }, k) => {
      const y = top + cell * k, line = svg("g", { role: "button", tabindex: 0, "data-word": k, "aria-pressed": String(k === chosen.step), "aria-label": t`Step ${k + 1}, “${targets[k]}”` });
      line.append(svg("text", { x: left - 6, y: y + 15, "text-anchor": "end", class: k === chosen.step ? "strong" : "" }, targets[k]));
      alpha.forEach((weight, i) => line.append(svg("rect", { x: left + cell * i, y, width: cell - 1, height: cell - 1, rx: 2, fill: css(colour(weight)), "data-weight": weight }, svg("title", {}, `${targets[k]} ← ${sources[i]}: ${decimal(weight, 3)}`))));
      if (chosen.order) line.append(svg("rect", { x: left + cell * chosen.order[k] + 0.5, y: y + 0.5, width: cell - 2, height: cell - 2, rx: 2, fill: "none", stroke: "var(--mark)", "stroke-width": 1.5 }));
      if (k === chosen.step) line.append(svg("rect", { x: left - 1, y: y - 1.5, width: cell * sources.length + 1, height: cell + 1.5, fill: "none", stroke: "var(--text)", "stroke-width": 1.5, rx: 3 }));
      const pick = () => { chosen.step = k; redraw(); };
      line.addEventListener("click", pick);
      line.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } });
      picture.append(line);
    });
    const focused = place.contains(document.activeElement) ? document.activeElement.dataset.word : undefined;
    place.replaceChildren(picture);
    if (focused !== undefined) place.querySelector(`[data-word="${focused}"]`)?.focus();
    const { e, alpha, c } = steps[chosen.step], few = ranked(alpha).slice(0, 5).sort((a, b) => a - b), total = sum(few.map((i) => alpha[i]));
    bars(weights, { values: few.map((i) => alpha[i]), labels: few.map((i) => `${i + 1} ${sources[i]}`), marked: (k) => chosen.order?.[chosen.step] === few[k], label: t`Weights`, text: (w) => decimal(w, 3) });
    weights.querySelectorAll("tr").forEach((line, k) => line.append(html("td", { class: "number", style: "width: 6em" }, `e ${decimal(e[few[k]])}`)));
    const best = ranked(alpha)[0], far = Math.hypot(...c.map((x, i) => x - chosen.sources[chosen.kind].h[best][i])) / Math.hypot(...c);
    const correct = chosen.order ? steps.filter((step, k) => ranked(step.alpha)[0] === chosen.order[k]).length : null;
    says.textContent = [t`For “${targets[chosen.step]}” the largest weight, ${decimal(alpha[best])}, is on “${position(best)}”; these ${few.length} of ${alpha.length} weights add up to ${decimal(total, 3)}. cₜ differs from h of that word by ${percent(far)} of its length.`,
      correct === null ? "" : t`In ${correct} of ${steps.length} steps the largest weight is on the word that is translated.`].join(" ");
  };
});

draw("growing", (box) => {
  const { source, target, links, sentences: held, steps } = lesson.numbers.training, names = [...source, "</s>"], rightOf = new Map(links.map(([from, to]) => [to, from]));
  let at = 4;
  slider(row(box, "moves"), { name: "growing", label: t`Updates of the training`, low: 0, high: steps.length - 1, step: 1, value: at, show: (i) => String(steps[i].update) }, (i) => { at = i; update(); });
  const pictures = row(box), place = figure(pictures, t`α of one sentence; framed: the word that is translated`), curve = figure(pictures, t`Over ${held} held-out sentences`);
  const says = html("p", { class: "say", "data-says": "growing" });
  box.append(says);
  function update() {
    const weights = softmaxRows(steps[at].scores), right = target.filter((_, k) => ranked(weights[k])[0] === rightOf.get(k)).length;
    heat(place, { values: weights, rows: target, columns: names, most: 1, digits: null, marked: (k, i) => rightOf.get(k) === i, label: t`Weights α` });
    const table = place.querySelector("table");
    table.classList.add("small", "turned");
    curves(curve, { lines: [{ name: t`words with most weight on their source word`, colour: "var(--q)", points: steps.map(({ update: u, on_word: share }) => [u, share]) }, { name: t`entropy of α, as a share of equal weights`, colour: "var(--k)", points: steps.map(({ update: u, entropy: h, uniform }) => [u, h / uniform]) }],
      at: steps[at].update, x: { label: t`Updates`, low: 0, high: steps.at(-1).update, at: t`chosen` }, y: { label: "", low: 0, high: 1 }, label: t`Alignment during the training`, height: 230 });
    const spread = mean(weights.map(entropy));
    says.dataset.value = spread;
    says.textContent = t`After ${steps[at].update} updates the rows have an entropy of ${decimal(spread)} nats on average (equal weights: ${decimal(Math.log(names.length))}); ${right} of ${target.length} words of this sentence have most weight on the word that they translate. In all held-out sentences it is ${percent(steps[at].on_word)}.`;
  }
  return update;
});

/** Rows of vectors as cells, blue below and orange above 0. */
function strips(place, rows, label) {
  const width = widthOf(place, 760), left = 108, cell = (width - left - 52) / 64, colour = signedRamp();
  const picture = svg("svg", { viewBox: `0 0 ${width} ${rows.length * 22 + 4}`, class: "strips", role: "img", "aria-label": label });
  rows.forEach(({ name, values, weight, strong, opacity = 1 }, i) => {
    picture.append(svg("text", { x: left - 8, y: i * 22 + 16, "text-anchor": "end", class: strong ? "strong" : "" }, name));
    const line = svg("g", { opacity });
    values.forEach((value, j) => line.append(svg("rect", { x: left + cell * j, y: i * 22 + 3, width: Math.max(1, cell - 0.4), height: 17, fill: css(colour((Math.max(-1, Math.min(1, value)) + 1) / 2)) })));
    picture.append(line);
    if (weight !== undefined) picture.append(svg("text", { x: width - 46, y: i * 22 + 16 }, weight));
  });
  place.replaceChildren(picture);
}
draw("context", (box) => {
  const controls = row(box, "moves"), shown = kinds(controls, "kind-context"), moved = stepSlider(controls, "step-context");
  const fixed = figure(box, t`Fixed vector: c is the last state of each direction, the same at every step`), attention = figure(box, t`Attention: cₜ = Σ α h, new at every step; each h is as strong as its weight`);
  const says = html("p", { class: "say", "data-says": "context" });
  box.append(says);
  return () => {
    shown();
    moved();
    const { c } = chosen.sources.fixed, steps = shownSteps(), { alpha, c: context } = steps[chosen.step], { h } = chosen.sources[chosen.kind];
    strips(fixed, [{ name: "c", values: c, strong: true }], t`The fixed vector`);
    const few = ranked(alpha).slice(0, 6).sort((a, b) => a - b);
    strips(attention, [...few.map((i) => ({ name: `h ${position(i)}`, values: h[i], weight: `× ${decimal(alpha[i])}`, opacity: 0.15 + 0.85 * alpha[i] })), { name: "cₜ", values: context, strong: true }], t`Annotations and their weighted sum`);
    says.textContent = t`The fixed vector stores ${chosen.words.length} words in ${c.length} numbers. Attention keeps ${h.length} annotations of ${c.length} numbers, and its decoder reads a new mixture of them at each of the ${steps.length} steps.`;
  };
});

draw("scores", (box) => {
  const { h, weight, query, key, bias, direction } = lesson.numbers.small, names = ["h₁", "h₂", "h₃"];
  let s = lesson.numbers.small.s, picked = 0;
  const controls = row(box, "moves");
  const parts = [0, 1].map((k) => slider(controls, { name: `s${k + 1}`, label: k ? "s₂" : "s₁", low: -2, high: 2, step: 0.1, value: s[k], show: (x) => decimal(x, 1) }, (x) => { s = s.with(k, x); update(); }));
  choice(controls, { name: "worked", label: t`Worked for`, options: names.map((name, i) => [i, name]), value: 0 }, (i) => { picked = i; update(); });
  const pictures = row(box);
  const where = plane(figure(pictures, t`The state s and three annotations: drag s`), { label: t`State and annotations in the plane`, drag: (_, at) => { s = at.map((x) => Math.round(10 * x) / 10); parts.forEach((one, k) => { one.value = s[k]; one.told(); }); update(); } });
  const right = html("div");
  pictures.append(right);
  const scores = figure(right, t`Scores e`), weights = figure(right, t`Weights α = softmax(e)`);
  const work = html("div", { class: "worked", "data-says": "worked" });
  box.append(work);
  function update() {
    const each = ATTENDING.map((kind) => SCORES[kind]({ weight, query, key, bias, direction }, h)(s)), alphas = each.map(softmax);
    where({ arrows: [{ at: s, name: "s", colour: "var(--q)", size: 4, movable: true }, ...h.map((at, i) => ({ at, name: names[i], colour: i === picked ? "var(--mark)" : "var(--k)", size: 3 }))] });
    const columns = ATTENDING.map((kind) => KIND_NAMES[kind]);
    heat(scores, { values: transpose(each), rows: names, columns, kind: "signed", most: 3, marked: (i) => i === picked, label: t`Scores e` });
    heat(weights, { values: transpose(alphas), rows: names, columns, most: 1, label: t`Weights α` });
    const i = picked, n = (x) => (x < 0 ? `(${decimal(x, 1)})` : decimal(x, 1)), [a, b] = h[i], wh = affine(weight, h[i]);
    const inner = affine(key, h[i]).map((x, k) => x + affine(query, s)[k] + bias[k]), sub = ["₁", "₂", "₃"][i];
    work.replaceChildren(...[
      [KIND_NAMES.dot, `s · h${sub} = ${n(s[0])} · ${n(a)} + ${n(s[1])} · ${n(b)} = ${decimal(each[0][i])}`],
      [KIND_NAMES.bilinear, `s · W h${sub} = ${n(s[0])} · ${n(wh[0])} + ${n(s[1])} · ${n(wh[1])} = ${decimal(each[1][i])}`],
      [KIND_NAMES.additive, `v · tanh(W₁ s + W₂ h${sub}) = ${n(direction[0])} · tanh ${n(inner[0])} + ${n(direction[1])} · tanh ${n(inner[1])} = ${decimal(each[2][i])}`],
    ].map(([name, line]) => html("p", {}, html("b", {}, name), html("span", { translate: "no" }, line))));
  }
  return update;
});

draw("output", (box) => {
  const controls = row(box, "moves"), shown = kinds(controls, "kind-output"), moved = stepSlider(controls, "step-output"), use = { s: true, c: true, y: true };
  const checks = row(box, "moves");
  for (const [name, label] of [["c", t`cₜ: the source`], ["s", t`sₜ: the state`], ["y", t`yₜ₋₁: the last output`]]) checkbox(checks, { name: `use-${name}`, label, value: true }, (on) => { use[name] = on; update(); });
  const place = figure(box, t`p(yₜ): the five most probable words`), says = html("p", { class: "say", "data-says": "output" });
  box.append(says);
  function update() {
    shown();
    moved();
    const step = shownSteps()[chosen.step], of = (name) => (use[name] ? step[name] : step[name].map(() => 0)), p = outputLayer(MODELS[chosen.kind], of("s"), of("c"), of("y"));
    const order = ranked(p).slice(0, 5), next = shownWords()[chosen.step];
    bars(place, { values: order.map((id) => p[id]), labels: order.map((id) => NAMES[id]), marked: (k) => NAMES[order[k]] === next, label: t`Probabilities`, text: (x) => decimal(x, 3) });
    const target = WRITTEN[next];
    says.textContent = target === undefined ? "" : t`The next word is “${next}”: probability ${decimal(p[target], 3)}, that is ${decimal(-Math.log(p[target]))} nats of cross-entropy.`;
  }
  return update;
});

draw("forcing", (box) => {
  let kind = "dot", wrongAt = 2;
  const controls = row(box, "moves");
  choice(controls, { name: "kind-forcing", label: t`Model`, options: ["fixed", "dot"].map((one) => [one, KIND_NAMES[one]]), value: kind }, (one) => { kind = one; update(); });
  const error = slider(controls, { name: "error", label: t`Give it a wrong word to read at step`, low: 0, high: 8, step: 1, value: wrongAt, show: (x) => (x === 0 ? t`none` : String(x)) }, (x) => { wrongAt = x; update(); });
  const place = figure(box, t`Teacher forcing: every step reads the right word before it`), says = html("p", { class: "say", "data-says": "forcing" });
  box.append(says);
  function update() {
    if (!chosen.right) {
      place.replaceChildren();
      says.textContent = t`Of this sentence no right translation is known. Choose one with the slider at the top.`;
      return;
    }
    const right = [...chosen.right, "</s>"], ids = [...chosen.right.map((word) => WRITTEN[word]), STOP];
    error.max = right.length;
    wrongAt = Math.min(wrongAt, Number(error.max));
    const reads = chosen.reads.map((id, k) => (k === wrongAt - 1 ? WRITTEN[NAMES[id] === "siebzehn" ? "neunzehn" : "siebzehn"] : id));
    const taught = forced(MODELS[kind], chosen.sources[kind], chosen.reads), misled = forced(MODELS[kind], chosen.sources[kind], reads), own = chosen.own[kind];
    const losses = taught.map(({ p }, k) => -Math.log(p[ids[k]])), wrong = misled.map(({ p }, k) => -Math.log(p[ids[k]]));
    const name = (id) => NAMES[id];
    const titles = ["t", t`reads`, t`right`, t`p(right)`, t`−log p`, t`p after the wrong word`, t`own reading`, t`own word`];
    const cells = (list) => list.map((cell, i) => html("td", { class: "number", "data-column": titles[i + 1] }, cell));
    const table = html("table", { class: "forcing", "aria-label": t`Steps of the decoder` },
      html("thead", {}, html("tr", {}, ...titles.map((title) => html("th", { scope: "col" }, title)))),
      html("tbody", {}, ...right.map((word, k) => html("tr", k === wrongAt - 1 ? { class: "misled" } : {}, html("th", { scope: "row" }, String(k + 1)), ...cells([name(chosen.reads[k]), word, decimal(taught[k].p[ids[k]], 3), decimal(losses[k], 3), wrongAt ? decimal(misled[k].p[ids[k]], 3) + (k === wrongAt - 1 ? ` (${name(reads[k])})` : "") : "–", k ? name(own[k - 1]?.word) ?? "" : "<s>", name(own[k]?.word) ?? ""])))));
    place.replaceChildren(table);
    place.classList.add("tall");
    says.textContent = sentences(t`−log p(y|x) = ${decimal(sum(losses), 3)} nats, the sum of the cross-entropies of all ${right.length} steps; p(y|x) = ${Math.exp(-sum(losses)).toPrecision(3)}.`, ...(wrongAt ? [t`With one wrong word it is ${decimal(sum(wrong), 3)} nats.`] : []));
  }
  return update;
});

draw("gradient", (box) => {
  const place = figure(box, t`Share of each tenth of the source in the gradient of the loss, 95% intervals`), says = html("p", { class: "say", "data-says": "gradient" });
  box.append(says);
  const rows = [["fixed, forward state only", t`fixed vector, forward state alone`, "#e69f00", true], ["fixed", KIND_NAMES.fixed, KIND_COLOURS.fixed, false], ["dot", KIND_NAMES.dot, KIND_COLOURS.dot, false]];
  return () => {
    const shares = MEASURED.gradients, most = Math.max(...rows.flatMap(([key]) => shares[key].map((share) => share[2])));
    curves(place, { label: t`Gradient by position`, x: { label: t`tenth of the source, 1 is its beginning`, low: 1, high: 10, ticks: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] }, y: { label: t`share of the gradient`, low: 0, high: Math.ceil(most * 20) / 20 }, height: 300,
      lines: [...rows.map(([key, name, colour, dashed]) => ({ name, colour, dashed, points: shares[key].map(([share], k) => [k + 1, share]), ends: shares[key].map(([, low, high]) => [low, high]) })), { name: t`equal shares`, colour: "#888888", dashed: true, points: [[1, 0.1], [10, 0.1]] }] });
    const both = (key) => [percent(shares[key][0][0]), percent(shares[key][9][0])], [fixed, forward, attention] = ["fixed", "fixed, forward state only", "dot"].map(both);
    says.textContent = t`First and last tenth: fixed vector ${fixed[0]} and ${fixed[1]}, its forward state alone ${forward[0]} and ${forward[1]}, attention ${attention[0]} and ${attention[1]}. Means over the ${MEASURED.gradient_sentences} longest held-out sentences.`;
  };
});

draw("bridge", (box) => {
  let who = "words";
  const controls = row(box, "moves");
  choice(controls, { name: "who", label: t`Who asks (the queries)`, options: [["decoder", t`the decoder's states sₜ`], ["words", t`the words themselves`]], value: who }, (one) => { who = one; update(); });
  const place = figure(box, t`Weights: a row for each query, a column for each word of the source`), says = html("p", { class: "say", "data-says": "bridge" });
  box.append(says);
  function update() {
    const { h } = chosen.sources.dot, names = [...chosen.words, "</s>"], steps = shownSteps("dot");
    const self = softmaxRows(matmul(h, transpose(h)).map((line) => line.map((x) => x / Math.sqrt(h[0].length))));
    const values = who === "words" ? self : steps.map(({ alpha }) => alpha), rows = who === "words" ? names : shownWords("dot");
    heat(place, { values, rows, most: 1, digits: null, label: t`Weights` });
    place.querySelector("table").classList.add("small");
    says.dataset.value = values.length * names.length;
    says.textContent = who === "words" ? t`${names.length} words ask ${names.length} words: ${names.length ** 2} scores, all at once. The formula is that of attention; W_Q, W_K and W_V, which a Transformer would learn for it, are left out here.`
      : t`${values.length} states ask ${names.length} annotations: ${values.length * names.length} scores. Before, the encoder needs ${names.length} steps, one after another, and the first word reaches the last after ${names.length - 1}.`;
  }
  return update;
});

draw("asked-scores", (box) => { heat(figure(row(box), "e"), { values: [lesson.numbers.asked.e], columns: ["i = 1", "i = 2", "i = 3"], kind: "plain", digits: 0 }); });
draw("asked-context", (box) => {
  const pictures = row(box), rows = ["i = 1", "i = 2", "i = 3"];
  heat(figure(pictures, "e"), { values: lesson.numbers.asked.e.map((x) => [x]), rows, kind: "plain", digits: 0 });
  heat(figure(pictures, "h"), { values: lesson.numbers.asked.h, rows, kind: "plain", digits: 0 });
});
draw("asked-loss", (box) => {
  const { right, own } = lesson.numbers.asked;
  heat(figure(row(box), t`Probability of the right word at each step`), { values: [right, own], rows: [t`reads the right words`, t`reads its own words`], columns: ["t = 1", "t = 2", "t = 3"], kind: "plain", digits: 2 });
});
