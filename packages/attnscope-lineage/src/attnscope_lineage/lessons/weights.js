// Trained weights in a page: one block of 32-bit numbers in base64, and the name and shape of each tensor in it.

/** The tensors of a model by name: a vector is an array of numbers, a matrix an array of rows. */
function unpack({ shapes, block }) {
  const bytes = Uint8Array.from(atob(block), (letter) => letter.charCodeAt(0));
  const numbers = new Float32Array(bytes.buffer);
  const tensors = {};
  let start = 0;
  for (const [name, shape] of shapes) {
    const width = shape.at(-1), rows = shape.length > 1 ? shape[0] : 1;
    const matrix = Array.from({ length: rows }, (_, row) => Array.from(numbers.subarray(start + row * width, start + (row + 1) * width)));
    tensors[name] = shape.length > 1 ? matrix : matrix[0];
    start += rows * width;
  }
  return tensors;
}

/** x Wᵀ + b for every row x, as nn.Linear computes it: W has a row for each number of the output. */
const linear = (rows, weight, bias = null) => rows.map((row) => weight.map((of, i) => dot(row, of) + (bias ? bias[i] : 0)));

/** Words and marks of a sentence, each one a token of a vocabulary of whole words, or unknown. */
function wordsOf(sentence) {
  return sentence.normalize("NFC").replace(/[‘’]/g, "'").match(/[\p{L}\p{N}']+|[^\s\p{L}\p{N}']/gu) ?? [];
}

/** The positions of a row's numbers, the largest number first. */
const ranked = (row) => row.map((_, i) => i).sort((a, b) => row[b] - row[a]);
