// What each key of a window receives: a line of peaks, and the keys at the top in their context.

let received = null;

/** The line of the chosen head and of equal weights, and the table of its top keys. */
async function drawReceived() {
  const box = byId("received");
  if (!box) return;
  const layer = layerOf(state.head), ticket = loading, place = `${state.window}.${layer}`;
  received ??= await unpackJson(packed.received);
  if (ticket !== loading) return; // another head was chosen meanwhile
  const own = received.heads[`${state.window}.${state.head}`], even = received.equal[place];
  box.hidden = !own;
  if (!own) return;
  const table = weightTable(shared);
  const lines = [own, even].map(([line, most]) => Float32Array.from(line, (character) => table[character.charCodeAt(0)] * most));
  const keys = received.keys[place], each = Math.ceil(keys / lines[0].length);
  byId("received-points").textContent = each > 1 ? t`; each point is the largest of ${each} keys` : "";
  drawReceivedLine(byId("received-line"), lines, own[2], keys, each);
  listKeys(byId("received-keys"), own[2]);
  if (!own[3]) return;
  byId("recent-count").textContent = received.recent[place].toLocaleString("en");
  listKeys(byId("recent-keys"), own[3]);
}

/** A row for each key at the top: its text, its place, its share and what equal weights give. */
function listKeys(table, keys) {
  table.tBodies[0].replaceChildren(...keys.map(([key, part, equal]) => {
    const [before, token, after] = contextOf(key), name = html("bdi", {}, before, html("mark", {}, token), after);
    return html("tr", {}, html("th", { scope: "row" }, name), html("td", { class: "number" }, say(key, 6)),
      html("td", { class: "number" }, `${say(100 * part)}%`), html("td", { class: "number" }, `${say(100 * equal, 2)}%`));
  }));
}

/** Text before a key, the key, and text behind it. */
function contextOf(key) {
  const { keys } = sides(), known = received.contexts[`${state.window}.${keys}.${key}`];
  const { tokens } = shared.windows[state.window][keys];
  const part = known ?? [tokens.slice(Math.max(0, key - 8), key).join(""), tokens[key], tokens.slice(key + 1, key + 9).join("")];
  return [part[0].replace(/\s+/g, " "), visible(part[1]), part[2].replace(/\s+/g, " ")];
}

function drawReceivedLine(box, [own, even], top, keys, each) {
  const width = widthOf(box, 1200), height = 200, left = 62, right = 12, above = 18, below = 38;
  const most = Math.max(...own, ...even), least = Math.max(Math.min(...[...own, ...even].filter((v) => v > 0)), most / 1e5);
  const decades = Math.log10(most / least) || 1;
  const x = (key) => left + ((key + 0.5) / keys) * (width - left - right);
  const y = (part) => height - below - (Math.log10(Math.max(part, least) / least) / decades) * (height - above - below);
  const path = (line) => Array.from(line, (part, i) => `${x(Math.min(keys - 1, (i + 0.5) * each - 0.5))},${y(part)}`);
  const [first] = top[0] ?? [0];
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": t`Share of all weight by key position, on a logarithmic scale; the largest is ${say(top[0]?.[1])} at position ${first}` });
  for (let power = Math.ceil(Math.log10(least)); power <= Math.log10(most); power++) {
    picture.append(svg("line", { x1: left, x2: width - right, y1: y(10 ** power), y2: y(10 ** power), stroke: "var(--line)" }),
      svg("text", { x: left - 7, y: y(10 ** power) + 4, "text-anchor": "end" }, power < -3 ? `${say(100 * 10 ** power, 1)}%` : `${100 * 10 ** power}%`));
  }
  for (const value of ticks(0, keys - 1, width < 400 ? 4 : 8).filter(Number.isInteger)) {
    picture.append(svg("text", { x: x(value), y: height - below + 15, "text-anchor": "middle" }, say(value, 6)));
  }
  picture.append(
    svg("polygon", { points: [`${x(0)},${height - below}`, ...path(own), `${x(keys - 1)},${height - below}`].join(" "), fill: "#0072b2", opacity: 0.22 }),
    svg("polyline", { points: path(own).join(" "), fill: "none", stroke: "#0072b2", "stroke-width": 1.3, "stroke-linejoin": "round" }),
    svg("polyline", { points: path(even).join(" "), fill: "none", stroke: "var(--muted)", "stroke-width": 1.3, "stroke-dasharray": "4 3" }),
    ...top.map(([key, part, equal]) => svg("circle", { cx: x(key), cy: y(part), r: 3.4, fill: "#d55e00" },
      svg("title", {}, t`position ${key} “${contextOf(key)[1]}”: ${say(100 * part)}% of all weight, ${say(100 * equal, 2)}% under uniform attention`))),
    svg("text", { x: width - right, y: 10, "text-anchor": "end" }, t`dashed: uniform attention`),
    svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, t`position of the key, in ${data.unit}`));
  box.replaceChildren(picture);
}
