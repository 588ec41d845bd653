// A pair of texts, word by word, and the answer's lead in both runs and with the patched head.

let pair = 0;
drawAbove((index, box) => {
  const { pairs, base, source, names, title } = data.own, subject = title[0].toUpperCase() + title.slice(1), shown = pairs[pair];
  const sizeOf = (one) => Math.abs(one.values[index] ?? -1), [effect] = painted.filter((one) => one.key.startsWith("patched.") && one.key.endsWith(".effect")).sort((a, b) => sizeOf(b) - sizeOf(a)); // of several positions, the largest
  const text = (name, pieces, answer) => html("p", { class: "says" }, html("span", { class: "count" }, `${name}: `), html("bdi", { translate: "no" }, ...pieces.map(([part, mark]) => (mark ? html("mark", {}, part) : part))), ...(answer ? [" → ", html("strong", { translate: "no" }, answer)] : []));
  const choice = html("select", {}, ...pairs.map((_, i) => html("option", { value: i }, t`${i + 1} of ${pairs.length}`)));
  choice.value = pair;
  choice.addEventListener("change", () => { pair = Number(choice.value); panels[state.tab](state.head); box.querySelector("select").focus(); });
  const value = effect?.values[index] ?? null, patched = value === null ? null : base + value, recovered = byKey.get(effect?.key.replace(/effect$/, "recovered")), way = recovered?.text[index];
  const signed = (number) => `${number < 0 ? "−" : "+"}${Math.abs(number).toFixed(2)}`, unit = effect?.units ?? "";
  const rows = [[names[0], base], [effect?.group ? t`with head ${numberOf(index)} patched at ${effect.group}` : t`with head ${numberOf(index)} patched`, patched], [names[1], source]];
  const bars = rows.map(([name, number], i) => ({ name, value: number, text: `${signed(number)} ${unit}`, strong: i !== 1 || !!effect.shown[index] }));
  return [
    html("div", { class: "controls" }, html("label", { class: "choose" }, t`Pair`, " ", choice)),
    text(t`Clean`, shown.clean, shown.answer), text(t`Corrupted`, shown.corrupted, shown.wrong),
    ...(patched !== null && way ? [html("figure", {}, html("figcaption", {}, t`${subject}, mean over all pairs: the patch moves it by ${way} of the difference`),
      html("div", { class: "chart" }, drawBars(bars, { label: subject, low: Math.min(0, base, source, patched), high: Math.max(0, base, source, patched), width: widthOf(box, 760) })))] : []),
  ];
});
