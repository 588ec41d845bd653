// The size of the change of each statistic of a head, on one scale.

drawAbove((index, box) => {
  const sizes = painted.filter((one) => one.key.endsWith(".size")), most = Math.max(0.5, ...sizes.flatMap(({ values }) => values.map(Math.abs)));
  const rows = sizes.filter(({ values }) => values[index] !== null).map((one) => {
    const of = (name) => byKey.get(one.key.replace(/size$/, name)), change = of("change");
    return { name: one.group, value: one.values[index], text: `${textOf(of("before"), index)} → ${textOf(of("after"), index)}`, strong: change.shown?.[index] ?? true, tested: (change.shown?.[index] ?? null) !== null };
  });
  const title = rows.some(({ tested }) => tested) ? t`Change in standard deviations of all heads; full colour: significant` : t`Change in standard deviations of all heads; not tested`;
  return [html("figure", {}, html("figcaption", {}, title), html("div", { class: "chart" }, drawBars(rows, { label: title, low: -most, high: most, width: widthOf(box, 900) })))];
});
