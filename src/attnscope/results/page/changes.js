// The size of the change of each statistic of a head, on one scale.

drawAbove((index, box) => {
  const sizes = painted.filter((one) => one.key.endsWith(".size")), most = Math.max(0.5, ...sizes.flatMap(({ values }) => values.map(Math.abs)));
  const rows = sizes.filter(({ values }) => values[index] !== null).map((one) => {
    const of = (name) => byKey.get(one.key.replace(/size$/, name)), change = of("change");
    return { name: one.group, value: one.values[index], text: `${textOf(of("before"), index)} → ${textOf(of("after"), index)}`, strong: !!change.shown?.[index] };
  });
  const title = t`Change in standard deviations of all heads; full colour: significant`;
  return [html("figure", {}, html("figcaption", {}, title), html("div", { class: "chart" }, drawBars(rows, { label: title, low: -most, high: most, width: widthOf(box, 900) })))];
});
