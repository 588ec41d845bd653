// Share of weight in the best blocks, by the share of blocks kept.

/** The curve of a head, of equal weights in its layer, and between which curves those of all heads lie. */
function drawBlocks(box, { kept, keys }, index, colour) {
  const points = keys.map((key) => data.statistics.find((one) => one.key === key)), own = points.map((one) => one.mean[index]);
  if (own.every((value) => value === null)) { box.replaceChildren(t`No data for this head.`); return; }
  const layer = Math.floor(index / heads), even = points.map((one) => one.equal?.[layer] ?? null);
  const width = widthOf(box), height = 214, left = 46, right = 12, top = 12, bottom = 40, most = kept[kept.length - 1];
  const x = (percent) => left + (percent / (1.06 * most)) * (width - left - right), y = (value) => height - bottom - value * (height - top - bottom);
  const along = (values) => kept.map((percent, i) => [percent, values[i]]).filter(([, value]) => value !== null).map(([percent, value]) => `${x(percent)},${y(value)}`);
  const all = points.map((one) => one.mean.filter((value) => value !== null).toSorted((a, b) => a - b)), middle = all.map((values) => values[Math.floor((values.length - 1) / 2)]);
  const listed = kept.map((percent, i) => t`${say(100 * own[i])}% in the best ${percent}%`).join(", ");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t`Share of weight in the best blocks: ${listed}` });
  for (const value of [0, 0.25, 0.5, 0.75, 1]) {
    picture.append(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: "var(--line)" }),
      svg("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, `${100 * value}%`));
  }
  for (const percent of kept) picture.append(svg("text", { x: x(percent), y: height - bottom + 15, "text-anchor": "middle" }, `${percent}%`));
  picture.append(
    svg("polygon", { points: [...along(all.map((values) => values[values.length - 1])), ...along(all.map((values) => values[0])).toReversed()].join(" "), fill: "var(--muted)", opacity: 0.18 }),
    svg("polyline", { points: along(middle).join(" "), fill: "none", stroke: "var(--muted)", "stroke-width": 1.2 }),
    svg("polyline", { points: along(even).join(" "), fill: "none", stroke: "#d55e00", "stroke-width": 1.6, "stroke-dasharray": "5 4" }),
    svg("polyline", { points: along(own).join(" "), fill: "none", stroke: colour, "stroke-width": 2.2 }),
    ...kept.flatMap((percent, i) => (own[i] === null ? [] : [svg("circle", { cx: x(percent), cy: y(own[i]), r: 3.6, fill: colour },
      svg("title", {}, t`best ${percent}% of the blocks: ${say(100 * own[i])}% of the weight` + (even[i] === null ? "" : t`; uniform: ${say(100 * even[i])}%`)))])),
    svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, t`share of blocks kept, best first`));
  box.replaceChildren(picture, html("ul", { class: "clusters" },
    ...[[colour, t`this head`], ["var(--muted)", t`all heads: lowest to highest, and median`], ...(even.some((value) => value !== null) ? [["#d55e00", t`uniform attention, dashed`]] : [])]
      .map(([hue, name]) => html("li", {}, swatch(hue), name))));
}
