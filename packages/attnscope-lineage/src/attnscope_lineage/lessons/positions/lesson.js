// The lesson on positions.
const { models, four, layers, tables, figures, probes } = lesson.numbers;
const everyHead = Object.entries(models).flatMap(([model, { heads }]) => heads.map((head) => ({ id: `${model} ${head.name}`, model, head })));
const headNamed = (id) => everyHead.find((one) => one.id === id);
const headOptions = everyHead.map(({ id }) => [id, id]);
const offsetText = (x) => (x > 0 ? `+${x}` : decimal(x, 0));
/** Angular frequencies of the pairs of a sinusoidal table, and the pairs of a position. */
const frequencies = (width) => Array.from({ length: width / 2 }, (_, i) => 10000 ** ((-2 * i) / width));
const pairAt = (omega, position) => [Math.sin(omega * position), Math.cos(omega * position)];
const rotation = (angle) => [[Math.cos(angle), Math.sin(angle)], [-Math.sin(angle), Math.cos(angle)]];
const mean0 = (rows) => transpose(rows).map(mean); // of each column
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
    frequency = name === "bundled" ? 10 : 48;
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

// --- figure 1: k-means of heads and texts ---
/** Vectors of 16-bit shares: text by text, layer by layer, head by head. */
function profilesOf({ shape, block }) {
  const bytes = Uint8Array.from(atob(block), (letter) => letter.charCodeAt(0)), values = new Uint16Array(bytes.buffer), [texts, depth, heads, width] = shape;
  const rows = Array.from({ length: texts * depth * heads }, (_, i) => Float64Array.from(values.subarray(i * width, (i + 1) * width), (x) => x / 65535));
  return { rows, texts, depth, heads };
}
const apart = (a, b) => { let total = 0; for (let i = 0; i < a.length; i++) total += (a[i] - b[i]) ** 2; return total; };
/** The label of each row, the centres and the sum of squares, of the best of several starts (greedy k-means++). */
function kMeans(rows, count, starts = 16) {
  const { uniform } = seeded(1);
  let best = null;
  for (let start = 0; start < starts; start++) {
    let centres = [rows[Math.floor(uniform() * rows.length)]];
    let near = rows.map((one) => apart(one, centres[0]));
    while (centres.length < count) {
      const total = sum(near), tried = [0, 1, 2].map(() => {
        let left = uniform() * total, at = 0;
        while (at < rows.length - 1 && (left -= near[at]) > 0) at++;
        const after = rows.map((one, i) => Math.min(near[i], apart(one, rows[at])));
        return { at, after, left: sum(after) };
      });
      const chosen = tried.reduce((best, one) => (one.left < best.left ? one : best));
      centres.push(rows[chosen.at]);
      near = chosen.after;
    }
    let labels = [], before = Infinity, total = 0;
    for (let step = 0; step < 60; step++) {
      total = 0;
      labels = rows.map((one) => { const far = centres.map((centre) => apart(one, centre)), label = far.indexOf(Math.min(...far)); total += far[label]; return label; });
      if (before - total < 1e-12) break;
      before = total;
      centres = centres.map((centre, k) => {
        const mine = rows.filter((_, i) => labels[i] === k);
        return mine.length ? Float64Array.from(centre, (_, c) => mean(mine.map((one) => one[c]))) : centre;
      });
    }
    if (best === null || total < best.total) best = { labels, centres, total };
  }
  return best;
}
const CLUSTER_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#999999", "#56b4e9", "#7a5195"];
draw("kinds", (box) => {
  const controls = row(box, "moves"), names = Object.keys(figures.profiles), prepared = new Map();
  let name = names[1], count = 6;
  choice(controls, { name: "kinds-model", label: t`Model`, options: names.map((one) => [one, one]), value: name }, (one) => { name = one; update(); });
  slider(controls, { name: "clusters", label: t`Clusters (6 in the paper)`, low: 2, high: 8, step: 1, value: count, show: (x) => decimal(x, 0) }, (x) => { count = x; update(); });
  const pies = figure(box, t`A pie for each head: the clusters of its texts`), means = figure(box, t`The centre of each cluster: mean share of the weight by offset`, { wide: true }), says = html("p", { class: "say", "data-says": "kinds" });
  box.append(says);
  const sorted = () => {
    const key = `${name} ${count}`;
    if (!prepared.has(key)) prepared.set(key, { ...profilesOf(figures.profiles[name]), ...kMeans(profilesOf(figures.profiles[name]).rows, count) });
    return prepared.get(key);
  };
  /** The texts of each head in each cluster. */
  const countsOf = (labels, heads) => Array.from({ length: heads }, (_, head) => Array.from({ length: count }, (_, k) => labels.filter((label, i) => i % heads === head && label === k).length));
  function update() {
    const { labels, centres, texts, depth, heads, total } = sorted(), counts = countsOf(labels, depth * heads), step = 38, left = 58;
    const order = centres.map((centre, k) => ({ k, best: centre.indexOf(greatest(centre)), most: greatest(centre) })).sort((a, b) => b.most - a.most), place = Object.fromEntries(order.map(({ k }, i) => [k, i]));
    const picture = svg("svg", { viewBox: `0 0 ${left + step * heads} ${step * depth + 20}`, class: "pies", role: "img", "aria-label": t`Clusters of each head` });
    counts.forEach((parts, at) => {
      const x = left + step * ((at % heads) + 0.5), y = step * (Math.floor(at / heads) + 0.5) + 18;
      let from = -Math.PI / 2;
      order.forEach(({ k }) => {
        const angle = (2 * Math.PI * parts[k]) / texts, to = from + angle, r = 16, fill = CLUSTER_COLOURS[place[k]];
        if (parts[k] === texts) picture.append(svg("circle", { cx: x, cy: y, r, fill }));
        else if (parts[k]) picture.append(svg("path", { d: `M${x} ${y}L${x + r * Math.cos(from)} ${y + r * Math.sin(from)}A${r} ${r} 0 ${angle > Math.PI ? 1 : 0} 1 ${x + r * Math.cos(to)} ${y + r * Math.sin(to)}Z`, fill }));
        from = to;
      });
    });
    for (let layer = 0; layer < depth; layer++) picture.append(svg("text", { x: left - 6, y: step * (layer + 0.5) + 22, "text-anchor": "end" }, t`Layer ${layer}`));
    for (let head = 0; head < heads; head++) picture.append(svg("text", { x: left + step * (head + 0.5), y: 12, "text-anchor": "middle" }, `${head}`));
    pies.replaceChildren(picture);
    curves(means, { lines: order.map(({ k, best, most }, i) => ({ name: most >= 0.3 ? t`${i + 1}: strong, ${decimal(most)} at ${offsetText(best - 10)}` : most >= 0.06 ? t`${i + 1}: weak, ${decimal(most)} at ${offsetText(best - 10)}` : t`${i + 1}: no direction`, colour: CLUSTER_COLOURS[i], points: [...centres[k]].map((y, o) => [o - 10, y]) })), x: { label: t`Offset t = key − query, tokens`, low: -10, high: 10 }, y: { label: "", low: 0, high: 1 }, label: t`Centres of the clusters`, height: 190 });
    const steady = (all) => all.filter((parts) => greatest(parts) >= 0.9 * texts).length, { uniform } = seeded(2), mixed = labels.slice();
    for (let i = mixed.length - 1; i > 0; i--) { const j = Math.floor(uniform() * (i + 1)); [mixed[i], mixed[j]] = [mixed[j], mixed[i]]; }
    says.dataset.value = total;
    says.dataset.steady = steady(counts);
    says.textContent = t`${steady(counts)} of ${counts.length} heads have the same cluster in 90% or more of ${texts} texts. If the labels are dealt to heads and texts at random, ${steady(countsOf(mixed, depth * heads))} do.`;
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

const forHead = new Map();
/** Cross-covariance of every column of a head, raw and as correlation, at the offsets near 0. */
function covariances({ id, head: { q, k } }) {
  if (!forHead.has(id)) {
    forHead.set(id, q.map((line, j) => {
      const n = line.length, every = Array.from({ length: 2 * n - 1 }, (_, i) => covariance(line, k[j], i - n + 1)), middle = mean(every);
      const norm = Math.sqrt(dot(line, line) * dot(k[j], k[j]));
      return { raw: NEAR.map((at) => every[at + n - 1]), centred: NEAR.map((at) => every[at + n - 1] - middle), scaled: NEAR.map((at) => (every[at + n - 1] - middle) / norm) };
    }));
  }
  return forHead.get(id);
}

draw("shift", (box) => {
  const controls = row(box, "moves");
  let chosen = everyHead[1], column = 0, offset = -6, count = 8;
  const importance = ({ q, k, s }) => s.map((one, j) => one * Math.sqrt(dot(q[j], q[j]) * dot(k[j], k[j])));
  const leading = ({ head }) => importance(head).indexOf(greatest(importance(head).slice(0, 20))); // the column with the largest part of the scores
  choice(controls, { name: "head", label: t`Head`, options: headOptions, value: chosen.id }, (id) => { chosen = headNamed(id); counts.max = chosen.head.s.length; column = leading(chosen); waves.value = column; waves.told(); update(); });
  column = leading(chosen);
  const waves = slider(controls, { name: "wave", label: t`Column j, by singular value`, low: 0, high: 19, step: 1, value: column, show: (x) => decimal(x + 1, 0) }, (x) => { column = x; update(); });
  slider(controls, { name: "move", label: t`Look t tokens away`, low: -REACH, high: REACH, step: 1, value: offset, show: offsetText }, (x) => { offset = x; update(); });
  const counts = slider(controls, { name: "count", label: t`Columns in the sum`, low: 1, high: chosen.head.s.length, step: 1, value: count, show: (x) => decimal(x, 0) }, (x) => { count = x; update(); });
  const curve = figure(box, t`Query at i and key at i + t, column j`, { wide: true }), correlation = figure(box, t`xcorr of this column (equations 11 and 12)`, { wide: true });
  const total = figure(box, t`Sum of s · xcov over columns (equations 13 to 15)`, { wide: true }), says = html("p", { class: "say", "data-says": "shift" });
  box.append(says);
  function update() {
    const { q, k, s, sums } = chosen.head, all = covariances(chosen), used = Math.min(count, s.length);
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

/** The largest size of a correlation more than 3 tokens away from its highest point. */
function elsewhere(line) {
  const best = line.indexOf(greatest(line));
  return greatest(line.filter((_, i) => Math.abs(i - best) > 3).map(Math.abs));
}
const SOLITARY = 1 / 3; // of the peak, at most, elsewhere
const byNoise = (length) => 4 / Math.sqrt(length); // a correlation of white noise, 4 standard deviations
draw("columns", (box) => {
  const controls = row(box, "moves"), LOBES = 30;
  let chosen = everyHead[1], offset = -2;
  choice(controls, { name: "columns-head", label: t`Head`, options: headOptions, value: chosen.id }, (id) => { chosen = headNamed(id); update(); });
  slider(controls, { name: "columns-offset", label: t`Offset t`, low: -REACH, high: REACH, step: 1, value: offset, show: offsetText }, (x) => { offset = x; update(); });
  const every = figure(box, t`xcorr of the first 20 columns, laid over each other (figure 7, above)`, { wide: true }), total = figure(box, t`Their weighted sum over all columns (figure 7, below)`, { wide: true });
  const sides = figure(box, t`What the columns add at this offset, in units of the highest sum`), says = html("p", { class: "say", "data-says": "columns" });
  box.append(says);
  function update() {
    const { s } = chosen.head, all = covariances(chosen), parts = all.map(({ centred }, j) => centred.map((x) => s[j] * x)), x = { label: t`Offset t, tokens`, low: -REACH, high: REACH, at: t`offset t` };
    const whole = NEAR.map((_, i) => sum(parts.map((line) => line[i]))), top = greatest(whole), few = all.slice(0, 20).map(({ scaled }) => scaled);
    const ratios = few.map((line) => elsewhere(line) / greatest(line)), single = ratios.indexOf(Math.min(...ratios)), peakOf = (line) => NEAR[line.indexOf(greatest(line))];
    const noise = byNoise(chosen.head.q[0].length), isSolitary = ratios[single] < SOLITARY && greatest(few[single]) > noise;
    curves(every, { lines: [...few.map((line) => ({ name: "", colour: "var(--q)", faint: true, points: NEAR.map((at, i) => [at, line[i]]) })), ...(isSolitary ? [{ name: t`most solitary: column ${single + 1}`, colour: "var(--k)", points: NEAR.map((at, i) => [at, few[single][i]]) }] : [])], at: offset, x, y: { label: "", low: -1, high: 1 }, label: t`Cross-correlations of 20 columns`, height: 190 });
    curves(total, { lines: [{ name: "", colour: "var(--accent)", points: NEAR.map((at, i) => [at, whole[i] / top]) }], at: offset, x, y: { label: "", low: Math.min(-0.2, ...whole.map((y) => y / top)), high: 1 }, label: t`Weighted sum`, height: 150 });
    const here = parts.map((line) => line[offset + REACH]), up = sum(here.filter((y) => y > 0)) / top, down = -sum(here.filter((y) => y < 0)) / top;
    bars(sides, { values: [up, down, Math.abs(up - down)], labels: [t`columns that raise the sum`, t`columns that lower it`, up < down ? t`left of it (below 0)` : t`left of it`], most: Math.max(1, up, down), colour: (i) => ["var(--q)", "var(--k)", "var(--accent)"][i], label: t`Sums of the columns` });
    const kept = (i) => Math.abs(whole[i]) / sum(parts.map((line) => Math.abs(line[i]))), near = whole.indexOf(top), far = mean(NEAR.map((at, i) => (Math.abs(Math.abs(at) - LOBES) <= 4 ? kept(i) : NaN)).filter(Number.isFinite));
    says.dataset.value = kept(offset + REACH);
    says.dataset.far = far;
    says.dataset.single = single;
    says.textContent = sentences(t`The sum is highest at t = ${offsetText(NEAR[near])}: there the columns point the same way, and ${share(kept(near))} of what they have is left in the sum.`,
      far < 0.5 ? t`From 26 to 34 tokens away ${share(far)} is left on average: crests meet troughs.` : t`From 26 to 34 tokens away ${share(far)} is left on average: more than half, so little cancels.`, t`At t = ${offsetText(offset)} it is ${share(kept(offset + REACH))}.`,
      isSolitary ? t`Column ${single + 1} is solitary: ${decimal(greatest(few[single]))} at t = ${offsetText(peakOf(few[single]))}, and more than 3 tokens away at most ${decimal(elsewhere(few[single]))} (white noise: at most ${decimal(noise)} in 4 standard deviations).` : t`No column of this head is solitary: each has other crests about as high.`);
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

const SIDES = { X: t`hidden states X`, query: t`queries Q`, key: t`keys K` }, SIDE_COLOURS = { X: "var(--v)", query: "var(--q)", key: "var(--k)" };
draw("layers", (box) => {
  const controls = row(box, "moves"), names = Object.keys(layers);
  let name = names[0], layer = 6;
  choice(controls, { name: "by-layer", label: t`Model`, options: names.map((one) => [one, one]), value: name }, (one) => {
    name = one;
    at.max = layers[name].ratio.length - 1;
    layer = Math.min(layer, at.max);
    at.value = layer;
    at.told();
    update();
  });
  const at = slider(controls, { name: "layer", label: t`Layer`, low: 0, high: layers[name].ratio.length - 1, step: 1, value: layer, show: (x) => decimal(x, 0) }, (x) => { layer = x; update(); });
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
      at: 48, x: { label: t`Frequency, cycles per 512 tokens`, low: 0, high: 256, at: t`48 cycles, 10.7 tokens` }, y: { label: "", low: 0, high: Math.min(top, 8) }, label: t`Spectra of a layer`, height: 210 });
    const x = { label: t`Layer`, low: 0, high: ratio.length - 1, at: t`the layer` };
    curves(peaks, { lines: [...sides.map((side, i) => ({ name: SIDES[side], colour: SIDE_COLOURS[side], points: peak[i].map((y, l) => [l, y]) })), { ...noise, points: [[0, 1], [ratio.length - 1, 1]] }], at: layer, x, y: { label: "", low: 0, high: greatest(peak.flat()) * 1.1 }, label: t`The peak by layer`, height: 180 });
    curves(content, { lines: [{ name: t`median head`, colour: "var(--out)", points: position.map((y, l) => [l, y]) }], at: layer, x, y: { label: "", low: 0, high: 1 }, label: t`Share of position by layer`, height: 180 });
    const [X, Q, K] = ["X", "query", "key"].map((side) => peak[sides.indexOf(side)]);
    says.dataset.value = Q[layer];
    says.textContent = t`Layer ${layer}: near 50 cycles Q has ${decimal(Q[layer], 1)} times noise, K ${decimal(K[layer], 1)}, X ${decimal(X[layer], 1)}. From the first layer to the last, Q and K go from ${decimal((Q[0] + K[0]) / 2, 1)} to ${decimal((Q.at(-1) + K.at(-1)) / 2, 1)}, and the share of position from ${share(position[0])} to ${share(position.at(-1))}.`;
  }
});

// --- syntax below, meaning above ---
const USES = Object.fromEntries(["syntax", "meaning"].map((kind) => [kind, { ...probes[kind], layers: Object.entries(unpack(probes[kind].states)).sort(([a], [b]) => a - b).map(([, rows]) => rows) }]));
/** Whether each use of a word is told by the nearer mean of the word's other sentences. */
function told({ words, uses }, rows) {
  return rows.map((row, i) => {
    const far = [0, 1].map((use) => {
      const others = rows.filter((_, j) => j !== i && words[j] === words[i] && uses[j] === use), centre = row.map((_, c) => mean(others.map((one) => one[c])));
      return Math.hypot(...row.map((x, c) => x - centre[c]));
    });
    return far[uses[i]] < far[1 - uses[i]];
  });
}
/** The exact sign test of two counts, both sides: how often a fair coin is as uneven. */
function signTest(a, b) {
  let term = 0.5 ** (a + b), tail = 0;
  for (let i = 0; i <= Math.min(a, b); i++) {
    tail += term;
    term *= (a + b - i) / (i + 1);
  }
  return Math.min(1, 2 * tail);
}
draw("probes", (box) => {
  const kinds = { syntax: t`syntax: noun or verb`, meaning: t`meaning: which of two senses` }, colours = { syntax: "var(--q)", meaning: "var(--k)" };
  const every = Object.fromEntries(Object.keys(kinds).map((kind) => [kind, USES[kind].layers.map((rows) => told(USES[kind], rows))]));
  const shares = Object.fromEntries(Object.entries(every).map(([kind, found]) => [kind, found.map((line) => mean(line.map(Number)))]));
  /** Words that have fewer sentences right after one layer than after another, words that have more, and all words. */
  function byWord(one, from, to) {
    const { words } = USES[one], right = (line, word) => line.filter((is, i) => is && words[i] === word).length, all = [...new Set(words)];
    const change = all.map((word) => right(every[one][to], word) - right(every[one][from], word));
    return [change.filter((x) => x < 0).length, change.filter((x) => x > 0).length, all.length];
  }
  const controls = row(box, "moves");
  let layer = 2, kind = "meaning", word = "bank";
  slider(controls, { name: "probe-layer", label: t`After layers`, low: 0, high: shares.syntax.length - 1, step: 1, value: layer, show: (x) => (x ? decimal(x, 0) : t`0 (embedding)`) }, (x) => { layer = x; update(); });
  choice(controls, { name: "probe-word", label: t`Word`, options: [["meaning bank", "bank"], ["meaning crane", "crane"], ["syntax walk", "walk"], ["syntax answer", "answer"]], value: "meaning bank" }, (one) => { [kind, word] = one.split(" "); update(); });
  const pictures = row(box), curve = figure(pictures, t`Uses that are told right, by layer`), where = plane(figure(pictures, t`The word's states in all its sentences, in two dimensions`), { low: -1.2, high: 1.2, label: t`States of the word` });
  const says = html("p", { class: "say", "data-says": "probes" });
  box.append(says);
  function update() {
    const x = { label: t`Layers read`, low: 0, high: shares.syntax.length - 1, at: t`the layer` };
    curves(curve, { lines: [...Object.entries(kinds).map(([one, name]) => ({ name, colour: colours[one], points: shares[one].map((y, l) => [l, y]) })), ...Object.keys(kinds).map((one) => ({ name: one === "syntax" ? t`syntax, untrained copies at most` : t`meaning, untrained copies at most`, colour: colours[one], dashed: true, faint: true, points: probes[one].null.map((y, l) => [l, y]) }))], at: layer, x, y: { label: "", low: 0, high: 1 }, label: t`Uses told right by layer`, height: 250 });
    const { words, uses, layers: rows } = USES[kind], mine = words.flatMap((one, i) => (one === word ? [i] : [])), few = mine.map((i) => rows[layer][i]);
    const axis = [0, 1].map((use) => mean0(few.filter((_, i) => uses[mine[i]] === use))), across = axis[1].map((v, c) => v - axis[0][c]), long = Math.hypot(...across) || 1;
    const middle = axis[0].map((v, c) => (v + axis[1][c]) / 2), unit = across.map((v) => v / long), first = few.map((one) => dot(one.map((v, c) => v - middle[c]), unit));
    const rest = few.map((one, i) => one.map((v, c) => v - middle[c] - first[i] * unit[c])), other = rest.map((one) => one[rest[0].map((_, c) => variance(rest.map((line) => line[c]))).reduce((best, v, c, all) => (v > all[best] ? c : best), 0)]);
    const size = greatest([...first, ...other].map(Math.abs)) || 1;
    where({ points: few.map((_, i) => ({ at: [first[i] / size, other[i] / size], name: "", colour: uses[mine[i]] ? "var(--k)" : "var(--q)", strength: uses[mine[i]] ? 1 : 0.25 })) });
    const gained = (one, from, to) => every[one][to].filter((right, i) => right && !every[one][from][i]).length, last = shares.syntax.length - 1, best = shares.syntax.indexOf(greatest(shares.syntax));
    const [lost, won] = [gained("syntax", last, best), gained("syntax", best, last)], [less, more] = [gained("meaning", last, best), gained("meaning", best, last)];
    says.dataset.syntax = shares.syntax[layer];
    says.dataset.meaning = shares.meaning[layer];
    const syntaxWords = byWord("syntax", best, last), meaningWords = byWord("meaning", best, last);
    says.dataset.lost = signTest(lost, won);
    says.dataset.won = signTest(less, more);
    says.textContent = sentences(t`After ${layer} layers the use is told right in ${share(shares.syntax[layer])} of the sentences for syntax and ${share(shares.meaning[layer])} for meaning.`,
      t`Syntax is best after ${best} layers (${share(shares.syntax[best])}), meaning after ${shares.meaning.indexOf(greatest(shares.meaning))} (${share(greatest(shares.meaning))}).`,
      t`From layer ${best} to the last, syntax loses ${lost} of ${every.syntax[0].length} sentences and gains ${won} (p = ${decimal(signTest(lost, won), 3)}); meaning loses ${less} of ${every.meaning[0].length} and gains ${more} (p = ${decimal(signTest(less, more), 3)}).`,
      t`By words, syntax falls in ${syntaxWords[0]} of ${syntaxWords[2]} and rises in ${syntaxWords[1]} (p = ${decimal(signTest(syntaxWords[0], syntaxWords[1]), 3)}), meaning falls in ${meaningWords[0]} of ${meaningWords[2]} and rises in ${meaningWords[1]} (p = ${decimal(signTest(meaningWords[0], meaningWords[1]), 3)}).`,
      t`p: exact sign tests, both sides. Sentences of one word are not independent: the test by words is the safer one.`,
      t`Layer ${best} was chosen on these sentences, so for syntax p is somewhat too small.`);
  }
  return update;
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

draw("compared", (box) => {
  const kinds = { encoder: t`encoder`, decoder: t`decoder` }, titles = [t`Model`, t`Type`, t`Highest peak below 51 tokens`, t`times noise`, t`Power in waves longer than 51 tokens`];
  /** The highest local maximum of a spectrum at periods below 51 tokens, where the slow waves begin. */
  const peakOf = ({ rows, spectrum }) => {
    const inside = spectrum.map((y, f) => f).filter((f) => rows / f < 51 && spectrum[f] >= spectrum[f - 1] && spectrum[f] >= (spectrum[f + 1] ?? 0));
    return inside.sort((a, b) => spectrum[b] - spectrum[a])[0];
  };
  const table = html("table", { class: "text" }, html("thead", {}, html("tr", {}, ...titles.map((one) => html("th", { scope: "col" }, one)))));
  table.append(html("tbody", {}, ...Object.entries(tables).map(([name, one]) => {
    const f = peakOf(one), cells = [kinds[one.kind], f === undefined ? "–" : t`${decimal(one.rows / f, 1)} tokens`, f === undefined ? "–" : decimal(one.spectrum[f], 1), share(figures.slow[name])];
    return html("tr", { "data-model": name, "data-slow": figures.slow[name], "data-peak": f === undefined ? "" : one.spectrum[f] }, html("th", { scope: "row", "data-column": titles[0] }, name), ...cells.map((cell, i) => html("td", { "data-column": titles[i + 1] }, cell)));
  })));
  box.append(table);
});
draw("objectives", (box) => {
  const { rows, updates } = figures.objectives, colours = { "masked token": "var(--q)", "next token": "var(--k)" }, names = { "masked token": t`masked token, reads both ways (as BERT)`, "next token": t`next token, reads backwards (as GPT-2)` };
  const place = figure(box, t`Mean spectrum of the position table after ${updates} updates, times noise`, { wide: true }), says = html("p", { class: "say", "data-says": "objectives" });
  box.append(says);
  return () => {
    curves(place, { lines: [...Object.keys(names).map((one) => ({ name: names[one], colour: colours[one], points: figures.objectives[one].spectrum.map((y, f) => [f, y]).slice(1) })), { name: t`white noise`, colour: "var(--muted)", dashed: true, points: [[0, 1], [rows / 2, 1]] }],
      x: { label: t`Frequency, cycles per ${rows} positions`, low: 0, high: rows / 2 }, y: { label: "", low: 0, high: greatest(Object.keys(names).flatMap((one) => figures.objectives[one].spectrum.slice(1))) }, label: t`Spectra by objective`, height: 200 });
    const slow = (one) => share(figures.objectives[one].slow), peaks = (one) => figures.objectives[one].spectrum.filter((y, f, all) => rows / f <= 51.2 && y > 1 && y >= all[f - 1] && y >= (all[f + 1] ?? 0)).length;
    says.dataset.value = peaks("masked token");
    says.textContent = t`Trained on masked tokens, the table has ${peaks("masked token")} peaks above noise at periods up to 51 tokens, and ${slow("masked token")} of its power in longer waves. Trained on the next token, it has ${peaks("next token")} such peaks and ${slow("next token")} in longer waves. Noise has about 4% there.`;
  };
});

draw("components", (box) => {
  const names = Object.keys(tables);
  let count = 4;
  slider(row(box, "moves"), { name: "dimensions", label: t`Principal components`, low: 1, high: 24, step: 1, value: count, show: (x) => decimal(x, 0) }, (x) => { count = x; update(); });
  const sums = figure(box, t`Share of the table's variance in its first principal components (figure 9)`, { wide: true }), says = html("p", { class: "say", "data-says": "components" });
  box.append(says);
  function update() {
    const published = { name: t`RoBERTa, as published`, colour: "var(--text)", points: [[4, 0.5051], [12, 0.9223]], dots: true };
    curves(sums, { lines: [...names.map((name, i) => ({ name, colour: TABLE_COLOURS[i], points: tables[name].share.map((y, d) => [d + 1, y]) })), published],
      at: count, x: { label: t`Principal components`, low: 1, high: 24 }, y: { label: "", low: 0, high: 1 }, label: t`Cumulative share of variance`, height: 260 });
    says.dataset.value = tables[names[0]].share[count - 1];
    const shares = names.map((name) => `${name} ${share(tables[name].share[count - 1])}`).join(", ");
    says.textContent = t`Variance in ${count} dimensions: ${shares}. Published for RoBERTa: 50.51% in 4, 92.23% in 12.`;
  }
  return update;
});

draw("fewer", (box) => {
  const { columns, means, scores, directions } = figures.table, names = Object.keys(figures.reduced), colours = ["var(--q)", "var(--k)", "var(--v)"];
  const controls = row(box, "moves");
  let count = 4, column = 0;
  slider(controls, { name: "kept", label: t`Dimensions that are kept`, low: 0, high: scores[0].length, step: 1, value: count, show: (x) => decimal(x, 0) }, (x) => { count = x; update(); });
  slider(controls, { name: "kept-column", label: t`Column of the table`, low: 0, high: columns.length - 1, step: 1, value: 0, show: (x) => decimal(x + 1, 0) }, (x) => { column = x; update(); });
  const pictures = row(box), wave = figure(pictures, t`The column (bundled), and what the kept dimensions make of it`), heads = figure(pictures, t`Weight of a head on the token before, when the model has only these dimensions of its table`), says = html("p", { class: "say", "data-says": "fewer" });
  box.append(says);
  function update() {
    const made = scores.map((line) => means[column] + sum(line.slice(0, count).map((x, d) => x * directions[d][column]))), real = columns[column], most = greatest(real.map(Math.abs));
    const left = sum(real.map((x, i) => (x - made[i]) ** 2)) / sum(real.map((x) => (x - means[column]) ** 2));
    curves(wave, { lines: [{ name: t`the whole table`, colour: "var(--muted)", points: real.map((x, i) => [i, x]) }, { name: t`${count} dimensions`, colour: "var(--accent)", dashed: true, points: made.map((x, i) => [i, x]) }], x: { label: t`Position`, low: 0, high: real.length - 1 }, y: { label: "", low: -most, high: most }, label: t`A column and its reconstruction`, height: 230 });
    curves(heads, { lines: names.map((name, i) => ({ name: t`${name}, head ${figures.reduced[name].head}`, colour: colours[i], points: figures.reduced[name].dimensions.slice(0, -1).map((d, k) => [d, figures.reduced[name].weight[k]]) })), at: count, x: { label: t`Dimensions that are kept`, low: 0, high: 24, at: t`kept` }, y: { label: "", low: 0, high: 1 }, label: t`Weight by dimensions`, height: 230 });
    const at = (name, d) => { const { dimensions, weight } = figures.reduced[name]; return weight[dimensions.indexOf(d)]; }, lines = names.map((name) => `${name} ${decimal(at(name, 4))}, ${decimal(at(name, 12))}, ${decimal(figures.reduced[name].weight.at(-1))}`).join("; ");
    says.dataset.value = 1 - left;
    says.textContent = t`${count} dimensions have ${share(1 - left)} of this column's variance. Weight on the token before with 4 dimensions, with 12, and with all: ${lines}.`;
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

const SCHEMES = { rope: [t`RoPE`, "var(--q)"], learned: [t`learned table`, "var(--k)"] };
draw("rope", (box) => {
  const { rope, copying } = figures;
  let update_ = 120;
  slider(row(box, "moves"), { name: "updates", label: t`Updates of the training`, low: 0, high: copying.updates.at(-1), step: copying.updates[1], value: update_, show: (x) => decimal(x, 0) }, (x) => { update_ = x; update(); });
  const lines = (of, updates) => Object.entries(SCHEMES).map(([key, [name, colour]]) => ({ name, colour, points: updates.map((u, i) => [u, of(key).mean[i]]), ends: of(key).ends }));
  const weight = figure(box, t`Task 1, name the token two before: weight of the head on that token`, { wide: true }), loss = figure(box, t`Task 1: loss, nats per token`), other = figure(box, t`Task 2, translate dates and numbers: loss, nats per token`), says = html("p", { class: "say", "data-says": "rope" });
  box.append(row(box));
  box.lastChild.append(loss.parentNode, other.parentNode);
  box.append(says);
  function update() {
    const x = { label: t`Updates`, low: 0, high: copying.updates.at(-1), at: t`chosen` };
    curves(weight, { lines: lines((key) => copying[key].weight, copying.updates), at: update_, x, y: { label: "", low: 0, high: 1 }, label: t`Weight on the token two before`, height: 190 });
    curves(loss, { lines: lines((key) => copying[key].loss, copying.updates), at: update_, x, y: { label: "", low: 0, high: 4.5 }, label: t`Loss of task 1`, height: 170 });
    curves(other, { lines: lines((key) => rope.loss[key], rope.updates), x: { label: t`Updates`, low: 0, high: rope.updates.at(-1) }, y: { label: "", low: 0, high: 3 }, label: t`Loss of task 2`, height: 170 });
    const at = copying.updates.indexOf(update_), middle = (key) => copying[key].reached.toSorted((a, b) => a - b)[Math.floor(copying.seeds / 2)];
    const sooner = copying.rope.reached.filter((one, seed) => one < copying.learned.reached[seed]).length;
    says.dataset.value = copying.rope.weight.mean[at];
    says.textContent = t`After ${update_} updates the head has ${share(copying.rope.weight.mean[at])} of its weight on the token two before with RoPE, and ${share(copying.learned.weight.mean[at])} with a learned table. In the median training it reaches 40% after ${middle("rope")} updates with RoPE and after ${middle("learned")} with the table; RoPE is sooner in ${sooner} of ${copying.seeds}. Intervals: 95%, over trainings.`;
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
