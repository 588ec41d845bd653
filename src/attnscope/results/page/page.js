// The page: what is chosen, and what each choice draws.

const data = JSON.parse(byId("data").textContent);
const heads = data.heads.length, total = data.layers.length * heads;
const state = { mode: data.labels ? "labels" : "statistic", statistic: data.opens.statistic, head: null, direction: "from", zoom: "whole", window: 0, kept: [], map: null };
const at = (index) => t`Layer ${data.layers[Math.floor(index / heads)]}, head ${data.heads[index % heads]}`;
const exists = (index) => data.statistics.some((s) => s.mean[index] !== null)
  || (data.profile?.mean[index].some((v) => v !== null) ?? false) || (data.offsets?.share[index].some((v) => v !== null) ?? false) || (data.labels?.shares[index][0] ?? null) !== null;
let pointAt = () => {};

// --- the grid -------------------------------------------------------------------------------------------------

const cells = [];
function buildGrid() {
  const grid = byId("grid");
  grid.style.gap = heads > 12 ? "2px" : "3px";
  grid.append(html("div", { class: "numbers", "aria-hidden": "true" }, ...data.heads.map((head) => html("span", {}, String(head)))));
  data.layerLabels.forEach((label, layer) => {
    const row = html("div", { role: "row" }, html("span", { role: "rowheader", title: data.layerNames[layer] }, label));
    for (let head = 0; head < heads; head++) {
      const index = layer * heads + head;
      const cell = html("button", { type: "button", role: "gridcell", tabindex: -1, "data-head": index });
      if (!exists(index)) cell.classList.add("absent");
      cells.push(cell);
      row.append(cell);
    }
    grid.append(row);
  });
  layOut();
  const indexOf = (event) => (event.target.dataset.head === undefined ? null : Number(event.target.dataset.head));
  grid.addEventListener("click", (event) => { const i = indexOf(event); if (i !== null && exists(i)) chooseHead(i); });
  for (const kind of ["pointerover", "focusin"]) grid.addEventListener(kind, (event) => readOut(indexOf(event) ?? state.head));
  for (const kind of ["pointerleave", "focusout"]) grid.addEventListener(kind, () => readOut(state.head));
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -heads, ArrowDown: heads }[event.key];
    const from = indexOf(event);
    if (!step || from === null) return;
    event.preventDefault();
    const sideways = Math.abs(step) === 1 && heads > 1;
    if (sideways && Math.floor((from + step) / heads) !== Math.floor(from / heads)) return;
    if (from + step >= 0 && from + step < total) moveFocus(cells, from, from + step);
  });
}

/** A layer takes as many lines as it needs for heads that a finger can meet. */
function layOut() {
  const grid = byId("grid"), labels = 8 + 7 * Math.max(...data.layerLabels.map((label) => label.length)), room = grid.clientWidth - 8 - labels;
  const lines = Math.max(1, Math.ceil((heads * 15) / Math.max(room, 60))), across = Math.ceil(heads / lines);
  grid.style.gridTemplateColumns = `max-content repeat(${across}, minmax(0, 150px))`;
  const every = Math.ceil((across * 19) / Math.max(room, 60));
  [...grid.querySelectorAll(".numbers span")].forEach((label, head) => {
    label.hidden = head >= across;
    label.style.gridArea = `1 / ${head + 2}`;
    label.style.visibility = head % every ? "hidden" : "visible";
  });
  [...grid.querySelectorAll('[role="rowheader"]')].forEach((label, layer) => { label.style.gridArea = `${2 + layer * lines} / 1 / span ${lines}`; });
  cells.forEach((cell, index) => {
    const head = index % heads, line = Math.floor(head / across);
    cell.style.gridArea = `${2 + Math.floor(index / heads) * lines + line} / ${2 + (head % across)}`;
    cell.style.marginTop = lines > 1 && !line ? "4px" : "0";
  });
}

function moveFocus(items, from, to) {
  items[from].tabIndex = -1;
  items[to].tabIndex = 0;
  items[to].focus();
}

/** The range of the heads; shares use 0 to 1, so that small differences do not look large. */
function scaleOf(statistic) {
  const ends = statistic.largest ? [0, statistic.largest] : [];
  const known = [...statistic.mean.filter((v) => v !== null), ...ends];
  let low = known.length ? Math.min(...known) : 0, high = known.length ? Math.max(...known) : 1;
  if (statistic.signed) { high = Math.max(Math.abs(low), Math.abs(high)) || 1; low = -high; }
  if (low === high) { low -= 0.5; high += 0.5; }
  return { low, high, colour: statistic.signed ? signedRamp() : ramp(VIRIDIS) };
}

function describe(index) {
  if (state.mode === "labels") {
    const shares = data.labels.shares[index];
    return shares[0] === null ? t`no label` : data.labels.names.map((n, c) => [n, shares[c]]).filter(([, s]) => s > 0)
      .sort((a, b) => b[1] - a[1]).map(([name, s]) => `${name} ${share(s)}`).join(", ");
  }
  const s = data.statistics[state.statistic];
  if (s.mean[index] === null) return t`no value`;
  const spread = (s.low?.[index] ?? null) !== null ? t` (middle ${share(data.quantiles[1] - data.quantiles[0])} of ${data.noun}s: ${say(s.low[index])} to ${say(s.high[index])})` : "";
  return `${s.name}: ${sayMean(s, index)}${s.units && ` ${s.units}`}${spread}`;
}

/** The mean of a head, with its 95% interval if it was estimated from sampled rows. */
const sayMean = (s, index) => {
  if (!s.within) return say(s.mean[index]);
  const [low, high] = s.within.map(ends => ends[index]);
  if (low === null) return t`${say(s.mean[index])} (no interval: too few rows)`;
  return `${say(s.mean[index])}${low < high ? t` (95%: ${say(low)} to ${say(high)})` : ""}`;
};

function paintGrid() {
  const labels = state.mode === "labels", statistic = data.statistics[state.statistic];
  const scale = labels ? null : scaleOf(statistic);
  byId("grid").classList.toggle("pies", labels);
  if (byId("statistic")) byId("statistic").disabled = labels; // not used for labels
  cells.forEach((cell, index) => {
    if (labels) cell.style.background = pie(data.labels.shares[index]);
    else {
      const value = statistic.mean[index];
      cell.style.background = value === null ? "var(--soft)" : css(scale.colour((value - scale.low) / (scale.high - scale.low)));
    }
    cell.setAttribute("aria-label", `${at(index)}: ${describe(index)}`);
    cell.setAttribute("aria-selected", index === state.head);
  });
  if (labels) drawClusters();
  else pointAt = drawScale(byId("scale"), { ...scale, label: statistic.units ? `${statistic.name} (${statistic.units})` : statistic.name });
  readOut(state.head);
}

function pie(shares) {
  if (shares[0] === null) return "var(--soft)";
  let from = 0;
  const parts = shares.map((s, c) => `${data.labels.colours[c]} ${360 * from}deg ${360 * (from += s)}deg`).filter((_, c) => shares[c] > 0);
  return `conic-gradient(${parts.join(", ")})`;
}

function drawClusters() {
  pointAt = () => {};
  const { names, colours, centroids, offsets } = data.labels;
  byId("scale").replaceChildren(html("ul", { class: "clusters" }, ...names.map((name, c) => {
    const item = html("li", {}, swatch(colours[c]), html("bdi", {}, name));
    const [shown, curve] = centroids ? halved(offsets, centroids[c], centroids) : [[], null], most = curve ? Math.max(...curve, 0) : 0;
    if (most > 0) {
      const x = (i) => (i / (curve.length - 1)) * 58 + 1, y = (v) => 19 - (v / most) * 17;
      const zero = shown.indexOf(0);
      const picture = svg("svg", { viewBox: "0 0 60 20", "aria-hidden": "true" });
      picture.style.cssText = "width:60px;height:20px;flex:none";
      if (zero >= 0) picture.append(svg("line", { x1: x(zero), x2: x(zero), y1: 0, y2: 20, stroke: "var(--line)" }));
      picture.append(svg("polyline", { points: curve.map((v, i) => `${x(i)},${y(v ?? 0)}`).join(" "), fill: "none", stroke: colours[c], "stroke-width": 1.6 }));
      item.append(picture);
    }
    return item;
  })));
}
/** Offsets and values without an empty side, such as later tokens under a causal mask. */
function halved(offsets, values, all) {
  const empty = (side) => all.every((curve) => curve.every((v, i) => Math.sign(offsets[i]) !== side || !v));
  const kept = offsets.map((_, i) => i).filter((i) => !(offsets[i] > 0 && empty(1)) && !(offsets[i] < 0 && empty(-1)));
  return kept.length > 1 ? [kept.map((i) => offsets[i]), kept.map((i) => values[i])] : [offsets, values];
}
function swatch(colour) {
  const node = html("span", { class: "swatch" });
  node.style.background = colour;
  return node;
}

function readOut(index) {
  byId("readout").textContent = index === null ? "" : `${at(index)}: ${describe(index)}`;
  pointAt(index === null || state.mode === "labels" ? null : data.statistics[state.statistic].mean[index]);
}

// --- one head -------------------------------------------------------------------------------------------------

function chooseHead(index) {
  if (state.head !== null) { cells[state.head].setAttribute("aria-selected", false); cells[state.head].tabIndex = -1; }
  state.head = index;
  cells[index].setAttribute("aria-selected", true);
  cells.forEach((cell) => { cell.tabIndex = -1; });
  cells[index].tabIndex = 0;
  const layer = Math.floor(index / heads);
  try { history.replaceState(null, "", `#${data.layers[layer]}.${data.heads[index % heads]}`); } catch { /* a notebook's frame has no address */ }
  drawHead();
  readOut(index);
  loadMap();
}

function majority(index) {
  const shares = data.labels?.shares[index];
  if (!shares || shares[0] === null) return null;
  const best = shares.indexOf(Math.max(...shares));
  return { name: data.labels.names[best], share: shares[best], colour: data.labels.colours[best] };
}

function drawHead() {
  const index = state.head, layer = Math.floor(index / heads), main = majority(index), colour = main?.colour ?? "#0072b2";
  byId("head-title").textContent = at(index);
  byId("head-layer").textContent = [data.layerNames[layer], data.layerKinds[layer]].filter((t) => t && t !== String(data.layers[layer])).join(", ");
  byId("head-label").replaceChildren(...(main ? [swatch(main.colour), " ", html("strong", {}, html("bdi", {}, main.name)), t` on ${share(main.share)} of ${data.noun}s`] : []));
  if (data.profile) {
    const { offsets, mean, low, high } = data.profile;
    const cut = (values) => halved(offsets, values, [high[index], mean[index]]);
    if (mean[index].some((v) => v !== null)) drawProfile(byId("profile"), cut(mean[index])[0], ...[mean, low, high].map((all) => cut(all[index])[1]), colour, data.unit);
    else byId("profile").replaceChildren(t`No profile for this head.`);
  }
  if (data.patches) {
    const mean = data.patches.mean[index];
    if (mean.some((v) => v !== null)) drawPatchProfile(byId("patches"), data.patches, mean, data.patches.equal[index]);
    else byId("patches").replaceChildren(t`No rows and columns of patches in this layer.`);
  }
  if (data.offsets) drawOffsets(byId("offsets"), data.offsets, index, colour, data.unit);
  data.blocks.forEach((curve, i) => drawBlocks(byId(`blocks-${i}`), curve, index, colour));
  if (data.labels) drawShares(index);
  if (data.statistics.length) { drawChosenDistribution(index, colour); drawNumbers(index); }
  if (data.groups) drawGroups(index);
}

function drawShares(index) {
  const { names, colours, shares } = data.labels;
  if (shares[index][0] === null) { byId("shares").replaceChildren(t`No label for this head.`); return; }
  const present = names.map((name, c) => ({ name, colour: colours[c], share: shares[index][c] })).filter((l) => l.share > 0).sort((a, b) => b.share - a.share);
  const stack = html("div", { class: "stack", "aria-hidden": "true" }, ...present.map((label) => {
    const part = html("i");
    part.style.cssText = `background:${label.colour};width:${100 * label.share}%`;
    return part;
  }));
  byId("shares").replaceChildren(stack, html("ul", { class: "clusters" },
    ...present.map((label) => html("li", {}, swatch(label.colour), html("bdi", {}, label.name), share(label.share)))));
}

function drawChosenDistribution(index, colour) {
  const s = data.statistics[state.statistic];
  byId("distribution-title").replaceChildren(`${s.name} `, html("span", { class: "count" }, s.counts ? t`over ${data.noun}s, and among all heads` : t`among all heads`));
  drawDistribution(byId("distribution"), { counts: s.counts?.[index] ?? null, means: s.mean, value: s.mean[index], units: s.units, colour, noun: data.noun });
}

/** Weights between groups: of the head, of its positions alone, and of uniform attention. */
function drawGroups(index) {
  const { names, weight, positions, equal } = data.groups;
  byId("groups-head").textContent = at(index);
  const named = (name) => html("bdi", {}, name);
  const cell = (value) => html("td", { class: "number", style: `--w: ${value ?? 0}` }, value === null ? "–" : value.toFixed(2));
  const table = ([title, rows]) => html("figure", {}, html("figcaption", {}, title), html("div", { class: "scroll", tabindex: 0 },
    html("table", { class: "cells" },
      html("thead", {}, html("tr", {}, html("td"), ...names.map((name) => html("th", { scope: "col" }, named(name))))),
      html("tbody", {}, ...rows.map((row, i) => html("tr", {}, html("th", { scope: "row" }, named(names[i])), ...row.map(cell)))))));
  byId("group-tables").replaceChildren(...[[t`This head`, weight[index]], [t`Positions alone`, positions[index]], [t`Uniform attention`, equal[index]]].map(table));
}

function sayEqual(s, index) {
  const even = s.equal?.[Math.floor(index / heads)] ?? null;
  return even === null ? "" : say(even);
}

/** Whether there are enough windows for quantiles. */
const hasSpread = (s) => s.low?.some((low) => low !== null) ?? false;

function drawNumbers(index) {
  byId("numbers").tBodies[0].replaceChildren(...data.statistics.map((s, i) => html("tr", i === state.statistic ? { class: "chosen" } : {},
    html("th", { scope: "row", title: s.help }, `${s.name} `, html("span", { class: "count" }, s.units)), html("td", { class: "number" }, sayMean(s, index)),
    ...(data.statistics.some((one) => one.equal) ? [html("td", { class: "number" }, sayEqual(s, index))] : []),
    ...(data.statistics.some(hasSpread) ? [html("td", { class: "number" }, s.low && s.low[index] !== null ? t`${say(s.low[index])} to ${say(s.high[index])}` : "")] : []))));
}

// --- the window -----------------------------------------------------------------------------------------------

const shared = data.window ?? null;
let names = [], chips = [], views = [], places = new Map(), packed = null, drawn = null, loading = 0;

/** The texts of the chosen head's queries and keys: a decoder reads another text than its encoder. */
const sides = () => { const [queries, keys] = shared.sides[Math.floor(state.head / heads)]; return { queries, keys }; };
const crossed = () => data.layerKinds[Math.floor(state.head / heads)] === "cross";
/** The text in which a token is selected, and the text that its weights refer to. */
const chosenText = () => (state.direction === "from" ? sides().queries : sides().keys);
const otherText = () => (state.direction === "from" ? sides().keys : sides().queries);
const kept = () => state.kept[chosenText()];

function buildWindow() {
  if (!shared) return;
  packed = JSON.parse(byId("packed").textContent);
  openWindow();
  byId("window-choice")?.addEventListener("change", (event) => {
    state.window = Number(event.target.value);
    openWindow();
    loadMap();
  });
  const canvas = byId("map");
  const chosen = ([query, key]) => (state.direction === "from" ? query : key);
  canvas.addEventListener("pointermove", (event) => {
    const cell = drawn?.cell(event.offsetX, event.offsetY);
    if (!cell || !state.map) { byId("map-readout").textContent = ""; return; }
    byId("map-readout").textContent = sayCell(...cell);
    showToken(chosen(cell));
  });
  canvas.addEventListener("pointerleave", () => { byId("map-readout").textContent = ""; showToken(kept()); });
  canvas.addEventListener("click", (event) => {
    const cell = drawn?.cell(event.offsetX, event.offsetY);
    if (cell) keepToken(chosen(cell));
  });
}

/** Show the texts of the chosen window. */
function openWindow() {
  const texts = shared.windows[state.window];
  names = texts.map((text) => text.tokens.map(visible));
  chips = names.map(() => []);
  const picture = pictureOf(shared, state.window), middle = picture && picture.start + Math.floor(picture.rows / 2) * picture.columns + Math.floor(picture.columns / 2);
  state.kept = texts.map(({ tokens, special }) => middle ?? Math.min(tokens.length - 1, Math.max(0, special.indexOf(false)) + 5));
  views = viewsOf(shared, state.window).map((view) => ({ ...view, ...viewBox(view) }));
  places = placesOf(views);
  // the end of the text, which can attend to all of its images
  if (views.length) state.kept = texts.map(({ tokens, special }) => tokens.findLastIndex((_, i) => !special[i] && !places.has(i)));
  state.kept = state.kept.map((token, text) => (token < 0 ? texts[text].tokens.length - 1 : token));
  byId("texts").replaceChildren();
  texts.forEach((_, text) => buildText(text));
  byId("window-size").textContent = texts.map(({ tokens, total }, i) =>
    `${texts.length > 1 ? [t`source: `, t`target: `][i] : ""}${tokens.length} ${data.unit}${total > tokens.length ? t` of ${total}` : ""}`).join("; ");
}

/** A cell of the map, in words. */
function sayCell(query, key) {
  const { map } = state, { queries, keys } = sides();
  if (map.tile) {
    const at = (token) => Math.floor(token / map.tile), span = (token, all) => `${at(token) * map.tile}–${Math.min((at(token) + 1) * map.tile, all) - 1}`;
    const i = at(query) * map.columns + at(key);
    return t`queries ${span(query, map.n)} → keys ${span(key, map.m)}: ${say(map.share[i], 2)} of their weight; the largest weight is ${say(map.most[i], 2)}`;
  }
  const weight = partners(map, query, "from").find((p) => p.position === key)?.weight;
  return t`query ${query} “${names[queries][query]}” → key ${key} “${names[keys][key] ?? "…"}”: ` + (weight ? say(weight, 2) : map.rest[query] > 0 ? t`not stored, small` : "0");
}

/** The share of the head's weight that the map shows, and in which form. */
function sayShare() {
  const { map } = state;
  byId("map-share").textContent = !map ? "" : map.tile ? t`; in tiles of ${map.tile} × ${map.tile} tokens: each shows its largest weight`
    : t`; token by token: ${(100 * map.share).toFixed(map.share >= 0.9995 ? 0 : 1)}% of this head's weight`;
  const tiled = byId("tiled");
  tiled.hidden = !!map && !map.tile;
  const name = `${data.layers[Math.floor(state.head / heads)]}.${data.heads[state.head % heads]}`;
  if (!map) tiled.textContent = t`This head is not stored for this window. Run attnscope scan … --show ${name} to see it.`;
  else if (map.tile) tiled.textContent = t`This head is stored in tiles (sums and largest weights). Run attnscope scan … --show ${name} to see single tokens.`;
}

/** The tokens of one text, to point at: those in which a token is chosen answer. */
function buildText(text) {
  const { tokens, special } = shared.windows[state.window][text];
  const title = html("p", { class: "hint", id: `text-${text}` });
  const picture = pictureOf(shared, state.window), boxes = picture && patchBoxes(picture);
  const box = html("div", { class: picture ? "tokens image" : views.length ? "tokens pictured" : "tokens", role: "listbox", "aria-labelledby": `tokens-title text-${text}`, "aria-orientation": "horizontal" });
  tokens.forEach((_, i) => {
    const chip = html("button", { type: "button", role: "option", tabindex: -1, class: special[i] ? "token special" : "token", dir: "auto", "data-token": i, title: t`position ${i}` }, names[text][i]);
    chips[text].push(chip);
    const placed = places.get(i);
    if (placed) {
      const { view, place } = placed;
      if (!view.box.parentNode) box.append(view.box);
      chip.style.gridArea = `${Math.floor(place / view.columns) + 1} / ${(place % view.columns) + 1}`;
      view.grid.append(chip);
    } else if (!picture) box.append(chip, "\u200b");
    else if (placeOf(picture, i)) boxes.grid.append(chip);
    else boxes.line.append(chip, "\u200b");
  });
  if (picture) box.append(boxes.line, boxes.grid);
  const tokenOf = (event) => (event.target.dataset.token === undefined || text !== chosenText() ? null : Number(event.target.dataset.token));
  for (const kind of ["pointerover", "focusin"]) box.addEventListener(kind, (event) => { const t = tokenOf(event); if (t !== null) showToken(t); });
  for (const kind of ["pointerleave", "focusout"]) box.addEventListener(kind, () => showToken(kept()));
  box.addEventListener("click", (event) => { const t = tokenOf(event); if (t !== null) keepToken(t); });
  box.addEventListener("keydown", (event) => {
    const from = tokenOf(event), placed = places.get(from), line = picture?.columns ?? 1;
    const below = (across) => (placed ? placed.view.tokens[placed.place + across * placed.view.columns] - from : across * line);
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: below(-1), ArrowDown: below(1) }[event.key];
    if (from === null || !step) return;
    event.preventDefault();
    if (chips[text][from + step]) moveFocus(chips[text], from, from + step);
  });
  byId("texts").append(html("div", {}, title, box));
}

async function loadMap() {
  if (!shared) return;
  const ticket = ++loading, listed = packed.maps[`${state.window}.${state.head}`], tiled = state.window ? null : packed.tiles[state.head];
  const [queries, keys] = [names[sides().queries].length, names[sides().keys].length];
  const map = listed ? await unpackMap(listed, queries, shared) : tiled ? await unpackTiles(tiled, queries, keys, shared) : null;
  if (ticket !== loading) return; // another head was chosen meanwhile
  state.map = map;
  for (const id of ["map", "map-scale", "partners"]) byId(id).hidden = !map;
  byId("zoom").hidden = !map || !!map.tile || Math.max(queries, keys) <= 32;
  sayShare();
  paintMap();
  showToken(kept());
  await drawReceived();
  await showLong();
  byId("window").dataset.head = state.head;
  byId("window").dataset.window = state.window;
}

function keepToken(token) {
  state.kept[chosenText()] = token;
  if (state.zoom === "near") paintMap();
  showToken(token);
  reveal(chips[chosenText()][token]);
}

/** Scroll a token into the part of its text that is seen; the page itself stays where it is. */
function reveal(chip) {
  const box = chip.parentNode, above = chip.offsetTop;
  if (above < box.scrollTop || above + chip.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = above - box.clientHeight / 2;
}

function paintMap() {
  const canvas = byId("map");
  if (!state.map) { drawn = null; canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height); return; }
  const [queries, keys] = [names[sides().queries], names[sides().keys]], longest = Math.max(queries.length, keys.length);
  const near = state.zoom === "near" && longest > 32 && !state.map.tile, room = near ? (canvas.clientWidth < 420 ? 16 : 24) : longest;
  const count = Math.min(room, queries.length), keyCount = Math.min(room, keys.length);
  const clamp = (middle, shown, all) => Math.max(0, Math.min(middle - Math.floor(shown / 2), all - shown));
  // around the token and, in another text, around what it has most to do with
  const token = kept(), partner = crossed() ? partners(state.map, token, state.direction)[0]?.position ?? token : token;
  const [query, key] = state.direction === "from" ? [token, partner] : [partner, token];
  const named = near || longest <= 32;
  drawn = drawMap(canvas, state.map, { first: near ? clamp(query, count, queries.length) : 0, count, keyFirst: near ? clamp(key, keyCount, keys.length) : 0, keyCount,
    rows: named ? queries : null, columns: named ? keys : null, diagonal: !crossed() });
  canvas.setAttribute("aria-label", t`Attention map of ${at(state.head)}, rows are queries, columns are keys; the text beside it gives the same weights token by token`);
  const most = drawn.most || 1;
  drawScale(byId("map-scale"), { colour: weightRamp(), low: 0, high: most, label: t`weight, on a square-root scale`, position: (v) => Math.sqrt(v / most) });
}

/** The role of each text for the selected head; unused texts are hidden. */
function nameTexts() {
  const { queries, keys } = sides(), two = names.length > 1;
  chips.forEach((_, text) => {
    const title = byId(`text-${text}`), part = queries === keys ? t`queries and keys` : text === queries ? t`queries` : t`keys`;
    title.parentNode.hidden = text !== queries && text !== keys;
    title.hidden = !two;
    title.textContent = two ? `${text ? t`Target (decoder input)` : t`Source (encoder input)`}: ${part}` : "";
  });
}

function showToken(token) {
  if (!state.map) return;
  const { direction } = state, found = partners(state.map, token, direction), here = chosenText(), there = otherText();
  const most = found[0]?.weight ?? 1;
  const weights = new Map(found.flatMap((p) => Array.from({ length: p.last - p.position + 1 }, (_, i) => [p.position + i, p.weight])));
  const onImages = Math.max(...found.filter((p) => places.has(p.position)).map((p) => p.weight), 0.01); // what is less is not drawn as much
  const numbered = new Set(state.map.tile ? [] : found.slice(0, 8).filter((p) => p.weight >= 0.02 * most).map((p) => p.position));
  chips.forEach((all, text) => all.forEach((chip, i) => {
    const weight = text === there ? weights.get(i) ?? 0 : 0, chosen = text === here && i === token;
    chip.style.setProperty("--w", weight ? Math.sqrt(weight / (places.has(i) ? onImages : most)).toFixed(3) : 0);
    if (text === there && numbered.has(i)) chip.dataset.weight = weight < 0.005 ? "<.01" : weight.toFixed(2);
    else delete chip.dataset.weight;
    chip.classList.toggle("current", chosen);
    chip.setAttribute("aria-selected", chosen);
    chip.tabIndex = text === here && i === kept() ? 0 : -1;
  }));
  nameTexts();
  sayViews(found, direction);
  const picture = pictureOf(shared, state.window);
  byId("tokens-title").replaceChildren(picture ? t`Image ` : t`Text `, html("span", { class: "count" }, `${picture ? t`red` : views.length ? t`blue, over images red` : t`blue`}: ${direction === "from" ? t`tokens that the outlined token attends to` : t`tokens that attend to the outlined token`}`));
  const table = byId("partners");
  const what = direction === "from" ? t`attends to` : t`is attended to by`;
  table.caption.replaceChildren(html("strong", {}, html("bdi", {}, names[here][token])), t` (position ${token})` + (state.map.tile ? t` and its tile` : ""), ` ${what}`);
  const named = (p) => `${names[there][p.position] ?? "…"}${p.last > p.position ? ` … ${names[there][p.last] ?? ""}` : ""}`;
  const away = (p) => (p.last > p.position ? "" : picture ? (direction === "from" ? steps(picture, token, p.position) : steps(picture, p.position, token)) : direction === "from" ? stepsWithin(places, token, p.position) || p.position - token : stepsWithin(places, p.position, token) || token - p.position);
  const rows = found.slice(0, 8).map((p) => row(named(p), p.last > p.position ? `${p.position}–${p.last}` : p.position, away(p), p.weight, most));
  if (direction === "from") {
    const others = found.slice(8).reduce((sum, p) => sum + p.weight, 0) + (state.map.rest?.[token] ?? 0);
    if (others > 0) rows.push(row(t`all others together`, "", "", others, most, true));
  }
  table.tBodies[0].replaceChildren(...rows);
  drawn?.outline(token, direction);
}

/** Under each image: how much of a token's weight lies on it. */
function sayViews(found, direction) {
  for (const view of views) {
    const own = found.filter((p) => places.get(p.position)?.view === view), sum = own.reduce((total, p) => total + p.weight, 0);
    const shape = t`${view.name}, ${view.rows} × ${view.columns} tokens`;
    const largest = own.length ? t`; most: ${say(own[0].weight, 2)}, ${names[chosenText()][own[0].position].replace(view.name + " ", "")}` : "";
    view.says.textContent = state.map.tile ? shape : direction === "from" ? t`${shape}: ${say(sum, 2)} of the token's weight${largest}` : `${shape}${largest}`;
  }
}

function row(name, position, offset, weight, most, faint = false) {
  const bar = html("i");
  bar.style.width = `${Math.min(100, (100 * weight) / most)}%`;
  if (faint) bar.style.opacity = 0.35;
  return html("tr", {}, html("th", { scope: "row" }, faint ? name : html("bdi", {}, name)), html("td", { class: "number" }, String(position)),
    html("td", { class: "number" }, typeof offset === "string" ? offset : say(offset)), html("td", { class: "number" }, say(weight, 2)), html("td", { class: "bar" }, bar));
}

// --- wiring ---------------------------------------------------------------------------------------------------

/** The first head to show: the leading one, or the one with the largest weight on one neighbour. */
function firstHead() {
  const [layer, head] = location.hash.slice(1).split(".").map(Number);
  const linked = data.layers.indexOf(layer) * heads + data.heads.indexOf(head);
  if (data.layers.includes(layer) && data.heads.includes(head) && exists(linked)) return linked;
  if (data.opens.head !== null) return data.opens.head;
  const known = Array.from({ length: total }, (_, i) => i).filter(exists);
  const profile = data.profile ?? data.patches;
  if (!profile) return known[0] ?? null;
  const itself = (profile.mean[0].length - 1) / 2, sides = profile.mean[0].map((_, i) => i).filter((i) => i !== itself);
  const peak = (index) => Math.max(...sides.map((i) => profile.mean[index][i] ?? 0));
  return known.reduce((a, b) => (a === undefined || peak(b) > peak(a) ? b : a), undefined) ?? null;
}

function redraw() {
  layOut();
  paintGrid();
  if (state.head === null) return;
  drawHead();
  if (shared && state.map) { paintMap(); showToken(kept()); }
}

function start() {
  buildGrid();
  buildWindow();
  if (byId("statistic")) byId("statistic").value = state.statistic;
  byId("statistic")?.addEventListener("change", (event) => {
    state.statistic = Number(event.target.value);
    redraw();
  });
  for (const name of ["mode", "direction", "zoom"]) {
    for (const input of document.querySelectorAll(`input[name="${name}"]`)) {
      input.addEventListener("change", () => { state[name] = input.value; redraw(); });
    }
  }
  paintGrid();
  const first = firstHead();
  if (first !== null) chooseHead(first);
  prefersDark.addEventListener("change", redraw);
  addEventListener("beforeprint", () => { printing = true; redraw(); });
  addEventListener("afterprint", () => { printing = false; redraw(); });
  let width = innerWidth, timer = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // phones resize when their bars hide
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(redraw, 100);
  });
}

start();
