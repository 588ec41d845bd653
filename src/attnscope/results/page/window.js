// The windows: unpacking one head's weights, reading rows and columns, drawing the map.

const bytesOf = (packed) => Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
/** The bytes that were packed; only what is looked at is ever inflated. */
async function inflate(packed) {
  const stream = new Blob([bytesOf(packed)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
const unpackJson = async (packed) => JSON.parse(new TextDecoder().decode(await inflate(packed)));
const weightTable = ({ steps = 254, octaves = 16 } = {}) => Float32Array.from({ length: 256 }, (_, c) => (c ? 2 ** (((c - steps - 1) * octaves) / steps) : 0));

/** One head of `n` queries token by token -> {n, start, query, key, weight, rest, share}; row i is start[i]..start[i + 1]. */
async function unpackMap([packed, share], n, shared) {
  const plain = await inflate(packed), table = weightTable(shared);
  const start = new Uint32Array(n + 1);
  for (let row = 0; row < n; row++) start[row + 1] = start[row] + (plain[row] | (plain[n + row] << 8));
  const size = start[n], keys = 3 * n, key = new Uint16Array(size), query = new Uint16Array(size);
  for (let row = 0; row < n; row++) {
    for (let at = start[row], last = 0; at < start[row + 1]; at++) {
      last += plain[keys + at] | (plain[keys + size + at] << 8);
      key[at] = last;
      query[at] = row;
    }
  }
  const weight = Float32Array.from(plain.subarray(keys + 2 * size), (c) => table[c]);
  return { n, start, query, key, weight, share, rest: Float32Array.from(plain.subarray(2 * n, 3 * n), (c) => table[c]) };
}

/** One head in tiles of `tile` tokens -> {tile, n, m, columns, share, most}, row after row. */
async function unpackTiles(packed, n, m, shared) {
  const plain = await inflate(packed), table = weightTable(shared), half = plain.length / 2;
  const weigh = (part) => Float32Array.from(part, (c) => table[c]);
  return { tile: shared.tile, n, m, columns: Math.ceil(m / shared.tile), share: weigh(plain.subarray(0, half)), most: weigh(plain.subarray(half)) };
}

/** Weights of one token, largest first: of its row ("from") or of its column ("to"). In tiles, an item goes from `position` to `last`. */
function partners(map, token, direction) {
  const found = [];
  if (map.tile) {
    const at = Math.floor(token / map.tile), along = direction === "from";
    const count = along ? map.columns : map.share.length / map.columns;
    for (let i = 0; i < count; i++) {
      const weight = map.share[along ? at * map.columns + i : i * map.columns + at];
      if (weight > 0) found.push({ position: i * map.tile, last: Math.min((i + 1) * map.tile, along ? map.m : map.n) - 1, weight });
    }
  } else {
    const [from, to] = direction === "from" ? [map.start[token], map.start[token + 1]] : [0, map.key.length];
    for (let at = from; at < to; at++) {
      if (!map.weight[at] || (direction === "to" && map.key[at] !== token)) continue;
      const position = direction === "from" ? map.key[at] : map.query[at];
      found.push({ position, last: position, weight: map.weight[at] });
    }
  }
  found.sort((a, b) => b.weight - a.weight);
  if (direction === "from" && !(map.tile > 1) && found[0]?.weight === 1) { // the largest code, which stands for 0.98 to 1
    found[0].weight = Math.max(0.978, 1 - found.slice(1).reduce((sum, { weight }) => sum + weight, map.rest?.[token] ?? 0));
  }
  return found;
}

/** Where a head of `n` queries and `m` keys attends most, an offset or a key, with the mean weight there, and the query that shows it best. */
function typical(map, n, m, special = []) {
  const offsets = new Float64Array(n + m), keys = new Float64Array(m), most = (sums) => sums.reduce((best, sum, i) => (sum > sums[best] ? i : best), 0);
  for (const [query, , key, , weight] of cellsOf(map)) if (!special[query]) { offsets[key - query + n] += weight; keys[key] += weight; }
  const offset = most(offsets), key = most(keys), moves = offsets[offset] >= keys[key], fits = [];
  for (const [query, , at, , weight] of cellsOf(map)) if (!special[query] && (moves ? at - query + n === offset : at === key)) fits.push({ query, weight });
  const enough = 0.9 * Math.max(...fits.map(({ weight }) => weight)), far = ({ query }) => Math.abs(query - n / 2);
  const { query } = fits.filter(({ weight }) => weight >= enough).reduce((a, b) => (far(b) < far(a) ? b : a), fits[0] ?? { query: Math.floor(n / 2) });
  return { query, offset: moves ? offset - n : null, key, share: (moves ? offsets[offset] : keys[key]) / (n - special.filter(Boolean).length || 1) };
}

/** A token as it can be seen: spaces at its ends marked, controls and invisible characters by their code points. */
function visible(token) {
  if (token === "") return "∅";
  if (/^[ \n]*\n[ \n]*$/.test(token)) return "↵";
  return running(token.replace(/^ +| +$/g, (spaces) => "␣".repeat(Math.min(spaces.length, 4))));
}

/** A token in running text, where spaces are spaces. */
function running(token) {
  if (token === "") return "∅";
  if (/^[ \n]*\n[ \n]*$/.test(token)) return "↵";
  const named = (c) => `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  return token.replace(/(?! )\p{Zs}|[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/gu, named);
}

/**
 * Draw a map, and return what it can be asked: {most, cell(x, y) -> [query, key] or null, outline(token, direction)}.
 *
 * `view` says what is shown: {first, count} rows, {keyFirst, keyCount} columns, `rows` and `columns` (names, or null both
 * for numbers), `diagonal`. Only the outline changes as the pointer moves; the map below it is drawn once.
 */
function drawMap(canvas, map, view) {
  const ratio = devicePixelRatio || 1, width = Math.max(240, Math.floor(canvas.clientWidth));
  const paper = canvas.getContext("2d");
  paper.font = fontOf(12);
  const room = (names) => Math.max(60, ...names.map((name) => paper.measureText(name).width + 14));
  const left = view.rows ? Math.min(96, width * 0.26, room(view.rows)) : 46, top = view.rows ? Math.min(left, room(view.columns)) + 14 : 34, side = width - left - 6;
  const box = { left, top, side, width, height: top + side + 6, cellX: side / view.keyCount, cellY: side / view.count };
  canvas.style.height = `${box.height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(box.height * ratio);
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
    view,
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

/** A map on white paper: cells, tokens at its sides where they fit, else positions, and the scale of its colours. */
function svgOfMap(map, view, title) {
  const { first, count, keyFirst, keyCount } = view, side = 400, left = 110, top = 130, colour = ramp(WEIGHT.light);
  const across = side / keyCount, down = side / count, ink = "fill:#1b2026", right = left + side;
  const rect = (x, y, width, height, part) => svg("rect", { x, y, width, height, fill: css(colour(part)) });
  const word = (x, y, text, more = {}) => svg("text", { x, y, style: ink, ...more }, text);
  const picture = svg("svg", { viewBox: `0 0 ${right + 80} ${top + side + 12}`, width: right + 80, height: top + side + 12 }, word(left, 16, title));
  const shapes = new Map(), short = (number) => Number(number.toFixed(2)); // one path for all cells of a colour
  for (const [query, queryEnd, key, keyEnd, weight] of cellsOf(map)) {
    const [y, yEnd] = [query, queryEnd].map((row) => Math.min(count, Math.max(0, row - first))), [x, xEnd] = [key, keyEnd].map((column) => Math.min(keyCount, Math.max(0, column - keyFirst)));
    const shade = css(colour(Math.round(64 * Math.sqrt(weight)) / 64)), wide = short((xEnd - x) * across);
    if (weight && yEnd > y && xEnd > x) shapes.set(shade, `${shapes.get(shade) ?? ""}M${short(left + x * across)} ${short(top + y * down)}h${wide}v${short((yEnd - y) * down)}h${-wide}z`);
  }
  picture.append(...[...shapes].map(([shade, d]) => svg("path", { d, fill: shade })));
  const name = (names, i, length) => { const letters = Array.from(names ? names[i] : String(i)); return letters.length > length ? `${letters.slice(0, length - 1).join("")}…` : letters.join(""); };
  const marks = (names, start, length) => Array.from({ length }, (_, i) => start + i).filter((i) => names || i % Math.ceil(length / 8) === 0);
  for (const i of marks(view.rows, first, count)) picture.append(word(left - 5, top + (i - first + 0.5) * down + 4, name(view.rows, i, 16), { "text-anchor": "end" }));
  for (const i of marks(view.columns, keyFirst, keyCount)) { const x = left + (i - keyFirst + 0.5) * across; picture.append(word(x + 4, top - 6, name(view.columns, i, 16), { transform: `rotate(-90 ${x + 4} ${top - 6})` })); }
  picture.append(svg("rect", { x: left, y: top, width: side, height: side, fill: "none", stroke: "#888" }), word(left - 5, top - 6, t`query ↓`, { "text-anchor": "end" }), word(left, 32, t`key →`));
  for (let i = 0; i < 50; i++) picture.append(rect(right + 14, top + side - (i + 1) * side / 50, 12, side / 50 + 0.5, (i + 0.5) / 50));
  for (const value of [0, 0.1, 0.25, 0.5, 1]) picture.append(word(right + 30, top + side * (1 - Math.sqrt(value)) + 4, say(value)));
  picture.append(word(right + 14, top - 10, t`weight`));
  return picture;
}

/** What is drawn: rows and columns from..to, and the weight there. */
function* cellsOf(map) {
  if (map.tile) {
    for (let i = 0; i < map.most.length; i++) {
      const query = Math.floor(i / map.columns) * map.tile, key = (i % map.columns) * map.tile;
      yield [query, query + map.tile, key, key + map.tile, map.most[i]];
    }
  } else for (let at = 0; at < map.key.length; at++) yield [map.query[at], map.query[at] + 1, map.key[at], map.key[at] + 1, map.weight[at]];
}

/** The map as pixels. A pixel shows the largest weight it covers, so that a thin diagonal never vanishes. */
function mapImage(map, { first, count, keyFirst, keyCount }, pixels) {
  const strongest = new Float32Array(pixels * pixels);
  const thick = Math.round(pixels / 80); // of large weights, in every zoom
  const span = (from, to, size, least) => {
    const start = Math.floor((Math.max(from, 0) * pixels) / size);
    return [start, Math.max(start + least, Math.floor((Math.min(to, size) * pixels) / size))];
  };
  const most = 1; // the same scale for every head
  for (const [query, queryEnd, key, keyEnd, weight] of cellsOf(map)) {
    if (!weight || queryEnd <= first || query >= first + count || keyEnd <= keyFirst || key >= keyFirst + keyCount) continue;
    const least = weight < 0.3 ? 1 : thick, [y0, y1] = span(query - first, queryEnd - first, count, 1), [x0, x1] = span(key - keyFirst, keyEnd - keyFirst, keyCount, least);
    for (let y = y0; y < y1; y++) for (let x = x0; x < x1; x++) if (weight > strongest[y * pixels + x]) strongest[y * pixels + x] = weight;
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
  paper.setLineDash([1, 7]);
  paper.globalAlpha = 0.6;
  paper.strokeStyle = variable("--muted"); // --mark is what is chosen
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

const fontOf = (size) => `${size}px ${getComputedStyle(home).fontFamily}`;

function drawNames(paper, { left, top, cellX, cellY }, view) {
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
    paper.font = fontOf(Math.min(12, Math.max(8, cellY * 0.72)));
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
    paper.font = fontOf(11);
    const marks = (low, size) => ticks(low, low + size - 1, 4).filter(Number.isInteger);
    paper.textAlign = "center";
    for (const value of marks(keyFirst, keyCount)) paper.fillText(value, left + (value - keyFirst + 0.5) * cellX, top - 10);
    paper.textAlign = "right";
    for (const value of marks(first, count)) paper.fillText(value, left - 9, top + (value - first + 0.5) * cellY);
  }
  paper.font = fontOf(11);
  paper.fillStyle = variable("--text");
  paper.textAlign = "left";
  paper.fillText(t`key →`, left, 8);
  if (view.rows) paper.fillText(t`query ↓`, 2, top - 8);
  else upright(t`← query`, 8, top, "right");
}

/**
 * The tokens in a box answer to pointer and keys: `show(token)` and, after a click or Enter, `keep(token, event)`.
 * `answers` says whether this text is the one to choose in, `below` how far the lines above and below are.
 */
function listenToTokens(box, chips, { answers, kept, show, keep, below = () => 0 }) {
  const tokenOf = (event) => (event.target.dataset.token === undefined || !answers() ? null : Number(event.target.dataset.token));
  for (const kind of ["pointerover", "focusin"]) box.addEventListener(kind, (event) => { const token = tokenOf(event); if (token !== null) show(token); });
  for (const kind of ["pointerleave", "focusout"]) box.addEventListener(kind, () => show(kept()));
  box.addEventListener("click", (event) => { const token = tokenOf(event); if (token !== null) keep(token, event); });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); keep(tokenOf(event) ?? kept(), event); }
    const from = tokenOf(event);
    const step = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: () => below(from, -1), ArrowDown: () => below(from, 1) }[event.key]?.();
    if (from === null || !step) return;
    event.preventDefault();
    if (chips[from + step]) moveFocus(chips, from, from + step);
  });
}

/** A map answers to the pointer: `say` a cell in words, `show` and `keep` its query or its key. */
function listenToMap(canvas, readout, { drawn, direction, say, kept, show, keep }) {
  const cellAt = (event) => drawn()?.cell(event.offsetX, event.offsetY), chosen = ([query, key]) => (direction() === "from" ? query : key);
  canvas.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    readout.textContent = cell ? say(...cell) : "";
    if (cell) show(chosen(cell));
  });
  canvas.addEventListener("pointerleave", () => { readout.textContent = ""; show(kept()); });
  canvas.addEventListener("click", (event) => { const cell = cellAt(event); if (cell) keep(chosen(cell)); });
}

/** Shade the tokens of text `there` by their weights, `shade` of each, and mark the chosen token of text `here`. */
function shadeTokens(chips, { here, there, token, kept, found, flat, shade = (weight) => weight }) {
  const weights = new Map(found.flatMap((p) => Array.from({ length: p.last - p.position + 1 }, (_, i) => [p.position + i, p.weight])));
  chips.forEach((all, text) => all.forEach((chip, i) => {
    const weight = text === there ? weights.get(i) ?? 0 : 0, chosen = text === here && i === token;
    chip.style.setProperty("--w", weight ? Math.sqrt(shade(weight, i)).toFixed(3) : 0);
    chip.classList.toggle("flat", flat && !!weight);
    chip.classList.toggle("current", chosen);
    chip.setAttribute("aria-selected", chosen);
    chip.tabIndex = text === here && i === kept ? 0 : -1;
  }));
}

/** Where a token attends most, or what it receives most from. */
const sayMost = (direction, flat, token, other, most) => (flat ? t`“${token}” attends nearly uniformly: its largest weight is ${say(most, 2)}.`
  : direction === "from" ? t`“${token}” attends most to “${other}” (${share(most)}).`
  : t`“${token}” receives most from “${other}” (${share(most)} of that query's weight).`);
const sayCell = (query, from, key, to, weight) => t`query ${query} “${from}” → key ${key} “${to}”: ${weight}`;
