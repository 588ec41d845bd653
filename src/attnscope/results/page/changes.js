// The size of the change of each statistic of a head, on one scale; and of the largest one on the map.

const sizes = painted.filter((one) => one.key.endsWith(".size")), changeOf = (one) => byKey.get(one.key.replace(/size$/, "change"));
/** Changes of a head: significant ones first, then the largest. */
const changesOf = (index) => sizes.filter(({ values }) => values[index] !== null).map((one) => ({ one, value: one.values[index], shown: changeOf(one).shown?.[index] ?? null }))
  .sort((a, b) => (b.shown === true) - (a.shown === true) || Math.abs(b.value) - Math.abs(a.value));

const firsts = data.there.map((there, index) => (there ? changesOf(index)[0] : undefined));
if (firsts.some((first) => first?.shown === true)) {
  const largest = { key: "largest", name: t`largest significant change`, help: t`of all statistics, in standard deviations between heads`, signed: true,
    values: firsts.map((first) => (first ? first.shown && first.value : null)).map(Number), text: firsts.map((first, index) => (first?.shown ? textOf(first.one, index) : "–")), shown: firsts.map((first) => first?.shown ?? null) };
  painted.unshift(largest);
  byKey.set(largest.key, largest);
  data.labels = null; // each says less than the size and sign of the change
  data.opens.labels = false;
  data.opens.signs = [t`significant increase`, t`significant decrease`];
  data.opens.quantity = state.colour = largest.key;
}

drawAbove((index, box) => {
  const most = Math.max(0.5, ...sizes.flatMap(({ values }) => values.map(Math.abs))), all = changesOf(index);
  const rows = all.map(({ one, value, shown }) => {
    const of = (name) => textOf(byKey.get(one.key.replace(/size$/, name)), index);
    return { name: one.group, value, text: `${of("before")} → ${of("after")}`, strong: shown ?? true };
  });
  const title = all.some(({ shown }) => shown !== null) ? t`Change of each statistic; full colour: significant` : t`Change of each statistic; not tested`;
  const many = all.some(({ shown }) => shown === false) ? t`A large value can be not significant: it varies between texts, and ${firsts.filter(Boolean).length} heads were tested at once.` : "";
  return [html("figure", {}, html("figcaption", {}, title), html("div", { class: "chart" }, drawBars(rows, { label: title, low: -most, high: most, width: widthOf(box, 900), axis: t`standard deviations between heads` })), html("p", { class: "hint" }, many))];
});
