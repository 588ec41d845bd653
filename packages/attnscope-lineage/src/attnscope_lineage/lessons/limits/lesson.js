// The lesson on limits.
const { costs, debate, model } = lesson.numbers;
const formName = (form) => ({ matrix: t`whole matrix`, fused: t`fused (PyTorch)`, exact: t`exact statistics (attnscope)`, window: t`window of 128`, blocks: t`blocks of 64`, linear: t`linear kernel`, queries: t`query by query`, recurrent: t`recurrent network (GRU)` })[form];
const FORM_COLOURS = { matrix: "var(--mark)", fused: "var(--q)", exact: "var(--out)", window: "var(--v)", blocks: "var(--k)", linear: "var(--muted)", queries: "var(--k)", recurrent: "var(--q)" };
const IN_A_ROW = ["queries", "recurrent"]; // computed step by step
const megabytes = (bytes) => (bytes >= 1e9 ? `${say(bytes / 1e9)} GB` : `${say(bytes / 1e6)} MB`);
const duration = (seconds) => (seconds >= 1 ? `${say(seconds)} s` : `${say(seconds * 1000)} ms`);
const thousands = (n) => n.toLocaleString("en");

draw("cost", (box) => {
  const controls = row(box, "moves"), { lengths } = costs;
  let kind = "bytes", at = lengths.length - 1;
  choice(controls, { name: "cost", label: t`Measured`, options: [["bytes", t`memory`], ["seconds", t`time`]], value: kind }, (one) => { kind = one; update(); });
  slider(controls, { name: "length", label: t`Length n`, low: 0, high: lengths.length - 1, step: 1, value: at, show: (i) => thousands(lengths[i]) }, (i) => { at = i; update(); });
  const chart = figure(box, t`One head of width 64, one thread; both axes are logarithmic`, { wide: true }), list = figure(box, t`At this length`, { wide: true });
  const says = html("p", { class: "say", "data-says": "cost" });
  box.append(says);
  function update() {
    const scale = kind === "bytes" ? 1e-6 : 1e3, forms = Object.keys(costs.costs).filter((form) => !IN_A_ROW.includes(form)), values = (form) => costs.costs[form][kind].map((x) => x * scale);
    const every = forms.flatMap(values);
    curves(chart, { lines: forms.map((form) => ({ name: formName(form), colour: FORM_COLOURS[form], points: lengths.map((n, i) => [n, values(form)[i]]) })), at: lengths[at],
      x: { label: t`Length n, tokens`, low: lengths[0], high: lengths.at(-1), log: true },
      y: { label: kind === "bytes" ? t`MB beyond the inputs` : t`Processor time, ms`, low: Math.min(...every) * 0.8, high: greatest(every) * 1.2, log: true }, label: t`Cost over the length`, height: 300 });
    const show = kind === "bytes" ? megabytes : duration, here = forms.map((form) => costs.costs[form][kind][at]);
    bars(list, { values: here, labels: forms.map(formName), most: greatest(here), colour: (i) => FORM_COLOURS[forms[i]], text: show, label: t`Cost at this length` });
    const growth = (form) => costs.costs[form][kind].at(-1) / costs.costs[form][kind].at(-3);
    says.textContent = t`From n = ${thousands(lengths.at(-3))} to ${thousands(lengths.at(-1))}, four times as long, the whole matrix costs ${decimal(growth("matrix"), 1)} times as much and a window ${decimal(growth("window"), 1)} times. Here exact statistics need ${show(costs.costs.exact[kind][at])}, the whole matrix ${show(costs.costs.matrix[kind][at])}.`;
  }
  return update;
});

draw("parallel", (box) => {
  const lengths = costs.lengths.slice(0, costs.costs.queries.seconds.length), forms = ["matrix", ...IN_A_ROW];
  let at = 4;
  slider(row(box, "moves"), { name: "parallel-length", label: t`Length n`, low: 0, high: lengths.length - 1, step: 1, value: at, show: (i) => thousands(lengths[i]) }, (i) => { at = i; update(); });
  const chart = figure(box, t`Processor time on one thread; both axes are logarithmic`, { wide: true }), list = figure(box, t`At this length`, { wide: true });
  const says = html("p", { class: "say", "data-says": "parallel" });
  box.append(says);
  const name = (form) => (form === "matrix" ? t`two matrix products` : formName(form)), ms = (form) => lengths.map((_, i) => 1e3 * costs.costs[form].seconds[i]);
  function update() {
    const every = forms.flatMap(ms), here = forms.map((form) => costs.costs[form].seconds[at]);
    curves(chart, { lines: forms.map((form) => ({ name: name(form), colour: FORM_COLOURS[form], points: lengths.map((n, i) => [n, ms(form)[i]]) })), at: lengths[at],
      x: { label: t`Length n, tokens`, low: lengths[0], high: lengths.at(-1), log: true }, y: { label: t`Processor time, ms`, low: Math.min(...every) * 0.8, high: greatest(every) * 1.2, log: true }, label: t`Time over the length`, height: 240 });
    bars(list, { values: here, labels: forms.map(name), most: greatest(here), colour: (i) => FORM_COLOURS[forms[i]], text: duration, label: t`Time at this length` });
    says.dataset.value = here[1] / here[0];
    says.textContent = t`At n = ${thousands(lengths[at])}, the same output query by query takes ${decimal(here[1] / here[0], 1)} times as long as two matrix products, and a recurrent network ${decimal(here[2] / here[0], 1)} times. Steps one after another: 2 products, ${thousands(lengths[at])} queries, ${thousands(lengths[at])} states.`;
  }
  return update;
});

/** Whether query i may attend to key j, and how many pairs of n tokens that makes. */
const allows = {
  full: () => true,
  causal: (i, j) => j <= i,
  window: (i, j, w) => Math.abs(i - j) <= w,
  blocks: (i, j, w) => Math.floor(i / w) === Math.floor(j / w),
  global: (i, j, w) => Math.abs(i - j) <= w || i === 0 || j === 0,
};
function pairs(form, n, w) {
  if (form === "full") return n * n;
  if (form === "causal") return (n * (n + 1)) / 2;
  if (form === "blocks") return Math.floor(n / w) * w * w + (n % w) ** 2;
  const reach = Math.min(w, n - 1), near = n * (2 * reach + 1) - reach * (reach + 1);
  return form === "window" ? near : near + 2 * (n - 1 - reach);
}

draw("forms", (box) => {
  const controls = row(box, "moves"), drawn = 20, names = { full: t`full`, causal: t`causal mask`, window: t`window`, blocks: t`blocks`, global: t`window and a global token` };
  let form = "window", w = 2, power = 14;
  choice(controls, { name: "form", label: t`Form`, options: Object.entries(names), value: form }, (one) => { form = one; update(); });
  slider(controls, { name: "width", label: t`Width w`, low: 1, high: 10, step: 1, value: w, show: (x) => decimal(x, 0) }, (x) => { w = x; update(); });
  slider(controls, { name: "tokens", label: t`Length n`, low: 6, high: 17, step: 1, value: power, show: (x) => thousands(2 ** x) }, (x) => { power = x; update(); });
  const map = figure(box, t`Which of 20 queries (rows) may attend to which keys (columns)`), says = html("p", { class: "say", "data-says": "forms" });
  box.append(says);
  function update() {
    const cells = Array.from({ length: drawn }, (_, i) => Array.from({ length: drawn }, (_, j) => (allows[form](i, j, w) ? 0.75 : 0)));
    heat(map, { values: cells, most: 1, digits: null, label: t`Pairs of query and key that are compared` });
    map.querySelector("table").classList.add("small");
    const n = 2 ** power, count = pairs(form, n, w);
    says.dataset.value = count;
    const steps = { full: t`Any two words are one step apart.`, causal: t`Any earlier word is one step away.`, window: t`The first word reaches the last through ${thousands(Math.ceil((n - 1) / w))} layers.`, blocks: t`Words of different blocks never meet.`, global: t`Any two words are at most two steps apart.` }[form];
    says.textContent = `${t`At n = ${thousands(n)} that is ${thousands(count)} pairs, ${Number(((100 * count) / (n * n)).toPrecision(2))}% of ${thousands(n * n)}.`} ${steps}`;
  }
  return update;
});

draw("same", (box) => {
  const { values, weights, free } = lesson.numbers, names = ["v₁", "v₂", "v₃", "v₄"];
  const ends = (sign) => Math.min(...free.map((d, i) => (d * sign < 0 ? weights[i] / -(d * sign) : Infinity)));
  const [low, high] = [-ends(-1), ends(1)];
  let move = 0;
  slider(row(box, "moves"), { name: "free", label: t`Move weight without moving the output`, low: 0, high: 1, step: 0.01, value: -low / (high - low), show: (x) => decimal(low + x * (high - low)) }, (x) => { move = low + x * (high - low); update(); });
  const pictures = row(box), what = plane(figure(pictures, t`Values and the output`), { label: t`Values and the output in the plane` }), list = figure(pictures, t`The row of weights`);
  const says = html("p", { class: "say", "data-says": "same" });
  box.append(says);
  function update() {
    const now = weights.map((w, i) => Math.max(0, w + move * free[i])), [output] = matmul([now], values), [before] = matmul([weights], values);
    what({ hull: hullOf(values), lines: values.map((at, j) => ({ from: at, to: output, colour: "var(--out)", width: 8 * now[j] })),
      points: [...values.map((at, j) => ({ at, name: names[j], colour: "var(--v)", size: 5 + 12 * Math.sqrt(now[j]), strength: 0.15 + 0.85 * now[j] })), { at: output, name: t`output`, colour: "var(--out)", size: 8 }] });
    bars(list, { values: now, labels: names, marked: (j) => now[j] === greatest(now), label: t`Weights` });
    const error = Math.hypot(...output.map((x, i) => x - before[i])), apart = sum(now.map((x, i) => Math.abs(x - weights[i]))) / 2;
    says.dataset.value = error;
    says.dataset.moved = apart;
    says.textContent = t`${share(apart)} of the weight has moved, and the output has moved by ${error < 1e-12 ? "0" : error.toExponential(0)}. The largest weight is that of ${names[now.indexOf(greatest(now))]}, ${decimal(greatest(now))}; in the first row it is that of v₁, 0.50.`;
  }
  return update;
});

/** The end of bundled:pronoun: log probabilities of the word at "it" for a row of weights. */
const mapped = (x, { weight, bias }) => weight.map((line, i) => dot(line, x) + bias[i]);
function predicted({ values, state }, weights) {
  const { linear: maps, norms, embedding } = model, add = (a, b) => a.map((x, i) => x + b[i]);
  const [head] = matmul([weights], values);
  let x = add(state, mapped(head, maps.out));
  x = add(x, mapped(mapped(layerNorm(x, norms.before.gain, norms.before.bias), maps.up).map(relu), maps.down));
  const last = layerNorm(x, norms.after.gain, norms.after.bias);
  return softmax(embedding.map((line) => dot(line, last)));
}
const distance = (p, q) => sum(p.map((x, i) => Math.abs(x - q[i]))) / 2;

draw("pronoun", (box) => {
  const controls = row(box, "moves"), random = seeded(3), sentences = model.sentences.map(({ tokens }) => tokens.slice(1, -1).join(" ").replace(" .", "."));
  let which = 0, kind = "uniform", part = 0, order = null;
  choice(controls, { name: "sentence", label: t`Sentence`, options: sentences.map((one, i) => [i, `… ${one.split(" ").slice(-4).join(" ")}`]), value: 0 }, (i) => { which = i; order = null; update(); });
  choice(controls, { name: "kind", label: t`In place of the model's weights`, options: [["uniform", t`uniform weights`], ["permuted", t`in random order`], ["adversarial", t`adversarial`]], value: kind }, (one) => { kind = one; update(); });
  slider(controls, { name: "part", label: t`Share of the other weights`, low: 0, high: 1, step: 0.01, value: 0, show: (x) => share(x) }, (x) => { part = x; update(); });
  button(controls, t`Another random order`, () => { order = null; kind = "permuted"; controls.querySelector('input[value="permuted"]').checked = true; update(); });
  const sentence = figure(box, t`Weights of “it” in the last layer`, { wide: true }), answers = figure(box, t`What “it” stands for, according to the model`, { wide: true });
  const says = html("p", { class: "say", "data-says": "pronoun" });
  box.append(says);
  function update() {
    const one = model.sentences[which], { tokens, weights } = one;
    if (order === null) order = tokens.map((_, i) => [random.uniform(), i]).sort((a, b) => a[0] - b[0]).map(([, i]) => i);
    const other = { uniform: weights.map(() => 1 / weights.length), permuted: order.map((i) => weights[i]), adversarial: one.adversarial }[kind];
    const now = weights.map((w, i) => w + part * (other[i] - w)), before = predicted(one, weights), after = predicted(one, now);
    const most = greatest(now), line = html("p", { class: "weighed", translate: "no" }, ...tokens.slice(1, -1).map((token, i) => {
      const rgb = weightRamp()(now[i + 1]), word = html("span", { class: i + 1 === one.it ? "it" : "" }, html("span", {}, token), html("small", {}, decimal(now[i + 1])));
      word.style.background = css(rgb);
      word.style.color = inkOn(rgb);
      return word;
    }));
    replaced(sentence, line);
    const best = after.map((p, i) => [p, i]).sort((a, b) => b[0] - a[0]).slice(0, 5);
    bars(answers, { values: best.map(([p]) => p), labels: best.map(([, i]) => model.words[i]), marked: (i) => i === 0, label: t`Probabilities of words`, text: (p) => decimal(p, 3) });
    const moved = distance(before, after), answer = model.words[best[0][1]];
    says.dataset.value = moved;
    says.textContent = t`“it” stands for “${answer}”, says the model. The prediction moved by ${decimal(moved, 3)} (0: not at all, 1: entirely); ${share(distance(weights, now))} of the weight moved. The largest weight is ${decimal(most)}.`;
  }
  return update;
});

const { pronoun: tested, bundled: twoHeads, bound } = debate, number = (x) => decimal(x, 2), range = ({ low, median, high }) => t`${number(median)} (${number(low)} to ${number(high)})`;
function resultsIn(box, title, head, lines) {
  const rows = lines.map(([name, ...cells]) => html("tr", {}, html("th", { scope: "row" }, name), ...cells.map((cell, i) => html("td", { "data-column": head[i + 1] }, cell))));
  const table = html("table", { class: "text" }, html("thead", {}, html("tr", {}, ...head.map((name) => html("th", { scope: "col" }, name)))), html("tbody", {}, ...rows));
  box.append(html("h3", {}, title), html("div", { class: "place" }, table));
}
draw("debate-weights", (box) => {
  const names = { permuted: t`permuted, 100 times (Jain & Wallace)`, adversarial: t`adversarial: predictions within ${bound} (Jain & Wallace)`, adversarial_null: t`· its null: permuted weights, mixed in up to ${bound}`, uniform: t`uniform (Wiegreffe & Pinter)`, other: t`those of another sentence (Wiegreffe & Pinter)` };
  resultsIn(box, t`Other weights of “it”, ${tested.sentences} held-out sentences`, [t`weights`, t`divergence from the model's (at most 0.69)`, t`distance of the predictions`, t`other answer`],
    Object.entries(names).map(([name, text]) => [text, range(tested[name].divergence), range(tested[name].tvd), share(tested[name].flipped)]));
  const orders = [["attention", t`largest weight first`], ["gradient", t`largest gradient first`], ["random", t`at random`]];
  resultsIn(box, t`Weights erased until the answer changes (Serrano & Smith)`, [t`order`, t`share of the tokens erased`], orders.map(([name, text]) => [text, range(tested.erased[name])]));
});
draw("debate-models", (box) => {
  const guides = [["own", t`the model's own`], ["adversarial", t`adversarial`], ["permuted", t`permuted`], ["uniform", t`uniform weights`]];
  resultsIn(box, t`A model without context that gets the weights (Wiegreffe & Pinter)`, [t`weights it mixes word vectors by`, t`right answers`],
    guides.map(([name, text]) => [text, t`${share(tested.guides[name].mean)} (five runs: ${share(tested.guides[name].low)} to ${share(tested.guides[name].high)})`]));
  resultsIn(box, t`Two heads of the bundled language model`, [t`head`, t`largest weight`, t`predictions move: permuted`, t`· random change of that size`, t`divergence of adversarial weights`, t`· null`],
    Object.entries(twoHeads).map(([name, one]) => [name, number(one.max_weight), number(one.tvd), number(one.tvd_null), number(one.divergence), number(one.divergence_null)]));
});

draw("asked-other-weights", (box) => heat(figure(row(box), t`values and weights`), { values: [[0, 1, 2], [0.2, 0.6, 0.2]], rows: ["v", "a"], columns: ["1", "2", "3"], kind: "plain", digits: 1 }));
