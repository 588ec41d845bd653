// Weight by offset, in bins that double and are drawn equally wide, so that near and far offsets are both visible.

/** Offsets of a bin in words. */
function sayBin(first, last) {
  const of = (offset) => say(offset, 7);
  return first === last ? t`offset ${of(first)}` : t`offsets ${of(first)} to ${of(last)}`;
}

/** Bars of a head, and steps of equal weights in its layer and of the median head. */
function drawOffsets(box, { first, last, share: shares, equal }, index, colour, unit) {
  const own = shares[index], even = equal?.[Math.floor(index / heads)] ?? null;
  if (own.every((value) => value === null)) { box.replaceChildren(t`No data for this head.`); return; }
  const middle = first.map((_, bin) => {
    const known = shares.map((one) => one[bin]).filter((value) => value !== null).toSorted((a, b) => a - b);
    return known[Math.floor((known.length - 1) / 2)];
  });
  const width = widthOf(box), height = 230, left = 46, right = 12, top = 22, bottom = 40, step = (width - left - right) / first.length;
  const most = Math.max(...own, ...(even ?? []), ...middle, 1e-9) * 1.05;
  const x = (bin) => left + bin * step, y = (value) => height - bottom - (value / most) * (height - top - bottom);
  const steps = (values) => values.flatMap((value, bin) => [`${x(bin)},${y(value ?? 0)}`, `${x(bin + 1)},${y(value ?? 0)}`]).join(" ");
  const best = own.reduce((found, value, bin) => (value > own[found] ? bin : found), 0), zero = first.findIndex((offset, bin) => offset <= 0 && last[bin] >= 0);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": t`Share of weight by offset; the largest is ${say(100 * own[best])}% at ${sayBin(first[best], last[best])}` });
  for (const value of ticks(0, most, 5)) {
    picture.append(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: "var(--line)" }),
      svg("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, `${say(100 * value)}%`));
  }
  // label bins by their outer end, as many as fit, counted from the token itself
  const outer = first.map((offset, bin) => (last[bin] < 0 ? offset : last[bin])), room = 9 + 6.5 * Math.max(...outer.map((offset) => say(offset, 7).length));
  const every = Math.max(1, Math.ceil(room / step));
  outer.forEach((offset, bin) => {
    if ((bin - zero) % every === 0) picture.append(svg("text", { x: x(bin + 0.5), y: height - bottom + 15, "text-anchor": "middle" }, say(offset, 7)));
  });
  picture.append(
    ...own.map((value, bin) => {
      const said = t`${sayBin(first[bin], last[bin])}: ${say(100 * value)}% of the weight` + (even ? t`; uniform: ${say(100 * even[bin])}%` : "");
      return svg("g", {}, svg("title", {}, said), svg("rect", { x: x(bin), y: top, width: step, height: height - top - bottom, fill: "transparent" }),
        svg("rect", { class: "bin", x: x(bin) + 1, y: y(value ?? 0), width: Math.max(1, step - 2), height: height - bottom - y(value ?? 0), fill: colour }));
    }),
    svg("polyline", { points: steps(middle), fill: "none", stroke: "var(--muted)", "stroke-width": 1.2, "pointer-events": "none" }),
    ...(even ? [svg("polyline", { points: steps(even), fill: "none", stroke: "currentColor", "stroke-width": 1.4, "stroke-dasharray": "5 4", "pointer-events": "none" })] : []),
    svg("text", { x: left, y: top - 10 }, t`← attends left`),
    svg("text", { x: x(zero + 0.5), y: top - 10, "text-anchor": zero < first.length - 1 ? "middle" : "end" }, t`itself`),
    ...(zero < first.length - 1 ? [svg("text", { x: width - right, y: top - 10, "text-anchor": "end" }, t`attends right →`)] : []),
    svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, t`offset at the outer end of the bin, ${unit} (key − query)`));
  box.replaceChildren(picture, html("ul", { class: "clusters" },
    ...[[colour, t`this head`], ["var(--muted)", t`median of all heads`], ...(even ? [["currentColor", t`uniform attention, dashed`]] : [])]
      .map(([hue, name]) => html("li", {}, swatch(hue), name))));
}
