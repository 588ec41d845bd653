// The tab Profile: mean weights by offset, shares in bins and blocks, labels and their spread, groups of tokens.

/** Offsets and values without an empty side, such as later tokens under a causal mask. */
function halved(offsets, values, all) {
  const empty = (side) => all.every((curve) => curve.every((v, i) => Math.sign(offsets[i]) !== side || !v));
  const kept = offsets.map((_, i) => i).filter((i) => !(offsets[i] > 0 && empty(1)) && !(offsets[i] < 0 && empty(-1)));
  return kept.length > 1 ? [kept.map((i) => offsets[i]), kept.map((i) => values[i])] : [offsets, values];
}

// --- bins of offsets, which double and are drawn equally wide, so that near and far offsets are both visible -----

/** Offsets of a bin in words. */
function sayBin(first, last) {
  const of = (offset) => say(offset, 7);
  return first === last ? t`offset ${of(first)}` : t`offsets ${of(first)} to ${of(last)}`;
}

/** Bars of a head, and steps of equal weights in its layer and of the median head. */
function drawOffsets(box, { first, last, share: shares, equal }, index, colour, unit) {
  const own = shares[index], even = equal?.[layerOf(index)] ?? null;
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
  box.replaceChildren(picture, legendOf([[colour, t`this head`], ["var(--muted)", t`median of all heads`], ...(even ? [["currentColor", t`uniform attention, dashed`]] : [])]));
}

// --- the share of weight in the best blocks, by the share of blocks kept ----------------------------------------

/** The curve of a head, of equal weights in its layer, and between which curves those of all heads lie. */
function drawBlocks(box, { kept, keys }, index, colour) {
  const points = keys.map((key) => byKey.get(key)), own = points.map((one) => one.values[index]);
  if (own.every((value) => value === null)) { box.replaceChildren(t`No data for this head.`); return; }
  const layer = layerOf(index), even = points.map((one) => one.equal?.[layer] ?? null);
  const width = widthOf(box), height = 214, left = 46, right = 12, top = 12, bottom = 40, most = kept[kept.length - 1];
  const x = (percent) => left + (percent / (1.06 * most)) * (width - left - right), y = (value) => height - bottom - value * (height - top - bottom);
  const along = (values) => kept.map((percent, i) => [percent, values[i]]).filter(([, value]) => value !== null).map(([percent, value]) => `${x(percent)},${y(value)}`);
  const all = points.map((one) => one.values.filter((value) => value !== null).toSorted((a, b) => a - b)), middle = all.map((values) => values[Math.floor((values.length - 1) / 2)]);
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
  box.replaceChildren(picture, legendOf([[colour, t`this head`], ["var(--muted)", t`all heads: lowest to highest, and median`],
    ...(even.some((value) => value !== null) ? [["#d55e00", t`uniform attention, dashed`]] : [])]));
}

// --- the whole tab --------------------------------------------------------------------------------------------

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

panels.profile = async (index) => {
  const colour = hueOf(index);
  if (data.profile) {
    const { offsets, mean, low, high } = data.profile, all = [high?.[index] ?? mean[index], mean[index]];
    const cut = (values) => halved(offsets, values ?? offsets.map(() => null), all);
    if (mean[index].some((v) => v !== null)) drawProfile(byId("profile"), cut(mean[index])[0], ...[mean, low, high].map((one) => cut(one?.[index])[1]), colour, data.unit ?? t`tokens`);
    else byId("profile").replaceChildren(t`No profile for this head.`);
  }
  if (data.patches) {
    const mean = data.patches.mean[index];
    if (mean.some((v) => v !== null)) drawPatchProfile(byId("patches"), data.patches, mean, data.patches.equal[index]);
    else byId("patches").replaceChildren(t`No rows and columns of patches in this layer.`);
  }
  if (data.offsets) drawOffsets(byId("offsets"), data.offsets, index, colour, data.unit);
  (data.blocks ?? []).forEach((curve, i) => drawBlocks(byId(`blocks-${i}`), curve, index, colour));
  if (byId("shares")) drawShares(index);
  const one = quantity() ?? painted[0];
  if (byId("distribution") && one) {
    byId("distribution-title").replaceChildren(`${one.name} `, html("span", { class: "count" }, one.counts ? t`over ${data.noun}s, and among all heads` : t`among all heads`));
    const counts = one.counts ? (await unpackJson(one.counts))[index] : null;
    if (index === state.head) drawDistribution(byId("distribution"), { counts, means: one.values, value: one.values[index], units: one.units, colour, noun: data.noun });
  }
};

/** The windows in which the head attends most strongly, with both tokens marked. */
panels.examples = async (index) => {
  const found = (await unpackJson(data.examples))[numberOf(index)] ?? [];
  if (index !== state.head) return;
  byId("example-list").replaceChildren(...found.map(({ pieces, weight, offset, window, text }) => html("li", {},
    html("p", { translate: "no" }, html("bdi", {}, ...pieces.map(([part, mark]) => (mark ? html("mark", { class: mark }, part) : part)))),
    html("p", { class: "hint" }, data.layerKinds[layerOf(index)] === "cross" ? t`weight ${say(weight, 2)}` : t`weight ${say(weight, 2)}, offset ${say(offset)}`, html("span", { translate: "no" }, ` · ${text} · ${window}`)))));
  byId("no-example").hidden = found.length > 0;
};

/** Weights between groups: of the head, of its positions alone, and of uniform attention. */
panels.groups = (index) => {
  const { names, weight, positions, equal } = data.groups;
  const named = (name) => html("bdi", {}, name);
  const cell = (value) => html("td", { class: "number", style: `--w: ${value ?? 0}` }, value === null ? "–" : value.toFixed(2));
  const table = ([title, rows]) => html("figure", {}, html("figcaption", {}, title), html("div", { class: "scroll", tabindex: 0 },
    html("table", { class: "cells" },
      html("thead", {}, html("tr", {}, html("td"), ...names.map((name) => html("th", { scope: "col" }, named(name))))),
      html("tbody", {}, ...rows.map((row, i) => html("tr", {}, html("th", { scope: "row" }, named(names[i])), ...row.map(cell)))))));
  byId("group-tables").replaceChildren(...[[t`This head`, weight[index]], [t`Positions alone`, positions[index]], [t`Uniform attention`, equal[index]]].map(table));
};
