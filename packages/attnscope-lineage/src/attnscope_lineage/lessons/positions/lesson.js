// The lesson on positions.
const { models, four, layers, tables } = lesson.numbers;
const everyHead = Object.entries(models).flatMap(([model, { heads }]) => heads.map((head) => ({ id: `${model} ${head.name}`, model, head })));
const headNamed = (id) => everyHead.find((one) => one.id === id);
const headOptions = everyHead.map(({ id }) => [id, id]);
const offsetText = (x) => (x > 0 ? `+${x}` : decimal(x, 0));
/** Angular frequencies of the pairs of a sinusoidal table, and the pairs of a position. */
const frequencies = (width) => Array.from({ length: width / 2 }, (_, i) => 10000 ** ((-2 * i) / width));
const pairAt = (omega, position) => [Math.sin(omega * position), Math.cos(omega * position)];
const rotation = (angle) => [[Math.cos(angle), Math.sin(angle)], [-Math.sin(angle), Math.cos(angle)]];
const turned = (matrix, pair) => matrix.map((line) => dot(line, pair));

draw("order", (box) => {
  const { words, vectors } = lesson.numbers;
  const orders = [[0, 1, 2], [2, 1, 0]], positions = vectors.map((_, p) => frequencies(4).flatMap((omega) => pairAt(omega, p)));
  let strength = 0;
  slider(row(box, "moves"), { name: "strength", label: t`Strength of the position embeddings`, low: 0, high: 1, step: 0.05, value: 0 }, (x) => { strength = x; update(); });
  const pictures = row(box), places = orders.map((order) => figure(pictures, t`Output of each word in “${order.map((i) => words[i]).join(" ")}”`));
  const says = html("p", { class: "say", "data-says": "order" });
  box.append(says);
  function update() {
    const outputs = orders.map((order) => {
      const x = order.map((i, p) => vectors[i].map((value, c) => value + strength * positions[p][c]));
      const { output } = attention(x, x, x);
      return words.map((_, i) => output[order.indexOf(i)]);
    });
    outputs.forEach((values, n) => heat(places[n], { values: orders[n].map((i) => values[i]), rows: orders[n].map((i) => words[i]), kind: "signed", most: 1.6, label: t`Outputs` }));
    const apart = greatest(outputs[0].flat().map((x, i) => Math.abs(x - outputs[1].flat()[i])));
    says.dataset.value = apart;
    says.textContent = apart < 1e-9 ? t`Each word has the same output in both sentences (largest difference ${decimal(apart, 3)}): without positions, attention cannot tell who bites.`
      : t`Now the same word has another output in the other sentence: the largest difference is ${decimal(apart, 3)}.`;
  }
  return update;
});

draw("rotation", (box) => {
  const omegas = frequencies(lesson.numbers.width), controls = row(box, "moves");
  let position = 3, offset = 2, pair = 1;
  slider(controls, { name: "position", label: t`Position p`, low: 0, high: 40, step: 1, value: position, show: (x) => decimal(x, 0) }, (x) => { position = x; update(); });
  slider(controls, { name: "offset", label: t`Offset k`, low: -20, high: 20, step: 1, value: offset, show: offsetText }, (x) => { offset = x; update(); });
  slider(controls, { name: "pair", label: t`Pair i (later pairs turn more slowly)`, low: 0, high: omegas.length - 1, step: 1, value: pair, show: (x) => decimal(x, 0) }, (x) => { pair = x; update(); });
  const pictures = row(box);
  const where = plane(figure(pictures, t`One pair: sine across, cosine up`), { low: -1.25, high: 1.25, label: t`A pair of sine and cosine at two positions` });
  const side = html("div", { class: "figures" });
  pictures.append(side);
  const matrix = figure(side, t`R(k) for this pair, the same at every position`), waves = figure(box, t`The inner product PE(p) · PE(p + k) over k: a function of the offset alone`, { wide: true });
  const says = html("p", { class: "say", "data-says": "rotation" });
  box.append(says);
  function update() {
    const omega = omegas[pair], from = pairAt(omega, position), to = pairAt(omega, position + offset), turn = rotation(omega * offset);
    where({ arrows: [{ at: to, name: "PE(p + k)", colour: "var(--k)", size: 4 }, { at: from, name: "PE(p)", colour: "var(--q)", size: 4 }],
      points: [{ at: turned(turn, from), name: "", colour: "var(--out)", size: 9, strength: 0.15 }] });
    heat(matrix, { values: turn, kind: "signed", most: 1, digits: 3, label: "R(k)" });
    const error = greatest(omegas.flatMap((one) => {
      const moved = turned(rotation(one * offset), pairAt(one, position)), there = pairAt(one, position + offset);
      return moved.map((x, c) => Math.abs(x - there[c]));
    }));
    const product = (p, k) => sum(omegas.map((one) => dot(pairAt(one, p), pairAt(one, p + k))));
    const ks = Array.from({ length: 81 }, (_, i) => i - 40);
    curves(waves, { lines: [{ name: "", colour: "var(--accent)", points: ks.map((k) => [k, product(position, k)]) }], at: offset,
      x: { label: t`Offset k, tokens`, low: -40, high: 40 }, y: { label: "", low: 0, high: omegas.length + 0.4 }, label: t`Inner product over the offset`, height: 210 });
    says.dataset.value = product(position, offset);
    says.textContent = t`R(${offsetText(offset)}) PE(${position}) is PE(${decimal(position + offset, 0)}) in all ${omegas.length} pairs, to ${error < 5e-16 ? "0" : error.toExponential(0)}. Their inner product is ${decimal(product(position, offset), 3)}, at p = 0 it is ${decimal(product(0, offset), 3)}.`;
  }
  return update;
});

/** Amplitudes of the discrete Fourier transform of a row of numbers, frequencies 0 to half its length. */
function amplitudes(values) {
  const n = values.length;
  return Array.from({ length: Math.floor(n / 2) + 1 }, (_, f) => {
    let re = 0, im = 0;
    for (let i = 0; i < n; i++) {
      const angle = (-2 * Math.PI * ((f * i) % n)) / n;
      re += values[i] * Math.cos(angle);
      im += values[i] * Math.sin(angle);
    }
    return Math.hypot(re, im);
  });
}

draw("learned", (box) => {
  const names = Object.keys(models), controls = row(box, "moves");
  let name = names[0], column = 0, frequency = 48;
  choice(controls, { name: "table", label: t`Table of`, options: names.map((one) => [one, one]), value: name }, (one) => {
    name = one;
    frequency = name === "bundled" ? 22 : 48;
    at.max = models[name].rows / 2;
    at.value = frequency;
    at.told();
    update();
  });
  slider(controls, { name: "column", label: t`Column of the table`, low: 0, high: 5, step: 1, value: 0, show: (x) => decimal(x + 1, 0) }, (x) => { column = x; update(); });
  const at = slider(controls, { name: "frequency", label: t`Frequency f`, low: 1, high: models[name].rows / 2, step: 1, value: frequency, show: (x) => decimal(x, 0) }, (x) => { frequency = x; update(); });
  const wave = figure(box, t`The column along the positions`, { wide: true }), one = figure(box, t`Its amplitude spectrum, computed here (equation 8)`, { wide: true });
  const all = figure(box, t`Mean over all columns, in units of white noise`, { wide: true }), says = html("p", { class: "say", "data-says": "learned" });
  box.append(says);
  return update;
  function update() {
    const { rows, columns, spectrum, noise } = models[name], values = columns[column], size = amplitudes(values);
    const most = greatest(values.map(Math.abs));
    curves(wave, { lines: [{ name: "", colour: "var(--q)", points: values.map((x, i) => [i, x]) }], x: { label: t`Position`, low: 0, high: rows - 1 },
      y: { label: "", low: -most, high: most }, label: t`A column of the position table`, height: 170 });
    curves(one, { lines: [{ name: "", colour: "var(--q)", points: size.map((x, f) => [f, x]).slice(1) }], at: frequency, x: { label: t`Frequency, cycles per ${rows} positions`, low: 0, high: rows / 2 },
      y: { label: "", low: 0, high: greatest(size.slice(1)) * 1.05 }, label: t`Amplitude spectrum of the column`, height: 170 });
    const relative = (kind) => spectrum[kind].map((x, f) => [(f * rows) / ((spectrum[kind].length - 1) * 2), x / noise[kind]]).slice(1);
    const shown = { table: relative("table"), words: relative("words") };
    curves(all, { lines: [{ name: t`position table`, colour: "var(--q)", points: shown.table }, { name: t`word embeddings`, colour: "var(--k)", points: shown.words },
      { name: t`white noise`, colour: "var(--muted)", points: [[0, 1], [rows / 2, 1]], dashed: true }], at: frequency, x: { label: t`Frequency, cycles per ${rows} positions`, low: 0, high: rows / 2 },
    y: { label: "", low: 0, high: Math.min(greatest(shown.table.map(([, y]) => y)), 6) }, label: t`Mean amplitude spectra of positions and words`, height: 220 });
    const ratio = spectrum.table[frequency] / noise.table;
    says.dataset.value = size[frequency];
    says.textContent = t`f = ${frequency} is a wave of ${decimal(rows / frequency, 1)} tokens: amplitude ${decimal(size[frequency], 2)} in this column; over all columns ${decimal(ratio, 1)} times white noise.`;
  }
});

draw("offsets", (box) => {
  const controls = row(box, "moves");
  let chosen = everyHead[0], offset = -1;
  choice(controls, { name: "map", label: t`Head`, options: headOptions, value: chosen.id }, (id) => { chosen = headNamed(id); update(); });
  slider(controls, { name: "diagonal", label: t`Offset t`, low: -10, high: 10, step: 1, value: offset, show: offsetText }, (x) => { offset = x; update(); });
  const pictures = row(box), map = figure(pictures, t`Weights among the first 15 tokens: rows are queries, columns are keys`);
  const sums = figure(pictures, t`tr(A) along each offset, as a share of all weight of the text`), says = html("p", { class: "say", "data-says": "offsets" });
  box.append(says);
  function update() {
    const { head, model } = chosen, { tokens, length } = models[model];
    heat(map, { values: head.weights, rows: tokens, most: 1, digits: null, marked: (i, j) => j - i === offset, label: t`Attention weights` });
    map.querySelector("table").classList.add("small");
    curves(sums, { lines: [{ name: "", colour: "var(--w)", points: head.sums.map((x, i) => [i - 10, x / length]) }], at: offset, x: { label: t`Offset t = key − query, tokens`, low: -10, high: 10 }, y: { label: "", low: 0, high: 1 }, label: t`Share of the weight by offset`, height: 190 });
    const here = sum(head.weights.map((line, i) => line[i + offset] ?? 0));
    says.dataset.value = here;
    says.textContent = t`In the picture, the framed cells add up to ${decimal(here, 3)}. In the whole text, offset ${offsetText(offset)} has ${share(head.sums[offset + 10] / length)} of the weight.`;
  }
  return update;
});

const kindName = (kind) => ({ "sharp left": t`sharp, to the left`, "sharp right": t`sharp, to the right`, "soft left": t`soft, to the left`, "soft right": t`soft, to the right` })[kind];
draw("four", (box) => {
  const controls = row(box, "moves"), names = Object.keys(four);
  let name = names[0];
  choice(controls, { name: "four", label: t`Model`, options: names.map((one) => [one, one]), value: name }, (one) => { name = one; update(); });
  const pictures = row(box), says = html("p", { class: "say", "data-says": "four" });
  box.append(says);
  function update() {
    pictures.replaceChildren();
    for (const { kind, name: head, weights, profile } of four[name]) {
      const best = profile.indexOf(greatest(profile)), place = figure(pictures, t`Head ${head}: ${kindName(kind)}; ${share(profile[best])} at ${offsetText(best - 10)}`);
      heat(place, { values: weights, most: greatest(weights.flat()), digits: null, marked: (i, j) => i === j, label: t`Weights of head ${head}` });
      place.querySelector("table").classList.add("small", "tiny");
    }
    const side = (profile, right) => sum(right ? profile.slice(11) : profile.slice(0, 10));
    const [, , left, right] = four[name];
    says.dataset.value = side(left.profile, false);
    says.textContent = t`Framed: the diagonal. The soft head ${left.name} has ${share(side(left.profile, false))} of its weight on the ten tokens to the left and ${share(side(left.profile, true))} on the ten to the right; head ${right.name} has ${share(side(right.profile, false))} and ${share(side(right.profile, true))}.`;
  }
  return update;
});

/** Cross-covariance of two rows at offset t: sum of q_i k_{i+t}. */
const covariance = (q, k, offset) => {
  let total = 0;
  for (let i = Math.max(0, -offset); i < Math.min(q.length, q.length - offset); i++) total += q[i] * k[i + offset];
  return total;
};
const REACH = 40, NEAR = Array.from({ length: 2 * REACH + 1 }, (_, i) => i - REACH);

draw("shift", (box) => {
  const controls = row(box, "moves");
  let chosen = everyHead[1], column = 0, offset = -6, count = 8;
  const importance = ({ q, k, s }) => s.map((one, j) => one * Math.sqrt(dot(q[j], q[j]) * dot(k[j], k[j])));
  const leading = ({ head }) => importance(head).indexOf(greatest(importance(head).slice(0, 20))); // the column with the largest part of the scores
  const forHead = new Map(); // cross-covariance of every column, and their correlation
  const parts = () => {
    if (!forHead.has(chosen.id)) {
      const { q, k } = chosen.head;
      forHead.set(chosen.id, q.map((line, j) => {
        const n = line.length, every = Array.from({ length: 2 * n - 1 }, (_, i) => covariance(line, k[j], i - n + 1)), middle = mean(every);
        const norm = Math.sqrt(dot(line, line) * dot(k[j], k[j]));
        return { raw: NEAR.map((at) => every[at + n - 1]), scaled: NEAR.map((at) => (every[at + n - 1] - middle) / norm) };
      }));
    }
    return forHead.get(chosen.id);
  };
  choice(controls, { name: "head", label: t`Head`, options: headOptions, value: chosen.id }, (id) => { chosen = headNamed(id); counts.max = chosen.head.s.length; column = leading(chosen); waves.value = column; waves.told(); update(); });
  column = leading(chosen);
  const waves = slider(controls, { name: "wave", label: t`Column j, by singular value`, low: 0, high: 19, step: 1, value: column, show: (x) => decimal(x + 1, 0) }, (x) => { column = x; update(); });
  slider(controls, { name: "move", label: t`Look t tokens away`, low: -REACH, high: REACH, step: 1, value: offset, show: offsetText }, (x) => { offset = x; update(); });
  const counts = slider(controls, { name: "count", label: t`Columns in the sum`, low: 1, high: chosen.head.s.length, step: 1, value: count, show: (x) => decimal(x, 0) }, (x) => { count = x; update(); });
  const curve = figure(box, t`Query at i and key at i + t, column j`, { wide: true }), correlation = figure(box, t`xcorr of this column (equations 11 and 12)`, { wide: true });
  const total = figure(box, t`Sum of s · xcov over columns (equations 13 to 15)`, { wide: true }), says = html("p", { class: "say", "data-says": "shift" });
  box.append(says);
  function update() {
    const { q, k, s, sums } = chosen.head, all = parts(), used = Math.min(count, s.length);
    const standard = (line) => { const centre = mean(line), spread = Math.sqrt(variance(line)); return line.map((x) => (x - centre) / spread); };
    const [a, b] = [standard(q[column]), standard(k[column])], last = 99;
    curves(curve, { lines: [{ name: t`query`, colour: "var(--q)", points: a.slice(0, last + 1).map((x, i) => [i, x]) }, { name: t`key, ${offsetText(offset)} tokens on`, colour: "var(--k)", points: a.slice(0, last + 1).map((_, i) => [i, b[i + offset] ?? NaN]) }],
      x: { label: t`Position i`, low: 0, high: last }, y: { label: "", low: -3, high: 3 }, label: t`Query and key along the text`, height: 165 });
    curves(correlation, { lines: [{ name: "", colour: "var(--accent)", points: NEAR.map((at, i) => [at, all[column].scaled[i]]) }], at: offset, x: { label: t`Offset t, tokens`, low: -REACH, high: REACH }, y: { label: "", low: -1, high: 1 }, label: t`Cross-correlation of the column`, height: 165 });
    const summed = (columns) => NEAR.map((_, i) => sum(all.slice(0, columns).map((one, j) => s[j] * one.raw[i])));
    const some = summed(used), every = summed(s.length), low = Math.min(...some, ...every), high = Math.max(...some, ...every);
    curves(total, { lines: [{ name: t`first ${used} of ${s.length} columns`, colour: "var(--accent)", points: NEAR.map((at, i) => [at, some[i]]) }, { name: t`all columns: the sum of scores along the offset`, colour: "var(--muted)", points: NEAR.map((at, i) => [at, every[i]]), dashed: true }],
      at: offset, x: { label: t`Offset t, tokens`, low: -REACH, high: REACH }, y: { label: "", low, high }, label: t`Weighted sum of cross-covariances`, height: 185 });
    const peak = NEAR[some.indexOf(greatest(some))], best = sums.indexOf(greatest(sums)) - 10;
    says.dataset.value = some[offset + REACH];
    says.dataset.correlation = all[column].scaled[offset + REACH];
    says.textContent = t`xcorr at t = ${offsetText(offset)} is ${decimal(all[column].scaled[offset + REACH], 3)}. With ${used} of ${s.length} columns the sum peaks at t = ${offsetText(peak)}; the head has most weight at ${offsetText(best)}.`;
  }
  return update;
});

const wrapped = (angle) => angle - 2 * Math.PI * Math.round(angle / (2 * Math.PI));
/** Share of energy within a token of the line of a shift, and of the circle that it covers; f from 3. */
function nearLine({ energy }, length, shift) {
  const bins = energy[0].length;
  let inside = 0, all = 0, covered = 0;
  energy.forEach((line, f) => {
    if (f < 3) return;
    const token = (2 * Math.PI * f) / length, total = sum(line);
    line.forEach((x, bin) => { if (Math.abs(wrapped(((bin + 0.5) / bins) * 2 * Math.PI - Math.PI - token * shift)) <= token + 1e-9) inside += x; });
    all += total;
    covered += total * Math.min(token / Math.PI, 1);
  });
  return [inside / all, covered / all];
}

draw("angle", (box) => {
  const controls = row(box, "moves");
  let chosen = everyHead[1], shift = 0;
  choice(controls, { name: "turning", label: t`Head`, options: headOptions, value: chosen.id }, (id) => { chosen = headNamed(id); update(); });
  slider(controls, { name: "delta", label: t`Δ, tokens that the key's wave is ahead`, low: -5, high: 5, step: 0.25, value: 0, show: (x) => decimal(x) }, (x) => { shift = x; update(); });
  const map = figure(box, t`g(f, θ): spots where the eigenvectors of R have energy; the line is θ = 2πfΔ/T`, { wide: true });
  const shares = figure(box, t`Share of the energy within one token of the line`, { wide: true }), says = html("p", { class: "say", "data-says": "angle" });
  box.append(says);
  function update() {
    const { energy } = chosen.head, { length } = models[chosen.model], width = widthOf(map, 720), height = 260 * lowered, left = 44, bottom = 40, ramped = weightRamp();
    const columns = energy.length, bins = energy[0].length, top = greatest(energy.slice(1).flat()), w = (width - left - 8) / columns, h = (height - bottom - 6) / bins;
    const canvas = html("canvas", { width: columns * 4, height: bins * 4 }), paint = canvas.getContext("2d");
    energy.forEach((line, f) => line.forEach((x, bin) => { paint.fillStyle = css(ramped(f ? Math.sqrt(x / top) : 0)); paint.fillRect(f * 4, (bins - 1 - bin) * 4, 4, 4); }));
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "curves", role: "img", "aria-label": t`Energy over frequency and angle` }), y = (angle) => 6 + ((Math.PI - angle) / (2 * Math.PI)) * h * bins;
    picture.append(svg("image", { href: canvas.toDataURL(), x: left, y: 6, width: w * columns, height: h * bins, preserveAspectRatio: "none" }));
    let path = "", before = NaN;
    for (let f = 0; f < columns; f += 0.25) {
      const angle = wrapped((2 * Math.PI * f * shift) / length);
      path += `${Math.abs(angle - before) < Math.PI ? "L" : "M"}${(left + (f + 0.5) * w).toFixed(1)} ${y(angle).toFixed(1)}`;
      before = angle;
    }
    picture.append(svg("path", { d: path, fill: "none", stroke: "var(--mark)", "stroke-width": 2.5 }));
    for (const [angle, name] of [[-Math.PI, "−π"], [0, "0"], [Math.PI, "π"]]) picture.append(svg("text", { x: left - 6, y: y(angle) + (angle > 0 ? 10 : 4), "text-anchor": "end" }, name));
    for (const f of ticks(0, columns - 1, 6)) picture.append(svg("text", { x: left + (f + 0.5) * w, y: height - bottom + 16, "text-anchor": "middle" }, say(f)));
    picture.append(svg("text", { x: left + (w * columns) / 2, y: height - 6, "text-anchor": "middle" }, t`Frequency f, cycles per ${length} tokens; up: the angle θ`));
    map.replaceChildren(picture);
    const grid = Array.from({ length: 41 }, (_, i) => -5 + i / 4), found = grid.map((one) => nearLine(chosen.head, length, one));
    curves(shares, { lines: [{ name: t`this head`, colour: "var(--accent)", points: grid.map((one, i) => [one, found[i][0]]) }, { name: t`angles spread evenly`, colour: "var(--muted)", points: grid.map((one, i) => [one, found[i][1]]), dashed: true }],
      at: shift, x: { label: t`Δ, tokens`, low: -5, high: 5 }, y: { label: "", low: 0, high: Math.max(...found.flat()) * 1.1 }, label: t`Energy near the line by Δ`, height: 190 });
    const [inside] = nearLine(chosen.head, length, shift), { line } = chosen.head, weights = chosen.head.sums.indexOf(greatest(chosen.head.sums)) - 10;
    says.dataset.value = inside;
    says.textContent = t`The line of Δ = ${decimal(shift)} has ${share(inside)} of the energy. Over all eigenvectors the shift is Δ = ${decimal(line)}, so the offset should be −Δ = ${decimal(-line)}; the head has most weight at ${offsetText(weights)}.`;
  }
  return update;
});

const SIDES = { X: t`hidden states X`, query: t`queries Q`, key: t`keys K` }, SIDE_COLOURS = { X: "var(--muted)", query: "var(--q)", key: "var(--k)" };
draw("layers", (box) => {
  const controls = row(box, "moves"), names = Object.keys(layers);
  let name = names[0], layer = 0;
  choice(controls, { name: "by-layer", label: t`Model`, options: names.map((one) => [one, one]), value: name }, (one) => {
    name = one;
    at.max = layers[name].ratio.length;
    layer = Math.min(layer, at.max - 1);
    at.value = layer + 1;
    at.told();
    update();
  });
  const at = slider(controls, { name: "layer", label: t`Layer`, low: 1, high: layers[name].ratio.length, step: 1, value: 1, show: (x) => decimal(x, 0) }, (x) => { layer = x - 1; update(); });
  const spectra = figure(box, t`Largest amplitude over all heads and columns, in units of what noise reaches in 1 of 100 (figure 5)`, { wide: true });
  const pictures = row(box), peaks = figure(pictures, t`The same near 50 cycles per 512 tokens, by layer`), content = figure(pictures, t`Share of the scores that position explains, by layer`);
  const says = html("p", { class: "say", "data-says": "layers" });
  box.append(says);
  const near = (line, length) => greatest(line.filter((_, f) => (f * 512) / length >= 40 && (f * 512) / length <= 60));
  return update;
  function update() {
    const { length, sides, ratio, position } = layers[name], peak = sides.map((_, side) => ratio.map((one) => near(one[side], length))), top = greatest(ratio.flatMap((one) => one.flatMap((line) => line.slice(3))));
    const noise = { name: t`noise`, colour: "var(--muted)", dashed: true };
    curves(spectra, { lines: [...sides.map((side, i) => ({ name: SIDES[side], colour: SIDE_COLOURS[side], points: ratio[layer][i].map((y, f) => [(f * 512) / length, y]).slice(3) })), { ...noise, points: [[0, 1], [256, 1]] }],
      at: 48, x: { label: t`Frequency, cycles per 512 tokens`, low: 0, high: 256 }, y: { label: "", low: 0, high: Math.min(top, 8) }, label: t`Spectra of a layer`, height: 210 });
    const x = { label: t`Layer`, low: 1, high: ratio.length };
    curves(peaks, { lines: [...sides.map((side, i) => ({ name: SIDES[side], colour: SIDE_COLOURS[side], points: peak[i].map((y, l) => [l + 1, y]) })), { ...noise, points: [[1, 1], [ratio.length, 1]] }], at: layer + 1, x, y: { label: "", low: 0, high: greatest(peak.flat()) * 1.1 }, label: t`The peak by layer`, height: 180 });
    curves(content, { lines: [{ name: "", colour: "var(--v)", points: position.map((y, l) => [l + 1, y]) }], at: layer + 1, x, y: { label: "", low: 0, high: 1 }, label: t`Share of position by layer`, height: 180 });
    const [X, Q, K] = ["X", "query", "key"].map((side) => peak[sides.indexOf(side)]);
    says.dataset.value = Q[layer];
    says.textContent = t`Layer ${layer + 1}: near 50 cycles Q has ${decimal(Q[layer], 1)} times noise, K ${decimal(K[layer], 1)}, X ${decimal(X[layer], 1)}. From the first layer to the last, Q and K go from ${decimal((Q[0] + K[0]) / 2, 1)} to ${decimal((Q.at(-1) + K.at(-1)) / 2, 1)}, and the share of position from ${share(position[0])} to ${share(position.at(-1))}.`;
  }
});

const TABLE_COLOURS = ["var(--q)", "var(--k)", "var(--v)", "var(--out)", "var(--w)", "var(--mark)"];
draw("tables", (box) => {
  const names = Object.keys(tables), kinds = { encoder: t`encoder`, decoder: t`decoder` };
  const pictures = row(box, "figures thirds"), places = names.map((name) => figure(pictures, `${name} (${kinds[tables[name].kind]})`));
  return () => names.forEach((name, i) => {
    const { rows, spectrum } = tables[name], points = spectrum.map((y, f) => [(f * 512) / rows, y]).slice(1);
    curves(places[i], { lines: [{ name: "", colour: TABLE_COLOURS[i], points }, { name: "", colour: "var(--muted)", points: [[0, 1], [256, 1]], dashed: true }],
      x: { label: t`cycles per 512`, low: 0, high: 256 }, y: { label: "", low: 0, high: 6 }, label: t`Mean spectrum of the table of ${name}`, height: 170 });
  });
});

draw("components", (box) => {
  const names = Object.keys(tables);
  let count = 4;
  slider(row(box, "moves"), { name: "dimensions", label: t`Principal components`, low: 1, high: 24, step: 1, value: count, show: (x) => decimal(x, 0) }, (x) => { count = x; update(); });
  const sums = figure(box, t`Share of the table's variance in its first principal components (figure 9)`, { wide: true }), says = html("p", { class: "say", "data-says": "components" });
  box.append(says);
  function update() {
    const published = { name: t`RoBERTa, as published`, colour: "var(--text)", points: [[4, 0.5051], [12, 0.9223]], dashed: true };
    curves(sums, { lines: [...names.map((name, i) => ({ name, colour: TABLE_COLOURS[i], points: tables[name].share.map((y, d) => [d + 1, y]) })), published],
      at: count, x: { label: t`Principal components`, low: 1, high: 24 }, y: { label: "", low: 0, high: 1 }, label: t`Cumulative share of variance`, height: 260 });
    says.dataset.value = tables[names[0]].share[count - 1];
    const shares = names.map((name) => `${name} ${share(tables[name].share[count - 1])}`).join(", ");
    says.textContent = t`Variance in ${count} dimensions: ${shares}. Published for RoBERTa: 50.51% in 4, 92.23% in 12.`;
  }
  return update;
});

draw("training", (box) => {
  const controls = row(box, "moves");
  let part = 0.9, length = 128;
  slider(controls, { name: "short", label: t`Share of the training on short texts`, low: 0, high: 1, step: 0.05, value: part, show: share }, (x) => { part = x; update(); });
  slider(controls, { name: "short-length", label: t`Tokens of a short text`, low: 32, high: 512, step: 32, value: length, show: (x) => decimal(x, 0) }, (x) => { length = x; update(); });
  const trained = figure(box, t`Share of the training texts that reach a position`, { wide: true }), says = html("p", { class: "say", "data-says": "training" });
  box.append(says);
  function update() {
    const late = length < 512 ? 1 - part : 1;
    curves(trained, { lines: [{ name: t`short texts first, as BERT`, colour: "var(--k)", points: [[1, 1], [length, 1], [length + 0.5, late], [512, late]] }, { name: t`512 tokens always, as RoBERTa`, colour: "var(--q)", points: [[1, 1], [512, 1]], dashed: true }],
      x: { label: t`Position`, low: 1, high: 512 }, y: { label: "", low: 0, high: 1.05 }, label: t`Training by position`, height: 170 });
    says.dataset.value = late;
    says.textContent = t`A row of the table is trained by the texts that reach its position: rows up to ${length} by all, the ${512 - length} behind by ${share(late)}.`;
  }
  return update;
});

const MARKS = { holds: "✓", "does not hold": "✗", "as by chance": "≈", "holds, as in untrained models": "≈", "not defined": "–" };
const verdictName = (verdict) => ({ holds: t`holds`, "holds, as in untrained models": t`holds, as in untrained models`, "does not hold": t`does not hold`, "as by chance": t`as by chance`, "not defined": t`not defined` })[verdict];

draw("claims", (box) => {
  const { claims, verdicts } = lesson.numbers, names = Object.keys(verdicts);
  const why = new Map([...document.querySelectorAll("[data-why] li")].map((item) => [item.dataset.claim, item.innerHTML]));
  const place = figure(box, t`✓ holds, ✗ does not hold, ≈ as often by chance or in untrained models, – not defined. Choose a row.`, { wide: true });
  const detail = html("div", { class: "claim", role: "status" });
  box.append(detail);
  let chosen = 5;
  function update() {
    const head = html("tr", {}, html("th", { scope: "col" }, t`Claim`), ...names.map((name) => html("th", { scope: "col" }, name)));
    const lines = claims.map((claim, i) => {
      const pick = html("button", { type: "button", class: "claim-name", "aria-pressed": String(i === chosen) }, claim.statement);
      pick.addEventListener("click", () => { chosen = i; update(); });
      return html("tr", i === chosen ? { class: "chosen" } : {}, html("th", { scope: "row" }, pick), ...names.map((name) => {
        const { verdict } = verdicts[name].claims[i];
        return html("td", { class: `verdict-${verdict.replaceAll(/\W+/g, "-")}`, title: verdictName(verdict) }, html("span", { "aria-hidden": "true" }, MARKS[verdict]), html("span", { class: "unseen" }, verdictName(verdict)));
      }));
    });
    replaced(place, html("table", { class: "claims" }, html("thead", {}, head), html("tbody", {}, ...lines)));
    const { name, place: section, statement, criterion, null: compared } = claims[chosen], reason = html("p");
    reason.innerHTML = why.get(name) ?? ""; // the prose of this page
    detail.replaceChildren(html("h3", {}, `${statement} (${section})`), html("ul", {}, ...names.map((one) => {
      const row = verdicts[one].claims[chosen], { verdict } = row, [met, all] = row.copies.split(" of ").map(Number);
      const untrained = !row.copies ? "" : verdict === "holds, as in untrained models" ? t`; ${met} of ${all} untrained models meet the criterion too: meeting it shows nothing` : t`; ${met} of ${all} untrained models meet the criterion`;
      return html("li", {}, html("strong", {}, `${one}: ${verdictName(verdict)} — `), row.text, row.p === null ? "" : t`; p = ${row.p.toFixed(3)}`, untrained);
    })), reason, html("p", {}, html("small", {}, sentences(t`Criterion: ${criterion}. Null: ${compared}.`, t`p is the share of the null, with this model counted in, whose number is at least as large: it tests the size of the number, not the criterion.`))));
  }
  document.querySelector("[data-why]").hidden = true;
  return update;
});

draw("asked-turn", (box) => heat(figure(row(box), "PE(p)"), { values: lesson.numbers.asked.pair, columns: ["sin", "cos"], kind: "plain", digits: 1 }));
draw("asked-diagonal", (box) => {
  const names = ["1", "2", "3", "4"];
  heat(figure(row(box), "A"), { values: lesson.numbers.asked.weights, rows: names, columns: names, most: 1, digits: 1 });
});
