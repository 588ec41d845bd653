// The lesson on heads: its model runs whole in this page, on sentences of its words.
const MODELS = Object.fromEntries(Object.entries(lesson.numbers.models).map(([heads, model]) => [heads, { ...model, tensors: unpack(model) }]));
const KNOWN = lesson.numbers.vocabulary;
const TIRED = "The animal didn't cross the street because it was too tired.";
const EXAMPLES = [TIRED, "The animal didn't cross the street because it was too wide.", "The trophy didn't fit into the suitcase because it was too big.", "The trophy didn't fit into the suitcase because it was too small."];
const HUES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];
const chosen = { heads: "4", sentence: TIRED, query: 8, layer: 1, head: 1, removed: {}, run: null };

/** Run the model on a sentence; of one with unknown words only these are returned. */
function read(sentence) {
  const { names, ids, unknown } = tokenise(sentence, KNOWN);
  if (unknown.length || ids.length < 3 || ids.length - 2 > lesson.numbers.longest) return { unknown, length: ids.length - 2 };
  const moved = chosen.run?.names.length !== names.length || chosen.run.names.some((name, i) => name !== names[i]);
  chosen.sentence = sentence;
  chosen.run = { names, ids, ...encode(MODELS[chosen.heads], ids, { removed: chosen.removed }) };
  if (moved) chosen.query = names.includes("it") ? names.indexOf("it") : Math.min(chosen.query, names.length - 2);
  return { unknown, length: ids.length - 2 };
}
function again() {
  read(chosen.sentence);
  redraw();
}
const headNow = () => chosen.run.layers[chosen.layer].each[chosen.head];
const nameOf = (layer, head) => `${layer}.${head}`;
const percent = (weight) => `${decimal(100 * weight, weight > 0.0995 && (weight < 0.985 || weight > 0.9995) ? 0 : 1)}%`;
function model(place) {
  choice(place, { name: `heads-${place.parentNode.dataset.draw}`, label: t`Heads in a layer`, options: [["4", "4"], ["1", "1"]], value: chosen.heads }, (heads) => {
    Object.assign(chosen, { heads, removed: {}, head: heads === "1" ? 0 : 1 });
    again();
  });
  return () => { for (const input of place.querySelectorAll(`[name^="heads-"]`)) input.checked = input.value === chosen.heads; };
}

/** A word of a drawing that chooses itself as the query. */
function word(name, at, { x, y, anchor = "middle", strength = 0 }) {
  const picked = at === chosen.query, text = svg("text", { x, y, "text-anchor": anchor, class: picked ? "word query" : "word" }, name);
  if (strength > 0.15) text.classList.add("key");
  const node = svg("g", { role: "button", tabindex: 0, "aria-pressed": String(picked), "aria-label": t`Query ${name}, word ${at}`, "data-word": at }, text);
  const pick = () => { chosen.query = at; redraw(); };
  node.addEventListener("click", pick);
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    pick();
  });
  return node;
}

/** Arcs from the query to every word, as wide as its weight: above a line of words, or at the right of a column of them. */
function arcs(place, names, weights) {
  const paper = html("canvas").getContext("2d");
  paper.font = `600 14px ${getComputedStyle(home).fontFamily}`;
  const widths = names.map((name) => paper.measureText(name).width), wide = widthOf(place, 900);
  const across = sum(widths) + 7 * names.length < wide, from = chosen.query;
  const picture = svg("svg", { class: "arcs", role: "group", "aria-label": t`Arcs from “${names[from]}” to all words` });
  const spots = [];
  if (across) {
    const gap = (wide - sum(widths)) / names.length;
    names.forEach((_, i) => spots.push(sum(widths.slice(0, i)) + gap * (i + 0.5) + widths[i] / 2));
  } else names.forEach((_, i) => spots.push(20 + 25 * i));
  const most = Math.max(...spots.map((spot) => Math.abs(spot - spots[from]))), room = across ? 128 : wide - Math.max(...widths) - 110;
  const height = across ? room + 40 : 25 * names.length + 20, left = Math.max(...widths) + 12;
  picture.setAttribute("viewBox", `0 0 ${wide} ${height}`);
  const order = weights.map((_, i) => i).sort((a, b) => weights[a] - weights[b]);
  for (const i of order) {
    const bulge = room * (0.2 + 0.8 * Math.sqrt(Math.abs(spots[i] - spots[from]) / (most || 1))), size = Math.max(0.4, 11 * weights[i]);
    const [a, b] = i === from ? [spots[i] - 9, spots[i] + 9] : [spots[from], spots[i]];
    const path = across ? `M${a} ${room + 12}C${a} ${room + 12 - bulge},${b} ${room + 12 - bulge},${b} ${room + 12}` : `M${left} ${a - 4}C${left + bulge} ${a - 4},${left + bulge} ${b - 4},${left} ${b - 4}`;
    picture.append(svg("path", { d: path, class: "arc", "stroke-width": size, opacity: 0.18 + 0.82 * Math.sqrt(weights[i]), "data-weight": weights[i] }));
  }
  names.forEach((name, i) => picture.append(across ? word(name, i, { x: spots[i], y: room + 31, strength: weights[i] }) : word(name, i, { x: left - 8, y: spots[i], anchor: "end", strength: weights[i] }),
    ...(weights[i] > 0.045 ? [svg("text", { class: "share", ...(across ? { x: spots[i], y: room + 8, "text-anchor": "middle" } : { x: wide - 4, y: spots[i], "text-anchor": "end" }) }, across && i === from ? "" : percent(weights[i]))] : [])));
  replacedPicture(place, picture);
}
/** Replace a drawing with words, and keep the focus on the word that has it. */
function replacedPicture(place, made) {
  const at = place.contains(document.activeElement) ? document.activeElement.dataset.word : undefined;
  place.replaceChildren(made);
  if (at !== undefined) made.querySelector(`[data-word="${at}"]`)?.focus();
}

/** All rows of a head as lines from words at the left to words at the right, those of the query strong. */
function links(names, weights, colour) {
  const step = 15, height = step * names.length + 6, y = (i) => step * i + 14;
  const picture = svg("svg", { viewBox: `0 0 170 ${height}`, class: "links", "aria-hidden": "true" });
  weights.forEach((line, i) => line.forEach((weight, j) => {
    const strong = i === chosen.query;
    if (weight > 0.02) picture.append(svg("line", { x1: 66, x2: 104, y1: y(i) - 4, y2: y(j) - 4, stroke: strong ? colour : "var(--muted)", "stroke-width": strong ? 1 + 3 * weight : 0.8, opacity: strong ? 0.3 + 0.7 * weight : 0.28 * weight }));
  }));
  names.forEach((name, i) => picture.append(svg("text", { x: 62, y: y(i), "text-anchor": "end", class: i === chosen.query ? "strong" : "" }, name), svg("text", { x: 108, y: y(i), class: weights[chosen.query][i] > 0.15 ? "strong" : "" }, name)));
  return picture;
}
/** The matrix of a head: a row for each query, that of the query at `query` framed. */
function map(names, weights, query = chosen.query) {
  const n = names.length, cell = 168 / n, colour = weightRamp();
  const picture = svg("svg", { viewBox: "-1 -1 170 170", class: "map", "aria-hidden": "true" });
  weights.forEach((line, i) => line.forEach((weight, j) => picture.append(svg("rect", { x: cell * j, y: cell * i, width: cell - 0.5, height: cell - 0.5, fill: css(colour(weight)) }, svg("title", {}, `${names[i]} → ${names[j]}: ${decimal(weight, 3)}`)))));
  picture.append(svg("rect", { x: -0.5, y: cell * query - 0.5, width: 169, height: cell + 0.5, fill: "none", stroke: "var(--mark)", "stroke-width": 1.5 }));
  return picture;
}

draw("it", (box) => {
  const form = html("form", { class: "sentence" }), input = html("input", { type: "text", name: "sentence", value: chosen.sentence, autocomplete: "off", spellcheck: "false", "aria-label": t`Sentence`, lang: "en" });
  form.append(input);
  form.addEventListener("submit", (event) => event.preventDefault());
  const status = html("p", { role: "status", class: "status" });
  const switches = row(box, "moves"), shown = model(switches);
  const examples = row(box, "tries");
  for (const example of EXAMPLES) button(examples, example.replace(/^.* (because .*)\.$/, "… $1").replace("…", example.split(" ")[1] === "animal" ? "animal, street:" : "trophy, suitcase:"), () => { input.value = example; take(); }).lang = "en";
  box.append(form, status);
  const picture = figure(box, ""), caption = box.lastChild.firstChild;
  const guesses = figure(box, t`The noun that the model puts in place of the query`), says = html("p", { class: "say", "data-says": "it" });
  const words = html("details", { class: "vocabulary" }, html("summary", {}, t`The ${Object.keys(KNOWN).length - 2} words that the model knows`), html("p", { lang: "en", translate: "no" }, Object.keys(KNOWN).filter((name) => name.length > 1).join("  ")));
  box.append(says, words);
  function take() {
    const { unknown, length } = read(input.value);
    words.open ||= unknown.length > 0;
    const names = [...new Set(unknown)].map((name) => `“${name}”`).join(", ");
    status.textContent = unknown.length ? t`The model does not know ${names}. Below: its answer to the last sentence of words that it knows.`
      : !length ? t`The sentence has no words. Below: the answer to the one before.`
      : length > lesson.numbers.longest ? t`The sentence has ${length} words; the model reads at most ${lesson.numbers.longest}.` : "";
    input.setAttribute("aria-invalid", String(Boolean(status.textContent)));
    redraw();
  }
  input.addEventListener("input", take);
  return () => {
    shown();
    const { names, probabilities } = chosen.run, weights = headNow().weights[chosen.query];
    caption.textContent = t`Head ${nameOf(chosen.layer, chosen.head)}: where “${names[chosen.query]}” attends. Click another word to follow it.`;
    arcs(picture, names, weights);
    const order = ranked(probabilities[chosen.query]).slice(0, 4), labels = order.map((id) => lesson.numbers.names[id]);
    bars(guesses, { values: order.map((id) => probabilities[chosen.query][id]), labels, marked: (i) => i === 0, label: t`Predicted word`, text: (p) => decimal(p, 3) });
    const most = ranked(weights)[0];
    says.textContent = t`“${names[chosen.query]}” attends to “${names[most]}” with the weight ${decimal(weights[most])} in this head. The model reads it as “${labels[0]}” (probability ${percent(probabilities[chosen.query][order[0]])}).`;
  };
});

draw("every", (box) => {
  let view = "map";
  const controls = row(box, "moves"), shown = model(controls);
  choice(controls, { name: "view", label: t`Draw as`, options: [["map", t`matrices`], ["lines", t`lines`]], value: view }, (value) => { view = value; update(); });
  button(controls, t`All heads on`, () => { chosen.removed = {}; again(); });
  const place = html("div", { class: "every" }), says = html("p", { class: "say", "data-says": "every" });
  box.append(place, says);
  function update() {
    shown();
    const { names, layers, probabilities } = chosen.run, last = chosen.query;
    const focused = document.activeElement?.dataset.key;
    place.replaceChildren(...layers.map(({ each }, layer) => html("div", { class: "layer", role: "group", "aria-label": t`Layer ${layer}` }, html("h3", {}, t`Layer ${layer}`),
      html("div", { class: "cards" }, ...each.map(({ weights }, head) => {
        const best = ranked(weights[last])[0], off = chosen.removed[layer]?.includes(head) ?? false;
        const pick = html("button", { type: "button", class: "card-head", "aria-pressed": String(layer === chosen.layer && head === chosen.head), "data-key": `pick-${layer}.${head}` },
          html("b", {}, t`Head ${nameOf(layer, head)}`), view === "map" ? map(names, weights) : links(names, weights, HUES[head]),
          html("span", { translate: "no" }, `${names[last]} → ${names[best]} ${percent(weights[last][best])}`));
        pick.addEventListener("click", () => { Object.assign(chosen, { layer, head }); redraw(); });
        const slot = html("div", { class: off ? "slot off" : "slot" }, pick);
        const toggle = checkbox(slot, { name: `off-${layer}.${head}`, label: t`remove`, value: off }, (on) => {
          const others = (chosen.removed[layer] ?? []).filter((one) => one !== head);
          chosen.removed[layer] = on ? [...others, head] : others;
          again();
        });
        toggle.dataset.key = `off-${layer}.${head}`;
        return slot;
      })))));
    if (focused) place.querySelector(`[data-key="${focused}"]`)?.focus();
    const order = ranked(probabilities[last]), count = sum(Object.values(chosen.removed).map((heads) => heads.length));
    const answer = lesson.numbers.names[order[0]], share = percent(probabilities[last][order[0]]);
    says.textContent = count === 1 ? t`Without this head the model reads “${names[last]}” as “${answer}” (probability ${share}).` : count ? t`Without these heads the model reads “${names[last]}” as “${answer}” (probability ${share}).` : t`With all heads the model reads “${names[last]}” as “${answer}” (probability ${share}).`;
  }
  return update;
});

/** Vectors as strips of cells, blue below and orange above 0. Rows: {name, values, colour}; `parts` cells between gaps. */
function strips(place, rows, { parts, most, label }) {
  const width = widthOf(place, 760), left = 112, cell = (width - left - 4) / 64, colour = signedRamp();
  const picture = svg("svg", { viewBox: `0 0 ${width} ${rows.length * 25 + 4}`, class: "strips", role: "img", "aria-label": label });
  rows.forEach(({ name, values, start = 0, colour: hue, strong }, i) => {
    picture.append(svg("text", { x: left - 8, y: i * 25 + 17, "text-anchor": "end", class: strong ? "strong" : "" }, name));
    values.forEach((value, j) => picture.append(svg("rect", { x: left + cell * (start + j), y: i * 25 + 4, width: Math.max(1, cell - 0.4), height: 18, fill: css(colour((Math.max(-1, Math.min(1, value / most)) + 1) / 2)) }, svg("title", {}, decimal(value, 4)))));
    const pieces = hue ? [[start, values.length, hue]] : (parts && strong === "parts" ? HUES.slice(0, 64 / parts).map((one, k) => [k * parts, parts, one]) : []);
    for (const [from, count, one] of pieces) picture.append(svg("rect", { x: left + cell * from, y: i * 25 + 3, width: cell * count - 1, height: 20, fill: "none", stroke: one, "stroke-width": 2, rx: 2 }));
  });
  place.replaceChildren(picture);
}

draw("views", (box) => {
  const { views, order } = lesson.numbers, kinds = { meaning: t`meaning: “it” → the noun that it stands for`, syntax: t`syntax: the subject “it” → its predicate, such as “tired”`, order: t`order: each word → the word before` };
  let kind = "meaning";
  const means = new Map(); // over all sentences, by number of heads and kind
  function meansOf(heads) {
    if (!means.has(heads)) {
      const each = views.map(({ sentence, it, noun, reason }) => {
        const { ids } = tokenise(sentence, KNOWN), every = encode(MODELS[heads], ids).layers.flatMap((one) => one.each.map(({ weights }) => weights));
        const before = ids.map((_, i) => i).slice(1);
        return { n: ids.length, meaning: every.map((w) => w[it][noun]), syntax: every.map((w) => w[it][reason]), order: every.map((w) => mean(before.map((i) => w[i][i - 1]))) };
      });
      means.set(heads, { uniform: mean(each.map(({ n }) => 1 / n)), ...Object.fromEntries(Object.keys(kinds).map((one) => [one, transpose(each.map((line) => line[one])).map(mean)])) });
    }
    return means.get(heads);
  }
  const controls = row(box, "moves"), shown = model(controls);
  choice(controls, { name: "view-of", label: t`Relation`, options: Object.entries(kinds), value: kind }, (one) => { kind = one; update(); });
  const place = figure(box, t`Mean weight in ${views.length} held-out sentences`), says = html("p", { class: "say", "data-says": "views" });
  box.append(says);
  function update() {
    shown();
    const found = meansOf(chosen.heads), perLayer = Number(chosen.heads), names = found[kind].map((_, i) => t`Head ${nameOf(Math.floor(i / perLayer), i % perLayer)}`);
    const more = kind === "order" ? [[t`bundled language model, head ${order.head}`, order.share]] : [];
    const values = [...found[kind], ...more.map(([, share]) => share), found.uniform];
    bars(place, { values, labels: [...names, ...more.map(([name]) => name), t`equal weights`], marked: (i) => values[i] === greatest(values), colour: (i) => (i === values.length - 1 ? "var(--muted)" : "var(--w)"), label: t`Mean weight by head` });
    const best = found[kind].indexOf(greatest(found[kind]));
    says.dataset.value = found[kind][best];
    says.textContent = kind === "order" ? t`No head of this model attends to the word before: its sentences do not ask for that. Head ${order.head} of the bundled language model does so with ${percent(order.share)} of its weight.`
      : t`${names[best]} has ${percent(found[kind][best])} of the weight of “it” on that word; equal weights would have ${percent(found.uniform)}.`;
  }
  return update;
});

draw("english", (box) => {
  const { layer, heads, measured, sentences } = lesson.numbers.english, PAUSES = new Set(["[CLS]", "[SEP]"]);
  const kinds = { order: t`order: the word before`, case: t`syntax: article and preposition → their noun`, obj: t`syntax: object → its verb`, coreference: t`meaning: a name for the same thing` };
  const starts = ["picture", "instrument", "window", "table"]; // the word that asks first
  let at = 1, query = 0;
  const ask = () => { query = sentences[at].tokens.lastIndexOf(starts[at]); };
  const weightsOf = sentences.map(({ arrays }) => { const of = unpack(arrays); return Object.fromEntries(Object.entries(heads).map(([kind, head]) => [kind, attention(of[`q${head}`], of[`k${head}`], of[`k${head}`]).weights])); });
  const controls = row(box, "moves");
  slider(controls, { name: "english-sentence", label: t`Sentence`, low: 1, high: sentences.length, step: 1, value: at + 1, show: String }, (n) => { at = n - 1; ask(); asker.max = sentences[at].tokens.length - 2; asker.value = query; asker.told(); update(); });
  ask();
  const asker = slider(controls, { name: "english-word", label: t`Word that asks`, low: 1, high: sentences[at].tokens.length - 2, step: 1, value: query, show: (i) => sentences[at].tokens[i] }, (i) => { query = i; update(); });
  const sentence = html("p", { class: "weighed", lang: "en", translate: "no" }), maps = html("div", { class: "cards" });
  box.append(sentence, maps);
  const scores = figure(box, t`Right links (order: weight on the word before): the head, always the same distance, an untrained copy`), says = html("p", { class: "say", "data-says": "english" });
  box.append(says);
  function update() {
    const { tokens } = sentences[at], best = {};
    maps.replaceChildren(...Object.entries(kinds).map(([kind, name]) => {
      const weights = weightsOf[at][kind], line = weights[query].map((w, j) => (PAUSES.has(tokens[j]) ? 0 : w));
      best[kind] = greatest(line) >= 0.1 ? ranked(line)[0] : 0; // else it pauses, at [CLS]
      return html("div", { class: "card-head", "data-kind": kind, "data-weight": weights[query][best[kind]] }, html("b", {}, t`Head ${nameOf(layer, heads[kind])}`), html("small", {}, name), map(tokens, weights, query), html("span", { translate: "no" }, `${tokens[query]} → ${tokens[best[kind]]} ${percent(weights[query][best[kind]])}`));
    }));
    sentence.replaceChildren(...tokens.slice(1, -1).map((token, i) => html("span", i + 1 === query ? { class: "it" } : {}, token)));
    const rows = ["case", "obj", "coreference", "order"].flatMap((kind) => [[kinds[kind], measured[kind].score, "var(--w)"], ...(measured[kind].offset === null ? [] : [[t`the same distance`, measured[kind].offset, "var(--muted)"]]), [t`untrained`, measured[kind].untrained, "var(--line)"]]);
    bars(scores, { values: rows.map(([, value]) => value), labels: rows.map(([name]) => name), colour: (i) => rows[i][2], marked: (i) => rows[i][2] === "var(--w)", label: t`Right links`, text: percent });
    says.dataset.value = weightsOf[at].coreference[query][best.coreference];
    const words = Object.fromEntries(Object.entries(best).map(([kind, j]) => [kind, tokens[j]]));
    says.textContent = t`“${tokens[query]}” asks four questions at once. The answers, with [CLS] where a head pauses: head ${nameOf(layer, heads.order)} “${words.order}”, head ${nameOf(layer, heads.case)} “${words.case}”, head ${nameOf(layer, heads.obj)} “${words.obj}”, head ${nameOf(layer, heads.coreference)} “${words.coreference}”. Head ${nameOf(layer, heads.order)} has ${percent(measured.order.score)} of its weight on the word before, over other texts.`;
  }
  return update;
});

draw("concat", (box) => {
  const controls = row(box, "moves"), shown = model(controls);
  choice(controls, { name: "layer", label: t`Layer`, options: [[0, "0"], [1, "1"]], value: chosen.layer }, (layer) => { chosen.layer = layer; redraw(); });
  const before = figure(box, t`The output of each head, side by side: concat`), after = figure(box, t`Through W_O: each head writes into all numbers of the word, and the parts are added`);
  const says = html("p", { class: "say", "data-says": "concat" });
  box.append(says);
  return () => {
    shown();
    for (const input of controls.querySelectorAll(`[name="layer"]`)) input.checked = Number(input.value) === chosen.layer;
    const { each, concat, output } = chosen.run.layers[chosen.layer], at = chosen.query, width = 64 / each.length;
    const bias = MODELS[chosen.heads].tensors[`layers.${chosen.layer}.self_attention.out_proj.bias`];
    const most = greatest(concat[at].map(Math.abs)), top = greatest(output[at].map(Math.abs));
    strips(before, [...each.map((one, head) => ({ name: t`o of head ${head}`, values: one.output[at], start: head * width, colour: HUES[head] })), { name: "concat", values: concat[at], strong: "parts" }], { parts: width, most, label: t`Outputs of the heads and their concatenation` });
    strips(after, [...each.map((one, head) => ({ name: t`from head ${head}`, values: one.written[at], colour: HUES[head] })), { name: t`bias b_O`, values: bias }, { name: t`sum`, values: output[at], strong: "sum" }], { parts: width, most: top, label: t`Parts of the heads in the output of the layer, and their sum` });
    const total = bias.map((b, i) => b + sum(each.map(({ written }) => written[at][i])));
    const apart = greatest(total.map((value, i) => Math.abs(value - output[at][i]))), sizes = each.map(({ written }) => Math.hypot(...written[at]));
    const strongest = sizes.indexOf(greatest(sizes));
    says.textContent = t`For “${chosen.run.names[at]}”, head ${strongest} writes most (length ${decimal(sizes[strongest])}). The parts add up to concat · W_O + b_O: the largest difference is ${apart < 1e-12 ? "0" : apart.toExponential(0)}.`;
  };
});

draw("step", (box) => {
  const full = 16;
  let window = full;
  const controls = row(box, "moves");
  slider(controls, { name: "window", label: t`Largest distance that a word attends over`, low: 1, high: full, step: 1, value: full, show: (x) => (x === full ? t`any` : String(x)) }, (x) => { window = x; update(); });
  const place = figure(box, t`How much each word's vector changes when the first word changes`), says = html("p", { class: "say", "data-says": "step" });
  box.append(says);
  function update() {
    const { names, ids } = chosen.run, options = { window: window === full ? Infinity : window, removed: chosen.removed };
    const other = names[1] === "Because" ? "The" : "Because", changed = ids.with(1, KNOWN[other]);
    const [a, b] = [ids, changed].map((sequence) => encode(MODELS[chosen.heads], sequence, options).states);
    const shares = names.map((_, i) => a.map((layer, k) => Math.hypot(...layer[i].map((x, j) => x - b[k][i][j])) / Math.hypot(...layer[i])));
    heat(place, { values: shares, rows: names, columns: [t`words`, t`after layer 0`, t`after layer 1`], most: 0.6, digits: 3, label: t`Relative change` });
    const last = names.length - 1, far = last - 1, needed = window === full ? 1 : Math.ceil(far / window);
    const first = shares[last].findIndex((value) => value > 0);
    says.textContent = first < 0 ? t`“${names[1]}” became “${other}”, ${far} words before the last. With this window the change needs ${needed} layers to get there. This model has 2, so the last word does not notice. A recurrent network needs ${far} steps.`
      : t`“${names[1]}” became “${other}”, ${far} words before the last. The last word notices it in layer ${first - 1}. A recurrent network needs ${far} steps.`;
  }
  return update;
});

draw("picture", (box) => {
  const { model: packed, names, pictures, measured } = lesson.numbers.digits, digits = { ...packed, tensors: unpack(packed) };
  const id = Object.fromEntries(names.map((name, i) => [name, i])), SIZE = 8, numbers = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
  let pixels = structuredClone(pictures[3]), query = 0, layer = 1;
  const controls = row(box, "tries");
  pictures.forEach((picture, digit) => button(controls, String(digit), () => { pixels = structuredClone(picture); update(); }));
  const choices = row(box, "moves");
  choice(choices, { name: "picture-layer", label: t`Layer`, options: [[0, "0"], [1, "1"]], value: layer }, (one) => { layer = one; update(); });
  const asker = slider(choices, { name: "patch", label: t`Who asks`, low: 0, high: 16, step: 1, value: 0, show: (x) => (x ? t`patch ${x}` : t`the answer`) }, (x) => { query = x; update(); });
  const parts = row(box), pad = figure(parts, t`Draw: click pixels`), maps = figure(parts, t`Weights of each head over the 16 patches`), guesses = figure(parts, t`The digit, according to the model`);
  const says = html("p", { class: "say", "data-says": "picture" });
  box.append(says);
  /** The word of a patch: its four pixels as a number. */
  const patch = (p) => { const y = 2 * Math.floor(p / 4), x = 2 * (p % 4); return `p${8 * pixels[y][x] + 4 * pixels[y][x + 1] + 2 * pixels[y + 1][x] + pixels[y + 1][x + 1]}`; };
  const square = (cells, size, fill, extra = {}) => {
    const picture = svg("svg", { viewBox: `0 0 ${size * 12} ${size * 12}`, class: "pixels", ...extra });
    for (let y = 0; y < size; y++) for (let x = 0; x < size; x++) picture.append(svg("rect", { x: 12 * x, y: 12 * y, width: 11.4, height: 11.4, fill: fill(cells[y][x]) }));
    return picture;
  };
  function update() {
    const words = ["digit", ...Array.from({ length: 16 }, (_, p) => patch(p))], ids = [1, ...words.map((word) => id[word]), 2];
    const { layers, probabilities } = encode(digits, ids), p = numbers.map((name) => probabilities[1][id[name]]), best = p.indexOf(greatest(p));
    const drawn = square(pixels, SIZE, (on) => (on ? "var(--text)" : "var(--soft)"), { role: "group", "aria-label": t`Pixels` });
    drawn.querySelectorAll("rect").forEach((rect, i) => {
      const y = Math.floor(i / SIZE), x = i % SIZE, flip = () => { pixels[y][x] = 1 - pixels[y][x]; update(); pad.querySelectorAll("rect")[i].focus(); };
      for (const [key, value] of Object.entries({ role: "button", tabindex: 0, "aria-pressed": String(Boolean(pixels[y][x])), "aria-label": t`Pixel, row ${y + 1}, column ${x + 1}` })) rect.setAttribute(key, value);
      rect.addEventListener("click", flip);
      rect.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); flip(); } });
    });
    for (const k of [1, 2, 3]) drawn.append(svg("path", { d: `M${24 * k - 0.3} 0V96M0 ${24 * k - 0.3}H96`, stroke: "var(--mark)", "stroke-width": 0.6, fill: "none" }));
    pad.replaceChildren(drawn);
    const rows = layers[layer].each.map(({ weights }) => weights[query + 1].slice(2, 18)), top = greatest(rows.flat()), colour = weightRamp();
    maps.replaceChildren(html("div", { class: "pixel-maps" }, ...rows.map((row, head) => html("div", { "data-weights": row.join(" ") }, square([0, 4, 8, 12].map((at) => row.slice(at, at + 4)), 4, (w) => css(colour(w / top)), { role: "img", "aria-label": t`Weights of head ${nameOf(layer, head)}` }), html("small", {}, `${nameOf(layer, head)}`)))));
    const order = ranked(p).slice(0, 4);
    bars(guesses, { values: order.map((i) => p[i]), labels: order.map(String), marked: (i) => i === 0, label: t`Digits`, text: (x) => decimal(x, 3) });
    says.dataset.value = p[best];
    const whose = query ? t`patch ${query}` : t`the answer`;
    says.textContent = t`The model reads ${best} (probability ${percent(p[best])}). Dark patches are those that ${whose} attends to. Of ${measured.pictures} held-out pictures it reads ${measured.right} right.`;
  }
  asker.told();
  return update;
});

draw("sound", (box) => {
  const { model: name, seconds, words, tokens, heads, spectrogram } = lesson.numbers.sound, frames = spectrogram[0].length, NEAR = 0.1;
  const arrays = heads.map((head) => unpack(head.arrays));
  /** Weights of every token over the frames, and the part after the end of the sound. */
  const weightsOf = arrays.map(({ q, k, rest }) => matmul(q, transpose(k)).map((line, i) => softmax([...line.map((x) => x / Math.sqrt(q[0].length)), rest[i]])));
  let head = 0, at = tokens.findIndex(({ text }) => text === "lamps");
  const controls = row(box, "moves");
  choice(controls, { name: "sound-head", label: t`Head`, options: heads.map((one, i) => [i, one.name]), value: head }, (i) => { head = i; update(); });
  slider(controls, { name: "sound-word", label: t`Word that the model writes`, low: 0, high: tokens.length - 1, step: 1, value: at, show: (i) => `“${words[tokens[i].word].word}”` }, (i) => { at = i; update(); });
  const place = figure(box, t`The sound: frames of 20 ms from left to right, high tones at the top; framed: the time of the word`, { wide: true }), line = figure(box, t`Weight of the word over the frames`, { wide: true });
  const says = html("p", { class: "say", "data-says": "sound" });
  box.append(says);
  const inside = (weights, { begin, end }) => sum(weights.slice(0, frames).filter((_, i) => (i + 0.5) / 50 >= begin - NEAR && (i + 0.5) / 50 <= end + NEAR));
  function update() {
    const bands = spectrogram.length, canvas = html("canvas", { width: frames, height: bands }), paint = canvas.getContext("2d"), colour = weightRamp();
    spectrogram.forEach((values, band) => values.forEach((x, i) => { paint.fillStyle = css(colour(x / 99)); paint.fillRect(i, bands - 1 - band, 1, 1); }));
    const width = widthOf(place, 720), left = 54, right = 14, height = 120 * lowered, word = words[tokens[at].word], x = (time) => left + (time / seconds) * (width - left - right);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height + 22}`, class: "curves", role: "img", "aria-label": t`Spectrogram with its words` });
    picture.append(svg("image", { href: canvas.toDataURL(), x: left, y: 0, width: width - left - right, height, preserveAspectRatio: "none" }),
      svg("rect", { x: x(word.begin), y: 1, width: x(word.end) - x(word.begin), height: height - 2, fill: "none", stroke: "var(--mark)", "stroke-width": 2.5 }));
    for (const one of words) picture.append(svg("text", { x: (x(one.begin) + x(one.end)) / 2, y: height + 16, "text-anchor": "middle", style: one === word ? "font-weight: 700; fill: var(--text)" : "" }, one.word));
    place.replaceChildren(picture);
    const weights = weightsOf[head][at];
    curves(line, { lines: [{ name: "", colour: "var(--w)", points: weights.slice(0, frames).map((w, i) => [(i + 0.5) / 50, w]) }], x: { label: t`Seconds`, low: 0, high: seconds }, y: { label: "", low: 0, high: greatest([0.1, ...weights.slice(0, frames)]) }, label: t`Weights over the sound`, height: 150 });
    const own = inside(weights, word), others = mean(words.filter((one) => one !== word).map((one) => inside(weights, one))), every = mean(weightsOf[head].map((one, i) => inside(one, words[tokens[i].word])));
    says.dataset.value = own;
    says.textContent = t`To write “${word.word}”, head ${heads[head].name} of ${name} puts ${percent(own)} of its weight within 0.1 s of the word (${decimal(word.begin)} to ${decimal(word.end)} s); at the times of the other words it has ${percent(others)} on average. Over all words of the sentence the share is ${percent(every)}.`;
  }
  return update;
});

draw("shapes", (box) => {
  const size = { B: 2, T: 4, D: 8, H: 1 };
  let axis = "-1";
  const controls = row(box, "moves");
  const sizes = [["B", t`Sentences B`, 1, 8, 1], ["T", t`Words T`, 2, 8, 1], ["D", t`Width D`, 8, 64, 8], ["H", t`Heads H`, 0, 3, 1]];
  for (const [name, label, low, high, step] of sizes) slider(controls, { name, label, low, high, step, value: name === "H" ? 0 : size[name], show: (x) => String(name === "H" ? 2 ** x : x) }, (x) => { size[name] = name === "H" ? 2 ** x : x; update(); });
  const code = html("pre", { class: "shapes", tabindex: 0, translate: "no" });
  box.append(code);
  const below = row(box, "moves");
  choice(below, { name: "dim", label: "F.softmax(scores, dim=…)", options: [["-1", "dim=-1"], ["-2", "dim=-2"]], value: axis }, (value) => { axis = value; update(); });
  const place = figure(box, t`The weights of one sentence and one head, with the sum of each row`), says = html("p", { class: "say", "data-says": "shapes" });
  box.append(says);
  function update() {
    const { B, T, D, H } = size, d = D / H, draws = seeded(7), many = H > 1;
    const whole = `(${B}, ${T}, ${D})`, split = `(${B}, ${H}, ${T}, ${d})`, square = many ? `(${B}, ${H}, ${T}, ${T})` : `(${B}, ${T}, ${T})`;
    const lines = [
      ["x = torch.rand(batch_size, seq_len, embed_dim)", whole], ["Q = self.W_q(x)", whole], ["K = self.W_k(x)", whole], ["V = self.W_v(x)", whole],
      ...(many ? [[`Q = Q.view(${B}, ${T}, ${H}, ${d}).transpose(1, 2)`, split], ["K, V = ...", split]] : []),
      ["K.transpose(-2, -1)", many ? `(${B}, ${H}, ${d}, ${T})` : `(${B}, ${D}, ${T})`],
      [`scores = Q @ K.transpose(-2, -1) / ${d}**0.5`, square], [`attn_weights = F.softmax(scores, dim=${axis})`, square],
      ["output = attn_weights @ V", many ? split : whole],
      ...(many ? [["output = output.transpose(1, 2).flatten(-2)  # concat", whole], ["output = self.W_o(output)", whole]] : []),
    ];
    const wide = Math.max(...lines.map(([line]) => line.length));
    code.textContent = lines.map(([line, shape]) => `${line.padEnd(wide)}  # ${shape}`).join("\n");
    const scores = Array.from({ length: T }, () => Array.from({ length: T }, () => draws.normal()));
    const weights = axis === "-1" ? softmaxRows(scores) : transpose(softmaxRows(transpose(scores)));
    heat(place, { values: weights.map((line) => [...line, sum(line)]), rows: weights.map((_, i) => t`query ${i}`), columns: [...weights.map((_, j) => t`key ${j}`), t`sum`], most: 1, label: t`Weights and sums` });
    says.textContent = axis === "-1" ? sentences(t`dim=-1 is the axis of keys: the weights of each query add up to 1.`, many ? t`With H = ${H} the layer has ${4 * (D * D + D)} parameters, W_O among them, as many as with any other H above 1.` : t`With one head this class has no W_O and ${3 * (D * D + D)} parameters.`)
      : t`dim=-2 is the axis of queries: now the columns add up to 1 and the rows do not. A query would mix more or less than one whole value: a silent mistake, since the shapes are the same.`;
  }
  return update;
});

draw("asked-row", (box) => {
  heat(figure(row(box), "Q Kᵀ"), { values: lesson.numbers.asked.products, rows: ["q₁", "q₂", "q₃"], columns: ["k₁", "k₂", "k₃"], kind: "plain", digits: 0 });
});
draw("asked-concat", (box) => {
  const pictures = row(box), { outputs, W_O } = lesson.numbers.asked;
  heat(figure(pictures, t`Outputs of both heads`), { values: outputs, rows: ["o₁", "o₂"], kind: "plain", digits: 0 });
  heat(figure(pictures, "W_O"), { values: W_O, kind: "plain", digits: 0 });
});
draw("asked-output", (box) => {
  const pictures = row(box), { A, K, V } = lesson.numbers.asked, names = ["animal", "street", "it"];
  heat(figure(pictures, "A"), { values: A, rows: names, columns: names, most: 1, digits: 1 });
  for (const [name, column] of [["K", K], ["V", V]]) heat(figure(pictures, name), { values: column.map((x) => [x]), rows: names, kind: "plain", digits: 0 });
});
again();
