// Errors of the starts of words: by sets of heads, as the finding says, and by the chosen head alone.

panels.sets = (index) => {
  const box = byId("sets"), error = painted.find(({ key }) => key.startsWith("heads.") && key.endsWith(".error"));
  const rows = data.sets.map((one) => ({ ...one, text: one.ends ? t`${say(one.value)} ms (${say(one.ends[0])} to ${say(one.ends[1])})` : `${say(one.value)} ms` }));
  const alone = error?.values[index] ?? null;
  const same = rows.find(({ text }) => alone !== null && text === `${say(alone)} ms`);
  if (same) same.name = t`${same.name} (head ${numberOf(index)})`;
  else if (alone !== null) rows.push({ name: t`head ${numberOf(index)} alone`, value: alone, text: `${say(alone)} ms`, ends: null, strong: false });
  const high = Math.max(...rows.flatMap(({ value, ends }) => [value ?? 0, ...(ends ?? [])]));
  box.replaceChildren(drawBars(rows, { label: byId("sets-title").textContent, low: 0, high, width: widthOf(box, 900) }));
};
