// Generated texts: a token is clicked, and each head's share of weight on a span is drawn over the new tokens.

const made = data.generated, OWN = made.spans.length - 1;
const NAMED = ["#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#7a5195", "#8c564b", "#e377c2", "#7f7f7f", "#17becf"];
const colourOf = (span) => (span === OWN ? "var(--accent)" : span === 0 ? "var(--text)" : NAMED[(span - 1) % NAMED.length]);
Object.assign(state, { text: 0, step: made.texts[0].steps - 1, span: OWN, pictured: "heads" });
/** By head of the map, its place in the stored weights. */
const stored = new Map(made.order.map(([layer, head], i) => [data.layers.indexOf(layer) * heads + data.heads.indexOf(head), i]));
for (const text of made.texts) {
  for (const name of ["weight", "positions", "equal", "largest"]) text[name] = Uint8Array.from(atob(text[name]), (c) => c.charCodeAt(0));
  for (const [name, packed] of Object.entries(text.maps ?? {})) text.maps[name] = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
}
const shareOf = (level) => (level === undefined || level > made.levels ? null : level / made.levels);
const textNow = () => made.texts[state.text];
const shareAt = (name, step, index, span) => shareOf(textNow()[name][(step * made.order.length + stored.get(index)) * made.spans.length + span]);
const steps = () => Array.from({ length: textNow().steps }, (_, i) => i);

/** The cells of the map draw the share on the chosen span over the new tokens. */
function drawCurves() {
  curves = { most: 1, values: Array.from({ length: total }, (_, index) => (stored.has(index) ? steps().map((step) => shareAt("weight", step, index, state.span)) : [])) };
  paintMap();
}

/** A value of the table of heads, such as the share on the own output in the last third. */
const columnOf = (name, index) => byKey.get(`heads..${name}`)?.values?.[index] ?? null;
const shareIn = (text, name, step, index, span) => shareOf(text[name][(step * made.order.length + stored.get(index)) * made.spans.length + span]);

/** The share on a span less the part that uniform attention or the head's positions explain: in the mean of all texts, and in this one. */
function drawExcess(index) {
  const span = made.spans[state.span], grown = (name) => columnOf(`${name}_last`, index) - columnOf(`${name}_first`, index);
  const hasPositions = steps().some((step) => shareAt("positions", step, index, state.span) !== null);
  const reference = hasPositions && (state.span !== OWN || grown("positions") >= grown("equal")) ? "positions" : "equal"; // of the own output, as the shift counts it
  const beyond = (text) => Array.from({ length: text.steps }, (_, step) => ["weight", reference].map((name) => shareIn(text, name, step, index, state.span))).map(([weight, other]) => (weight === null || other === null ? null : weight - other));
  const each = made.texts.map(beyond), last = Math.max(...made.texts.map((text) => text.steps)) - 1;
  const mean = Array.from({ length: last + 1 }, (_, step) => { const at = each.map((values) => values[step] ?? null).filter((value) => value !== null); return at.length ? at.reduce((a, b) => a + b, 0) / at.length : null; });
  const thirds = state.span === OWN && columnOf("turn", index) !== null ? ["first", "last"].map((third) => columnOf(`own_${third}`, index) - columnOf(`${reference}_${third}`, index)) : [];
  const drawn = [...mean, ...each[state.text], ...thirds].filter((value) => value !== null), low = Math.min(-0.05, ...drawn), high = Math.max(0.05, ...drawn);
  if (mean.every((value) => value === null)) return "";
  const box = byId("lines"), width = widthOf(box), height = 210, left = 40, right = 12, top = 14, bottom = 36, signed = (value) => `${value > 0 ? "+" : ""}${say(value, 2)}`, fixed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
  const x = (step) => left + (step / Math.max(1, last)) * (width - left - right), y = (value) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom);
  const less = reference === "positions" ? t`its positions alone` : t`uniform attention`;
  const caption = thirds.length ? t`Weight on the ${span} beyond ${less}: ${fixed(thirds[0])} in the first third of the new tokens, ${fixed(thirds[1])} in the last; shift ${fixed(thirds[1] - thirds[0])}` : t`Weight on the ${span} beyond ${less}`;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": caption });
  const points = (values) => values.map((value, step) => [step, value]).filter(([, value]) => value !== null).map(([step, value]) => `${x(step)},${y(value)}`).join(" ");
  const area = (values, colour) => svg("polygon", { points: `${x(0)},${y(0)} ${points(values)} ${x(values.length - 1)},${y(0)}`, fill: colour, opacity: 0.35 });
  for (const value of ticks(low, high, 4)) picture.append(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: value === 0 ? "var(--muted)" : "var(--line)" }), svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, signed(value)));
  for (const step of ticks(0, last, width < 420 ? 4 : 8).filter(Number.isInteger)) picture.append(svg("text", { x: x(step), y: height - bottom + 15, "text-anchor": "middle" }, say(step + 1)));
  picture.append(area(mean.map((value) => Math.max(0, value)), "#d55e00"), area(mean.map((value) => Math.min(0, value)), "#0072b2"),
    svg("polyline", { points: points(each[state.text]), fill: "none", stroke: "var(--muted)", "stroke-width": 1.2 }), svg("polyline", { points: points(mean), fill: "none", stroke: "var(--text)", "stroke-width": 2.4 }),
    ...thirds.map((value, part) => svg("line", { x1: x(part * last * 2 / 3), x2: x(part ? last : last / 3), y1: y(value), y2: y(value), stroke: "var(--mark)", "stroke-width": 2.4, "stroke-dasharray": "6 3" })),
    svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, t`new token`));
  const key = [["var(--text)", made.texts.length > 1 ? t`mean of ${made.texts.length} texts` : t`this text`, { "stroke-width": 2.4 }], ["#d55e00", t`more than ${less}`], ["#0072b2", t`less`], ...(made.texts.length > 1 ? [["var(--muted)", t`this text`, { "stroke-width": 1.2 }]] : []), ...(thirds.length ? [["var(--mark)", t`means of thirds`, { "stroke-width": 2.4, "stroke-dasharray": "6 3" }]] : [])];
  return html("figure", {}, html("figcaption", {}, caption), linesOf(key), picture);
}

/** A legend: a square for an area, else a line as it is drawn. */
const linesOf = (items) => html("ul", { class: "clusters" }, ...items.map(([colour, name, look]) => html("li", {}, look ? svg("svg", { viewBox: "0 0 26 10", style: "flex:none;width:26px;height:10px", "aria-hidden": "true" }, svg("path", { d: "M1 5h24", stroke: colour, ...look })) : swatch(colour), html("bdi", {}, name))));

function drawLines(index) {
  const box = byId("lines"), width = widthOf(box), height = 220, left = 40, right = 12, top = 14, bottom = 36;
  const all = steps(), last = Math.max(1, all.length - 1);
  const x = (step) => left + (step / last) * (width - left - right), y = (value) => height - bottom - value * (height - top - bottom);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t`Weight of head ${numberOf(index)} on each span over the new tokens` });
  for (const value of [0, 0.25, 0.5, 0.75, 1]) {
    picture.append(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: "var(--line)" }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, say(value)));
  }
  for (const step of ticks(0, last, width < 420 ? 4 : 8).filter(Number.isInteger)) {
    picture.append(svg("text", { x: x(step), y: height - bottom + 15, "text-anchor": "middle" }, say(step + 1)));
  }
  const line = (name, span, more) => {
    const found = all.map((step) => [step, shareAt(name, step, index, span)]).filter(([, value]) => value !== null);
    if (found.length) picture.append(svg("polyline", { points: found.map(([step, value]) => `${x(step)},${y(value)}`).join(" "), fill: "none", "stroke-linejoin": "round", ...more }));
  };
  made.spans.forEach((_, span) => line("weight", span, { stroke: colourOf(span), "stroke-width": span === state.span ? 2.6 : 1.6 }));
  line("equal", state.span, { stroke: "var(--muted)", "stroke-dasharray": "4 3" });
  line("positions", state.span, { stroke: "var(--mark)", "stroke-dasharray": "1.5 2.5" });
  picture.append(svg("line", { x1: x(state.step), x2: x(state.step), y1: top - 6, y2: height - bottom, stroke: "var(--text)", opacity: 0.55 }),
    svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, t`new token`));
  const named = made.spans[state.span];
  const key = [...made.spans.map((span, i) => [colourOf(i), span, { "stroke-width": i === state.span ? 2.6 : 1.6 }]), ["var(--muted)", t`${named}: uniform attention`, { "stroke-dasharray": "4 3" }], ["var(--mark)", t`${named}: positions alone`, { "stroke-dasharray": "1.5 2.5" }]];
  box.replaceChildren(drawExcess(index), html("figure", {}, html("figcaption", {}, t`Share of the weight on each span, in this text`), linesOf(key), picture));
}

function sayToken(index) {
  const text = textNow(), isCross = data.layerKinds[layerOf(index)] === "cross", place = stored.get(index);
  const rows = made.spans.map((span, number) => [number, span, ["weight", "equal", "positions"].map((name) => shareAt(name, state.step, index, number))]).filter(([, , values]) => values[0] !== null)
    .map(([number, span, values]) => html("tr", number === state.span ? { class: "chosen" } : {},
      html("th", { scope: "row" }, swatch(colourOf(number)), " ", html("bdi", {}, span)),
      ...values.map((value) => html("td", { class: "number" }, value === null ? "" : value.toFixed(2)))));
  byId("at-token").replaceChildren(...rows);
  byId("layer-kind").textContent = isCross ? t`Cross-attention: this head attends to the source.` : "";
  const top = text.top[state.step][place], side = isCross ? text.source ?? [] : text.tokens;
  const largest = shareOf(text.largest[state.step * made.order.length + place]);
  const shown = (token) => `“${(token ?? "").replace(/\n/g, "⏎")}”`;
  const predicted = t`The model wrote ${shown(text.tokens[text.prompt + state.step])} (new token ${state.step + 1}) after reading up to ${shown(text.tokens[text.prompt + state.step - 1])}.`;
  const attended = top === null ? "" : isCross ? t`There the head attends most to ${shown(side[top])}, position ${top} of the source, with ${largest === null ? "–" : largest.toFixed(2)}.`
    : t`There the head attends most to ${shown(side[top])}, position ${top}, with ${largest === null ? "–" : largest.toFixed(2)}.`;
  byId("at").textContent = `${predicted} ${attended} ${t`Entropy: ${say(text.entropy[state.step][place])} nats.`}`;
  document.querySelectorAll("#tokens .token[data-token]").forEach((token) => {
    const i = Number(token.dataset.token);
    token.classList.toggle("top", !isCross && i === top);
    token.classList.toggle("current", i === text.prompt + state.step);
    if (i >= text.prompt) token.setAttribute("aria-pressed", i === text.prompt + state.step);
  });
}

function drawTokens() {
  const text = textNow(), patches = new Set(text.patches ?? []);
  byId("tokens").replaceChildren(...text.tokens.map((token, i) => {
    const shown = token.replace(/\n/g, "⏎").replace(/^\s*$/, "␣");
    if (patches.has(i)) return patches.has(i - 1) ? "" : html("span", { class: "token given" }, t`[image]`);
    if (i < text.prompt) return html("span", { class: "token given", "data-token": i }, shown);
    const button = html("span", { role: "button", tabindex: 0, class: "token new", "data-token": i }, shown), choose = () => { state.step = i - text.prompt; panels.text(state.head); writeAddress(false); };
    button.addEventListener("click", choose);
    button.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(); });
    return button;
  }));
}

/** The weights on all patches at a step, of the chosen kind of map. */
function patchWeights(text, step, index) {
  const [rows, row] = { heads: [made.order.length, stored.get(index)], layers: [data.layers.length, layerOf(index)], all: [1, 0] }[state.pictured], count = text.patches.length;
  const codes = text.maps[state.pictured].subarray((step * rows + row) * count, (step * rows + row + 1) * count);
  return Array.from(codes, (code) => (shareOf(code) ?? 0) ** 2);
}

/** An image with weights over it; the largest in `most` is the darkest. */
function heatOf(view, weights, most) {
  const canvas = html("canvas", { width: view.columns, height: view.rows }), image = new ImageData(view.columns, view.rows);
  for (let i = 0; i < view.rows * view.columns; i++) image.data.set([255, 45, 10, 225 * Math.sqrt(weights[view.first + i] / most)], 4 * i);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return html("span", { class: "overlay", style: `aspect-ratio: ${view.columns} / ${view.rows}` }, ...(view.source ? [html("img", { alt: "", src: view.source })] : []), canvas);
}

/** The images of a text with the weights at the selected token, and a small drawing for each new token. */
function drawPictures(index) {
  const text = textNow(), box = byId("pictures");
  box.hidden = !text.views || !stored.has(index);
  if (box.hidden) return;
  const kinds = [["heads", t`of this head`], ["layers", t`mean of the layer's heads`], ["all", t`mean of all heads`]].filter(([kind]) => text.maps[kind]);
  if (!text.maps[state.pictured]) state.pictured = kinds[0][0];
  const choice = html("select", {}, ...kinds.map(([kind, name]) => html("option", kind === state.pictured ? { value: kind, selected: "" } : { value: kind }, name)));
  choice.addEventListener("change", () => { state.pictured = choice.value; drawPictures(index); });
  const all = steps().map((step) => patchWeights(text, step, index)), most = Math.max(1e-9, ...all.flat()), here = all[state.step];
  const sum = (view, weights) => weights.slice(view.first, view.first + view.rows * view.columns).reduce((a, b) => a + b, 0);
  const inAll = (view) => all.reduce((total, weights) => total + sum(view, weights), 0), main = text.views.reduce((a, b) => (inAll(b) > inAll(a) ? b : a));
  const small = all.map((weights, step) => {
    const token = text.tokens[text.prompt + step].replace(/\n/g, "⏎"), button = html("button", { type: "button", class: "small", "aria-pressed": step === state.step }, heatOf(main, weights, most), html("bdi", {}, token.trim() || "␣"));
    button.addEventListener("click", () => { state.step = step; panels.text(state.head); writeAddress(false); });
    return button;
  });
  box.replaceChildren(html("label", { class: "choose" }, t`Weights over the image:`, " ", choice),
    html("div", { class: "heats" }, ...text.views.map((view) => html("figure", {}, heatOf(view, here, most), html("figcaption", { class: "hint" }, t`${view.name}: ${share(sum(view, here))} of the weight`)))),
    html("p", { class: "hint" }, t`One drawing for each new token. The darkest patch has ${say(most)} of the weight, in all drawings alike.`),
    html("div", { class: "drawings", tabindex: 0, role: "group", "aria-label": t`New tokens` }, ...small));
}

function turnTo(number) {
  state.text = number;
  state.step = Math.min(state.step, textNow().steps - 1);
  byId("text-choice").value = String(number);
  drawTokens();
  drawCurves();
}

panels.text = (index) => {
  const known = stored.has(index);
  byId("at").hidden = byId("drawn").hidden = !known;
  if (known) { drawLines(index); sayToken(index); }
  drawPictures(index);
};
places.push(
  { write: () => (state.text ? `w${state.text + 1}` : ""), read: (part) => { const found = /^w(\d+)$/.exec(part); if (found && made.texts[found[1] - 1]) turnTo(found[1] - 1); } },
  { write: () => `t${state.step + 1}`, read: (part) => { const found = /^t(\d+)$/.exec(part); if (found) state.step = Math.min(Math.max(0, found[1] - 1), textNow().steps - 1); } },
);
byId("text-choice").append(...made.texts.map((text, i) => html("option", { value: i }, text.name)));
byId("text-choice").addEventListener("change", (event) => { turnTo(Number(event.target.value)); panels.text(state.head); writeAddress(true); });
byId("span-choice").append(...made.spans.map((span, i) => html("option", { value: i }, span)));
byId("span-choice").value = String(state.span);
byId("span-choice").addEventListener("change", (event) => { state.span = Number(event.target.value); drawCurves(); panels.text(state.head); });
drawTokens();
drawCurves();
