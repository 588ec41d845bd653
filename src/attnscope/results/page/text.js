// The tab Text: one window as running text and as a map. A token is pointed at, and its weights are shown on both.

const shared = data.window;
let names = [], chips = [], views = [], onImage = new Map(), packed = null, drawn = null, loading = 0;

/** The texts of the chosen head's queries and keys: a decoder reads another text than its encoder. */
const sides = () => { const [queries, keys] = shared.sides[layerOf(state.head)]; return { queries, keys }; };
const crossed = () => data.layerKinds[layerOf(state.head)] === "cross";
/** The text in which a token is selected, and the text that its weights refer to. */
const chosenText = () => (state.direction === "from" ? sides().queries : sides().keys);
const otherText = () => (state.direction === "from" ? sides().keys : sides().queries);
const kept = () => state.kept[chosenText()];

function buildWindow() {
  packed = JSON.parse(byId("packed").textContent);
  openWindow();
  byId("window-choice")?.addEventListener("change", (event) => { turnTo(Number(event.target.value)); });
  addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { "[": -1, "]": 1 }[event.key];
    if (by) turnTo(Math.min(shared.windows.length - 1, Math.max(0, state.window + by)));
    if (event.key === "/") {
      event.preventDefault();
      chooseTab("text");
      byId("find").focus();
    }
  });
  byId("find").addEventListener("keydown", (event) => { if (event.key === "Enter") findNext(event.target.value); });
  for (const name of ["direction", "zoom"]) {
    for (const input of document.querySelectorAll(`input[name="${name}"]`)) {
      input.addEventListener("change", () => { state[name] = input.value; paintMapOfHead(); showToken(kept()); });
    }
  }
  listenToMap(byId("map"), byId("map-readout"), { drawn: () => drawn, direction: () => state.direction, say: sayPlace, kept, show: showToken, keep: keepToken });
}

/** Turn to another window, at the same head. */
function turnTo(window) {
  if (window === state.window) return;
  state.window = window;
  if (byId("window-choice")) byId("window-choice").value = window;
  openWindow();
  writeAddress(true);
  loadMap();
}

/** Choose the next token at which the text has the words. */
function findNext(words) {
  const text = chosenText(), { tokens } = shared.windows[state.window][text], ends = [];
  let all = "";
  for (const token of tokens) { all += token.toLowerCase(); ends.push(all.length); }
  const first = all.indexOf(words.toLowerCase(), ends[kept()]), again = first < 0 ? all.indexOf(words.toLowerCase()) : first;
  byId("found").textContent = !words ? "" : again < 0 ? t`not in this window` : "";
  if (words && again >= 0) keepToken(ends.findIndex((end) => end > again));
}

/** Show the texts of the chosen window. */
function openWindow() {
  state.chosen = false;
  const texts = shared.windows[state.window];
  names = texts.map((text) => text.tokens.map(visible));
  chips = names.map(() => []);
  const picture = pictureOf(shared, state.window), middle = picture && picture.start + Math.floor(picture.rows / 2) * picture.columns + Math.floor(picture.columns / 2);
  state.kept = texts.map(({ tokens, special }) => middle ?? Math.min(tokens.length - 1, Math.max(0, special.indexOf(false)) + Math.min(40, Math.floor(tokens.length / 2))));
  views = viewsOf(shared, state.window).map((view) => ({ ...view, ...viewBox(view) }));
  onImage = placesOf(views);
  // the end of the text, which can attend to all of its images
  if (views.length) state.kept = texts.map(({ tokens, special }) => tokens.findLastIndex((_, i) => !special[i] && !onImage.has(i)));
  state.kept = state.kept.map((token, text) => (token < 0 ? texts[text].tokens.length - 1 : token));
  byId("texts").replaceChildren();
  texts.forEach((_, text) => buildText(text));
  byId("window-size").textContent = texts.map(({ tokens, total }, i) =>
    `${texts.length > 1 ? [t`source: `, t`target: `][i] : ""}${tokens.length} ${data.unit}${total > tokens.length ? t` of ${total}` : ""}`).join("; ");
}

/** A cell of the map, in words. */
function sayPlace(query, key) {
  const { map } = state, { queries, keys } = sides();
  if (map.tile) {
    const at = (token) => Math.floor(token / map.tile), span = (token, all) => `${at(token) * map.tile}–${Math.min((at(token) + 1) * map.tile, all) - 1}`;
    const i = at(query) * map.columns + at(key);
    return t`queries ${span(query, map.n)} → keys ${span(key, map.m)}: ${say(map.share[i], 2)} of their weight; the largest weight is ${say(map.most[i], 2)}`;
  }
  const weight = partners(map, query, "from").find((p) => p.position === key)?.weight;
  return sayCell(query, names[queries][query], key, names[keys][key] ?? "…", weight ? say(weight, 2) : map.rest[query] > 0 ? t`not stored, small` : "0");
}

/** The share of the head's weight that the map shows, and in which form. */
function sayShare() {
  const { map } = state;
  byId("map-share").textContent = !map ? "" : map.tile ? t`; in tiles of ${map.tile} × ${map.tile} tokens: each shows its largest weight`
    : t`; the pairs that are drawn hold ${(100 * map.share).toFixed(map.share >= 0.9995 ? 0 : 1)}% of this head's weight`;
  if (map && !crossed()) byId("map-share").textContent += t`; dots, no data: a token to itself`;
  const tiled = byId("tiled");
  tiled.hidden = !!map && !map.tile;
  const name = `${data.layers[layerOf(state.head)]}.${data.heads[state.head % heads]}`;
  if (!map) tiled.textContent = t`This head is not stored for this window. Run attnscope scan … --show ${name} to see it.`;
  else if (map.tile) tiled.textContent = t`This head is stored in tiles (sums and largest weights). Run attnscope scan … --show ${name} to see single tokens.`;
}

/** Speakers of a chat, whose tokens are underlined. */
const ROLES = ["system", "user", "assistant", "tool"];
/** Frames in a second of a sound, whose tokens are named by the second at which they begin; 0 for text. */
const framesOf = (tokens) => (data.timed && tokens.length > 2 && tokens.slice(0, 3).every((name) => /^\d+\.\d+s$/.test(name)) ? Math.round(2 / (parseFloat(tokens[2]) - parseFloat(tokens[0]))) : 0);

/** The tokens of one text, to point at: those in which a token is chosen answer. */
function buildText(text) {
  const { tokens, special, roles = [] } = shared.windows[state.window][text], frames = framesOf(tokens);
  const title = html("p", { class: "hint", id: `text-${text}` });
  const picture = pictureOf(shared, state.window), boxes = picture && patchBoxes(picture);
  const box = html("div", { class: `tokens${picture ? " image" : views.length ? " pictured" : frames ? " timeline" : ""}`, role: "listbox", "aria-labelledby": `tokens-title text-${text}`, "aria-orientation": "horizontal" });
  tokens.forEach((_, i) => {
    const chip = html("span", { role: "option", tabindex: -1, class: special[i] ? "token special" : "token", dir: "auto", "data-token": i, title: roles[i] ? t`position ${i}, ${roles[i]}` : t`position ${i}` }, frames ? "" : picture || onImage.has(i) ? names[text][i] : running(tokens[i]));
    chips[text].push(chip);
    if (ROLES.includes(roles[i])) chip.dataset.role = roles[i];
    if (frames && i % frames === 0) box.append(html("span", { class: "second", "aria-hidden": "true" }, `${i / frames} s`));
    const placed = onImage.get(i);
    if (placed) {
      const { view, place } = placed;
      if (!view.box.parentNode) box.append(view.box);
      chip.style.gridArea = `${Math.floor(place / view.columns) + 1} / ${(place % view.columns) + 1}`;
      view.grid.append(chip);
    } else if (!picture) box.append(chip);
    else if (placeOf(picture, i)) boxes.grid.append(chip);
    else boxes.line.append(chip, "\u200b");
  });
  if (picture) box.append(boxes.line, boxes.grid);
  listenToTokens(box, chips[text], { answers: () => text === chosenText(), kept, show: showToken, keep: keepToken, below: (from, across) => {
    const placed = onImage.get(from);
    return placed ? placed.view.tokens[placed.place + across * placed.view.columns] - from : across * (frames || picture?.columns || 1);
  } });
  if (frames) box.style.setProperty("--frames", frames);
  const marks = ROLES.filter((role) => roles.includes(role)).map((role) => html("span", { "data-role": role }, role));
  byId("texts").append(html("div", {}, title, ...(marks.length ? [html("p", { class: "hint roles" }, ...marks)] : []), box));
}

async function loadMap() {
  const ticket = ++loading, listed = packed.maps[`${state.window}.${state.head}`], tiled = state.window ? null : packed.tiles[state.head];
  const [queries, keys] = [names[sides().queries].length, names[sides().keys].length];
  const map = listed ? await unpackMap(listed, queries, shared) : tiled ? await unpackTiles(tiled, queries, keys, shared) : null;
  if (ticket !== loading) return; // another head was chosen meanwhile
  state.map = map;
  if (map && !state.chosen && !views.length && !pictureOf(shared, state.window)) {
    state.kept[sides().queries] = typical(map, queries, keys, shared.windows[state.window][sides().queries].special).query;
  }
  for (const id of ["map", "map-scale", "partners"]) byId(id).hidden = !map;
  byId("zoom").hidden = !map || !!map.tile || Math.max(queries, keys) <= 32;
  sayShare();
  paintMapOfHead();
  showToken(kept());
  await drawReceived();
  await showLong();
  byId("panel-text").dataset.head = state.head;
  byId("panel-text").dataset.window = state.window;
}

function keepToken(token) {
  state.kept[chosenText()] = state.token = token;
  state.chosen = true;
  writeAddress(false);
  if (state.zoom === "near") paintMapOfHead();
  showToken(token);
  reveal(chips[chosenText()][token]);
}

/** Scroll a token into the part of its text that is seen; the page itself stays where it is. */
function reveal(chip) {
  const box = chip.parentNode, above = chip.offsetTop;
  if (above < box.scrollTop || above + chip.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = above - box.clientHeight / 2;
}

function paintMapOfHead() {
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
  const scale = pictureOf(shared, state.window) ? Math.max(most, 0.01) : 1; // text: 1 is full; over an image small weights are enlarged
  const onImages = Math.max(...found.filter((p) => onImage.has(p.position)).map((p) => p.weight), 0.01); // what is less is not drawn as much
  const visible = !crossed() && data.layerKinds[layerOf(state.head)] === "causal" ? token + 1 : names[there].length;
  const flat = direction === "from" && !state.map.tile && visible > 2 && most < 2 / visible;
  shadeTokens(chips, { here, there, token, kept: kept(), found, flat, shade: (weight, i) => weight / (onImage.has(i) ? onImages : scale) });
  nameTexts();
  sayViews(found, direction);
  const picture = pictureOf(shared, state.window);
  byId("tokens-title").replaceChildren(`${byId("tab-text").textContent} `, html("span", { class: "count" }, `${picture ? t`red` : views.length ? t`blue, over images red` : t`blue`}: ${direction === "from" ? t`tokens that the outlined token attends to` : t`tokens that attend to the outlined token`}`));
  byId("note").textContent = found.length ? sayMost(direction, flat, names[here][token], names[there][found[0].position] ?? "…", most) : "";
  const table = byId("partners");
  const what = direction === "from" ? t`attends to` : t`is attended to by`;
  table.caption.replaceChildren(html("strong", {}, html("bdi", {}, names[here][token])), t` (position ${token})` + (state.map.tile ? t` and its tile` : ""), ` ${what}`);
  const named = (p) => `${names[there][p.position] ?? "…"}${p.last > p.position ? ` … ${names[there][p.last] ?? ""}` : ""}`;
  const away = (p) => (p.last > p.position ? "" : picture ? (direction === "from" ? steps(picture, token, p.position) : steps(picture, p.position, token)) : direction === "from" ? stepsWithin(onImage, token, p.position) || p.position - token : stepsWithin(onImage, p.position, token) || token - p.position);
  const others = direction === "from" ? found.slice(8).reduce((sum, p) => sum + p.weight, 0) + (state.map.rest?.[token] ?? 0) : 0, widest = Math.max(most, others);
  const rows = found.slice(0, 8).map((p) => row(named(p), p.last > p.position ? `${p.position}–${p.last}` : p.position, away(p), p.weight, widest));
  if (others > 0) rows.push(row(t`all others together`, "", "", others, widest, true));
  table.tBodies[0].replaceChildren(...rows);
  drawn?.outline(token, direction);
}

/** Under each image: how much of a token's weight lies on it. */
function sayViews(found, direction) {
  for (const view of views) {
    const own = found.filter((p) => onImage.get(p.position)?.view === view), sum = own.reduce((total, p) => total + p.weight, 0);
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

/** Maps of the first window of heads without a fixed pattern, whose profiles are flat. */
async function unpackPatternless() {
  const maps = new Map(), side = 64;
  for (const index of isSmall() && !curves?.columns ? data.labels?.patternless ?? [] : []) {
    const [n, m] = shared.sides[layerOf(index)].map((text) => shared.windows[0][text].tokens.length), listed = packed.maps[`0.${index}`];
    if (listed) maps.set(index, [await unpackMap(listed, n, shared), { first: 0, count: n, keyFirst: 0, keyCount: m }]);
  }
  smallMap = (index) => {
    if (!maps.has(index)) return null;
    const canvas = html("canvas", { width: side, height: side, "aria-hidden": "true" });
    canvas.getContext("2d").putImageData(mapImage(...maps.get(index), side).image, 0, 0);
    return canvas;
  };
  if (maps.size) paintMap();
}

panels.text = () => loadMap();
places.push(
  { write: () => (state.window ? `w${state.window + 1}` : ""), read: (part) => { const found = /^w(\d+)$/.exec(part); if (found && shared.windows[found[1] - 1]) turnTo(found[1] - 1); } },
  { write: () => (state.tab === "text" && state.chosen ? `t${kept()}` : ""), read: (part) => {
    const found = /^t(\d+)$/.exec(part);
    if (found && state.head !== null && chips[chosenText()][found[1]]) { state.kept[chosenText()] = Number(found[1]); state.chosen = true; }
  } },
);
buildWindow();
unpackPatternless();
