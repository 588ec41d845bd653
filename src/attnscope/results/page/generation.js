// Generated texts: a token is clicked, and every head's share of weight on a span is drawn over the new tokens.

const data = JSON.parse(byId("data").textContent);
const NAMED = ["#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#7a5195", "#8c564b", "#e377c2", "#7f7f7f", "#17becf"];
const OWN = data.spans.length - 1;
const colourOf = (span) => (span === OWN ? "var(--accent)" : span === 0 ? "var(--text)" : NAMED[(span - 1) % NAMED.length]);
const state = { text: 0, step: 0, span: OWN, head: data.first };

const share3 = (level) => (level === undefined || level > data.levels ? null : level / data.levels);
for (const text of data.texts) {
  for (const name of ["weight", "positions", "equal", "largest"]) text[name] = Uint8Array.from(atob(text[name]), (c) => c.charCodeAt(0));
}
const layerAt = (head) => data.layers.indexOf(data.heads[head][0]);
const at = (name, step, head, span) => share3(data.texts[state.text][name][(step * data.heads.length + head) * data.spans.length + span]);
const steps = () => Array.from({ length: data.texts[state.text].steps }, (_, i) => i);

/** Points of a line, x from 0 to 100 over the steps; parts that are not known are left out. */
function points(name, head, span, width, height, pad = 0) {
  const all = steps(), last = Math.max(1, all.length - 1);
  return all.map((step) => [step, at(name, step, head, span)]).filter(([, value]) => value !== null)
    .map(([step, value]) => `${(pad + (step / last) * (width - 2 * pad)).toFixed(1)},${(height - pad - value * (height - 2 * pad)).toFixed(1)}`).join(" ");
}
const LINES = [["equal", "line-equal"], ["positions", "line-position"], ["weight", "line-own"]];

function drawMultiples() {
  const box = byId("multiples");
  box.style.gridTemplateColumns = `auto repeat(${data.columns}, minmax(56px, 1fr))`;
  const cells = [], apart = [];
  data.layers.forEach((layer, i) => {
    cells.push(html("span", { class: "name" }, data.kinds[i] === "cross" ? `${layer} cross` : `${layer}`));
    for (let column = 0; column < data.columns; column++) {
      const head = data.heads.findIndex(([l, h]) => l === layer && h === column);
      if (head < 0) { cells.push(html("span")); continue; }
      const none = !points("weight", head, state.span, 100, 44, 2);
      if (none && apart.at(-1) !== i) apart.push(i);
      const picture = none ? html("span", { class: "none" }, "–") : svg("svg", { viewBox: "0 0 100 44", preserveAspectRatio: "none", "aria-hidden": "true" },
        ...LINES.map(([name, kind]) => svg("polyline", { class: kind, points: points(name, head, state.span, 100, 44, 2) })),
        svg("line", { class: "cursor", y1: 0, y2: 44 }));
      const button = html("button", { type: "button", "data-head": head, "aria-pressed": head === state.head,
        title: `head ${layer}.${column}`, "aria-label": `head ${layer}.${column}` }, picture);
      button.addEventListener("click", () => { state.head = head; choose(); });
      cells.push(button);
    }
  });
  box.replaceChildren(...cells);
  const crossing = apart.every((i) => data.kinds[i] === "cross") ? " attend to the source only"
    : apart.some((i) => data.kinds[i] === "cross") ? " attend to other tokens" : " attend to the generated text only";
  byId("no-keys").textContent = apart.length === data.layers.length ? `–: this text has no “${data.spans[state.span]}”.`
    : apart.length ? `–: no key of “${data.spans[state.span]}”. The heads of layer${apart.length > 1 ? "s" : ""} ${apart.map((i) => data.layers[i]).join(", ")}${crossing}.` : "";
}

function drawLines() {
  const box = byId("lines"), width = widthOf(box), height = 250, left = 40, right = 12, top = 14, bottom = 36;
  const all = steps(), last = Math.max(1, all.length - 1);
  const x = (step) => left + (step / last) * (width - left - right), y = (value) => height - bottom - value * (height - top - bottom);
  const name = data.heads[state.head].join(".");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Weight of head ${name} on each span over the new tokens` });
  for (const value of [0, 0.25, 0.5, 0.75, 1]) {
    picture.append(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: "var(--line)" }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, say(value)));
  }
  for (const step of ticks(0, last, width < 420 ? 4 : 8).filter(Number.isInteger)) {
    picture.append(svg("text", { x: x(step), y: height - bottom + 15, "text-anchor": "middle" }, say(step + 1)));
  }
  data.spans.forEach((span, number) => {
    const line = all.map((step) => [step, at("weight", step, state.head, number)]).filter(([, value]) => value !== null);
    if (!line.length) return;
    picture.append(svg("polyline", { points: line.map(([step, value]) => `${x(step)},${y(value)}`).join(" "),
      stroke: colourOf(number), "stroke-width": number === state.span ? 2.6 : 1.6 }, svg("title", {}, span)));
  });
  picture.append(svg("line", { class: "cursor", x1: x(state.step), x2: x(state.step), y1: top - 6, y2: height - bottom }),
    svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "new token"));
  box.replaceChildren(picture);
}

function tellToken() {
  const text = data.texts[state.text], head = state.head, layer = layerAt(head), [l, h] = data.heads[head];
  const isCross = data.kinds[layer] === "cross";
  const rows = data.spans.map((span, number) => [span, ...["weight", "equal", "positions"].map((name) => at(name, state.step, head, number))])
    .map(([span, ...values], number) => [number, span, values]).filter(([, , values]) => values[0] !== null)
    .map(([number, span, values]) => html("tr", number === state.span ? { class: "chosen" } : {},
      html("th", { scope: "row" }, html("i", { class: "swatch", style: `background: ${colourOf(number)}` }), " ", html("bdi", {}, span)),
      ...values.map((value) => html("td", { class: "number" }, value === null ? "" : value.toFixed(2)))));
  byId("at-token").replaceChildren(...rows);
  byId("head-name").textContent = `${l}.${h}`;
  byId("layer-kind").textContent = isCross ? "Cross-attention: this head attends to the source." : "Self-attention: this head attends to the text before.";
  const top = text.top[state.step][head], side = isCross ? text.source ?? [] : text.tokens;
  const largest = share3(text.largest[state.step * data.heads.length + head]);
  const shown = (token) => `“${(token ?? "").replace(/\n/g, "⏎")}”`;
  byId("readout").textContent = `New token ${state.step + 1}, ${shown(text.tokens[text.prompt + state.step])}, is predicted at ${shown(text.tokens[text.prompt + state.step - 1])}. `
    + `Head ${l}.${h} attends most to ${top === null ? "–" : `${shown(side[top])}, token ${top + 1}${isCross ? " of the source" : ""}`}, with ${largest === null ? "–" : largest.toFixed(2)}; entropy ${say(text.entropy[state.step][head])} nats.`;
  document.querySelectorAll("#tokens .token").forEach((token, i) => {
    token.classList.toggle("top", !isCross && i === top);
    token.classList.toggle("current", i === text.prompt + state.step);
    if (i >= text.prompt) token.setAttribute("aria-pressed", i === text.prompt + state.step);
  });
}

function drawTokens() {
  const text = data.texts[state.text];
  byId("tokens").replaceChildren(...text.tokens.map((token, i) => {
    const shown = token.replace(/\n/g, "⏎");
    if (i < text.prompt) return html("span", { class: "token given" }, shown);
    const button = html("button", { type: "button", class: "token new" }, shown);
    button.addEventListener("click", () => { state.step = i - text.prompt; choose(); });
    return button;
  }));
}

/** What follows a click: the cursor in every plot, the head's lines and numbers. */
function choose() {
  const last = Math.max(1, data.texts[state.text].steps - 1), x = 2 + (state.step / last) * 96;
  for (const button of document.querySelectorAll("#multiples button")) {
    button.setAttribute("aria-pressed", Number(button.dataset.head) === state.head);
    const cursor = button.querySelector(".cursor");
    if (cursor) fill(cursor, { x1: x, x2: x }, []);
  }
  drawLines();
  tellToken();
}

function draw() {
  state.step = Math.min(state.step, data.texts[state.text].steps - 1);
  drawTokens();
  drawMultiples();
  choose();
}

byId("text-choice").append(...data.texts.map((text, i) => html("option", { value: i }, text.name)));
byId("text-choice").addEventListener("change", (event) => { state.text = Number(event.target.value); draw(); });
byId("span-choice").append(...data.spans.map((span, i) => html("option", { value: i }, span)));
byId("span-choice").value = String(state.span);
byId("span-choice").addEventListener("change", (event) => { state.span = Number(event.target.value); drawMultiples(); choose(); });
addEventListener("resize", drawLines);
draw();
