// Texts with arcs: above the words what belongs together, below them what the chosen head attends to most.

const STEP = 30, EDGE = 12, SPACE = 16, LABEL = 13, HIGH = 170, DEEP = 6; // pixels; arcs above each other
const paper = html("canvas").getContext("2d");
let relation = null; // that a reader chose

/** How high each arc is, from 1, so that short ones are below long ones, and equal ones apart. */
function levelsOf(arcs) {
  const ends = arcs.map(({ from, to }) => [Math.min(...from, ...to), Math.max(...from, ...to)]), heights = [];
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
const colourOf = (arc) => (arc.right && !arc.faint ? (dark() ? "#56b4e9" : "#0072b2") : "var(--muted)"); // orange is a value above 0 on the map
/** A choice of a head: as thick as its weight, and dashed if it is wrong. */
const lineLook = (arc) => ({ stroke: colourOf(arc), "stroke-width": (1 + (3 * arc.weight) / 100).toFixed(1), ...(arc.right ? {} : { "stroke-dasharray": "5 3" }) });

const OF_DATA = { stroke: "var(--muted)", "stroke-width": 2, "stroke-dasharray": "1 4", "stroke-linecap": "round" };

/** Words in a line: the middle of each, their letters, and where the line ends. */
function lineOf(words, line, linked, y) {
  const middle = {}, letters = [];
  let x = EDGE;
  for (const i of line) {
    const word = i === null ? "…" : words[i], wide = widthOfWord(word);
    if (i !== null) middle[i] = x + wide / 2;
    letters.push(svg("text", { x: x + wide / 2, y, "text-anchor": "middle", style: letter(linked.has(i) ? "text" : "muted") }, word));
    x += wide;
  }
  return { middle, letters, end: x + EDGE };
}

const center = (middle, words) => (middle[words[0]] + middle[words.at(-1)]) / 2;
/** Words side by side, as one each. */
const runs = (words) => words.reduce((all, word) => { if (all.at(-1)?.at(-1) === word - 1) all.at(-1).push(word); else all.push([word]); return all; }, []);
const spoken = (words, below) => below.map(({ from, to, right, weight }) => t`${from.map((i) => words[i]).join(" ")} → ${to.map((i) => words[i]).join(" ")} (${right ? "✓" : "✗"}, weight ${weight / 100})`).join("; ");

/** One text: the words in a line, `above` and `below` as arcs {from, to, right, weight, label}, of words each. */
function drawArcs(words, above, below, room) {
  const ends = [...above, ...below].flatMap(({ from, to }) => [...from, ...to]), widths = words.map(widthOfWord);
  const line = fitting(widths, ends, room - 2 * EDGE, widthOfWord("…"));
  const heights = [above, below].map(levelsOf), steps = heights.map((levels) => Math.min(STEP, Math.max(LABEL + 4, HIGH / Math.max(1, ...levels))));
  const [high, low] = heights.map((levels, side) => steps[side] * Math.max(0, ...levels)), base = high + 10;
  const { middle, letters, end } = lineOf(words, line, new Set(ends), base + 5);
  const drawn = [[above, -1, heights[0], steps[0]], [below, 1, heights[1], steps[1]]].flatMap(([arcs, side, levels, step]) => arcs.flatMap((arc, i) => {
    const tip = center(middle, arc.to), start = center(middle, arc.from), from = start + (tip > start ? 4 : -4), y = base + side * 13, rise = side * (step * levels[i] - LABEL);
    const colour = side < 0 ? "var(--muted)" : colourOf(arc);
    const bars = [arc.from, arc.to].filter((one) => one.length > 1).map((one) => svg("path", { d: `M${middle[one[0]] - (widths[one[0]] - SPACE) / 2} ${y}H${middle[one.at(-1)] + (widths[one.at(-1)] - SPACE) / 2}`, stroke: colour, "stroke-width": 2 }));
    return [
      svg("path", { d: `M${from} ${y}C${from} ${y + rise * 4 / 3} ${tip} ${y + rise * 4 / 3} ${tip} ${y + side * 5}`, fill: "none", ...(side < 0 ? OF_DATA : lineLook(arc)) }),
      svg("path", { d: `M${tip} ${y}l-4 ${side * 7}h8z`, fill: colour }), ...bars,
      ...(arc.label ? [svg("text", { x: (from + tip) / 2, y: y + rise + LABEL, "text-anchor": "middle", style: letter("text", 12) }, arc.label)] : []),
    ];
  }));
  return svg("svg", { width: Math.max(end, 200), height: base + low + 20, style: "display:block", role: "img", "aria-label": `${words.join(" ")}: ${spoken(words, below)}` }, ...drawn, ...letters);
}

/** Queries above keys: pale lines are links of the data, others the choices of the head. */
function drawPair(keys, queries, above, below) {
  const all = [...above, ...below], isOne = keys === queries, [top, bottom] = [24, 134];
  const [of, on] = [all.flatMap(({ from }) => from), all.flatMap(({ to }) => to)].map((ends) => new Set(ends));
  const every = (words, ends) => { const line = []; words.forEach((_, i) => { if (!isOne || ends.has(i)) line.push(i); else if (line.at(-1) !== null) line.push(null); }); return line; };
  const upper = lineOf(queries, every(queries, of), of, top), lower = lineOf(keys, every(keys, on), on, bottom);
  const line = ({ from, to }, look) => svg("line", { x1: center(upper.middle, from), x2: center(lower.middle, to), y1: top + 8, y2: bottom - 16, ...look });
  const said = isOne ? spoken(keys, below) : "";
  return svg("svg", { width: Math.max(upper.end, lower.end), height: bottom + 14, style: "display:block", role: "img", "aria-label": `${queries.join(" ")} / ${keys.join(" ")} ${said}` },
    ...above.map((arc) => line(arc, { stroke: "var(--muted)", opacity: 0.35, "stroke-width": 9, "stroke-linecap": "round" })), ...below.map((arc) => line(arc, lineLook(arc))), ...upper.letters, ...lower.letters);
}

/** What the lines mean, those that are drawn. */
function keyOf(arcs, { arched, paired }) {
  const line = (look) => svg("svg", { width: 26, height: 10, "aria-hidden": "true" }, svg("path", { d: "M1 5h24", ...look }));
  const kinds = [
    ...(arched ? [[line(OF_DATA), t`dotted, above: links of the data`]] : []),
    ...(paired ? [[line({ stroke: "var(--muted)", opacity: 0.35, "stroke-width": 9 }), t`links of the data`]] : []),
    ...[[true, t`✓ its largest weight, this number, is on the linked word`], [false, t`✗ it is on another word`]].filter(([right]) => arcs.some((arc) => arc.right === right)).map(([right, said]) => [line(lineLook({ right, weight: 40 })), said]),
    ...(arcs.some(({ faint }) => faint) ? [[line(lineLook({ right: true, faint: true, weight: 10 })), t`grey, no ✓: on the linked word, but at most twice uniform attention`]] : []),
  ];
  return html("ul", { class: "clusters" }, ...kinds.map(([drawn, said]) => html("li", {}, drawn, said)));
}

/** An arc with its mark: ✓ on the linked word beyond uniform attention, ✗ on another word. */
const ticked = (arc) => ({ ...arc, label: arc.right && arc.faint ? arc.label : `${arc.right ? "✓" : "✗"} ${arc.label}` });
const headWeight = (index, weight) => t`head ${numberOf(index)}: ${(weight / 100).toFixed(2)}`;

/** Whether a weight (in percent) is near that of uniform attention. */
const isFaint = (weight) => weight <= 200 * data.shown.uniform[byId("relation").value];

/** Other heads that are right for one link of an untested run, strongest first. */
function othersOf([, from, keys, link], index) {
  const { choice, weight } = data.shown;
  return choice[link].map((to, i) => ({ from, to: [to], i, right: keys.includes(to), weight: weight[link][i] }))
    .filter((one) => one.right && one.i !== index).sort((a, b) => b.weight - a.weight).slice(0, 5).map((one) => ({ ...one, faint: isFaint(one.weight), label: headWeight(one.i, one.weight) })).map(ticked);
}

panels.links = (index) => {
  const { texts, relations, choice, weight, tested } = data.shown, main = data.labels ? majority(index)?.name : null;
  const chosen = relation ?? (relations.includes(main) ? main : relations.includes(quantity()?.group) ? quantity().group : relations[0]);
  byId("relation").value = chosen;
  const box = byId("links"), room = Math.max(280, box.clientWidth), all = [], drawn = [], kinds = {};
  box.replaceChildren(...texts.flatMap(({ name, words, target, links }, number) => {
    const of = links.filter(([called]) => called === chosen);
    if (!of.length) return [];
    const above = of.flatMap(([, from, keys]) => runs(keys).map((to) => ({ from, to })));
    const alone = !tested && of.length === 1, paired = target.length > 0 || Math.max(...levelsOf(above)) > DEEP;
    kinds[paired ? "paired" : "arched"] = true;
    const below = of.map(([, from, keys, link]) => ({ from, to: [choice[link][index]], right: keys.includes(choice[link][index]), weight: weight[link][index] })).filter(({ to }) => to[0] >= 0)
      .map((arc) => ({ ...arc, faint: isFaint(arc.weight), label: alone ? headWeight(index, arc.weight) : (arc.weight / 100).toFixed(2) })).map(ticked);
    const others = alone ? othersOf(of[0], index) : [];
    all.push(...below);
    drawn.push(...below, ...others);
    const picture = paired ? drawPair(words, target.length ? target : words, above, below) : drawArcs(words, above, [...below, ...others], room);
    const chart = html("div", { class: "arcs scroll", tabindex: 0 }, picture), caption = html("figcaption", { class: "hint" }, html("bdi", {}, name));
    caption.append(offer(`text-${number + 1}.svg`, "SVG", () => drawing(chart), fileName));
    return [html("figure", {}, caption, chart)];
  }));
  byId("links-say").textContent = all.length === 1 ? (all[0].right ? t`Head ${numberOf(index)}: its largest weight is on the linked word.` : t`Head ${numberOf(index)}: its largest weight is on another word.`) : t`Head ${numberOf(index)}: its largest weight is on the linked word for ${all.filter((arc) => arc.right).length} of ${all.length} queries in these texts.`;
  byId("links-key").replaceChildren(keyOf(drawn, kinds));
};

for (const name of data.shown.relations) byId("relation").append(html("option", { value: name }, name));
byId("relation").addEventListener("change", ({ target }) => { relation = target.value; writeAddress(true); panels.links(state.head); });
places.push({
  write: () => (relation === null ? "" : `relation=${encodeURIComponent(relation)}`),
  read: (part) => { const name = part.startsWith("relation=") ? decodeURIComponent(part.slice(9)) : null; if (data.shown.relations.includes(name)) relation = name; },
});
