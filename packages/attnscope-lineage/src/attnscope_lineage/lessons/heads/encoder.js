// A Transformer encoder in JavaScript: the model of the lesson, whole. Its numbers are those of PyTorch.

/** The ids of a sentence between <s> and </s>, and the words that the vocabulary lacks. */
function tokenise(sentence, vocabulary) {
  const names = wordsOf(sentence);
  const unknown = names.filter((name) => !Object.hasOwn(vocabulary, name));
  return { names: ["<s>", ...names, "</s>"], ids: [1, ...names.map((name) => vocabulary[name]), 2], unknown };
}

/**
 * Attention of one layer with all its heads: weights, outputs, and the share of each head in the output of the layer.
 * `removed` lists heads whose output is replaced by zeros; with `window`, a word attends to words at most so far away.
 */
function multiHead(tensors, path, states, heads, { removed = [], window = Infinity } = {}) {
  const of = (name) => linear(states, tensors[`${path}.${name}.weight`], tensors[`${path}.${name}.bias`]);
  const q = of("q_proj"), k = of("k_proj"), v = of("v_proj");
  const width = q[0].length / heads, part = (rows, head) => rows.map((row) => row.slice(head * width, (head + 1) * width));
  const mask = Number.isFinite(window) ? states.map((_, i) => states.map((_, j) => (Math.abs(i - j) > window ? -Infinity : 0))) : null;
  const each = Array.from({ length: heads }, (_, head) => {
    const found = attention(part(q, head), part(k, head), part(v, head), { mask });
    const output = removed.includes(head) ? times(found.output, 0) : found.output;
    const columns = part(tensors[`${path}.out_proj.weight`], head); // W_O: the columns that read this head
    return { ...found, output, written: linear(output, columns) };
  });
  const concat = states.map((_, i) => each.flatMap(({ output }) => output[i]));
  return { each, concat, output: linear(concat, tensors[`${path}.out_proj.weight`], tensors[`${path}.out_proj.bias`]) };
}

/** The whole model: states after each layer, all heads of all layers, and the probability of every word at each position. */
function encode(model, ids, { removed = {}, window = Infinity } = {}) {
  const { tensors, heads, layers } = model, scale = Math.sqrt(tensors.embedding[0].length);
  const norm = (rows, name) => rows.map((row) => layerNorm(row, tensors[`${name}.weight`], tensors[`${name}.bias`]));
  let states = ids.map((id, i) => tensors.embedding[id].map((x, j) => (x + tensors.positions[i][j]) * scale));
  const after = [states], attended = [];
  for (let layer = 0; layer < layers; layer++) {
    const path = `layers.${layer}`, feed = `${path}.feed_forward`;
    const found = multiHead(tensors, `${path}.self_attention`, norm(states, `${path}.around_attention.norm`), heads, { removed: removed[layer], window });
    states = plus(states, found.output);
    const hidden = linear(norm(states, `${path}.around_feed_forward.norm`), tensors[`${feed}.up.weight`], tensors[`${feed}.up.bias`]);
    states = plus(states, linear(hidden.map((row) => row.map(relu)), tensors[`${feed}.down.weight`], tensors[`${feed}.down.bias`]));
    attended.push(found);
    after.push(states);
  }
  return { states: after, layers: attended, probabilities: softmaxRows(linear(norm(states, "norm"), tensors.embedding)) };
}
