// The map of a whole long window: blocks drawn once for a head, then zoomed and moved as one picture.

const long = { view: { x: 0, y: 0, part: 1 }, map: null, picture: null, value: "most", frame: 0 };

/** Take up the chosen head. The view stays, so that heads can be compared at one place. */
async function showLong() {
  const box = byId("long");
  if (!box) return;
  const own = packed.long.heads[state.head], ticket = loading, { block } = packed.long;
  box.hidden = state.window !== 0 || !own;
  if (box.hidden) return;
  const plain = await inflate(own), table = weightTable(shared), half = plain.length / 2;
  if (ticket !== loading) return; // another head was chosen meanwhile
  const [query, key] = shared.sides[layerOf(state.head)], { tokens, texts } = packed.long;
  const read = (part) => Float32Array.from(part, (c) => table[c]);
  long.map = { block, n: tokens[query], m: tokens[key], rows: Math.ceil(tokens[query] / block), columns: Math.ceil(tokens[key] / block),
    queries: texts[query], keys: texts[key], share: read(plain.subarray(0, half)), most: read(plain.subarray(half)) };
  long.map.above = sumsAbove(long.map);
  byId("long-blocks").textContent = t` of ${block} × ${block} tokens; rows: queries, columns: keys`;
  pictureLong();
}

/** Of the blocks above and left of each corner of blocks, the weight: four corners then give that of any rectangle. */
function sumsAbove({ block, n, rows, columns, share }) {
  const wide = columns + 1, sums = new Float64Array((rows + 1) * wide);
  for (let row = 0; row < rows; row++) {
    const count = Math.min(block, n - row * block);
    for (let column = 0, ofRow = 0; column < columns; column++) {
      ofRow += count * share[row * columns + column];
      sums[(row + 1) * wide + column + 1] = sums[row * wide + column + 1] + ofRow;
    }
  }
  return sums;
}

/** One pixel a block; a zoom only scales it. */
function pictureLong() {
  const { rows, columns } = long.map, values = long.map[long.value], colour = weightRamp();
  const table = Array.from({ length: 257 }, (_, i) => colour(i / 256)), image = new ImageData(columns, rows);
  let most = 0;
  for (const value of values) if (value > most) most = value;
  values.forEach((value, i) => image.data.set([...table[most ? Math.round(256 * Math.sqrt(value / most)) : 0], 255], 4 * i));
  long.picture = html("canvas", { width: columns, height: rows });
  long.picture.getContext("2d").putImageData(image, 0, 0);
  paintLong();
}

/** Rows and columns in view, in blocks. */
function seenLong() {
  const { map: { rows, columns }, view: { x, y, part } } = long;
  return { left: x * columns, top: y * rows, width: part * columns, height: part * rows };
}

function paintLong() {
  cancelAnimationFrame(long.frame);
  long.frame = requestAnimationFrame(() => {
    const canvas = byId("long-map"), ratio = devicePixelRatio || 1, side = Math.max(200, Math.floor(canvas.clientWidth));
    canvas.style.height = `${side}px`;
    if (canvas.width !== Math.round(side * ratio)) canvas.width = canvas.height = Math.round(side * ratio);
    const paper = canvas.getContext("2d"), { left, top, width, height } = seenLong();
    // where several blocks share a pixel, they are averaged; where a block has several, it stays a square
    paper.imageSmoothingEnabled = width > canvas.width;
    canvas.style.touchAction = long.view.part < 1 ? "none" : "pan-y"; // a finger moves what is zoomed, and else the page
    paper.drawImage(long.picture, left, top, width, height, 0, 0, canvas.width, canvas.height);
    paper.strokeStyle = variable("--line");
    paper.strokeRect(0.5, 0.5, canvas.width - 1, canvas.height - 1);
    sayLong();
  });
}

/** What is in view, and how much of the weight it holds. */
function sayLong() {
  const { map } = long, { left, top, width, height } = seenLong(), close = 1e-6;
  const rows = [Math.floor(top + close), Math.ceil(top + height - close)], columns = [Math.floor(left + close), Math.ceil(left + width - close)];
  const weight = (row, column) => map.above[row * (map.columns + 1) + column];
  const held = weight(rows[1], columns[1]) - weight(rows[0], columns[1]) - weight(rows[1], columns[0]) + weight(rows[0], columns[0]);
  const all = weight(map.rows, map.columns), queries = Math.min(map.n, rows[1] * map.block) - rows[0] * map.block;
  const span = ([from, to], tokens) => `${from * map.block}–${Math.min(to * map.block, tokens) - 1}`;
  byId("long-shown").textContent = t`In view: queries ${span(rows, map.n)}, keys ${span(columns, map.m)}. They account for ${say(100 * Math.min(1, held / (queries || 1)))}% of the weight of these queries, and ${say(100 * Math.min(1, held / (all || 1)))}% of the whole window’s.`;
}

/** Show `factor` times as much about a point of the canvas, moved by parts of the view. */
function moveLong(factor, at = [0.5, 0.5], by = [0, 0]) {
  const { view, map } = long, least = Math.min(1, 8 / Math.max(map.rows, map.columns));
  const part = Math.min(1, Math.max(least, view.part * factor));
  const place = (from, i) => Math.min(1 - part, Math.max(0, from + at[i] * (view.part - part) + by[i] * part));
  long.view = { x: place(view.x, 0), y: place(view.y, 1), part };
  paintLong();
}

function keyLong(key) {
  const steps = { ArrowLeft: [-0.2, 0], ArrowRight: [0.2, 0], ArrowUp: [0, -0.2], ArrowDown: [0, 0.2] };
  if (steps[key]) moveLong(1, [0.5, 0.5], steps[key]);
  else if (key === "+" || key === "=") moveLong(0.5);
  else if (key === "-") moveLong(2);
  else if (key === "0") moveLong(Infinity);
  else return false;
  return true;
}

function pointLong([x, y]) {
  const { map } = long, { left, top, width, height } = seenLong();
  const row = Math.min(map.rows - 1, Math.floor(top + y * height)), column = Math.min(map.columns - 1, Math.floor(left + x * width));
  const span = (at, tokens) => `${at * map.block}–${Math.min((at + 1) * map.block, tokens) - 1}`, at = row * map.columns + column;
  const text = (words) => html("bdi", {}, `“${Array.from(words, visible).join("")}…”`);
  byId("long-readout").replaceChildren(t`Queries ${span(row, map.n)} `, text(map.queries[row]), t` attend to keys ${span(column, map.m)} `, text(map.keys[column]),
    t` with ${say(100 * map.share[at])}% of their weight; the largest is ${say(map.most[at])}.`);
}

function listenLong() {
  const canvas = byId("long-map");
  if (!canvas) return;
  let held = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top].map((value) => Math.min(0.999999, Math.max(0, value / box.width)));
  };
  canvas.addEventListener("wheel", (event) => {
    if (!long.map) return;
    const out = event.deltaY > 0;
    if (out && long.view.part === 1) return; // the page scrolls on
    event.preventDefault();
    moveLong(1.2 ** (out ? 1 : -1), place(event));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    held = place(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!long.map) return;
    const now = place(event);
    if (held) {
      moveLong(1, [0.5, 0.5], [held[0] - now[0], held[1] - now[1]]);
      held = now;
    } else pointLong(now);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => {
    held = null;
    if (long.map) pointLong(place(event));
  });
  canvas.addEventListener("keydown", (event) => {
    if (long.map && !event.ctrlKey && !event.metaKey && keyLong(event.key)) event.preventDefault();
  });
  for (const button of document.querySelectorAll("#long-buttons button")) button.addEventListener("click", () => keyLong(button.dataset.key));
  for (const input of document.querySelectorAll("[name=long-value]")) input.addEventListener("change", () => {
    long.value = input.value;
    pictureLong();
  });
  prefersDark.addEventListener("change", () => long.map && pictureLong());
  addEventListener("resize", () => long.map && paintLong());
}
listenLong();
