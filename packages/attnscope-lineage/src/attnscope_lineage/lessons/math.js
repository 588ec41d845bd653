// The mathematics of lessons: pure functions of arrays of numbers. A matrix is an array of rows.
function dot(a, b) { // a loop: a model in a page calls it a million times
  let total = 0;
  for (let i = 0; i < a.length; i++) total += a[i] * b[i];
  return total;
}
const transpose = (matrix) => matrix[0].map((_, column) => matrix.map((row) => row[column]));
const matmul = (a, b) => {
  const columns = transpose(b);
  return a.map((row) => columns.map((column) => dot(row, column)));
};
const times = (matrix, factor) => matrix.map((row) => row.map((x) => x * factor));
const plus = (a, b) => a.map((row, i) => row.map((x, j) => x + b[i][j]));
function sum(row) {
  let total = 0;
  for (let i = 0; i < row.length; i++) total += row[i];
  return total;
}
const mean = (row) => sum(row) / row.length;
function variance(row) { // divided by the count, as in layer norm
  const centre = mean(row);
  return mean(row.map((x) => (x - centre) ** 2));
}
const greatest = (row) => row.reduce((best, x) => (x > best ? x : best), -Infinity);

/** Softmax of a row; a score of −∞ has weight 0, and a row of −∞ alone has no weights (NaN). */
function softmax(row) {
  const most = greatest(row), parts = row.map((x) => Math.exp(x - most)), total = sum(parts);
  return parts.map((x) => x / total);
}
const softmaxRows = (matrix) => matrix.map(softmax);

/** Weights and output of attention; `mask` is added to the scores, 0 or −∞. */
function attention(q, k, v, { mask = null, scale = 1 / Math.sqrt(k[0].length) } = {}) {
  const scores = times(matmul(q, transpose(k)), scale);
  const masked = mask ? plus(scores, mask) : scores, weights = softmaxRows(masked);
  return { scores, masked, weights, output: matmul(weights, v) };
}

/** A row shifted to mean 0 and scaled to variance 1, then by `gain` and `bias`. */
function layerNorm(row, gain, bias, epsilon = 1e-5) {
  const centre = mean(row), size = Math.sqrt(variance(row) + epsilon);
  return row.map((x, i) => ((x - centre) / size) * gain[i] + bias[i]);
}

/** The error function, by its series for small and its continued fraction for large x, to about 1e-15. */
function erf(x) {
  const size = Math.abs(x);
  if (size > 6) return Math.sign(x);
  if (size < 2.5) {
    let term = size, total = size;
    for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(total) && n < 200; n++) {
      term *= (-size * size) / n;
      total += term / (2 * n + 1);
    }
    return Math.sign(x) * (2 / Math.sqrt(Math.PI)) * total;
  }
  let fraction = 0;
  for (let n = 60; n >= 1; n--) fraction = n / 2 / (size + fraction);
  return Math.sign(x) * (1 - Math.exp(-size * size) / (Math.sqrt(Math.PI) * (size + fraction)));
}
const gelu = (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)); // exact, as PyTorch's default
const relu = (x) => Math.max(0, x);
const entropy = (weights) => -sum(weights.map((w) => (w > 0 ? w * Math.log(w) : 0)));

/** Random numbers that are the same at every opening (mulberry32): uniform() in [0, 1), normal() of mean 0, variance 1. */
function seeded(seed) {
  let state = seed >>> 0;
  const uniform = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  return { uniform, normal };
}

/** The corners of the smallest convex polygon around points of the plane, in order. */
function hullOf(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const half = (from) => {
    const corners = [];
    for (const p of from) {
      while (corners.length > 1) {
        const [a, b] = corners.slice(-2);
        if ((b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0]) > 0) break;
        corners.pop();
      }
      corners.push(p);
    }
    return corners.slice(0, -1);
  };
  return [...half(sorted), ...half(sorted.reverse())];
}
