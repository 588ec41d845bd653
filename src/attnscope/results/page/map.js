// The map of heads, the tabs of one head, its numbers, and the state in the address: the same on every page.

const data = JSON.parse(byId("data").textContent);
const heads = data.heads.length, total = data.layers.length * heads;
const state = { colour: data.opens.labels ? "labels" : data.opens.quantity, head: null, tab: data.opens.tab, window: 0, token: null, direction: "from", zoom: "whole", kept: [], map: null };
const LINES = 64, BARS = 400; // heads: with a small profile; with a bar; more are drawn on one canvas
/** What a tab shows of a head; each file of a tab adds its own. */
const panels = {};
/** Parts of the address after the head and the tab, and what reads them again. */
const places = [];
const layerOf = (index) => Math.floor(index / heads);
const numberOf = (index) => `${data.layers[layerOf(index)]}.${data.heads[index % heads]}`;
const at = (index) => t`Layer ${data.layers[layerOf(index)]}, head ${data.heads[index % heads]}`;
const byKey = new Map(data.quantities.map((one) => [one.key, one]));
const painted = data.quantities.filter((one) => one.values);
const exists = (index) => data.there[index];
const quantity = () => byKey.get(state.colour);
/** What the cells of a small map draw: curves, or squares in so many columns. */
let curves = data.patches ? { values: data.patches.mean, columns: data.patches.columns.length } : data.profile ? { values: data.profile.mean, most: Math.max(...data.profile.mean.flat().map((v) => v ?? 0)) || 1 } : null;
const isSmall = () => total <= LINES;
/** What a cell draws in place of a flat profile; the tab Text sets it. */
let smallMap = () => null;

// --- the map --------------------------------------------------------------------------------------------------

let cells = [], pointAt = () => {}, canvas = null, lens = null, zoom = 1;

function buildMap() {
  const choice = byId("colour");
  if (data.labels || curves) choice.append(html("option", { value: "labels" }, !data.labels ? t`profile` : data.labels.finding ? t`finding` : t`label`));
  const groups = new Map();
  for (const one of painted) {
    const name = one.group ?? "", option = html("option", { value: one.key }, one.name);
    if (!name) choice.append(option);
    else {
      if (!groups.has(name)) { groups.set(name, html("optgroup", { label: name })); choice.append(groups.get(name)); }
      groups.get(name).append(option);
    }
  }
  choice.value = state.colour ?? "";
  choice.addEventListener("change", () => { state.colour = choice.value; paintMap(); panels[state.tab]?.(state.head); });
  const grid = byId("grid");
  if (total > BARS) buildCanvas(grid);
  else buildCells(grid);
  sizeMap();
}

function buildCells(grid) {
  grid.append(html("div", { class: "numbers", "aria-hidden": "true" }, ...data.heads.map((head) => html("span", {}, String(head)))));
  data.layerLabels.forEach((label, layer) => {
    const row = html("div", { role: "row" }, html("span", { role: "rowheader", title: data.layerNames[layer] }, label));
    for (let head = 0; head < heads; head++) {
      const index = layer * heads + head, cell = html("button", { type: "button", role: "gridcell", tabindex: -1, "data-head": index });
      if (!exists(index)) cell.classList.add("absent");
      cells.push(cell);
      row.append(cell);
    }
    grid.append(row);
  });
  const indexOf = (event) => { const cell = event.target.closest("[data-head]"); return cell ? Number(cell.dataset.head) : null; };
  grid.addEventListener("click", (event) => { const i = indexOf(event); if (i !== null && exists(i)) chooseHead(i, true); });
  for (const kind of ["pointerover", "focusin"]) grid.addEventListener(kind, (event) => readOut(indexOf(event) ?? state.head));
  for (const kind of ["pointerleave", "focusout"]) grid.addEventListener(kind, () => readOut(state.head));
  grid.addEventListener("keydown", (event) => {
    const from = indexOf(event), to = from === null ? null : step(from, event.key);
    if (to === null) return;
    event.preventDefault();
    moveFocus(cells, from, to);
  });
}

/** The head that an arrow key leads to, or null. */
function step(from, key) {
  const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -heads, ArrowDown: heads }[key], to = from + by;
  if (!by || to < 0 || to >= total || (Math.abs(by) === 1 && heads > 1 && layerOf(to) !== layerOf(from))) return null;
  return to;
}

/** Many heads: one canvas, a lens at the pointer, and zoom by + and −. */
function buildCanvas(grid) {
  canvas = html("canvas", { tabindex: 0, role: "application", "aria-label": t`All heads: move with the arrow keys, choose with Enter, zoom with plus and minus`, "aria-describedby": "readout" });
  lens = html("canvas", { class: "lens", "aria-hidden": "true", width: 198, height: 198 });
  lens.hidden = true;
  grid.classList.add("whole");
  grid.append(html("div", { class: "axis" }, t`heads ${data.heads[0]} to ${data.heads.at(-1)} →, layers ${data.layerLabels[0]} to ${data.layerLabels.at(-1)} ↓`), canvas);
  document.body.append(lens);
  let pointed = null;
  const headAt = (event) => {
    const column = Math.floor(event.offsetX / canvas.cell), row = Math.floor(event.offsetY / canvas.cell), index = row * heads + column;
    return column >= 0 && column < heads && row >= 0 && index < total && exists(index) ? index : null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const index = headAt(event);
    readOut(index ?? state.head);
    lens.hidden = index === null || canvas.cell >= 20;
    if (lens.hidden) return;
    drawLens(index);
    lens.style.left = `${Math.min(event.clientX + 18, innerWidth - 210)}px`;
    lens.style.top = `${Math.min(event.clientY + 18, innerHeight - 210)}px`;
  });
  canvas.addEventListener("pointerleave", () => { lens.hidden = true; readOut(state.head); });
  canvas.addEventListener("click", (event) => { const index = headAt(event); if (index !== null) chooseHead(index, true); });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "+" || event.key === "=" || event.key === "-") { zoom = Math.min(4, Math.max(1, zoom * (event.key === "-" ? 0.5 : 2))); sizeMap(); paintMap(); return; }
    pointed ??= state.head ?? 0;
    const to = step(pointed, event.key);
    if (event.key === "Enter" && exists(pointed)) chooseHead(pointed, true);
    if (to === null) return;
    event.preventDefault();
    pointed = to;
    readOut(to);
    paintMap(to);
  });
}

function sizeMap() {
  const grid = byId("grid"), labels = 12 + 7 * Math.max(...data.layerLabels.map((label) => label.length)), room = Math.max(220, grid.clientWidth - labels - 8);
  const strip = innerWidth < 720, most = isSmall() ? 84 : 46;
  if (canvas) {
    canvas.cell = Math.max(4, Math.floor(Math.min(room / heads, 16))) * zoom;
    return;
  }
  const gap = heads > 12 ? 2 : 3, high = isSmall() ? most : Math.floor((innerHeight - 60 - scrollY - grid.getBoundingClientRect().top) / data.layers.length) - gap; // so that all layers are in view
  const size = strip ? (isSmall() ? 44 : 26) : Math.max(isSmall() ? 26 : 10, Math.min(most, high, Math.floor(room / heads) - gap));
  const wide = strip || isSmall() ? size : Math.max(size, Math.min(2.5 * size, Math.floor(room / heads) - gap)); // many layers of few heads fill the frame
  grid.style.gap = `${gap}px`;
  grid.style.gridTemplateColumns = `max-content repeat(${heads}, ${wide}px)`;
  grid.style.setProperty("--cell", `${size}px`);
  const every = Math.ceil(18 / (wide + gap));
  [...grid.querySelectorAll(".numbers span")].forEach((label, head) => { label.style.visibility = head % every ? "hidden" : "visible"; });
}

/** The range of the heads; shares are on 0 to 1, and others have a least range, so that small differences do not look large. */
function scaleOf(one) {
  const known = [...one.values.filter((v) => v !== null), ...(one.largest ? [0, one.largest] : [])];
  let low = known.length ? Math.min(...known) : 0, high = known.length ? Math.max(...known) : 1;
  const signed = one.signed && (one.shown || (low < 0 && high > 0)); // offsets to one side have all colours
  if (signed) { high = Math.max(Math.abs(low), Math.abs(high), one.full ?? 0) || 1; low = -high; }
  if (one.least) return { low, high: Math.min(high, 3 * low), colour: (x) => weightRamp()(1 - 0.9 * Math.min(x, 1)) }; // small is good: three times the best is as bad as any
  const least = Math.max(one.full ?? 0, 0.05 * Math.max(Math.abs(low), Math.abs(high))) || 1, middle = (low + high) / 2;
  if (high - low < least) { low = middle - least / 2; high = middle + least / 2; }
  return { low, high, colour: signed ? signedRamp() : ramp(VIRIDIS) };
}

/** A number as it fits into a cell. */
function briefly(one, index) {
  const text = textOf(one, index), value = one.values[index];
  return text.length > 6 && Math.abs(value) < 1 ? `${value < 0 ? "−" : text.startsWith("+") ? "+" : ""}${Math.abs(value).toFixed(3)}` : text;
}
const textOf = (one, index) => one.text?.[index] ?? say(one.values[index]);
/** A head's 95% interval as text; empty if there is none. */
function intervalOf(one, index) {
  if (one.interval) return one.interval[index];
  const [low, high] = one.within?.map((ends) => ends[index]) ?? [null, null];
  return low === null || !(low < high) ? "" : t`${say(low)} to ${say(high)}`;
}

function describe(index) {
  if (state.colour === "labels") {
    const shares = data.labels?.shares[index];
    if (!shares) return "";
    const said = data.labels.finding && byKey.get(data.opens.said), number = said && said.values?.[index] != null ? `, ${said.name} ${textOf(said, index)}` : "";
    return shares[0] === null ? t`no label` : data.labels.names.map((n, c) => [n, shares[c]]).filter(([, s]) => s > 0)
      .sort((a, b) => b[1] - a[1]).map(([name, s]) => (s === 1 ? name : `${name} ${share(s)}`)).join(", ") + number;
  }
  const one = quantity();
  if (!one || one.values[index] === null) return t`no value`;
  const interval = intervalOf(one, index), marked = { true: t`, significant`, false: isAway(index) ? `; ${one.away}` : t`, not significant` }[one.shown?.[index]] ?? "";
  return `${one.name}: ${textOf(one, index)}${one.units && one.units !== "%" ? ` ${one.units}` : ""}${interval && ` (${marked ? t`95%, of this one alone` : "95%"}: ${interval})`}${marked}`;
}

/** The most frequent label of a head, with its share and colour. */
function majority(index) {
  const shares = data.labels?.shares[index];
  if (!shares || shares[0] === null) return null;
  const best = shares.indexOf(Math.max(...shares));
  return { name: data.labels.names[best], share: shares[best], colour: data.labels.colours[best] };
}
const hueOf = (index) => majority(index)?.colour ?? "#0072b2";

/** Black or white, whichever has the higher contrast on a colour. */
const inkOn = (rgb) => {
  const [red, green, blue] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
};

/** The colour of a value; null without one. */
function shadeOf(index, scale) {
  const value = quantity()?.values[index] ?? null;
  return value === null ? null : scale.colour((value - scale.low) / (scale.high - scale.low));
}

/** Whether a test found no effect: its cell has the colour of the value as a frame alone. */
const isHollow = (index) => state.colour !== "labels" && quantity()?.shown?.[index] === false && quantity().values[index] !== null;

/** Whether a test with one side says nothing of a head: its value has the other sign. */
const isAway = (index) => !!quantity()?.away && isHollow(index) && quantity().values[index] < 0;

function fillOf(index, scale) {
  if (state.colour === "labels") return data.labels ? majority(index)?.colour ?? "transparent" : "var(--accent)";
  const shade = shadeOf(index, scale);
  return shade === null ? "transparent" : css(shade);
}

function paintMap(pointed = null) {
  const labels = state.colour === "labels", one = quantity(), scale = labels || !one ? null : scaleOf(one), said = labels && data.labels?.finding ? byKey.get(data.opens.said) : one;
  if (canvas) paintCanvas(scale, pointed);
  cells.forEach((cell, index) => {
    if (exists(index)) {
      const fill = fillOf(index, scale), value = said?.values?.[index] ?? null, drawn = isSmall() && !!curves && value === null;
      cell.replaceChildren(...(drawn ? [smallMap(index) ?? profileOf(index, labels ? fill : "var(--muted)")] : []));
      const bar = html("i", { class: labels ? "label" : "value" });
      if (labels && (drawn || !isSmall())) { cell.style.background = "var(--card)"; bar.hidden = !data.labels; bar.style.cssText = `background:${fill};height:${drawn ? "5px" : `${Math.round(100 * (majority(index)?.share ?? 0))}%`}`; }
      else { cell.style.background = isHollow(index) ? "var(--card)" : fill; bar.hidden = true; }
      cell.classList.toggle("hollow", isHollow(index));
      cell.style.setProperty("--frame", fill);
      if (isSmall() && value !== null) cell.append(html("b", { class: said.shown?.[index] ? "shown" : "", style: isHollow(index) ? "" : `color:${inkOn(labels ? channels(fill) : shadeOf(index, scale))}` }, briefly(said, index)));
      cell.classList.toggle("number", !drawn);
      cell.append(bar);
      if (one?.shown?.[index]) cell.append(html("em", { class: "dot" }));
    }
    cell.setAttribute("aria-label", `${at(index)}: ${exists(index) ? describe(index) : t`no head`}`);
    cell.setAttribute("aria-selected", index === state.head);
  });
  byId("scale").replaceChildren();
  pointAt = labels || !one ? () => {} : drawScale(byId("scale"), { ...scale, label: one.least ? t`${one.name}; left end: best, right end: ${say(scale.high)} or more` : one.units ? `${one.name} (${one.units})` : one.name });
  drawKey();
  const named = said && (said.help ? `${said.name} (${said.help})` : said.name), cell = said ? (isSmall() ? t`Number: ${named}` : "") : !curves || !isSmall() || data.generated ? "" : curves.columns ? t`Cell: mean weight by offset in patches` : document.querySelector("#grid button canvas") ? t`Cell: mean weight by offset, one scale for all heads; without a fixed pattern, the attention map of the first window. A diagonal in it is below the threshold of a label: 30% of the weight, beyond chance.` : t`Cell: mean weight by offset, one scale for all heads`;
  byId("meaning").textContent = labels ? cell : !one ? "" : [one.name.startsWith(one.group) ? "" : one.group, one.help].filter(Boolean).join(": ");
  readOut(state.head);
}

/** A small profile of a head: a line by offset, or squares by rows and columns of patches. */
function profileOf(index, colour) {
  const values = curves.values[index] ?? [], columns = curves.columns;
  const most = curves.most ?? (Math.max(...values.map((v) => v ?? 0), 0) || 1);
  const picture = svg("svg", { viewBox: columns ? `0 0 ${columns} ${values.length / columns}` : "0 0 60 32", preserveAspectRatio: "none", "aria-hidden": "true" });
  if (columns) {
    values.forEach((value, i) => picture.append(svg("rect", { x: i % columns, y: Math.floor(i / columns), width: 1, height: 1, fill: "#0072b2", opacity: Math.sqrt((value ?? 0) / most).toFixed(2) })));
  } else if (values.length) {
    const points = values.map((value, i) => `${(2 + (i / Math.max(1, values.length - 1)) * 56).toFixed(1)},${(29 - (26 * (value ?? 0)) / most).toFixed(1)}`);
    picture.append(svg("polyline", { points: points.join(" "), fill: "none", stroke: colour, "stroke-width": 2, "vector-effect": "non-scaling-stroke" }));
  }
  return picture;
}

function paintCanvas(scale, pointed) {
  const { cell } = canvas, ratio = devicePixelRatio || 1, layers = data.layers.length;
  Object.assign(canvas, { width: heads * cell * ratio, height: layers * cell * ratio });
  canvas.style.width = `${heads * cell}px`;
  canvas.style.height = `${layers * cell}px`;
  const paper = canvas.getContext("2d");
  paper.scale(ratio, ratio);
  for (let index = 0; index < total; index++) {
    const x = (index % heads) * cell, y = layerOf(index) * cell;
    paper.fillStyle = exists(index) ? fillOf(index, scale) : variable("--line");
    paper.fillRect(x, y, cell - 1, cell - 1);
    if (isHollow(index)) { paper.fillStyle = variable("--card"); paper.fillRect(x + 2, y + 2, cell - 5, cell - 5); }
    if (quantity()?.shown?.[index]) { paper.fillStyle = "#000"; paper.fillRect(x + cell / 2 - 1.5, y + cell / 2 - 1.5, 2, 2); }
  }
  for (const [index, colour] of [[state.head, variable("--mark")], [pointed, variable("--text")]]) {
    if (index === null) continue;
    paper.strokeStyle = colour;
    paper.lineWidth = 2;
    paper.strokeRect((index % heads) * cell - 1, layerOf(index) * cell - 1, cell + 1, cell + 1);
  }
}

/** The heads about one, enlarged, with their numbers. */
function drawLens(middle) {
  const paper = lens.getContext("2d"), one = quantity(), scale = one ? scaleOf(one) : null, reach = 4, size = 22;
  paper.fillStyle = variable("--card");
  paper.fillRect(0, 0, 198, 198);
  for (let row = -reach; row <= reach; row++) for (let column = -reach; column <= reach; column++) {
    const layer = layerOf(middle) + row, head = (middle % heads) + column, index = layer * heads + head;
    if (layer < 0 || layer >= data.layers.length || head < 0 || head >= heads || !exists(index)) continue;
    paper.fillStyle = fillOf(index, scale);
    paper.fillRect((column + reach) * size, (row + reach) * size, size - 1, size - 1);
    if (isHollow(index)) { paper.fillStyle = variable("--card"); paper.fillRect((column + reach) * size + 3, (row + reach) * size + 3, size - 7, size - 7); }
  }
  paper.strokeStyle = variable("--mark");
  paper.lineWidth = 2;
  paper.strokeRect(reach * size - 1, reach * size - 1, size + 1, size + 1);
}

function swatch(colour) {
  const node = html("span", { class: "swatch" });
  node.style.background = colour;
  return node;
}
const legendOf = (items) => html("ul", { class: "clusters" }, ...items.map(([colour, name]) => html("li", {}, swatch(colour), html("bdi", {}, name))));

/** A cell as it is in the map: full, hollow, half full or hatched. */
function cellOf(kind, colour = "var(--muted)") {
  const node = html("span", { class: `swatch ${kind}` });
  node.style.setProperty("--frame", colour);
  return node;
}

/** What the cells mean, above the map: labels with the number of their heads, or which effects are significant. */
function drawKey() {
  const one = quantity(), { labels } = data, called = data.noun, items = [];
  const heads = data.there.map((there, i) => (there ? i : null)).filter((i) => i !== null), say = (kind, colour, name, of) => { if (of.length) items.push([cellOf(kind, colour), `${name} (${of.length})`]); };
  if (state.colour === "labels" && labels) {
    labels.names.forEach((name, c) => say("full", labels.colours[c], name, heads.filter((i) => majority(i)?.name === name)));
    if (!isSmall() && !canvas && data.texts > 1 && heads.some((i) => majority(i)?.share < 1)) items.push([cellOf("half"), t`filled to the share of ${called}s with the label`]);
  } else if (one?.shown?.some((shown) => shown !== null)) {
    const signs = (state.colour === data.opens.quantity && data.opens.signs) || [null, null], [blue, orange] = [0, 1].map((end) => css(signedRamp()(end)));
    say("full shown", orange, signs[0] ?? t`significant, above 0`, heads.filter((i) => one.shown[i] && one.values[i] > 0));
    say("full shown", blue, signs[1] ?? t`significant, below 0`, heads.filter((i) => one.shown[i] && one.values[i] <= 0));
    say("empty", "var(--muted)", t`not significant`, heads.filter((i) => isHollow(i) && !isAway(i)));
    say("empty", blue, one.away, heads.filter(isAway));
    say("full", "var(--muted)", t`not tested`, heads.filter((i) => one.shown[i] === null && one.values[i] !== null));
    const beyond = (i) => isHollow(i) && !isAway(i) && one.interval?.[i] && [...one.interval[i].matchAll("−")].length !== 1; // its interval excludes 0
    if (heads.some(beyond)) items.push(["", t`A large value can be not significant: it varies between texts, and ${heads.filter((i) => one.shown[i] !== null).length} heads were tested at once.`]);
  }
  if (items.length && !data.there.every(Boolean)) items.push([cellOf("hatched"), t`not measured`]);
  byId("key").replaceChildren(...items.map(([cell, name]) => html("li", {}, cell, html("bdi", {}, name))));
}

function readOut(index) {
  byId("readout").textContent = index === null ? "" : [at(index), describe(index)].filter(Boolean).join(": ");
  pointAt(index === null || state.colour === "labels" ? null : quantity()?.values[index] ?? null);
}

// --- one head -------------------------------------------------------------------------------------------------

function chooseHead(index, remember = false) {
  if (state.head !== null && cells.length) { cells[state.head].setAttribute("aria-selected", false); cells[state.head].tabIndex = -1; }
  state.head = index;
  if (cells.length) {
    cells.forEach((cell) => { cell.tabIndex = -1; });
    cells[index].setAttribute("aria-selected", true);
    cells[index].tabIndex = 0;
    if (innerWidth < 720) cells[index].scrollIntoView({ block: "nearest", inline: "center" });
  } else paintMap();
  const layer = layerOf(index), main = majority(index);
  byId("head-title").textContent = at(index);
  byId("head-layer").textContent = [data.layerNames[layer], kindOf(layer)].filter((text) => text && text !== String(data.layers[layer])).join(", ");
  byId("head-label").replaceChildren(...(main ? [swatch(main.colour), " ", html("strong", {}, html("bdi", {}, main.name)), data.texts > 1 ? t` on ${share(main.share)} of ${data.noun}s` : ""] : []));
  readOut(index);
  writeAddress(remember);
  panels[state.tab]?.(index);
}

const kindOf = (layer) => ({ self: t`self-attention`, causal: t`causal self-attention`, cross: t`cross-attention` })[data.layerKinds[layer]] ?? "";

function chooseTab(tab, remember = false) {
  state.tab = tab;
  for (const button of document.querySelectorAll('[role="tab"]')) {
    const chosen = button.dataset.tab === tab;
    button.setAttribute("aria-selected", chosen);
    button.tabIndex = chosen ? 0 : -1;
    byId(`panel-${button.dataset.tab}`).hidden = !chosen;
  }
  writeAddress(remember);
  if (state.head !== null) panels[tab]?.(state.head);
}

function buildTabs() {
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  tabs.forEach((button, number) => {
    button.addEventListener("click", () => chooseTab(button.dataset.tab, true));
    button.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: number - 1, ArrowRight: number + 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined || !tabs[to]) return;
      event.preventDefault();
      tabs[to].focus();
      chooseTab(tabs[to].dataset.tab, true);
    });
  });
}

/** A row for each quantity: its value, its interval, and where the head stands among all heads. */
function drawNumbers(table, quantities, index) {
  const rows = quantities.filter((one) => one.text ? one.text[index] : one.values[index] !== null), columns = ["interval", "equal", "spread"].filter((name) => quantities.some((one) => has(one, name)));
  table.tHead.replaceChildren(html("tr", {}, html("th", { scope: "col" }, t`Quantity`), html("th", { scope: "col", class: "number" }, quantities.some((one) => one.shown?.some((shown) => shown)) ? t`Value (bold: significant)` : t`Value`),
    ...columns.map((name) => html("th", { scope: "col", class: "number" }, { interval: quantities.some((one) => one.shown?.some((shown) => shown !== null)) ? t`95% interval of this one alone` : t`95% interval`, equal: t`Uniform attention`, spread: t`${data.spread} of ${data.noun}s` }[name])), html("th", { scope: "col" }, t`Among all heads (red: this one)`)));
  let group = null;
  table.tBodies[0].replaceChildren(...rows.flatMap((one) => {
    const cellsOf = { interval: () => intervalOf(one, index), equal: () => { const even = one.equal?.[layerOf(index)] ?? null; return even === null ? "" : say(even); },
      spread: () => ((one.low?.[index] ?? null) === null ? "" : t`${say(one.low[index])} to ${say(one.high[index])}`) };
    const head = one.group && one.group !== group ? [html("tr", { class: "group" }, html("th", { scope: "rowgroup", colspan: 3 + columns.length }, one.group))] : [];
    group = one.group ?? group;
    return [...head, html("tr", one.key === state.colour ? { class: "chosen" } : {},
      html("th", { scope: "row", title: one.help ?? "" }, `${one.group ? one.name.replace(`${one.group}: `, "") : one.name} `, html("span", { class: "count" }, one.units ?? ""), html("span", { class: "help" }, [one.help, one.shown?.[index] === false && !(one.away && one.values[index] < 0) ? t`not significant` : ""].filter(Boolean).join("; "))),
      html("td", { class: one.shown?.[index] ? "number shown" : "number" }, textOf(one, index)), ...columns.map((name) => html("td", { class: "number" }, cellsOf[name]())), html("td", { class: "strip" }, ...(one.values ? [stripOf(one, index)] : [])))];
  }));
}
/** Draw something of a page's own above the numbers of a head. */
function drawAbove(draw) {
  const box = byId("own"), name = box.closest("[data-numbers]").dataset.numbers, numbers = panels[name];
  panels[name] = (index) => { box.replaceChildren(...draw(index, box).filter(Boolean)); numbers(index); };
}
const has = (one, name) => (name === "interval" ? one.interval?.some(Boolean) || one.within?.[0].some((v) => v !== null) : name === "equal" ? one.equal?.some((v) => v !== null) : one.low?.some((v) => v !== null));

/** All heads as ticks on one line, this head in red, its interval as a bar. */
function stripOf(one, index) {
  const known = one.values.filter((v) => v !== null), low = Math.min(...known, one.signed ? 0 : Infinity), high = Math.max(...known, one.signed ? 0 : -Infinity);
  const x = (value) => 3 + (high > low ? (114 * (value - low)) / (high - low) : 57);
  const ticks = known.length > BARS ? known.filter((_, i) => i % Math.ceil(known.length / BARS) === 0) : known;
  return svg("svg", { viewBox: "0 0 120 18", role: "img", "aria-label": t`${say(one.values[index])}; all heads: ${say(low)} to ${say(high)}` },
    svg("path", { d: ticks.map((v) => `M${x(v).toFixed(1)} 5v8`).join(""), stroke: "var(--muted)", opacity: 0.45 }),
    ...(one.signed && low < 0 && high > 0 ? [svg("path", { d: `M${x(0)} 1v16`, stroke: "var(--text)" })] : []),
    svg("path", { d: `M${x(one.values[index]).toFixed(1)} 1v16`, stroke: "var(--mark)", "stroke-width": 3 }));
}

for (const panel of document.querySelectorAll("[data-numbers]")) {
  const name = panel.dataset.numbers, table = panel.querySelector("table.numbers");
  const before = panels[name], note = panel.querySelector("[data-command]"), command = note?.dataset.command, other = data.beside[name];
  const own = note ? other?.quantities ?? [] : data.quantities;
  note?.replaceChildren(...(other ? [`${other.finding} `, html("a", { "data-page": other.page, href: other.page }, t`The same head on the page of ${command}`)]
    : [t`This run has not measured it. Run attnscope ${command} with the same model and texts next to this run: its page shows the numbers of both.`]));
  panels[name] = (index) => {
    before?.(index);
    if (table) {
      drawNumbers(table, own, index);
      table.parentNode.hidden = !table.tBodies[0].rows.length;
    }
    for (const link of panel.querySelectorAll("a[data-page]")) link.href = `${link.dataset.page}#${numberOf(index)}`;
  };
}

// --- the address ----------------------------------------------------------------------------------------------

function writeAddress(remember) {
  if (state.head === null || (!remember && /^#[^\d]/.test(location.hash))) return; // the address of a section stays
  const address = `#${[numberOf(state.head), state.tab, ...places.map((place) => place.write())].filter(Boolean).join("/")}`;
  try { history[remember ? "pushState" : "replaceState"](null, "", address); } catch { /* a notebook's frame has no address */ }
  if (parent !== window) parent.postMessage({ attnscope: { layer: data.layers[layerOf(state.head)], head: data.heads[state.head % heads], token: state.token } }, "*");
}

/** Follow an address; false if it names no head. */
function readAddress(address = location.hash) {
  const [named, ...rest] = address.slice(1).split("/"), [layer, head] = named.split(".").map(Number);
  const index = data.layers.indexOf(layer) * heads + data.heads.indexOf(head);
  if (!/^\d+\.\d+$/.test(named) || !data.layers.includes(layer) || !data.heads.includes(head) || !exists(index)) return false;
  chooseHead(index);
  for (const part of rest) for (const place of places) place.read(part);
  chooseTab(rest.find((part) => data.tabs.includes(part)) ?? state.tab);
  return true;
}

function redraw() {
  sizeMap();
  paintMap();
  if (state.head !== null) panels[state.tab]?.(state.head);
}

function start() {
  buildMap();
  buildTabs();
  paintMap(); // with its key, below which it has the rest of the window
  redraw();
  if (!readAddress() && data.opens.head !== null) { chooseTab(state.tab); chooseHead(data.opens.head); }
  for (const kind of ["popstate", "hashchange"]) addEventListener(kind, () => readAddress());
  addEventListener("message", ({ source, data: told }) => { // a notebook's widget chooses a head
    if (source === parent && told?.attnscope && told.attnscope !== numberOf(state.head)) readAddress(`#${told.attnscope}`);
  });
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
