// The lesson on scores.
const COLOURS = { query: "var(--q)", key: "var(--k)", value: "var(--v)", output: "var(--out)", off: "var(--mark)" };

draw("query", (box) => {
  const { tokens, keys, values } = lesson.numbers;
  let query = lesson.numbers.query, temperature = 1;
  const controls = row(box, "moves");
  const angle = slider(controls, { name: "angle", label: t`Direction of the query`, low: -180, high: 180, step: 1, value: 0, show: (x) => `${decimal(x, 0)}°` }, () => aim());
  const length = slider(controls, { name: "length", label: t`Length of the query`, low: 0, high: 2.8, step: 0.05, value: 0 }, () => aim());
  slider(controls, { name: "temperature", label: t`Temperature`, low: -1.5, high: 1.5, step: 0.05, value: 0, show: (x) => decimal(10 ** x) }, (x) => { temperature = 10 ** x; update(); });
  const pictures = row(box);
  const where = plane(figure(pictures, t`Where: the query among the keys`), { label: t`Query and keys in the plane`, drag: (_, at) => { query = at; sync(); update(); } });
  const what = plane(figure(pictures, t`What: the output among the values`), { label: t`Values and the output in the plane` });
  const weighs = figure(box, t`The row of weights`), says = html("p", { class: "say" });
  box.append(says);
  function aim() {
    const turned = (Number(angle.value) * Math.PI) / 180;
    query = [Number(length.value) * Math.cos(turned), Number(length.value) * Math.sin(turned)];
    update();
  }
  function sync() { // the sliders follow the hand
    angle.value = (Math.atan2(query[1], query[0]) * 180) / Math.PI;
    length.value = Math.hypot(...query);
    for (const one of [angle, length]) one.told();
  }
  function update() {
    const { weights: [weights], output: [output], scores: [scores] } = attention([query], keys, values, { scale: 1 / (Math.SQRT2 * temperature) });
    const best = weights.indexOf(greatest(weights));
    where({ arrows: [{ at: query, name: "q", colour: COLOURS.query, size: 4, movable: true },
      ...keys.map((at, j) => ({ at, name: tokens[j], colour: COLOURS.key, size: 1.5 + 4 * weights[j], strength: 0.45 + 0.55 * weights[j] }))] });
    what({ hull: hullOf(values), lines: values.map((at, j) => ({ from: at, to: output, colour: COLOURS.output, width: 8 * weights[j] })),
      points: [...values.map((at, j) => ({ at, name: tokens[j], colour: COLOURS.value, size: 5 + 11 * Math.sqrt(weights[j]), strength: 0.15 + 0.85 * weights[j] })),
        { at: output, name: t`output`, colour: COLOURS.output, size: 7, movable: true }] });
    bars(weighs, { values: weights, labels: tokens, marked: (j) => j === best, label: t`Weights`, text: (w) => decimal(w, 3) });
    const isTie = greatest(weights) - Math.min(...weights) < 1e-9; // a query of length 0
    says.textContent = sentences(isTie ? t`All scores are equal, and so are the weights: ${decimal(weights[0])} each.` : t`“${tokens[best]}” has the largest score, ${decimal(scores[best])}, and the weight ${decimal(weights[best])}.`, t`All weights add up to ${decimal(sum(weights))}.`);
  }
  sync();
  return update;
});

/** Inner products of random queries and keys of width d: their variance, the largest weight and the gradient of softmax. */
function randomScores(width, draws = 200, keys = 8) {
  const { normal } = seeded(width), query = new Float64Array(width);
  const products = Array.from({ length: draws }, () => {
    for (let i = 0; i < width; i++) query[i] = normal();
    return Array.from({ length: keys }, () => {
      let product = 0; // with a key that is drawn as it is read
      for (let i = 0; i < width; i++) product += query[i] * normal();
      return product;
    });
  });
  const measured = (scores) => {
    const weights = scores.map(softmax);
    return { variance: variance(scores.flat()), largest: mean(weights.map(greatest)), gradient: mean(weights.map(softmaxGradient)) };
  };
  return { row: products[0], plain: measured(products), scaled: measured(times(products, 1 / Math.sqrt(width))) };
}
/** How strongly weights react to scores: the norm of the Jacobian, diag(a) − a aᵀ. */
const softmaxGradient = (a) => Math.sqrt(sum(a.map((x, i) => sum(a.map((y, j) => ((i === j ? x : 0) - x * y) ** 2)))));

draw("scaling", (box) => {
  const widths = Array.from({ length: 10 }, (_, i) => 2 ** i);
  const measured = widths.map((width) => randomScores(width));
  let at = 6;
  slider(row(box, "moves"), { name: "width", label: "dₖ", low: 0, high: widths.length - 1, step: 1, value: at, show: (i) => String(widths[i]) }, (i) => { at = i; update(); });
  const rows = row(box);
  const plain = figure(rows, t`Weights without scaling`), scaled = figure(rows, t`Weights after division by √dₖ`);
  const charts = row(box);
  const places = { variance: figure(charts, t`Variance of the scores`), largest: figure(charts, t`Largest weight of a row`), gradient: figure(charts, t`Gradient of the softmax`) };
  const says = html("p", { class: "say" });
  box.append(says);
  function update() {
    const { row: products, plain: without, scaled: after } = measured[at], labels = products.map((_, j) => `k${"₁₂₃₄₅₆₇₈"[j]}`);
    bars(plain, { values: softmax(products), labels, colour: COLOURS.off, label: t`Weights without scaling` });
    bars(scaled, { values: softmax(products.map((x) => x / Math.sqrt(widths[at]))), labels, label: t`Weights after division by √dₖ` });
    for (const [name, place] of Object.entries(places)) {
      const line = (kind) => widths.map((width, i) => [width, measured[i][kind][name]]);
      const y = name === "variance" ? { low: 0.3, high: 1000, log: true } : { low: 0, high: name === "largest" ? 1 : 0.4 };
      curves(place, { label: place.getAttribute("aria-label"), height: 190, at: widths[at], x: { label: "dₖ", low: 1, high: 512, log: true, ticks: [1, 4, 16, 64, 256] }, y,
        lines: [{ name: t`as they are`, colour: COLOURS.off, points: line("plain") }, { name: t`divided by √dₖ`, colour: "var(--w)", points: line("scaled") }] });
    }
    says.textContent = sentences(t`With dₖ = ${widths[at]} the variance is ${decimal(without.variance, 1)}, and ${decimal(after.variance, 1)} after the division.`,
      t`The gradient is ${decimal(without.gradient, 3)} without it and ${decimal(after.gradient, 3)} with it.`);
  }
  return update;
});

/** A mask to add: 0 where a query may attend, −∞ where not. */
const maskOf = (kind, count) => Array.from({ length: count }, (_, i) => Array.from({ length: count }, (__, j) =>
  ((kind === "causal" || kind === "both") && j > i) || ((kind === "padding" || kind === "both") && j === count - 1) ? -Infinity : 0));

draw("mask", (box) => {
  const { padded, scores } = lesson.numbers;
  let kind = "causal", how = "added";
  const controls = row(box, "moves");
  choice(controls, { name: "mask", label: t`Mask`, value: kind, options: [["none", t`None`], ["causal", t`Causal`], ["padding", t`Padding`], ["both", t`Both`]] }, (one) => { kind = one; update(); });
  choice(controls, { name: "how", label: t`How it is applied`, value: how, options: [["added", t`added to S, before softmax`], ["multiplied", t`multiplied onto A, after softmax`]] }, (one) => { how = one; update(); });
  const matrices = row(box), places = {};
  places.s = figure(matrices, t`S: scores`);
  const sign = html("span", { class: "operator" }, "+");
  matrices.append(sign);
  places.m = figure(matrices, t`M: mask`);
  matrices.append(html("span", { class: "operator" }, "→"));
  places.a = figure(matrices, t`A: weights, and the sum of each row`);
  const says = html("p", { class: "say" });
  box.append(says);
  function update() {
    const mask = maskOf(kind, padded.length), kept = mask.map((line) => line.map((x) => (x === 0 ? 1 : 0)));
    const added = how === "added";
    const weights = added ? softmaxRows(plus(scores, mask)) : softmaxRows(scores).map((line, i) => line.map((w, j) => w * kept[i][j]));
    sign.textContent = added ? "+" : "→ ⊙";
    heat(places.s, { values: scores, rows: padded, columns: padded, kind: "signed", most: 2.5, digits: 1, label: t`S: scores` });
    heat(places.m, { values: added ? mask : kept, columns: padded, kind: "plain", digits: 0, label: t`M: mask` });
    const sums = weights.map(sum);
    heat(places.a, { values: weights.map((line, i) => [...line, sums[i]]), columns: [...padded, "Σ"], most: 1, marked: (i, j) => j === padded.length && Math.abs(sums[i] - 1) > 1e-9, label: t`A: weights, and the sum of each row` });
    says.textContent = sums.every((one) => Math.abs(one - 1) < 1e-9)
      ? t`Every row adds up to 1.` : t`${sums.filter((one) => Math.abs(one - 1) > 1e-9).length} rows no longer add up to 1: softmax had already shared weight with tokens that are hidden.`;
  }
  return update;
});

draw("compare", (box) => {
  const { sentence, last, vectors } = lesson.numbers;
  let word = last[0], length = sentence.length + 1, reach = 1;
  const controls = row(box, "moves");
  choice(controls, { name: "last", label: t`Last word`, value: word, options: last.map((one) => [one, one]) }, (one) => { word = one; update(); });
  slider(controls, { name: "kernel", label: t`Width of the convolution`, low: 1, high: 4, step: 1, value: reach, show: (x) => String(2 * x + 1) }, (x) => { reach = x; update(); });
  slider(controls, { name: "words", label: t`Words in the sentence`, low: 2, high: 200, step: 1, value: length, show: String }, (x) => { length = x; update(); });
  const pictures = row(box);
  const places = [figure(pictures, t`Convolution: by distance`), figure(pictures, t`Recurrence: by distance`), figure(pictures, t`Attention: by content`)];
  const steps = figure(box, t`Steps from the first word to the last`), says = html("p", { class: "say" });
  box.append(says);
  const rowsFor = (ending) => {
    const words = [...sentence, ending], end = words.length - 1;
    const kernel = words.map((_, j) => (end - j <= reach ? 1 / (reach + 1) : 0));
    const decay = 0.7, recurrent = words.map((_, j) => (j ? 1 - decay : 1) * decay ** (end - j)); // the first state is the first word
    const x = words.map((one) => vectors[one].map((value) => 1.4 * value));
    return { words, rows: [kernel, recurrent, attention([x[end]], x, x).weights[0]] };
  };
  function update() {
    const { words, rows } = rowsFor(word), other = rowsFor(last.find((one) => one !== word)).rows;
    rows.forEach((weights, i) => bars(places[i], { values: weights, labels: words, label: places[i].getAttribute("aria-label"), colour: i === 2 ? "var(--w)" : "var(--muted)" }));
    const needed = [Math.ceil((length - 1) / reach), length - 1, 1];
    bars(steps, { values: needed, most: length - 1, labels: [t`Convolution`, t`Recurrence`, t`Attention`], text: (x) => decimal(x, 0), label: t`Steps from the first word to the last`, colour: (i) => (i === 2 ? "var(--w)" : "var(--muted)") });
    const moved = rows.map((weights, i) => sum(weights.map((w, j) => Math.abs(w - other[i][j]))) / 2);
    says.textContent = sentences(t`With the other last word, convolution and recurrence move ${share(Math.max(moved[0], moved[1]))} of their weight, and attention moves ${share(moved[2])}.`,
      ...(length === words.length ? [] : [t`The three columns still show the ${words.length} words; the steps below them are for ${length}.`]));
  }
  return update;
});

const INDEXED = (name, count) => Array.from({ length: count }, (_, i) => `${name}${"₁₂₃₄"[i]}`);
draw("asked-weights", (box) => {
  const { query, keys } = lesson.numbers.asked, pictures = row(box);
  heat(figure(pictures, t`Query`), { values: query, rows: ["q"], kind: "plain", digits: 0 });
  heat(figure(pictures, t`Keys`), { values: keys, rows: INDEXED("k", 3), kind: "plain", digits: 0 });
});
draw("asked-mask", (box) => {
  heat(figure(row(box), t`Scaled scores of token 2`), { values: [lesson.numbers.askedRow], rows: [t`token ${2}`], columns: INDEXED("k", 4), kind: "plain", digits: 0 });
});
draw("asked-output", (box) => {
  const { scores, keys, values } = lesson.numbers.askedOutput, pictures = row(box);
  heat(figure(pictures, t`S: scaled scores`), { values: scores, rows: INDEXED("q", 2), columns: INDEXED("k", 2), kind: "plain", digits: 0 });
  heat(figure(pictures, t`K: keys`), { values: keys, rows: INDEXED("k", 2), kind: "plain", digits: 0 });
  heat(figure(pictures, t`V: values`), { values, rows: INDEXED("v", 2), kind: "plain", digits: 0 });
});
