// The lesson on scores.
const COLOURS = { query: "var(--q)", key: "var(--k)", value: "var(--v)", output: "var(--out)" };

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
  const weighs = figure(box, t`The row of weights`), says = html("p", { class: "say", "data-says": "query" });
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
    says.textContent = t`“${tokens[best]}” has the largest score, ${decimal(scores[best])}, and the weight ${decimal(weights[best])}. All weights add up to ${decimal(sum(weights))}.`;
  }
  sync();
  return update;
});

draw("asked-weights", (box) => {
  const { query, keys } = lesson.numbers.asked, pictures = row(box);
  heat(figure(pictures, "q"), { values: query, kind: "plain", digits: 0 });
  heat(figure(pictures, "K"), { values: keys, rows: ["k₁", "k₂", "k₃"], kind: "plain", digits: 0 });
});
