// The lesson on queries, keys and values.
const INDEXED = (name, count) => Array.from({ length: count }, (_, i) => `${name}${"₁₂₃₄"[i]}`);

draw("dictionary", (box) => {
  const { entries, headwords, contents, sought } = lesson.numbers;
  let word = "tiger", sharp = 5;
  const controls = row(box, "moves");
  choice(controls, { name: "word", label: t`Look up`, value: word, options: Object.keys(sought).map((one) => [one, one]) }, (one) => { word = one; update(); });
  slider(controls, { name: "sharp", label: t`Sharpness`, low: 0, high: 40, step: 1, value: sharp, show: String }, (x) => { sharp = x; update(); });
  const pictures = row(box), weighs = figure(pictures, t`Keys: how well each headword fits`);
  const brought = figure(pictures, t`Content: the mean of the entries, by these weights`), says = html("p", { class: "say" });
  box.append(says);
  function update() {
    const { weights: [weights], output: [output] } = attention([sought[word]], headwords, contents, { scale: sharp });
    bars(weighs, { values: weights, labels: entries, colour: "var(--k)", label: t`Weights` });
    bars(brought, { values: output, labels: [t`purrs`, t`is big`, t`has wheels`], colour: "var(--v)", label: t`Content` });
    const isTie = greatest(weights) - Math.min(...weights) < 1e-9; // at sharpness 0
    says.textContent = entries.includes(word)
      ? sentences(t`“${word}” is a headword.`, t`A dictionary would return its entry alone; attention gives it ${share(weights[entries.indexOf(word)])}.`)
      : sentences(t`“${word}” is no headword.`, isTie ? t`A dictionary would return nothing; attention mixes all entries equally.` : t`A dictionary would return nothing; attention mixes the entries that fit, “${entries[weights.indexOf(greatest(weights))]}” first.`);
  }
  return update;
});

const projected = () => {
  const { x, queryMap, keyMap, valueMap } = lesson.numbers;
  return { q: matmul(x, queryMap), k: matmul(x, keyMap), v: matmul(x, valueMap) };
};

draw("maps", (box) => {
  const { tokens, x, queryMap, keyMap, valueMap } = lesson.numbers;
  const maps = { q: ["Q", "W_Q", queryMap], k: ["K", "W_K", keyMap], v: ["V", "W_V", valueMap] };
  let kind = "v", at = [3, 2];
  choice(row(box, "moves"), { name: "map", label: t`Matrix`, value: kind, options: [["q", "Q"], ["k", "K"], ["v", "V"]] }, (one) => { kind = one; at = [at[0], 0]; update(); });
  const matrices = row(box), from = figure(matrices, t`X: one row a token`);
  matrices.append(html("span", { class: "operator" }, "×"));
  const by = figure(matrices, t`The map, set by hand here`);
  matrices.append(html("span", { class: "operator" }, "="));
  const to = figure(matrices, t`The result: click a number`), says = html("p", { class: "say" });
  box.append(says);
  function update() {
    const [name, map, matrix] = maps[kind], result = projected()[kind], [i, j] = at;
    heat(from, { values: x, rows: tokens, kind: "signed", most: 2, digits: 1, marked: (r) => r === i, label: "X" });
    heat(by, { values: matrix, kind: "signed", most: 2, digits: 1, marked: (_, c) => c === j, label: map });
    heat(to, { values: result, rows: tokens, kind: "signed", most: 2, digits: 2, marked: (r, c) => r === i && c === j, pick: (r, c) => { at = [r, c]; update(); }, label: name });
    const worked = x[i].map((value, n) => `${decimal(value, 1)} × ${decimal(matrix[n][j], 1)}`).join(" + ");
    says.textContent = sentences(t`${name} has ${result.length} rows and ${result[0].length} columns.`, `${worked} = ${decimal(result[i][j])}`);
  }
  return update;
});

draw("spaces", (box) => {
  const { tokens, plane: points } = lesson.numbers, turned = { q: 0, k: 0 };
  const controls = row(box, "moves");
  const angle = (name, label) => slider(controls, { name, label, low: -180, high: 180, step: 5, value: 0, show: (x) => `${decimal(x, 0)}°` }, (x) => { turned[name] = (x * Math.PI) / 180; update(); });
  angle("q", t`W_Q turns queries by`);
  angle("k", t`W_K turns keys by`);
  const pictures = row(box), space = plane(figure(pictures, t`Queries and keys of the same tokens`), { label: t`Queries and keys in the plane` });
  const matrix = figure(pictures, t`Weights: which token attends to which`), says = html("p", { class: "say" });
  box.append(says);
  const turn = (by) => matmul(points, [[Math.cos(by), Math.sin(by)], [-Math.sin(by), Math.cos(by)]]);
  function update() {
    const q = turn(turned.q), k = turn(turned.k), { scores, weights } = attention(q, k, k);
    const apart = Math.cos(turned.q - turned.k) < 0.96; // else a query covers its key
    space({ arrows: [...k.map((at, i) => ({ at, name: apart ? `k ${tokens[i]}` : "", colour: "var(--k)", size: 5 })), ...q.map((at, i) => ({ at, name: `q ${tokens[i]}`, colour: "var(--q)", size: 2.2 }))] });
    heat(matrix, { values: weights, rows: tokens, columns: tokens, most: 1, label: t`Weights: which token attends to which` });
    const symmetric = scores.every((line, i) => line.every((value, j) => Math.abs(value - scores[j][i]) < 1e-9));
    const itself = weights.every((line, i) => line[i] === greatest(line));
    says.textContent = sentences(symmetric ? t`S is symmetric: i scores j as j scores i.` : t`S is not symmetric: “it” gives “animal” the weight ${decimal(weights[3][0])}, and “animal” gives “it” ${decimal(weights[0][3])}.`,
      itself ? t`Every token attends most to itself.` : t`Tokens attend most to others.`);
  }
  return update;
});

const exchanged = (rows, kind) => (kind ? [rows[1], rows[0], ...rows.slice(2)] : rows);
draw("swap", (box) => {
  const { tokens } = lesson.numbers, { q, k, v } = projected();
  let kind = "none";
  choice(row(box, "moves"), { name: "swap", label: t`Exchange “animal” and “street” in`, value: kind, options: [["none", t`nothing`], ["k", "K"], ["v", "V"]] }, (one) => { kind = one; update(); });
  const pictures = row(box), weighs = figure(pictures, t`Weights of “it”`), holds = figure(pictures, t`V: values`), gives = figure(pictures, t`Output of “it”`);
  const says = html("p", { class: "say" });
  box.append(says);
  function update() {
    const values = exchanged(v, kind === "v"), before = attention(q, k, v), now = attention(q, exchanged(k, kind === "k"), values);
    bars(weighs, { values: now.weights[3], labels: tokens, label: t`Weights of “it”`, marked: (j) => now.weights[3][j] === greatest(now.weights[3]) });
    heat(holds, { values, rows: tokens, kind: "signed", most: 1.5, digits: 1, marked: (i) => kind === "v" && i < 2, label: t`V: values` });
    heat(gives, { values: [now.output[3]], rows: ["it"], kind: "signed", most: 1.5, digits: 2, label: t`Output of “it”` });
    const moved = (name) => now[name][3].some((x, j) => x !== before[name][3][j]);
    says.textContent = kind === "none" ? t`“it” attends most to “animal”: it takes its value.`
      : sentences(moved("weights") ? t`The weights have changed: keys decide where to attend.` : t`The weights are the same to the last digit: values have no part in them.`,
        moved("output") ? t`The output has changed.` : t`The output is the same.`);
  }
  return update;
});

draw("summary", (box) => {
  const { tokens } = lesson.numbers, { q, k, v } = projected();
  let at = 3;
  choice(row(box, "moves"), { name: "token", label: t`Follow the token`, value: at, options: tokens.map((one, i) => [i, one]) }, (one) => { at = one; update(); });
  const first = row(box), queries = figure(first, "Q = X W_Q"), keys = figure(first, "K = X W_K"), values = figure(first, "V = X W_V");
  const second = row(box), scores = figure(second, "S = Q Kᵀ / √dₖ"), weights = figure(second, "A = softmax(S)"), output = figure(second, "O = A V");
  function update() {
    const all = attention(q, k, v), followed = (i) => i === at, signed = { kind: "signed", most: 2, digits: 2, rows: tokens };
    heat(queries, { ...signed, values: q, marked: followed, label: "Q" });
    heat(keys, { ...signed, values: k, label: "K" });
    heat(values, { ...signed, values: v, label: "V" });
    heat(scores, { ...signed, values: all.scores, columns: tokens, marked: followed, label: "S" });
    heat(weights, { values: all.weights, rows: tokens, columns: tokens, most: 1, marked: followed, label: "A" });
    heat(output, { ...signed, values: all.output, marked: followed, label: "O" });
  }
  return update;
});

draw("asked-scores", (box) => {
  const { x, queryMap, keyMap } = lesson.numbers.asked, pictures = row(box), plain = { kind: "plain", digits: 0 };
  heat(figure(pictures, "X"), { ...plain, values: x, rows: INDEXED("x", 2) });
  heat(figure(pictures, "W_Q"), { ...plain, values: queryMap });
  heat(figure(pictures, "W_K"), { ...plain, values: keyMap });
});
