// The attention of one text: all heads, one head over the running text, and its map. The same in a notebook, where
// Python answers for each head, and on a page, which holds the heads that it shows.

/**
 * Show a view in an element. `source` has `meta`, `map(layer, head)` and, unless all is in the maps,
 * `row(layer, head, token, direction)`, both promises, and `start`: {layer, head, token}. A live one has `toggle(layer, head)` too, which takes a
 * head out. `changed` is called with the state and what the reader chose. Returns functions that `follow` a choice, `renew` what is shown, and `mark` heads.
 */
function mount(root, source, changed = () => {}) {
  let meta, sorts, texts, names;
  const read = (next) => {
    meta = next;
    sorts = Object.keys(meta.texts);
    texts = Object.values(meta.texts);
    names = texts.map(({ tokens }) => tokens.map(visible));
  };
  read(source.meta);
  const state = { direction: "from", segments: "", ...source.start }, at = (layer, head) => t`Layer ${layer}, head ${head}`;
  const parts = Object.fromEntries(["grid", "title", "options", "text", "note", "map", "scale", "readout"].map((name) => [name, html("div", { class: name })]));
  const canvas = html("canvas", { role: "img" }), cells = [];
  let picked = (source.start.token ?? null) !== null, map = null, drawn = null, chips = [], asked = 0, width = 0, built = "";
  parts.map.append(canvas);
  parts.scale.id = `attnscope-scale-${Math.random()}`; // of its own in a notebook
  for (const name of ["note", "readout"]) parts[name].setAttribute("aria-live", "polite");
  root.classList.add("attnscope-view");
  root.replaceChildren(parts.grid, html("div", { class: "head" }, parts.title, parts.options, parts.text, parts.note, parts.map, parts.scale, parts.readout));
  const layerOf = () => meta.layers.find((layer) => layer.index === state.layer) ?? meta.layers[0];
  const sides = () => { const { queries, keys } = layerOf(); return { queries: sorts.indexOf(queries), keys: sorts.indexOf(keys) }; };
  const chosenText = () => sides()[state.direction === "from" ? "queries" : "keys"];

  function drawGrid() {
    const total = meta.layers.length * meta.heads, size = total <= 64 ? 44 : total <= 400 ? 30 : 16;
    parts.grid.style.gridTemplateColumns = `auto repeat(${meta.heads}, ${size}px)`;
    parts.grid.setAttribute("role", "grid");
    parts.grid.setAttribute("aria-label", t`All heads, layers below each other`);
    const numbers = Array.from({ length: meta.heads }, (_, head) => html("span", { class: "number" }, String(head)));
    parts.grid.append(html("div", { "aria-hidden": "true" }, html("span"), ...numbers));
    meta.layers.forEach((layer, row) => {
      const line = html("div", { role: "row" }, html("span", { class: "number", role: "rowheader" }, String(layer.index)));
      for (let head = 0; head < meta.heads; head++) {
        const name = at(layer.index, head), cell = html("button", { type: "button", role: "gridcell", "aria-label": name, title: name, tabindex: -1, style: `width:${size}px;height:${size}px` });
        cell.append(html("canvas", { width: meta.side, height: meta.side }));
        cell.disabled = head >= layer.heads;
        cell.addEventListener("click", (event) => (event.shiftKey && source.toggle ? source.toggle(layer.index, head) : choose({ layer: layer.index, head })));
        if (source.toggle) {
          cell.draggable = true;
          cell.addEventListener("dragstart", (event) => event.dataTransfer.setData("text/x-attnscope-head", `${layer.index}.${head}`));
        }
        cells.push(cell);
        line.append(cell);
      }
      parts.grid.append(line);
    });
    parts.grid.addEventListener("keydown", (event) => {
      if (source.toggle && event.key === "x") {
        const at = cells.indexOf(event.target);
        source.toggle(meta.layers[Math.floor(at / meta.heads)].index, at % meta.heads);
        return;
      }
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -meta.heads, ArrowDown: meta.heads }[event.key], from = cells.indexOf(event.target);
      const cell = step && cells[from + step];
      if (!cell || cell.disabled) return;
      event.preventDefault();
      cell.focus();
      cell.click();
    });
  }

  function paintGrid() {
    home = root;
    const table = weightTable(), colour = weightRamp(), thumbs = typeof meta.thumbs === "string" ? bytesOf(meta.thumbs) : meta.thumbs, pixels = meta.side ** 2;
    cells.forEach((cell, index) => {
      const image = new ImageData(meta.side, meta.side);
      thumbs.subarray(index * pixels, (index + 1) * pixels).forEach((code, i) => image.data.set([...colour(Math.sqrt(table[code])), 255], 4 * i));
      cell.firstChild.getContext("2d").putImageData(image, 0, 0);
    });
  }

  function choose(choice) {
    Object.assign(state, choice);
    changed(state, choice);
    draw();
  }

  async function draw() {
    const number = ++asked, layer = layerOf();
    cells.forEach((cell, index) => {
      const selected = Math.floor(index / meta.heads) === meta.layers.indexOf(layer) && index % meta.heads === state.head;
      cell.setAttribute("aria-selected", selected);
      cell.tabIndex = selected ? 0 : -1;
    });
    parts.title.textContent = at(layer.index, state.head);
    const found = await source.map(layer.index, state.head);
    if (number !== asked) return; // another head was chosen meanwhile
    const table = weightTable(), most = found && Float32Array.from(found.codes, (code) => table[code]);
    map = found && { ...found, columns: Math.ceil(found.m / found.tile), most, share: most };
    parts.map.hidden = !map;
    sayTypical();
    drawText();
    paint();
    await showToken(state.token);
  }

  /** What the head mostly does in this text: the title, unless the reader chose a token, which then is. */
  function sayTypical() {
    if (!map) return;
    const most = typical(map, map.n, map.m, names[sides().queries].map((name) => /^<.+>$|^\[[A-Z]+\]$/.test(name))), there = names[sides().keys];
    if (!picked) state.token = most.query;
    const own = sides().queries === sides().keys;
    const where = most.offset === null ? t`on “${there[most.key]}”` : (own && { "-1": t`on the previous token`, 0: t`on the token itself`, 1: t`on the next token` }[most.offset]) || t`at offset ${say(most.offset)}`;
    const said = meta.isDifference ? t`mean difference of the weight ${where}: ${share(most.share)}` : t`All tokens together: ${share(most.share)} of the weight ${where}`;
    parts.title.append(html("span", { class: picked ? "typical" : "finding" }, map.tile > 1 ? "" : said));
    parts.note.classList.toggle("finding", picked);
  }

  function drawText() {
    const { queries, keys } = sides(), two = queries !== keys, now = `${queries} ${keys} ${!!map}`;
    if (now === built) return; // the focus stays
    built = now;
    const line = (text, name) => {
      const views = text === 0 ? meta.views ?? [] : [], places = placesOf(views);
      const box = html(views.length ? "div" : "p", { class: name, role: "listbox", "aria-label": { queries: t`Queries:`, keys: t`Keys:` }[name], "aria-orientation": "horizontal" });
      chips[text] = texts[text].tokens.map((token, i) => html("span", { class: i >= (meta.written ?? Infinity) ? "token written" : "token", role: "option", tabindex: -1, dir: "auto", "data-token": i, title: t`position ${i}` }, running(token)));
      const pictures = putOverPictures(chips[text], names[text], views), others = chips[text].filter((_, i) => !places.has(i));
      box.append(...pictures, ...(views.length ? [html("p", { role: "presentation" }, ...others)] : others));
      const below = (from, step) => (places.get(from)?.view.columns ?? 0) * step;
      listenToTokens(box, chips[text], { answers: () => text === chosenText(), kept: () => state.token, show: showToken, keep, below });
      return [...(two ? [html("b", {}, { queries: t`Queries:`, keys: t`Keys:` }[name])] : []), box];
    };
    chips = texts.map(() => []);
    parts.text.replaceChildren(...(map ? [...line(queries, "queries"), ...(two ? line(keys, "keys") : [])] : []));
  }

  function paint() {
    if (!map) return;
    home = root;
    width = parts.map.clientWidth;
    const { queries, keys } = sides(), named = Math.max(map.n, map.m) <= 40;
    drawn = drawMap(canvas, map, { first: 0, count: map.n, keyFirst: 0, keyCount: map.m, rows: named ? names[queries] : null, columns: named ? names[keys] : null, diagonal: false });
    canvas.setAttribute("aria-label", t`Weights of layer ${state.layer}, head ${state.head}: queries from top to bottom, keys from left to right`);
    drawn.outline(state.token, state.direction);
    drawScale(parts.scale, { colour: weightRamp(), low: 0, high: 1, label: meta.isDifference ? t`difference of the weights of the two texts, on a square-root scale` : t`weight, on a square-root scale`, position: Math.sqrt });
  }

  /** Weights of a token, largest first, of the chosen part of a pair, such as A to B: from Python where the map has tiles. */
  async function partnersOf(token) {
    const { segments } = texts[sides().queries], [first, second] = state.segments;
    const exact = map.tile > 1 && source.row ? await source.row(layerOf().index, state.head, token, state.direction) : null;
    const found = exact ? Array.from(exact, (weight, position) => ({ position, last: position, weight })).filter((p) => p.weight > 0).sort((a, b) => b.weight - a.weight)
      : partners(map, token, state.direction);
    if (!state.segments || !segments) return found;
    return found.filter(({ position }) => { const [query, key] = state.direction === "from" ? [token, position] : [position, token]; return segments[query] === Number(first) && segments[key] === Number(second); });
  }

  async function showToken(token) {
    if (!map) { parts.note.textContent = t`This page does not hold the map of this head. In a notebook, every head opens.`; return; }
    const { queries, keys } = sides(), [here, there] = state.direction === "from" ? [queries, keys] : [keys, queries];
    drawn.outline(token, state.direction);
    if (token === null || token >= names[here].length) { parts.note.textContent = t`Point at a token, or at the map; click to keep it.`; return; }
    const found = await partnersOf(token), most = found[0]?.weight ?? 0, visible = layerOf().kind === "causal" ? token + 1 : map.m, flat = !meta.isDifference && state.direction === "from" && visible > 2 && most < 2 / visible;
    shadeTokens(chips, { here, there, token, kept: state.token, found, flat });
    if (meta.isDifference) parts.note.textContent = found.length ? t`“${names[here][token]}”: the weight differs most at “${names[there][found[0].position]}” (by ${share(most)}).` : "";
    else parts.note.textContent = found.length ? sayMost(state.direction, flat, names[here][token], names[there][found[0].position], most) : "";
  }

  function keep(token, event) {
    const span = event?.shiftKey ? [Math.min(state.token, token), Math.max(state.token, token) + 1] : [token, token + 1];
    picked = true;
    choose({ token: event?.shiftKey ? state.token : token, span });
  }

  /** A cell of the map, in words. */
  function sayPlace(query, key) {
    const { queries, keys } = sides();
    return sayCell(query, names[queries][query], key, names[keys][key], say(map.most[Math.floor(query / map.tile) * map.columns + Math.floor(key / map.tile)], 2));
  }

  function buildOptions() {
    const select = (label, choices, set) => {
      const made = html("select", {}, ...choices.map(([value, name]) => html("option", { value }, name)));
      made.addEventListener("change", () => set(made.value));
      parts.options.append(html("label", {}, `${label} `, made));
    };
    select(t`Show`, [["from", t`where a token attends`], ["to", t`which tokens attend to it`]], (direction) => choose({ direction }));
    if (texts.some((text) => text.segments)) {
      select(t`Sentences`, [["", t`all`], ["00", "A → A"], ["01", "A → B"], ["10", "B → A"], ["11", "B → B"]], (segments) => choose({ segments }));
    }
  }

  buildOptions();
  listenToMap(canvas, parts.readout, { drawn: () => map && drawn, direction: () => state.direction, say: sayPlace, kept: () => state.token, show: showToken, keep });
  new ResizeObserver(() => { // a notebook's element has no size and no colours before it is shown
    if (cells.length) { if (parts.map.clientWidth !== width) paint(); return; }
    drawGrid();
    paintGrid();
    draw();
  }).observe(root);
  const repaint = () => { paintGrid(); paint(); }; // light and dark, of the system or of JupyterLab
  prefersDark.addEventListener("change", repaint);
  new MutationObserver(repaint).observe(document.body, { attributeFilter: ["data-jp-theme-light", "class"] });
  const follow = (choice) => {
    if (Object.entries(choice).every(([name, value]) => state[name] === value)) return; // of our own making
    Object.assign(state, choice);
    if ("token" in choice) picked = choice.token !== null;
    const row = meta.layers.findIndex(({ index }) => index === state.layer);
    if ("head" in choice) cells[row * meta.heads + state.head]?.scrollIntoView({ block: "nearest", inline: "nearest" });
    draw();
  };
  /** Show another text, or the same otherwise, at the head that is open. */
  const renew = (next) => {
    const same = next.side === meta.side && JSON.stringify(next.layers.map(({ heads }) => heads)) === JSON.stringify(meta.layers.map(({ heads }) => heads));
    read(next);
    built = "";
    if (!same && cells.length) {
      cells.length = 0;
      parts.grid.replaceChildren();
      drawGrid();
    }
    if (state.token !== null && state.token >= names[chosenText()].length) state.token = names[chosenText()].length - 1;
    if (!cells.length) return;
    paintGrid();
    draw();
  };
  /** Mark heads by classes of their cells, from `classes(layer, head)`. */
  const mark = (classes) => cells.forEach((cell, index) => { cell.className = classes(meta.layers[Math.floor(index / meta.heads)].index, index % meta.heads); });
  /** Lay a colour over heads, from `values(layer, head)`: null, or -1 (blue) to 1 (orange), with its number in words. */
  const colour = (values) => cells.forEach((cell, index) => {
    const layer = meta.layers[Math.floor(index / meta.heads)].index, head = index % meta.heads, found = values(layer, head);
    cell.style.setProperty("--over", found ? `rgb(${found.value < 0 ? "0 114 178" : "213 94 0"} / ${Math.round(85 * Math.min(1, Math.abs(found.value)))}%)` : "");
    cell.firstChild.style.opacity = found ? 0.15 : ""; // its small map would hide the colour
    cell.title = found ? `${at(layer, head)}: ${found.text}` : at(layer, head);
    cell.setAttribute("aria-label", cell.title);
  });
  return { follow, renew, mark, colour, state };
}

/** A view whose maps are in the page: `held` has codes by "layer.head", in base 64. */
function mountPage(root, { meta, start, held }) {
  const map = async (layer, head) => {
    const found = held[`${layer}.${head}`];
    return found ? { ...found, codes: bytesOf(found.codes) } : null;
  };
  return mount(root, { meta, start, map });
}

/** The same in a notebook, where Python answers: with a model as a live view, with weights as they are. */
function render({ model, el }) {
  const waiting = new Map(), known = new Map(), chosen = () => ({ layer: model.get("layer"), head: model.get("head"), token: model.get("token") });
  let number = 0;
  Object.assign(words, model.get("_words"));
  const ask = (name, question) => new Promise((resolve) => { waiting.set(++number, resolve); model.send({ number, ask: name, question }); });
  const listen = (answer, buffers) => {
    const resolve = waiting.get(answer.number);
    if (!resolve) return;
    waiting.delete(answer.number);
    resolve({ ...answer, bytes: buffers.map((view) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength)) });
  };
  model.on("msg:custom", listen);
  const changed = (choice) => {
    for (const name of ["layer", "head", "token", "span"]) model.set(name, choice[name]);
    model.save_changes();
  };
  const live = model.get("_live");
  const source = {
    meta: model.get("_meta"),
    start: chosen(),
    async map(layer, head) {
      const name = `${layer}.${head}`;
      if (!known.has(name)) {
        const { n, m, tile, bytes } = await ask("map", { layer, head });
        known.set(name, { n, m, tile, codes: bytes[0] });
      }
      return known.get(name);
    },
    async row(layer, head, token, direction) {
      const { bytes } = await ask("row", { layer, head, token, direction });
      return new Float32Array(bytes[0].slice().buffer);
    },
  };
  const shown = live.name ? mountLive(el, { ask }, { ...live, start: { ...live.start, ...chosen() } }, changed) : mount(el, source, changed);
  const follow = () => shown.follow(chosen());
  const names = ["change:layer", "change:head", "change:token"];
  names.forEach((name) => model.on(name, follow));
  return () => { names.forEach((name) => model.off(name, follow)); model.off("msg:custom", listen); };
}
