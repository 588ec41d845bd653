// The sample window: unpacking one head's weights, reading rows and columns, drawing the map.

/** Bytes of one head of `n` queries -> {n, ranks, key, weight, rest}; only the chosen head is ever inflated. */
async function unpackHead(packed, n, shared) {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const plain = new Uint8Array(await new Response(stream).arrayBuffer());
  const ranks = shared.ranks, size = n * ranks;
  const table = Float32Array.from({ length: 256 }, (_, c) => (c ? 2 ** (((c - shared.steps - 1) * shared.octaves) / shared.steps) : 0));
  const key = new Uint16Array(size), weight = new Float32Array(size);
  for (let row = 0; row < n; row++) {
    let code = 0;
    for (let rank = 0; rank < ranks; rank++) {
      const at = row * ranks + rank;
      code = rank ? code - plain[2 * size + at] : plain[2 * size + at];
      key[at] = plain[at] | (plain[size + at] << 8);
      weight[at] = table[code];
    }
  }
  return { n, ranks, key, weight, rest: Float32Array.from(plain.subarray(3 * size), (c) => table[c]) };
}

/** Weights of one token, largest first: of its row ("from") or of its column ("to"). */
function partners(map, token, direction) {
  const found = [];
  if (direction === "from") {
    for (let at = token * map.ranks; at < (token + 1) * map.ranks; at++) {
      if (map.weight[at] > 0) found.push({ position: map.key[at], weight: map.weight[at] });
    }
  } else {
    for (let at = 0; at < map.key.length; at++) {
      if (map.weight[at] > 0 && map.key[at] === token) found.push({ position: Math.floor(at / map.ranks), weight: map.weight[at] });
    }
  }
  return found.sort((a, b) => b.weight - a.weight);
}

/** A token as it can be seen: spaces at its ends marked, controls and invisible characters by their code points. */
function visible(token) {
  if (token === "") return "∅";
  if (/^[ \n]*\n[ \n]*$/.test(token)) return "↵";
  const named = (c) => `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  const marked = token.replace(/^ +| +$/g, (spaces) => "␣".repeat(Math.min(spaces.length, 4)));
  return marked.replace(/(?! )\p{Zs}|[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/gu, named);
}

/**
 * Draw a map, and return what it can be asked: {most, cell(x, y) -> [query, key] or null, outline(token, direction)}.
 *
 * `view` says what is shown: {first, count} rows, {keyFirst, keyCount} columns, `rows` and `columns` (names, or null both
 * for numbers), `diagonal`. Only the outline changes as the pointer moves; the map below it is drawn once.
 */
function drawMap(canvas, map, view) {
  const ratio = devicePixelRatio || 1, width = Math.max(240, Math.floor(canvas.clientWidth));
  const left = view.rows ? Math.min(96, width * 0.26) : 46, top = view.rows ? left + 14 : 34, side = width - left - 6;
  const box = { left, top, side, width, height: top + side + 6, cellX: side / view.keyCount, cellY: side / view.count };
  canvas.style.height = `${box.height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(box.height * ratio);
  const paper = canvas.getContext("2d");
  paper.scale(ratio, ratio);
  paper.fillStyle = variable("--card");
  paper.fillRect(0, 0, width, box.height);
  const { image, most } = mapImage(map, view, Math.max(1, Math.round(side * ratio)));
  paper.putImageData(image, Math.round(left * ratio), Math.round(top * ratio));
  paper.strokeStyle = variable("--line");
  paper.strokeRect(left, top, side, side);
  if (view.diagonal) drawDiagonal(paper, box, view);
  drawNames(paper, box, view);
  const below = html("canvas", { width: canvas.width, height: canvas.height });
  below.getContext("2d").drawImage(canvas, 0, 0);
  return {
    most,
    cell(x, y) {
      const row = Math.floor((y - top) / box.cellY), column = Math.floor((x - left) / box.cellX);
      const inside = row >= 0 && row < view.count && column >= 0 && column < view.keyCount;
      return inside ? [view.first + row, view.keyFirst + column] : null;
    },
    outline(token, direction) {
      paper.drawImage(below, 0, 0, width, box.height);
      drawOutline(paper, box, view, token, direction);
    },
  };
}

/** The map as pixels. A pixel shows the largest weight it covers, so that a thin diagonal never vanishes. */
function mapImage(map, { first, count, keyFirst, keyCount }, pixels) {
  const strongest = new Float32Array(pixels * pixels);
  const span = (i, size) => {
    const from = Math.floor((i * pixels) / size);
    return [from, Math.max(from + 1, Math.floor(((i + 1) * pixels) / size))];
  };
  let most = 0;
  for (let query = first; query < first + count; query++) {
    const [y0, y1] = span(query - first, count);
    for (let at = query * map.ranks; at < (query + 1) * map.ranks; at++) {
      const weight = map.weight[at], column = map.key[at] - keyFirst;
      if (!weight || column < 0 || column >= keyCount) continue;
      if (weight > most) most = weight;
      const [x0, x1] = span(column, keyCount);
      for (let y = y0; y < y1; y++) for (let x = x0; x < x1; x++) if (weight > strongest[y * pixels + x]) strongest[y * pixels + x] = weight;
    }
  }
  const colour = weightRamp(), table = Array.from({ length: 257 }, (_, i) => colour(i / 256));
  const image = new ImageData(pixels, pixels), bytes = image.data;
  for (let i = 0; i < strongest.length; i++) {
    const rgb = table[most ? Math.round(256 * Math.sqrt(strongest[i] / most)) : 0];
    bytes[4 * i] = rgb[0];
    bytes[4 * i + 1] = rgb[1];
    bytes[4 * i + 2] = rgb[2];
    bytes[4 * i + 3] = 255;
  }
  return { image, most };
}

function drawDiagonal(paper, { left, top, side, cellX }, { first, count, keyFirst }) {
  paper.save();
  paper.beginPath();
  paper.rect(left, top, side, side);
  paper.clip();
  paper.setLineDash([2, 4]);
  paper.strokeStyle = variable("--mark");
  paper.beginPath();
  paper.moveTo(left + (first - keyFirst) * cellX, top);
  paper.lineTo(left + (first + count - keyFirst) * cellX, top + side);
  paper.stroke();
  paper.restore();
}

/** Mark a row ("from") or a column ("to"): a frame, or two arrowheads where a frame would hide the cells. */
function drawOutline(paper, { left, top, side, cellX, cellY }, { first, count, keyFirst, keyCount }, token, direction) {
  const along = direction === "from", index = along ? token - first : token - keyFirst;
  if (index < 0 || index >= (along ? count : keyCount)) return;
  paper.save();
  paper.strokeStyle = paper.fillStyle = variable("--mark");
  paper.lineWidth = 1.5;
  if (!along) paper.transform(0, 1, 1, 0, left - top, top - left); // swap rows and columns about the corner
  const cell = along ? cellY : cellX, y = top + index * cell;
  if (cell >= 5) paper.strokeRect(left, y, side, cell);
  else {
    for (const [x, way] of [[left, -1], [left + side, 1]]) {
      paper.beginPath();
      paper.moveTo(x, y + cell / 2);
      paper.lineTo(x + 6 * way, y + cell / 2 - 4);
      paper.lineTo(x + 6 * way, y + cell / 2 + 4);
      paper.fill();
    }
  }
  paper.restore();
}

function drawNames(paper, { left, top, cellX, cellY }, view) {
  const font = (size) => `${size}px ${getComputedStyle(document.body).fontFamily}`;
  const { first, count, keyFirst, keyCount } = view;
  const upright = (text, x, y, align) => {
    paper.save();
    paper.translate(x, y);
    paper.rotate(-Math.PI / 2);
    paper.textAlign = align;
    paper.fillText(text, 0, 0);
    paper.restore();
  };
  paper.fillStyle = variable("--muted");
  paper.textBaseline = "middle";
  if (view.rows) {
    paper.font = font(Math.min(12, Math.max(8, cellY * 0.72)));
    const fit = (text) => {
      let shown = Array.from(text);
      while (shown.length > 1 && paper.measureText(shown.join("")).width > left - 12) shown = [...shown.slice(0, -2), "…"];
      return shown.join("");
    };
    paper.textAlign = "right";
    for (let i = 0; i < count; i++) paper.fillText(fit(view.rows[first + i]), left - 5, top + (i + 0.5) * cellY);
    for (let i = 0; i < keyCount; i++) {
      upright(fit(view.columns[keyFirst + i]), left + (i + 0.5) * cellX, top - 5, "left");
    }
  } else {
    paper.font = font(11);
    const marks = (low, size) => ticks(low, low + size - 1, 4).filter(Number.isInteger);
    paper.textAlign = "center";
    for (const value of marks(keyFirst, keyCount)) paper.fillText(value, left + (value - keyFirst + 0.5) * cellX, top - 10);
    paper.textAlign = "right";
    for (const value of marks(first, count)) paper.fillText(value, left - 9, top + (value - first + 0.5) * cellY);
  }
  paper.font = font(11);
  paper.fillStyle = variable("--text");
  paper.textAlign = "left";
  paper.fillText("key →", left, 8);
  if (view.rows) paper.fillText("query ↓", 2, top - 8);
  else upright("← query", 8, top, "right");
}
