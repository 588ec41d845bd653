// The attention of one text: all heads, one head over the running text, and its map. The same in a notebook, where
// Python answers for each head, and on a page, which holds the heads that it shows.

const weightOf = Float32Array.from({ length: 256 }, (_, code) => (code ? 2 ** (((code - 255) * 16) / 254) : 0));
const FROM = "from", TO = "to";

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
const percent = (weight) => (weight >= 0.005 ? `${Math.round(100 * weight)}%` : weight > 0 ? "<1%" : "0%");
const bytesOf = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
const visible = (token) => (token === "" ? "∅" : /^\s*\n\s*$/.test(token) ? "↵" : token.trim() || "␣");

/**
 * Show a view in an element. `source` has `meta`, `map(layer, head)` and, unless all is in the maps,
 * `row(layer, head, token, direction)`, both promises, `words`, and `start`: {layer, head, token}. `changed` is called with each new choice of the reader.
 */
export function mount(root, source, changed = () => {}) {
  const { meta, words } = source, state = { direction: FROM, span: null, segments: "", ...source.start };
  state.token ??= Math.floor(meta.texts[meta.layers[0].queries].tokens.length / 2);
  const parts = Object.fromEntries(["grid", "title", "options", "text", "note", "map", "readout"].map((name) => [name, element("div", { class: name })]));
  const canvas = element("canvas", { role: "img" }), outline = element("i"), frame = element("div", { class: "frame" }, canvas, outline);
  parts.map.append(element("span", { class: "axis" }, words.keyAxis), element("span", { class: "axis query" }, words.queryAxis), frame);
  parts.readout.setAttribute("aria-live", "polite");
  root.classList.add("attnscope-view");
  root.replaceChildren(parts.grid, element("div", { class: "head" }, parts.title, parts.options, parts.text, parts.note, parts.map, parts.readout));
  const cells = [];
  let shown = null, spans = { queries: [], keys: [] }, asked = 0;
  const layerOf = () => meta.layers.find((layer) => layer.index === state.layer) ?? meta.layers[0];
  const sides = () => { const layer = layerOf(); return { queries: meta.texts[layer.queries], keys: meta.texts[layer.keys], same: layer.queries === layer.keys }; };

  function drawGrid() {
    const total = meta.layers.length * meta.heads, size = total <= 64 ? 44 : total <= 400 ? 30 : 16, thumbs = bytesOf(meta.thumbs);
    parts.grid.style.gridTemplateColumns = `auto repeat(${meta.heads}, ${size}px)`;
    parts.grid.setAttribute("role", "grid");
    parts.grid.setAttribute("aria-label", words.heads);
    const numbers = Array.from({ length: meta.heads }, (_, head) => element("span", { class: "number" }, String(head)));
    parts.grid.append(element("div", { "aria-hidden": "true" }, element("span"), ...numbers));
    meta.layers.forEach((layer, row) => {
      const line = element("div", { role: "row" }, element("span", { class: "number", role: "rowheader" }, String(layer.index)));
      for (let head = 0; head < meta.heads; head++) {
        const cell = element("button", { type: "button", role: "gridcell", "aria-label": words.head(layer.index, head), title: words.head(layer.index, head), tabindex: -1 });
        cell.style.width = cell.style.height = `${size}px`;
        const picture = element("canvas", { width: meta.side, height: meta.side }), at = (row * meta.heads + head) * meta.side ** 2;
        paint(picture, thumbs.subarray(at, at + meta.side ** 2), meta.side, meta.side);
        cell.append(picture);
        cell.disabled = head >= layer.heads;
        cell.addEventListener("click", () => choose({ layer: layer.index, head }));
        cells.push(cell);
        line.append(cell);
      }
      parts.grid.append(line);
    });
    parts.grid.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -meta.heads, ArrowDown: meta.heads }[event.key], from = cells.indexOf(event.target);
      const cell = step && cells[from + step];
      if (!cell || cell.disabled) return;
      event.preventDefault();
      cell.focus();
      cell.click();
    });
  }

  /** Weights as shades of one colour on an absolute scale: white is 0, full is 1; the square root shows small ones. */
  function paint(target, codes, width, height) {
    const image = new ImageData(width, height);
    codes.forEach((code, at) => image.data.set([0, 90, 181, Math.round(255 * Math.sqrt(weightOf[code]))], 4 * at));
    target.getContext("2d").putImageData(image, 0, 0);
  }

  function choose(choice) {
    Object.assign(state, choice);
    changed(state);
    draw();
  }

  async function draw() {
    const number = ++asked, layer = layerOf();
    cells.forEach((cell, at) => {
      const selected = Math.floor(at / meta.heads) === meta.layers.indexOf(layer) && at % meta.heads === state.head;
      cell.setAttribute("aria-selected", selected);
      cell.tabIndex = selected ? 0 : -1;
    });
    parts.title.textContent = words.head(layer.index, state.head);
    const map = await source.map(layer.index, state.head);
    if (number !== asked) return; // another head was chosen meanwhile
    shown = map;
    if (!map) { parts.note.textContent = words.absent; parts.text.replaceChildren(); parts.map.hidden = true; return; }
    parts.map.hidden = false;
    drawText();
    drawMap();
    await showToken(state.token);
  }

  function drawText() {
    const { queries, keys, same } = sides();
    const line = (text, side) => {
      const made = text.tokens.map((token, at) => {
        const span = element("span", { class: "token", "data-at": at, title: `${at}` }, token);
        span.hidden = !inSegment(text, at, side);
        return span;
      });
      spans[side] = made;
      return element("p", { class: side, "aria-label": words[side] }, ...(same ? [] : [element("b", {}, `${words[side]} `)]), ...made);
    };
    const both = same ? [line(queries, "queries")] : [line(queries, "queries"), line(keys, "keys")];
    if (same) spans.keys = spans.queries;
    parts.text.replaceChildren(...both);
  }

  /** Whether a token is in the chosen part of a pair, such as A to B. */
  function inSegment(text, at, side) {
    if (!state.segments || !text.segments) return true;
    const wanted = [...state.segments].map(Number)[side === "queries" ? 0 : 1];
    return sides().same || text.segments[at] === wanted;
  }
  const counts = (query, key) => {
    const { queries, keys } = sides();
    if (!state.segments || !queries.segments) return true;
    return queries.segments[query] === Number(state.segments[0]) && keys.segments[key] === Number(state.segments[1]);
  };

  async function rowOf(token, direction) {
    const { n, m, tile, codes } = shown, columns = Math.ceil(m / tile);
    if (tile > 1 && source.row) return source.row(layerOf().index, state.head, token, direction);
    const weight = (query, key) => weightOf[codes[Math.floor(query / tile) * columns + Math.floor(key / tile)]];
    return direction === FROM ? Array.from({ length: m }, (_, key) => weight(token, key)) : Array.from({ length: n }, (_, query) => weight(query, token));
  }

  async function showToken(token) {
    const own = state.direction === FROM ? spans.queries : spans.keys, others = state.direction === FROM ? spans.keys : spans.queries;
    placeOutline(token);
    for (const span of [...spans.queries, ...spans.keys]) { span.style.removeProperty("--weight"); span.classList.remove("chosen", "flat"); }
    if (token === null || token >= own.length) { parts.note.textContent = words.hint; return; }
    const row = Array.from(await rowOf(token, state.direction), (weight, other) => ((state.direction === FROM ? counts(token, other) : counts(other, token)) ? weight : 0));
    const largest = row.reduce((best, weight, at) => (weight > row[best] ? at : best), 0), seen = row.filter((weight) => weight > 0).length;
    const flat = state.direction === FROM && row[largest] < 2 / Math.max(seen, 1);
    row.forEach((weight, at) => { others[at]?.style.setProperty("--weight", Math.sqrt(weight)); others[at]?.classList.toggle("flat", flat); });
    own[token].classList.add("chosen");
    const name = visible(own[token].textContent), other = others[largest] ? visible(others[largest].textContent) : "";
    parts.note.textContent = flat ? words.flat(name, percent(row[largest])) : words[state.direction](name, other, percent(row[largest]));
  }

  /** Mark the row of a query, or the column of a key, on the map. */
  function placeOutline(token) {
    const along = state.direction === FROM, size = 100 / (along ? shown.n : shown.m);
    outline.hidden = token === null;
    outline.style.cssText = along ? `left:0;right:0;top:${token * size}%;height:${size}%` : `top:0;bottom:0;left:${token * size}%;width:${size}%`;
  }

  function drawMap() {
    const { n, m, tile, codes } = shown, rows = Math.ceil(n / tile), columns = Math.ceil(m / tile);
    canvas.width = columns;
    canvas.height = rows;
    canvas.style.aspectRatio = `${columns} / ${rows}`;
    canvas.setAttribute("aria-label", words.map(layerOf().index, state.head));
    paint(canvas, codes, columns, rows);
  }

  function cellAt(event) {
    const box = canvas.getBoundingClientRect(), { n, m } = shown;
    const query = Math.floor(((event.clientY - box.top) / box.height) * n), key = Math.floor(((event.clientX - box.left) / box.width) * m);
    return query >= 0 && query < n && key >= 0 && key < m ? [query, key] : null;
  }

  canvas.addEventListener("pointermove", (event) => {
    const cell = shown && cellAt(event);
    if (!cell) return;
    const { queries, keys } = sides(), [query, key] = cell, columns = Math.ceil(shown.m / shown.tile);
    const weight = weightOf[shown.codes[Math.floor(query / shown.tile) * columns + Math.floor(key / shown.tile)]];
    parts.readout.textContent = words.cell(visible(queries.tokens[query]), query, visible(keys.tokens[key]), key, weight < 0.001 && weight > 0 ? "<0.001" : weight.toFixed(3));
    showToken(state.direction === FROM ? query : key);
  });
  canvas.addEventListener("pointerleave", () => { parts.readout.textContent = ""; showToken(state.token); });
  canvas.addEventListener("click", (event) => { const cell = cellAt(event); if (cell) choose({ token: cell[state.direction === FROM ? 0 : 1] }); });
  const tokenOf = (event) => {
    const own = state.direction === FROM ? spans.queries : spans.keys, at = own.indexOf(event.target.closest?.(".token"));
    return at < 0 ? null : at;
  };
  parts.text.addEventListener("pointerover", (event) => { const token = tokenOf(event); if (token !== null) showToken(token); });
  parts.text.addEventListener("pointerleave", () => showToken(state.token));
  parts.text.addEventListener("click", (event) => {
    const token = tokenOf(event);
    if (token === null) return;
    const span = event.shiftKey ? [Math.min(state.token, token), Math.max(state.token, token) + 1] : [token, token + 1];
    choose({ token: event.shiftKey ? state.token : token, span });
  });

  function buildOptions() {
    const select = (label, choices, set) => {
      const made = element("select", {}, ...choices.map(([value, name]) => element("option", { value }, name)));
      made.addEventListener("change", () => set(made.value));
      parts.options.append(element("label", {}, `${label} `, made));
    };
    select(words.show, [[FROM, words.attends], [TO, words.receives]], (direction) => choose({ direction }));
    if (Object.values(meta.texts).some((text) => text.segments)) {
      select(words.parts, [["", words.all], ["00", "A → A"], ["01", "A → B"], ["10", "B → A"], ["11", "B → B"]], (segments) => choose({ segments }));
    }
  }

  drawGrid();
  buildOptions();
  draw();
  return (choice) => {
    if (Object.entries(choice).every(([name, value]) => state[name] === value)) return; // of our own making
    Object.assign(state, choice);
    draw();
  };
}

/** The words of a view: `translated` has messages, their values numbered, in another language. */
function wordsIn(translated = {}) {
  const t = (parts, ...values) => {
    const message = parts.reduce((all, part, i) => `${all}{${i - 1}}${part}`);
    return (translated[message] ?? message).replace(/\{(\d+)\}/g, (_, i) => values[i]);
  };
  return {
    heads: t`All heads, layers below each other`,
    head: (layer, head) => t`Layer ${layer}, head ${head}`,
    queries: t`Queries:`,
    keys: t`Keys:`,
    hint: t`Point at a token, or at the map; click to keep it.`,
    keyAxis: t`keys →`,
    queryAxis: t`queries ↓`,
    show: t`Show`,
    attends: t`where a token attends`,
    receives: t`which tokens attend to it`,
    parts: t`Sentences`,
    all: t`all`,
    absent: t`This page does not hold the map of this head. In a notebook, every head opens.`,
    flat: (token, weight) => t`“${token}” attends nearly uniformly: its largest weight is ${weight}.`,
    from: (token, other, weight) => t`“${token}” attends most to “${other}” (${weight}).`,
    to: (token, other, weight) => t`“${token}” receives most from “${other}” (${weight} of that query's weight).`,
    map: (layer, head) => t`Weights of layer ${layer}, head ${head}: queries from top to bottom, keys from left to right`,
    cell: (query, i, key, j, weight) => t`query ${i} “${query}” → key ${j} “${key}”: ${weight}`,
  };
}

/** A view whose maps are in the page: `held` has codes by "layer.head", in base 64. */
export function page(root, { meta, start, held, words }) {
  const map = async (layer, head) => {
    const found = held[`${layer}.${head}`];
    return found ? { ...found, codes: bytesOf(found.codes) } : null;
  };
  return mount(root, { meta, start, map, words: wordsIn(words) });
}

/** The same in a notebook, where Python answers. */
function render({ model, el }) {
  const waiting = new Map(), known = new Map();
  let number = 0;
  const ask = (question) => new Promise((resolve) => { waiting.set(++number, resolve); model.send({ ...question, number }); });
  const listen = (answer, buffers) => {
    const resolve = waiting.get(answer.number);
    if (!resolve) return;
    waiting.delete(answer.number);
    resolve({ ...answer, bytes: buffers.map((view) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength)) });
  };
  model.on("msg:custom", listen);
  const source = {
    meta: model.get("_meta"),
    words: wordsIn(model.get("_words")),
    start: { layer: model.get("layer"), head: model.get("head"), token: model.get("token") },
    async map(layer, head) {
      const name = `${layer}.${head}`;
      if (!known.has(name)) {
        const { n, m, tile, bytes } = await ask({ map: [layer, head] });
        known.set(name, { n, m, tile, codes: bytes[0] });
      }
      return known.get(name);
    },
    async row(layer, head, token, direction) {
      const { bytes } = await ask({ row: [layer, head, token, direction] });
      return new Float32Array(bytes[0].slice().buffer);
    },
  };
  const set = mount(el, source, ({ layer, head, token, span }) => {
    for (const [name, value] of Object.entries({ layer, head, token, span })) model.set(name, value);
    model.save_changes();
  });
  const follow = () => set({ layer: model.get("layer"), head: model.get("head"), token: model.get("token") });
  const names = ["change:layer", "change:head", "change:token"];
  names.forEach((name) => model.on(name, follow));
  return () => { names.forEach((name) => model.off(name, follow)); model.off("msg:custom", listen); };
}

export default { render };
