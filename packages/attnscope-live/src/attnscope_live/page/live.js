// A live view: the text that one types, heads taken out, a second text, and what the model writes. The same in a browser,
// where a server answers, and in a notebook, where the kernel does.

const HOW = { zero: () => t`zero`, mean: () => t`their mean over the text`, other: () => t`their output on the second text` };
const SHOWN = { text: () => t`this text`, other: () => t`the second text`, difference: () => t`the difference` };
/** A probability: to a tenth of a percent or finer below 1%. */
function percent(log) {
  const chance = Math.exp(log);
  return chance >= 0.01 ? share(chance) : chance >= 5e-5 ? `${(100 * chance).toPrecision(1)}%` : "<0.01%";
}

/**
 * Show a model in an element. `channel.ask(name, question)` is a promise of the answer, with its arrays as `bytes`; a look that
 * a newer one has overtaken is never answered. `data` has the `name` of the model and where to `start`. `changed` is called
 * with each choice of head and token.
 */
function mountLive(root, channel, data, changed = () => {}) {
  const state = {
    text: "", target: null, other: null, removed: [], by: "zero", written: [], shows: "text", layer: 0, head: 0, token: null, position: null, temperature: 1, mask: data.masks ?? true, picture: data.picture ?? null, chat: false, ...data.start,
  };
  if (state.position === null) state.position = state.token; // what is predicted where the view opens
  const undone = [], known = new Map(), swept = new Map();
  let view = null, look = null, thumbs = [], asked = 0, rows = [], returned = null, shares = [], followed = null, effects = null, receivers = null, reached = null, inBox = null, pending = Promise.resolve();
  const box = (name, tag = "div", attributes = {}) => html(tag, { class: name, ...attributes });
  const button = (name, act, attributes = {}) => {
    const made = html("button", { type: "button", ...attributes }, name);
    made.addEventListener("click", act);
    return made;
  };
  const area = (label, name, placeholder) => {
    const typed = html("textarea", { rows: 2, spellcheck: "false", placeholder, "aria-label": label });
    typed.addEventListener("input", () => {
      keep(true);
      state[name] = typed.value;
      state.written = [];
      state.position = null;
      renew();
    });
    return typed;
  };
  const status = box("status", "p", { role: "status" }), told = box("told", "span", { role: "status" });
  const typed = area(data.sound ? t`Transcript` : t`Text`, "text", t`Type a text`), second = area(t`Second text`, "other", t`The same text with one word changed`), target = area(t`Target`, "target", t`What the decoder reads`);
  const texts = box("texts"), heads = box("heads"), tools = box("tools"), predicted = box("predicted", "section"), shown = box("shown");
  root.classList.add("attnscope-live");
  root.classList.toggle("sounded", !!data.sound); // whose frames are on the timeline
  root.replaceChildren(html("header", {}, html("h1", {}, data.name), tools), texts, html("p", { class: "muted hint" }, t`Click a head to open it, shift-click to take it out. Click a token to see where it attends and what is predicted there. Heads are named layer.head, from 0.`), heads, status, html("div", { class: "both" }, shown, predicted));

  const failed = (words) => { status.hidden = false; status.textContent = words; };
  const isRemoved = (layer, head) => state.removed.some(([l, h]) => l === layer && h === head);
  const nameOf = ([layer, head]) => `${layer}.${head}`;
  const KEPT = ["text", "target", "other", "removed", "by", "written", "position", "picture", "chat"];
  let lastTyped = -Infinity;
  /** Remember the state before a change, for Undo; a burst of typing is one change. */
  function keep(isTyped = false) {
    const now = performance.now(), inBurst = isTyped && now - lastTyped < 1000;
    lastTyped = isTyped ? now : -Infinity;
    if (!inBurst) undone.push(Object.fromEntries(KEPT.map((name) => [name, state[name]])));
    back.disabled = false;
  }
  function undo() {
    if (!undone.length) return;
    Object.assign(state, undone.pop());
    lastTyped = -Infinity;
    back.disabled = !undone.length;
    buildTexts();
    renew();
  }
  const back = button(t`Undo`, undo, { disabled: "" });
  root.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "z" && !event.target.matches("textarea")) { event.preventDefault(); undo(); }
  });

  /** Take a head out, or put it back. */
  function toggle(layer, head) {
    keep();
    state.removed = isRemoved(layer, head) ? state.removed.filter(([l, h]) => l !== layer || h !== head) : [...state.removed, [layer, head]];
    if (!state.removed.length) state.by = state.other === null ? "zero" : state.by;
    renew();
  }
  function patch(layer, head) {
    if (state.by !== "other") { keep(); state.removed = []; state.by = "other"; }
    toggle(layer, head);
  }
  function write(id, token) {
    keep();
    state.written = [...state.written, { id, token }];
    state.position = null;
    renew();
  }

  function question() {
    const { text, target: read, other, removed, by, written } = state;
    const { position, mask, temperature, picture, chat } = state;
    return { text, target: read || null, other, removed, by, written: written.map(({ id }) => id), picture, chat, position, mask, temperature };
  }

  /** Ask for all that depends on the texts and the heads; only the last question counts. */
  function renew() {
    pending = lookAgain(++asked);
    return pending;
  }
  async function lookAgain(number) {
    const asking = channel.ask("look", question()); // the model works while the page does
    told.textContent = "";
    writeAddress();
    buildHeads();
    const late = setTimeout(() => root.classList.add("late"), 400); // what is shown is of an earlier question
    const answer = await asking;
    clearTimeout(late);
    if (number !== asked) return;
    status.textContent = answer.error ?? (answer.cut ? t`Only the first ${answer.length} tokens are read.` : "");
    status.hidden = !status.textContent;
    root.classList.toggle("late", !!answer.error);
    if (answer.error) return;
    look = answer;
    receivers = reached = inBox = null;
    effects = swept.get(ofEffects()) ?? null;
    thumbs = answer.bytes;
    known.clear();
    if (!thumbs[{ text: 0, other: 1, difference: 2 }[state.shows]]) state.shows = "text";
    ({ rows, returned, position: state.position } = answer);
    shares = [];
    show();
    drawPredictions();
    await askShares();
    askSound();
  }
  /** The query that is shown: the one that the reader chose, else the one after which the model predicts. */
  const tokenNow = () => (state.shows === "other" || look.kind === "label" || look.kind === "output" ? state.token : state.token ?? state.position);
  const lastPosition = () => tokensPredicted().length - 1;
  const tokensPredicted = () => (look.texts.target ?? look.texts.text).tokens;

  /** What `mount` draws: the tokens and small maps of the text that is shown. */
  function metaNow() {
    const texts = state.shows === "other" ? look.other : look.texts;
    return { ...look, texts, isDifference: state.shows === "difference", written: state.written.length ? look.prompt : Infinity, thumbs: thumbs[{ text: 0, other: 1, difference: 2 }[state.shows]] };
  }
  function show() {
    if (view) {
      view.renew(metaNow());
      if (tokenNow() !== null) view.follow({ token: tokenNow() });
    } else {
      const source = { meta: metaNow(), start: { layer: state.layer, head: state.head, token: tokenNow() }, toggle, map, row };
      view = mount(shown, source, ({ layer, head, token, span }, chosen) => {
        Object.assign(state, { layer, head });
        if ("token" in chosen) Object.assign(state, { token, position: Math.min(token, lastPosition()) });
        writeAddress();
        buildHeads();
        changed({ layer, head, token, span });
        if ("token" in chosen) predict();
        if (inBox) lookInside(inBox.keys); // of the token and the head that are chosen now
        askSound();
      });
    }
    view.mark((layer, head) => (isRemoved(layer, head) ? "removed" : ""));
    buildHeads();
  }
  async function map(layer, head) {
    const name = `${layer}.${head}.${state.shows}`;
    if (!known.has(name)) {
      const { n, m, tile, bytes, error } = await channel.ask("map", { layer, head, of: state.shows });
      if (error) return null;
      known.set(name, { n, m, tile, codes: bytes[0] });
    }
    return known.get(name);
  }
  async function row(layer, head, token, direction) {
    const { bytes } = await channel.ask("row", { layer, head, token, direction, of: state.shows });
    return new Float32Array(bytes[0].slice().buffer);
  }

  async function predict() {
    const number = asked, position = state.position;
    if (look.kind === "output") { drawPredictions(); return; }
    const answer = await channel.ask("predict", { position, mask: state.mask, temperature: state.temperature });
    if (number !== asked || position !== state.position) return;
    if (answer.error) { failed(answer.error); return; }
    ({ rows, returned } = answer);
    shares = [];
    drawPredictions();
    await askShares();
  }
  /** How much of its weight the last written token gives to the prompt. */
  async function askShares() {
    const number = asked, position = state.position;
    if (look.kind === "next" && state.written.length) {
      ({ shares = [] } = await channel.ask("shares", { position }));
      if (number === asked && position === state.position) drawPredictions();
    }
  }
  const chosenToken = () => rows.find(({ id }) => id === followed) ?? rows.find(({ actual }) => actual && state.mask) ?? rows.reduce((best, one) => (one.before > best.before ? one : best), rows[0]);

  /** What effects depend on, besides the position: they are of single heads, whichever are out. */
  const ofEffects = () => JSON.stringify([state.chat, state.picture, state.text, state.target, state.other, state.written, state.position, state.mask]);

  /** Take out each head alone, or patch it, layer after layer. */
  async function tryEach(by) {
    const token = chosenToken().id, position = state.position, patched = by === "other";
    const mine = { token, patched, found: [], left: look.layers.length, stopped: false };
    effects = mine;
    drawPredictions();
    for (const { index } of look.layers) {
      const answer = await channel.ask("effects", { layer: index, position, token, by, mask: state.mask });
      if (effects !== mine || mine.stopped || answer.error) return;
      mine.found.push(...answer.effects.map((effect, head) => ({ layer: index, head, effect })));
      mine.left -= 1;
      if (!mine.left) swept.set(ofEffects(), mine);
      drawPredictions();
    }
  }
  /** What each head adds to the logit of the chosen token. */
  async function splitLogit() {
    const number = asked, token = chosenToken().id, mine = { token, split: true, found: [], left: 0 };
    effects = { ...mine, left: look.layers.length };
    drawPredictions();
    const { heads, total, error } = await channel.ask("attribution", { position: state.position, token });
    if (number !== asked) return;
    if (error) { effects = null; failed(error); } else {
      effects = { ...mine, total, found: heads.map(({ layer, head, part }) => ({ layer, head, effect: part })) };
      swept.set(ofEffects(), effects);
    }
    drawPredictions();
  }
  /** The effects that are there, on the grid of heads. */
  function colourHeads() {
    const found = new Map(effects?.found.map((one) => [nameOf([one.layer, one.head]), one.effect]) ?? []);
    const largest = Math.max(...[...found.values()].map(Math.abs), 1e-9), words = (effect) => (effects.patched ? `${say(Math.round(100 * effect))}%` : signed(effect));
    view?.colour((layer, head) => { const effect = found.get(nameOf([layer, head])) ?? null; return effect === null ? null : { value: effect / largest, text: words(effect) }; });
  }
  function sayEffects() {
    colourHeads();
    if (look.kind === "output" || !rows.length) return [];
    const starts = [button(t`Take out each head alone`, () => tryEach(state.by === "mean" ? "mean" : "zero"))];
    if (returned && returned.share !== null) starts.push(button(t`Patch each head alone`, () => tryEach("other")));
    if (look.kind === "next" && !look.views.length) starts.push(button(t`Split the logit by heads`, splitLogit));
    if (!effects) return [html("p", { class: "chips" }, ...starts)];
    if (effects.left && !effects.stopped && !effects.split) starts.splice(0, 3, button(t`Stop`, () => { effects.stopped = true; drawPredictions(); }));
    const most = effects.found.filter(({ effect }) => effect !== null).sort((a, b) => Math.abs(b.effect) - Math.abs(a.effect)).slice(0, 8);
    const token = visible(rows.find(({ id }) => id === effects.token)?.token ?? "");
    const splits = () => (effects.left ? t`The logit of “${token}” is split ...` : t`What each head adds to the logit of “${token}”, ${say(effects.total)}, directly:`);
    return [html("p", {}, effects.split ? splits() : effects.patched ? t`Share of the difference that each head alone returns:` : t`Change of the log-probability of “${token}” without each head alone:`, effects.left && !effects.split ? ` ${effects.stopped ? t`(stopped: ${effects.left} layers were not tried)` : t`${effects.left} layers left`}` : ""),
      html("p", { class: "chips effects" }, ...most.map(({ layer, head, effect }) => button(`${layer}.${head} ${effects.patched ? `${say(Math.round(100 * effect))}%` : signed(effect)}`, () => { follow({ layer, head }); writeAddress(); }))),
      html("p", { class: "muted" }, t`On the map, orange is positive and blue negative.`),
      html("p", { class: "chips" }, ...starts)];
  }
  /** The heads that attend most from the query of the predictions to a chosen key. */
  function sayReached() {
    if (look.kind === "label" || look.kind === "output" || look.kind === "translation") return [];
    const names = tokensPredicted().map(visible), keys = look.kind === "next" ? names.slice(0, state.position + 1) : names;
    const choice = html("select", { "aria-label": t`Key` }, html("option", { value: "" }, "…"), ...keys.map((name, i) => html("option", reached?.key === i ? { value: i, selected: "" } : { value: i }, `${i} ${name}`)));
    choice.addEventListener("change", async () => {
      const number = asked, key = Number(choice.value), answer = choice.value === "" ? { error: "-" } : await channel.ask("reach", { query: state.position, key });
      if (number !== asked) return;
      reached = answer.error ? null : { key, heads: answer.heads };
      drawPredictions();
    });
    const most = (reached?.heads ?? []).map(({ layer, head, weight }) => button(`${layer}.${head} ${share(weight)}`, () => { follow({ layer, head }); writeAddress(); }));
    return [html("p", {}, html("label", {}, t`Heads that attend most from “${names[state.position]}” to`, " ", choice)), ...(most.length ? [html("p", { class: "chips" }, ...most)] : [])];
  }
  /** A box that is drawn over the patches of a picture: how much of the chosen token's weight lies in it. */
  root.addEventListener("pointerdown", (event) => {
    const first = event.target.closest?.(".patches .token");
    if (!first) return;
    root.addEventListener("pointerup", async (end) => {
      const last = end.target.closest?.(".patches .token"), view = look.views.find(({ tokens }) => [first, last].every((one) => one && tokens.includes(Number(one.dataset.token))));
      if (!view || last === first || end.shiftKey) return;
      const at = [first, last].map((one) => view.tokens.indexOf(Number(one.dataset.token))), rows = at.map((place) => Math.floor(place / view.columns)), columns = at.map((place) => place % view.columns);
      const inside = (place) => { const row = Math.floor(place / view.columns), column = place % view.columns; return row >= Math.min(...rows) && row <= Math.max(...rows) && column >= Math.min(...columns) && column <= Math.max(...columns); };
      await lookInside(view.tokens.filter((_, place) => inside(place)));
    }, { once: true });
  });
  async function lookInside(keys) {
    const number = asked, query = look.kind === "label" || look.kind === "output" ? state.token ?? 0 : state.position;
    const { heads, error } = await channel.ask("inside", { query, keys });
    if (number !== asked) return;
    if (error) failed(error);
    inBox = error ? null : { keys, query, heads };
    drawPredictions();
  }
  function sayInside() {
    root.querySelectorAll(".patches .token").forEach((one) => one.classList.toggle("boxed", !!inBox?.keys.includes(Number(one.dataset.token))));
    if (!look.views.length) return [];
    if (!inBox) return [html("p", { class: "muted" }, t`Drag over patches to see the share of a token's weight in a box.`)];
    const here = inBox.heads.find(({ layer, head }) => layer === state.layer && head === state.head), mean = inBox.heads.reduce((sum, one) => sum + one.share, 0) / inBox.heads.length;
    const most = [...inBox.heads].sort((a, b) => b.share - a.share).slice(0, 8), token = visible(tokensPredicted()[inBox.query] ?? "");
    return [html("p", {}, t`In the box of ${inBox.keys.length} patches, of the weight of “${token}”: head ${nameOf([state.layer, state.head])} ${here ? share(here.share) : "–"}, all heads ${share(mean)}, uniform attention ${share(most[0].chance)}. Most:`),
      html("p", { class: "chips" }, ...most.map(({ layer, head, share: part }) => button(`${layer}.${head} ${share(part)}`, () => { follow({ layer, head }); writeAddress(); drawPredictions(); })), button(t`Remove the box`, () => { inBox = null; drawPredictions(); }))];
  }
  function sayShares() {
    const here = shares.find(({ layer, head }) => layer === state.layer && head === state.head);
    if (!here) return [];
    const mean = (part) => share(shares.reduce((sum, one) => sum + one[part], 0) / shares.length), most = shares.reduce((a, b) => (b.prompt > a.prompt ? b : a));
    return [t`Head ${nameOf([state.layer, state.head])}: ${share(here.prompt)} on the prompt, ${share(here.written)} on what was written, ${share(here.itself)} on the token itself; all heads: ${mean("prompt")}, ${mean("written")}, ${mean("itself")}. Most on the prompt: ${nameOf([most.layer, most.head])} (${share(most.prompt)}).`];
  }

  function titleOfPredictions() {
    if (look.kind === "label") return t`Label`;
    const token = visible(tokensPredicted()[state.position] ?? "");
    if (look.kind === "masked" && !state.mask) return t`At “${token}” (position ${state.position})`;
    return look.kind === "masked" ? t`In place of “${token}” (position ${state.position}, masked)` : t`After “${token}” (position ${state.position})`;
  }
  const writes = () => (look.kind === "next" || look.kind === "translation") && state.position === lastPosition();

  function drawPredictions() {
    const two = state.removed.length > 0, list = html("table", {}, html("caption", {}, titleOfPredictions()));
    const columns = [t`token`, two ? t`before` : t`probability`, ...(two ? [t`after`] : []), ...(state.other !== null && look.aligned ? [t`second text`] : [])];
    list.append(html("thead", {}, html("tr", {}, ...columns.map((name) => html("th", { scope: "col" }, name)))));
    const body = html("tbody");
    rows.slice(0, 12).forEach((one) => {
      const word = visible(one.token) || t`(nothing)`;
      const name = button(word, () => { followed = one.id; drawPredictions(); }, { class: "name", title: t`Follow this token`, "aria-pressed": one.id === followed });
      const add = writes() ? [button("+", () => write(one.id, one.token), { class: "add", title: t`Write this token`, "aria-label": t`Write “${word}”` })] : [];
      const bar = (log, kind) => html("td", { class: kind, style: `--p:${log === null ? 0 : Math.exp(log)}`, title: log === null ? "" : t`log-probability ${say(log)}` }, log === null ? "" : percent(log));
      const line = html("tr", { class: [one.actual ? "actual" : "", one.id === followed ? "followed" : ""].join(" ").trim() }, html("th", { scope: "row" }, name, ...add), bar(one.before, "before"));
      if (two) line.append(bar(one.after, "after"));
      if (columns.includes(t`second text`)) line.append(bar(one.other, "second"));
      body.append(line);
    });
    list.append(body);
    const lines = [];
    if (look.loss && state.mask) lines.push(sayLoss(look.loss));
    const one = two && chosenToken();
    if (one) lines.push(t`log-probability of “${visible(one.token)}”: ${say(one.before)} → ${say(one.after)} (${signed(one.after - one.before)})`);
    if (returned) lines.push(sayReturned(returned, two));
    if (look.kind === "output") lines.push(t`This model predicts no tokens: it has no output layer.`);
    lines.push(...sayShares());
    const receive = receivers && [html("p", {}, t`Heads by which later sentences attend to one sentence (their share of weight; under uniform attention):`),
      html("ul", { class: "receivers" }, ...receivers.heads.slice(0, 5).map(({ layer, head, sentence, share: got, chance }) => html("li", {}, button(`${layer}.${head}`, () => { follow({ layer, head }); writeAddress(); }), ` ${share(got)} (${share(chance)}): `, html("q", {}, receivers.sentences[sentence].slice(0, 80)))))];
    const sentences = look.kind === "next" && /[.!?。！？].*[.!?。！？].*[.!?。！？]/s.test(tokensPredicted().join(""))
      ? receive ?? [button(t`Which sentence do later ones attend to?`, async () => { const number = asked, answer = await channel.ask("receivers", {}); if (number !== asked) return; if (answer.error) status.textContent = answer.error; else receivers = answer; status.hidden = !answer.error; drawPredictions(); })] : [];
    predicted.replaceChildren(...masking(), ...(rows.length ? [list] : []), ...lines.map((line) => html("p", {}, line)), ...sayEffects(), ...sayInside(), ...sayReached(), ...sentences, ...(look.kind === "next" || look.kind === "translation" ? [writer()] : []), ...changes());
  }
  /** Whether a masked language model restores the token that is chosen, or predicts at it as it is. */
  function masking() {
    if (look.kind !== "masked") return [];
    const made = html("input", { type: "checkbox", ...(state.mask ? { checked: "" } : {}) });
    made.addEventListener("change", () => { state.mask = made.checked; effects = swept.get(ofEffects()) ?? null; writeAddress(); predict(); });
    return [html("label", { class: "muted" }, made, " ", t`Mask the token`)];
  }
  const signed = (value) => (value > 0 ? `+${say(value)}` : say(value));
  const sayLoss = ({ before, after, count }) => (look.kind === "masked" ? t`Loss ${say(before)} → ${say(after)} nats a token (${signed(after - before)}; ${count} tokens, masked at random)` : after === null ? t`Loss ${say(before)} nats a token (${count} tokens)` : t`Loss ${say(before)} → ${say(after)} nats a token (${signed(after - before)}; ${count} tokens)`);
  function sayReturned({ answer, wrong, share: back, margins }, patched) {
    if (back === null) return t`Both texts predict “${visible(answer)}” here: nothing can return.`;
    const [here, now, there] = margins.map((value) => say(value));
    if (patched && state.by === "other") return t`“${visible(answer)}” over “${visible(wrong)}”: ${say(Math.round(100 * back))}% of the difference between the texts returns (logit difference ${here} before, ${now} after, ${there} in the second text).`;
    return patched ? t`“${visible(answer)}” over “${visible(wrong)}”: logit difference ${here} before, ${now} after, ${there} in the second text.`
      : t`“${visible(answer)}” over “${visible(wrong)}”: logit difference ${here} here, ${there} in the second text.`;
  }

  /** The heads that attend most differently in the two texts. */
  function changes() {
    if (!look.changes.length) return [];
    const most = look.changes.map((moved, index) => ({ moved, layer: look.layers[Math.floor(index / look.heads)].index, head: index % look.heads }))
      .sort((a, b) => b.moved - a.moved).slice(0, 5);
    return [html("p", {}, t`Heads that attend most differently in the second text (share of the weight that moves):`),
      html("p", { class: "chips" }, ...most.map(({ moved, layer, head }) => button(`${layer}.${head} ${share(moved)}`, () => { follow({ layer, head }); writeAddress(); })))];
  }

  function writer() {
    const heat = html("input", { type: "range", min: 0.1, max: 2, step: 0.1, value: state.temperature, "aria-label": t`Temperature` }), shownHeat = html("output", {}, state.temperature.toFixed(1));
    heat.addEventListener("input", () => { state.temperature = Number(heat.value); shownHeat.textContent = state.temperature.toFixed(1); });
    heat.addEventListener("change", () => { writeAddress(); predict(); });
    const next = button(t`Write a token`, async () => {
      await pending;
      const { id, token, error } = await channel.ask("draw", { position: lastPosition(), temperature: state.temperature, seed: Math.floor(Math.random() * 2 ** 31) });
      if (!error) write(id, token);
    }, { class: "write" });
    const shorter = button(t`Step back`, () => { keep(); state.written = state.written.slice(0, -1); state.position = null; renew(); }, state.written.length ? {} : { disabled: "" });
    return html("div", { class: "writer" }, next, shorter, html("label", {}, t`Temperature`, " ", heat, " ", shownHeat));
  }

  const pictures = data.reads && !data.sound ? [pictureInput(root, channel, (picture) => { Object.assign(state, { picture, written: [], position: null }); renew(); }, failed)] : [];
  const readsText = data.reads !== "images";
  typed.hidden = !readsText;

  const timeline = data.sound ? soundTimeline(data.sound, (position) => { Object.assign(state, { token: position, position }); view.follow({ token: position }); predict(); askSound(); }) : null;
  let transcribed = "";
  /** What the sound shows of the open head, and what the model writes of it. */
  async function askSound() {
    if (!timeline) return;
    const number = asked, { layer, head, position } = state, kind = look.layers.find(({ index }) => index === layer)?.kind;
    const { words = null, error } = await channel.ask("times", { layer, head });
    if (number !== asked || layer !== state.layer || head !== state.head) return;
    if (error) failed(error);
    timeline.showWords(words);
    timeline.showWeights(kind === "cross" ? await row(layer, head, position, "from") : null);
    const heads = JSON.stringify([state.removed, state.by]);
    if (heads === transcribed) return;
    timeline.wait();
    const written = await channel.ask("transcribe", {});
    if (number !== asked) return;
    timeline.ready();
    if (written.error) failed(written.error);
    else { transcribed = heads; timeline.showTranscripts(written); }
  }

  function buildTexts() {
    if (typed.value !== state.text) typed.value = state.text;
    if (second.value !== (state.other ?? "")) second.value = state.other ?? "";
    if (target.value !== (state.target ?? "")) target.value = state.target ?? "";
    const more = state.other === null
      ? button(t`Compare with a second text`, () => { keep(); state.other = state.text; buildTexts(); renew(); second.focus(); })
      : button(t`Leave out the second text`, () => { keep(); state.other = null; state.shows = "text"; if (state.by === "other") { state.by = "zero"; state.removed = []; } buildTexts(); renew(); });
    const chat = html("input", { type: "checkbox", ...(state.chat ? { checked: "" } : {}) });
    chat.addEventListener("change", () => { keep(); state.chat = chat.checked; state.position = null; renew(); });
    const asked = data.chats ? [html("label", { class: "muted" }, chat, " ", t`As a chat, by the model's template`)] : [];
    texts.replaceChildren(...pictures, ...(timeline ? [timeline.element] : []), typed, ...asked, ...(data.decodes ? [target] : []), ...(state.other === null ? [] : [second]), ...(readsText && !timeline ? [more] : []));
  }
  texts.addEventListener("dragover", (event) => { if (event.dataTransfer.types.includes("text/x-attnscope-head") && state.other !== null) event.preventDefault(); });
  texts.addEventListener("drop", (event) => {
    const head = event.dataTransfer.getData("text/x-attnscope-head").match(/^(\d+)\.(\d+)$/);
    if (!head || state.other === null) return;
    event.preventDefault();
    patch(Number(head[1]), Number(head[2]));
  });

  /** The heads that are taken out, and what can be done with the one that is open. */
  function buildHeads() {
    const name = nameOf([state.layer, state.head]), out = isRemoved(state.layer, state.head);
    const select = (label, choices, value, set) => {
      const made = html("select", { "aria-label": label }, ...choices.map(([key, text]) => html("option", key === value ? { value: key, selected: "" } : { value: key }, text)));
      made.addEventListener("change", () => set(made.value));
      return html("label", {}, label, " ", made);
    };
    const how = Object.entries(HOW).filter(([key]) => key !== "other" || state.other !== null).map(([key, say]) => [key, say()]);
    const parts = [button(out ? t`Put head ${name} back` : t`Take head ${name} out`, () => toggle(state.layer, state.head))];
    if (state.other !== null && look?.aligned) parts.push(button(t`Patch head ${name} from the second text`, () => patch(state.layer, state.head)));
    if (state.removed.length) {
      parts.push(html("span", { class: "chips" }, state.by === "other" ? t`Patched:` : t`Out:`, ...state.removed.map((one) => button(`${nameOf(one)} ×`, () => toggle(...one), { title: t`Put head ${nameOf(one)} back` }))),
        select(t`replaced by`, how, state.by, (by) => { keep(); state.by = by; renew(); }),
        button(t`Put all back`, () => { keep(); state.removed = []; renew(); }));
    }
    if (look?.aligned) parts.push(select(t`Maps of`, Object.entries(SHOWN).map(([key, say]) => [key, say()]), state.shows, (shows) => { state.shows = shows; writeAddress(); show(); }));
    else if (state.other !== null && look?.other) parts.push(html("span", { class: "muted" }, t`The texts have ${look.texts.text.tokens.length} and ${look.other.text.tokens.length} tokens: with equally many, their heads can be compared and patched.`));
    heads.replaceChildren(...parts);
  }

  function buildTools() {
    const copy = (kind, name) => button(name, async () => {
      const answer = await channel.ask("code", { layer: state.layer, head: state.head, position: state.position ?? 0, mask: state.mask });
      const code = answer[kind];
      told.textContent = code ? t`Copied.` : answer.error ?? t`No command does this: copy it as Python.`;
      if (code) await copyText(code);
    });
    tools.replaceChildren(told, back, copy("python", t`Copy as Python`), copy("command", t`Copy as command`));
  }

  function writeAddress() {
    if (data.embedded) return;
    const { text, target: read, other, removed, by, written, shows, layer, head, token, position, temperature, mask, chat } = state;
    history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify({ text, target: read, other, removed, by, written, shows, layer, head, token, position, temperature, mask, chat }))}`);
  }

  buildTools();
  buildTexts();
  renew();
  const follow = (choice) => {
    Object.assign(state, choice);
    buildHeads();
    view?.follow(choice);
  };
  return { follow, lost: (words) => { status.hidden = false; status.textContent = words; root.classList.add("lost"); } };
}

/** Copy a text, also where a page may not use the clipboard. */
async function copyText(text) {
  try { await navigator.clipboard.writeText(text); } catch {
    const area = html("textarea", {});
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** The state in an address, of which only what has the right form is taken. */
function stateOfAddress() {
  let found;
  try { found = JSON.parse(decodeURIComponent(location.hash.slice(1))); } catch { return {}; }
  const isText = (value) => value === null || typeof value === "string", isNumber = (value) => Number.isInteger(value) && value >= 0, isNumberOrNull = (value) => value === null || isNumber(value);
  const forms = {
    text: (value) => typeof value === "string", target: isText, other: isText, by: (value) => value in HOW, shows: (value) => value in SHOWN, layer: isNumber, head: isNumber,
    token: isNumberOrNull, position: isNumberOrNull, mask: (value) => typeof value === "boolean", chat: (value) => typeof value === "boolean", temperature: (value) => value > 0 && value <= 100,
    removed: (value) => Array.isArray(value) && value.every((one) => Array.isArray(one) && one.length === 2 && one.every(isNumber)),
    written: (value) => Array.isArray(value) && value.every((one) => one && isNumber(one.id) && typeof one.token === "string"),
  };
  return Object.fromEntries(Object.entries(found ?? {}).filter(([name, value]) => forms[name]?.(value)));
}

/** A live view of a page whose server answers. */
function talkToServer(root, data) {
  const waiting = new Map(), socket = new WebSocket(`ws://${location.host}/channel${location.search}`);
  let number = 0, shown = null;
  socket.binaryType = "arraybuffer";
  const opened = new Promise((resolve) => { socket.addEventListener("open", resolve); });
  socket.addEventListener("message", ({ data: frame }) => {
    const size = new DataView(frame).getUint32(0, true), answer = JSON.parse(new TextDecoder().decode(new Uint8Array(frame, 4, size)));
    let at = 4 + size;
    answer.bytes = answer.sizes.map((length) => new Uint8Array(frame, (at += length) - length, length));
    waiting.get(answer.number)?.(answer);
    waiting.delete(answer.number);
  });
  socket.addEventListener("close", () => shown?.lost(t`The model has stopped answering. Run attnscope view again with the address of this page as its text: it opens where this page is.`));
  const channel = {
    async ask(ask, question) {
      const mine = ++number;
      await opened;
      return new Promise((resolve) => {
        waiting.set(mine, resolve);
        socket.send(JSON.stringify({ number: mine, ask, question }));
      });
    },
  };
  shown = mountLive(root, channel, { ...data, start: { ...data.start, ...stateOfAddress() } });
}
