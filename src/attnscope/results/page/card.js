// The card of a head: what it means in two lines, its roles as bars, its best example, small caches, its effect.

const MOST = "var(--text)", kindOfRole = ({ role }) => `${data.own.table}.${role}`;
const valueAt = (key, index) => byKey.get(key)?.values?.[index] ?? null;
const highest = (key) => Math.max(...(byKey.get(key)?.values ?? []).map((value) => value ?? -Infinity));
const two = (value) => value.toFixed(2);

/** Roles that are defined for a head: its score, that of uniform attention, and the highest one of the controls. */
function rolesOf(index) {
  const reached = data.own.reached[numberOf(index)] ?? [];
  return data.own.roles.map((role) => {
    const key = kindOfRole(role), equal = valueAt(`${key}.equal`, index), threshold = role.threshold === null ? null : Math.max(role.threshold, role.more * equal), most = Math.max(...data.own.controls.map((control) => highest(`${key}.${control}`)));
    return { ...role, key: `${key}.score`, score: valueAt(`${key}.score`, index), equal, threshold, most: Number.isFinite(most) ? most : null, strong: reached.includes(role.role) };
  }).filter(({ score }) => score !== null);
}

function sayRole(index, roles) {
  const above = ({ score, most, equal }) => score - Math.max(most ?? equal, equal);
  const reached = roles.filter(({ strong }) => strong).sort((a, b) => above(b) - above(a)), number = numberOf(index);
  if (reached.length) {
    const [{ title, score, equal, most }] = reached, others = reached.slice(1).map((role) => role.title).join(", ");
    const beside = most === null ? t`uniform attention ${two(equal)}` : t`uniform attention ${two(equal)}, untrained or shuffled weights at most ${two(most)}`;
    return t`Head ${number} has the role “${title}”: score ${two(score)}, ${beside}.` + (others && ` ${t`Other roles: ${others}.`}`);
  }
  const [best] = roles.filter((role) => above(role) > 0).sort((a, b) => above(b) - above(a));
  return best ? t`Head ${number} has no role; furthest above its controls is “${best.title}”: ${two(best.score)}, uniform attention and untrained weights at most ${two(Math.max(best.most ?? 0, best.equal))}.`
    : t`Head ${number} has no role, and no score is above uniform attention and untrained weights.`;
}

/** Quantities of the card by a pattern of their names, with what the head has of them. */
const measuredOf = (pattern, index) => painted.map((one) => ({ one, parts: pattern.exec(one.key), value: one.values[index] })).filter(({ parts, value }) => parts && value !== null);
const cachesOf = (pattern, index) => measuredOf(pattern, index).map((each) => ({ ...each, recent: Number(each.parts[1]), sinks: Number(each.parts[2]) })).sort((a, b) => a.recent + a.sinks - (b.recent + b.sinks));
const LIMITS = /^heads\.\.limit_(\d+)_(\d+)_mean$/, REACHES = /^heads\.\.kept_(\d+)_(\d+)$/, EFFECTS = /^heads\.\.(?!limit_)(.+)_mean$/;
const NEARLY = 0.95; // of its weight: a head that such a cache suits
const rowOf = (name, { one, value }, index) => ({ name, key: one.key, value, text: textOf(one, index), strong: !!one.shown?.[index], ends: endsOf(one, index) });
/** The ends of an interval, read from its text. */
function endsOf(one, index) {
  const ends = (one.interval?.[index] ?? "").replace(/−/g, "-").match(/[-+]?\d[\d.]*(e[-+]?\d+)?/g)?.map(Number);
  return ends?.length === 2 ? ends : null;
}

function sayEffect(index) {
  const [limit] = cachesOf(LIMITS, index), reached = cachesOf(REACHES, index), reach = reached.find(({ one }) => one.key === data.opens.quantity) ?? reached[0], [effect] = measuredOf(EFFECTS, index), sentences = [];
  const tested = ({ one }) => (one.shown[index] === null ? t`not tested` : one.shown[index] ? t`significant` : t`not significant`);
  if (limit) sentences.push(t`With keys limited to the latest ${limit.recent} and first ${limit.sinks} tokens, the loss changes by ${textOf(limit.one, index)} nats (${tested(limit)}).`);
  else if (reach) sentences.push(t`A cache of the latest ${reach.recent} and first ${reach.sinks} tokens keeps ${share(reach.value)} of its weight.`);
  if (effect) sentences.push(t`Without the head (${effect.one.name}), the loss changes by ${textOf(effect.one, index)} nats (${tested(effect)}).`);
  if (!limit && !effect) sentences.push(t`Whether it matters was not measured: attnscope intervene measures it.`);
  return sentences.join(" ");
}

function sayExample({ weight, pieces }) {
  const [query, key] = ["query", "key"].map((name) => pieces.find(([, mark]) => mark === name)?.[0].trim());
  return query && key ? t`Its largest weight in the first windows: ${two(weight)}, from “${query}” (underlined) to “${key}” (framed).` : t`Its largest weight in the first windows: ${two(weight)}, from the underlined token to the framed one.`;
}

drawAbove((index, box) => {
  const roles = rolesOf(index), width = innerWidth < 1150 ? widthOf(box, 620) : (widthOf(box, 1240) - 28) / 2, example = data.own.examples[numberOf(index)];
  const figure = (title, rows, more, key = "", below = "") => rows.length && html("figure", {}, html("figcaption", {}, title), key, html("div", { class: "chart" }, drawBars(rows, { label: title, width, ...more })), below);
  const around = (rows) => { const all = rows.flatMap(({ value, ends }) => [value, ...(ends ?? [])]); return { low: Math.min(0, ...all), high: Math.max(0.01, ...all) }; };
  const cacheName = ({ recent, sinks }) => t`latest ${recent}, first ${sinks}`;
  const limits = cachesOf(LIMITS, index).map((each) => rowOf(cacheName(each), each, index)), reaches = cachesOf(REACHES, index).map((each) => rowOf(cacheName(each), each, index));
  const effects = measuredOf(EFFECTS, index).map((each) => rowOf(each.one.name, each, index));
  const [impossible, possible] = [true, false].map((above) => roles.filter(({ threshold }) => (threshold > 1) === above));
  const listed = impossible.map(({ title, equal }) => `${title} (${two(equal)})`).join(", ");
  const bars = possible.map(({ title, key, score, equal, most, threshold, strong }) => ({ name: title, value: score, text: [textOf(byKey.get(key), index), threshold === null ? t`no threshold published` : most >= threshold ? t`controls reach it too` : ""].filter(Boolean).join("; "), strong, ends: null,
    marks: [[equal, "var(--muted)"], [most, MOST], [threshold, "var(--mark)"]] }));
  const marks = [["var(--muted)", t`uniform attention`], ...(data.own.controls.length ? [[MOST, t`highest with untrained or shuffled weights`]] : []), ["var(--mark)", t`needed for the role`]];
  return [
    html("p", { class: "says" }, sayRole(index, roles)), html("p", { class: "says" }, sayEffect(index)),
    example && html("blockquote", {}, html("p", { translate: "no" }, html("bdi", {}, ...example.pieces.map(([part, mark]) => (mark ? html("mark", { class: mark }, part) : part)))),
      html("p", { class: "hint" }, sayExample(example))),
    html("div", { class: "pair" }, ...[
      figure(t`Score of each role`, bars, { low: 0, high: 1 }, legendOf(marks), listed ? html("p", { class: "hint" }, t`Not shown: ${listed}, where uniform attention is above 0.5 and the role needs twice as much`) : ""),
      html("div", {}, ...[
        figure(t`Change of the loss by size of cache (nats)`, limits, around(limits)),
        figure(t`Share of its weight that a cache keeps, by size`, limits.length ? [] : reaches.map((row) => ({ ...row, strong: row.key === data.opens.quantity, marks: [[NEARLY, "var(--mark)"]] })), { low: 0, high: 1 }, legendOf([["var(--mark)", t`95% of the weight`]])),
        figure(t`Change of the loss without the head (nats)`, effects, around(effects)),
      ].filter(Boolean)),
    ].filter(Boolean)),
  ];
});
