// Texts with arcs: above the words what belongs together, below them what the chosen head attends to most.

const STEP = 30, EDGE = 12, SPACE = 16, LABEL = 13;
const paper = html("canvas").getContext("2d");
let relation = null; // that a reader chose

/** How high each arc is, from 1, so that short ones are below long ones, and equal ones apart. */
function levelsOf(arcs) {
  const ends = arcs.map(({ from, to }) => [Math.min(from, to), Math.max(from, to)]), heights = [];
  for (const i of arcs.map((_, i) => i).sort((a, b) => ends[a][1] - ends[a][0] - (ends[b][1] - ends[b][0]) || a - b)) {
    heights[i] = 1 + Math.max(0, ...heights.filter((_, j) => ends[j][0] < ends[i][1] && ends[j][1] > ends[i][0]));
  }
  return heights;
}

/** The words that fit into a width: those with arcs, and the nearest to them; null where some are left out. */
function fitting(widths, ends, room, gap) {
  const kept = new Set(ends), distance = widths.map((_, i) => Math.min(...ends.map((end) => Math.abs(i - end))));
  const sum = (words) => words.reduce((all, i) => all + widths[i], 0), every = widths.map((_, i) => i);
  if (sum(every) <= room) return every;
  let used = sum([...kept]) + gap * (kept.size + 1);
  for (const i of every.toSorted((a, b) => distance[a] - distance[b] || a - b)) {
    if (kept.has(i)) continue;
    used += widths[i];
    if (used > room) break;
    kept.add(i);
  }
  const line = [];
  for (const i of every) if (kept.has(i)) line.push(i); else if (line.at(-1) !== null) line.push(null);
  return line;
}

const widthOfWord = (word) => { paper.font = `14px ${getComputedStyle(document.body).fontFamily}`; return paper.measureText(word).width + SPACE; };

const letter = (colour, size = 14) => `fill:var(--${colour});font-size:${size}px`;
const colourOf = (arc) => (arc.right ? (dark() ? "#56b4e9" : "#0072b2") : dark() ? "#f0a040" : "#d55e00");
/** A choice of a head: as thick as its weight, and dashed if it is wrong. */
const lineLook = (arc) => ({ stroke: colourOf(arc), "stroke-width": (1 + (3 * arc.weight) / 100).toFixed(1), ...(arc.right ? {} : { "stroke-dasharray": "5 3" }) });

/** One text: the words in a line, `above` and `below` as arcs {from, to, right, weight, label}. */
function drawArcs(words, above, below, room) {
  const ends = [...above, ...below].flatMap(({ from, to }) => [from, to]), widths = words.map(widthOfWord), linked = new Set(ends);
  const line = fitting(widths, ends, room - 2 * EDGE, widthOfWord("…")), middle = {};
  const [high, low] = [above, below].map((arcs) => STEP * Math.max(0, ...levelsOf(arcs))), base = high + 10;
  let x = EDGE;
  const letters = line.map((i) => {
    const wide = i === null ? widthOfWord("…") : widths[i], at = x + wide / 2;
    if (i !== null) middle[i] = at;
    x += wide;
    return svg("text", { x: at, y: base + 5, "text-anchor": "middle", style: letter(linked.has(i) ? "text" : "muted") }, i === null ? "…" : words[i]);
  });
  const drawn = [[above, -1], [below, 1]].flatMap(([arcs, side]) => {
    const heights = levelsOf(arcs);
    return arcs.flatMap((arc, i) => {
      const tip = middle[arc.to], from = middle[arc.from] + (arc.to > arc.from ? 4 : -4), y = base + side * 13, rise = side * (STEP * heights[i] - LABEL);
      const colour = side < 0 ? "var(--muted)" : colourOf(arc);
      return [
        svg("path", { d: `M${from} ${y}C${from} ${y + rise * 4 / 3} ${tip} ${y + rise * 4 / 3} ${tip} ${y + side * 5}`, fill: "none", ...(side < 0 ? { stroke: colour, "stroke-width": 2 } : lineLook(arc)) }),
        svg("path", { d: `M${tip} ${y}l-4 ${side * 7}h8z`, fill: colour }),
        ...(arc.label ? [svg("text", { x: (from + tip) / 2, y: y + rise + LABEL, "text-anchor": "middle", style: letter("text", 12) }, arc.label)] : []),
      ];
    });
  });
  const said = below.map(({ from, to, right, weight }) => t`${words[from]} → ${words[to]} (${right ? "✓" : "✗"}, weight ${weight / 100})`).join("; ");
  return svg("svg", { width: Math.max(x + EDGE, 200), height: base + low + 20, style: "display:block", role: "img", "aria-label": `${words.join(" ")}: ${said}` }, ...drawn, ...letters);
}

/** A translation above its text: pale lines are links of the data, others the choices of the head. */
function drawPair(source, target, gold, below) {
  const places = [target, source].map((words) => { let x = EDGE; return words.map((word) => { const wide = widthOfWord(word), at = x + wide / 2; x += wide; return at; }); });
  const [top, bottom] = [24, 124], wide = Math.max(...places.flat()) + 60;
  const lineOf = ({ from, to }, look) => svg("line", { x1: places[0][from], x2: places[1][to], y1: top + 8, y2: bottom - 16, ...look });
  return svg("svg", { width: wide, height: bottom + 14, role: "img", "aria-label": `${target.join(" ")} / ${source.join(" ")}` },
    ...gold.map((arc) => lineOf(arc, { stroke: "var(--muted)", opacity: 0.35, "stroke-width": 9, "stroke-linecap": "round" })),
    ...below.map((arc) => lineOf(arc, lineLook(arc))),
    ...target.map((word, i) => svg("text", { x: places[0][i], y: top, "text-anchor": "middle", style: letter("text") }, word)),
    ...source.map((word, i) => svg("text", { x: places[1][i], y: bottom, "text-anchor": "middle", style: letter("text") }, word)));
}

const headWeight = (index, weight) => t`head ${numberOf(index)}: ${(weight / 100).toFixed(2)}`;

/** What the lines mean, those that are drawn. */
function keyOf(arcs, isPaired) {
  const line = (look) => svg("svg", { width: 26, height: 10, "aria-hidden": "true" }, svg("path", { d: "M1 5h24", ...look }));
  const kinds = [isPaired ? [line({ stroke: "var(--muted)", opacity: 0.35, "stroke-width": 9 }), t`links of the data`] : [line({ stroke: "var(--muted)", "stroke-width": 2 }), t`above: links of the data`], ...[[true, t`✓ right choice of the head, with its weight`], [false, t`✗ wrong choice`]]
    .filter(([right]) => arcs.some((arc) => arc.right === right)).map(([right, said]) => [line(lineLook({ right, weight: 40 })), said])];
  return html("ul", { class: "clusters" }, ...kinds.map(([drawn, said]) => html("li", {}, drawn, said)));
}

/** Other heads that are right for one link of an untested run, strongest first. */
function othersOf([name, from, keys, link], index) {
  const { choice, weight } = data.shown;
  return choice[link].map((to, i) => ({ from, to, i, right: keys.includes(to), weight: weight[link][i] }))
    .filter((one) => one.right && one.i !== index).sort((a, b) => b.weight - a.weight).slice(0, 5).map((one) => ({ ...one, label: headWeight(one.i, one.weight) }));
}

panels.links = (index) => {
  const { texts, relations, choice, weight, tested } = data.shown, main = data.labels ? majority(index)?.name : null;
  const chosen = relation ?? (relations.includes(main) ? main : relations.includes(quantity()?.group) ? quantity().group : relations[0]);
  byId("relation").value = chosen;
  const box = byId("links"), room = Math.max(280, box.clientWidth);
  const all = [];
  box.replaceChildren(...texts.flatMap(({ name, words, target, links }, number) => {
    const of = links.filter(([called]) => called === chosen);
    if (!of.length) return [];
    const above = of.flatMap(([, from, keys]) => keys.map((to) => ({ from, to })));
    const below = of.map(([, from, keys, link]) => ({ from, to: choice[link][index], right: keys.includes(choice[link][index]), weight: weight[link][index] })).filter(({ to }) => to >= 0)
      .map((arc) => ({ ...arc, label: `${arc.right ? "✓" : "✗"} ${tested || of.length > 1 ? (arc.weight / 100).toFixed(2) : headWeight(index, arc.weight)}` }));
    all.push(...below);
    const others = tested || of.length > 1 ? [] : othersOf(of[0], index);
    const picture = target.length ? drawPair(words, target, above, below) : drawArcs(words, above, [...below, ...others], room);
    const chart = html("div", { class: "arcs scroll", tabindex: 0 }, picture), caption = html("figcaption", { class: "hint" }, html("bdi", {}, name));
    caption.append(offer(`text-${number + 1}.svg`, "SVG", () => drawing(chart)));
    return [html("figure", {}, caption, chart)];
  }));
  byId("links-say").textContent = t`Head ${numberOf(index)}: its largest weight is right for ${all.filter((arc) => arc.right).length} of ${all.length} queries in these texts.`;
  byId("links-key").replaceChildren(keyOf(all, texts.some(({ target }) => target.length)));
};

for (const name of data.shown.relations) byId("relation").append(html("option", { value: name }, name));
byId("relation").addEventListener("change", ({ target }) => { relation = target.value; writeAddress(true); panels.links(state.head); });
places.push({
  write: () => (relation === null ? "" : `relation=${encodeURIComponent(relation)}`),
  read: (part) => { const name = part.startsWith("relation=") ? decodeURIComponent(part.slice(9)) : null; if (data.shown.relations.includes(name)) relation = name; },
});
