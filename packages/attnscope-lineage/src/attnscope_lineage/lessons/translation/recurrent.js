// Recurrent translators in JavaScript: a GRU encoder in both directions, and a GRU decoder with a fixed vector or attention.
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const affine = (weight, x, bias = null) => weight.map((row, i) => dot(row, x) + (bias ? bias[i] : 0));

/** One step of a GRU as PyTorch's: gates for reset and update, then the candidate. */
function gru(tensors, name, x, state) {
  const of = (part) => tensors[name.replace("*", part)], width = state.length;
  const a = affine(of("weight_ih"), x, of("bias_ih")), b = affine(of("weight_hh"), state, of("bias_hh"));
  return state.map((old, i) => {
    const reset = sigmoid(a[i] + b[i]), update = sigmoid(a[width + i] + b[width + i]);
    return (1 - update) * Math.tanh(a[2 * width + i] + reset * b[2 * width + i]) + update * old;
  });
}

/** The annotations h_i of a source, both directions side by side, and the fixed vector c. */
function encodeSource({ tensors }, ids) {
  const vectors = ids.map((id) => tensors.embedding[id]), width = tensors["encoder.network.weight_hh_l0"][0].length;
  const states = (sequence, end) => {
    let state = Array(width).fill(0);
    return sequence.map((x) => (state = gru(tensors, `encoder.network.*_l0${end}`, x, state)));
  };
  const ahead = states(vectors, ""), back = states(vectors.toReversed(), "_reverse").toReversed();
  return { h: ahead.map((half, i) => [...half, ...back[i]]), c: [...ahead.at(-1), ...back[0]] };
}

/** Score functions: each reads the annotations h once, and then scores a state with all of them. */
const SCORES = {
  dot: (_, h) => (s) => affine(h, s),
  bilinear: ({ weight }, h) => {
    const prepared = linear(h, weight); // W h_i
    return (s) => affine(prepared, s);
  },
  additive: ({ query, bias, key, direction }, h) => {
    const prepared = linear(h, key); // W_2 h_i
    return (s) => {
      const of = affine(query, s, bias);
      return prepared.map((one) => sum(one.map((x, i) => direction[i] * Math.tanh(x + of[i]))));
    };
  },
};
/** The score function of a trained model with its own matrices; null for a fixed vector. */
function scorer({ tensors, attention: kind }, h) {
  const of = (name) => tensors[`decoder.score.${name}`];
  const parameters = { weight: of("weight.weight"), query: of("query.weight"), bias: of("query.bias"), key: of("key.weight"), direction: of("direction.weight")?.[0] };
  return kind === "none" ? null : SCORES[kind](parameters, h);
}

/** The decoder before its first step: s from the fixed vector, and c_0 = c. */
function begin(model, { h, c }) {
  return { scores: scorer(model, h), s: affine(model.tensors["decoder.first_state.weight"], c, model.tensors["decoder.first_state.bias"]).map(Math.tanh), c };
}

/** The output layer: probabilities of the next word from s_t, c_t and the last output y_{t-1}. */
function outputLayer({ tensors }, s, c, y) {
  const together = affine(tensors["decoder.readout.weight"], [...s, ...c, ...y], tensors["decoder.readout.bias"]).map(Math.tanh);
  return softmax(affine(tensors.embedding, together));
}

/** One step of the decoder, which reads a word: state, scores, weights, context and probabilities. */
function stepOf(model, { h }, before, read) {
  const y = model.tensors.embedding[read], s = gru(model.tensors, "decoder.cell.*", [...y, ...before.c], before.s);
  const e = before.scores && before.scores(s), alpha = e && softmax(e);
  const c = alpha ? matmul([alpha], h)[0] : before.c;
  return { scores: before.scores, s, e, alpha, c, y, p: outputLayer(model, s, c, y) };
}

/** Teacher forcing: at each step the decoder reads the words of `reads`, the start first. */
function forced(model, source, reads) {
  let at = begin(model, source);
  return reads.map((read) => (at = stepOf(model, source, at, read)));
}

/** The model's own translation: each step reads the most probable word of the one before, until </s>. */
function translate(model, source, { start, stop, longest }) {
  let at = begin(model, source), read = start;
  const steps = [];
  while (steps.length < longest && (read !== stop || !steps.length)) {
    at = stepOf(model, source, at, read);
    read = at.p.indexOf(greatest(at.p));
    steps.push({ ...at, word: read });
  }
  return steps;
}
