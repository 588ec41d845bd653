// Every lesson: drawings that compute, what moves them, exercises that know mistakes, and sections as slides.
const lesson = JSON.parse(byId("lesson").textContent); // {name, slides, numbers, exercises}
const updates = [];
let lowered = 1; // the height of curves on a slide that is too small for all, as a share of theirs

/** Fill each `<div data-draw="name">` of the prose: `make(box)` builds it once and returns what redraws it. */
function draw(name, make) {
  for (const box of document.querySelectorAll(`[data-draw="${name}"]`)) {
    const update = make(box);
    if (update) updates.push([box, update]);
  }
}
function redraw() {
  for (const [box, update] of updates) if (!box.closest(".part[hidden]")) update(); // of slides, the one that is shown
  for (const place of document.querySelectorAll(".place")) { // what scrolls is reached by the keyboard
    if (place.scrollWidth > place.clientWidth || place.scrollHeight > place.clientHeight + 1) place.tabIndex = 0;
    else place.removeAttribute("tabindex");
  }
}

/** Text with W_Q as W and a subscript Q. */
const subscripts = (text) => text.split(/_(\w)/).map((part, i) => (i % 2 ? html("sub", {}, part) : part));

/** A figure with a caption in a box; returns where to draw. `wide` takes the whole row. */
function figure(box, caption, { wide = false } = {}) {
  const place = html("div", { class: "place", role: "group", "aria-label": caption });
  box.append(html("figure", wide ? { class: "wide" } : {}, html("figcaption", {}, ...subscripts(caption)), place));
  return place;
}
/** A row of figures or controls in a box. */
function row(box, kind = "figures") {
  const place = html("div", { class: kind });
  box.append(place);
  return place;
}

/** A number as text: `digits` decimals, with a true minus sign. */
function decimal(value, digits = 2) {
  if (value === -Infinity) return "−∞";
  if (value === Infinity) return "∞";
  if (!Number.isFinite(value)) return "–";
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/** Sentences in a row: Japanese has no space between them. */
const sentences = (...parts) => parts.join(document.documentElement.lang === "ja" ? "" : " ");

/** A slider with its label and value; `on(value)` after each move. Returns the input. */
function slider(place, { name, label, low, high, step, value, show = (x) => decimal(x) }, on) {
  const input = html("input", { type: "range", name, min: low, max: high, step, value });
  const output = html("output", {}, show(value));
  place.append(html("label", { class: "slider" }, html("span", {}, ...subscripts(label)), output, input));
  const told = () => {
    output.textContent = show(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  told();
  input.addEventListener("input", () => { told(); on(Number(input.value)); });
  input.told = told; // after a value that the page sets
  return input;
}

/** Buttons of which one is chosen: `options` are pairs of a value and its text. */
function choice(place, { name, label, options, value }, on) {
  const set = html("fieldset", { class: "switch" }, html("legend", {}, label));
  for (const [one, text] of options) {
    const input = html("input", { type: "radio", name, value: one });
    input.checked = one === value;
    input.addEventListener("change", () => on(one));
    set.append(html("label", {}, input, html("span", {}, text)));
  }
  place.append(set);
}
function button(place, text, on) {
  const made = html("button", { type: "button", class: "act" }, text);
  made.addEventListener("click", on);
  place.append(made);
  return made;
}
const checkbox = (place, { name, label, value = false }, on) => {
  const input = html("input", { type: "checkbox", name });
  input.checked = value;
  input.addEventListener("change", () => on(input.checked));
  place.append(html("label", { class: "check" }, input, html("span", {}, label)));
  return input;
};

const brightness = (rgb) => {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const inkOn = (rgb) => (brightness(rgb) > 0.18 ? "#000" : "#fff");

/**
 * A matrix as a table whose cells are shaded. `kind`: "weight" from 0 to `most`, "signed" from −most to most, "plain".
 * `marked(i, j)` gives a cell a frame; `pick(i, j)` makes cells buttons; `digits` may be null for no numbers.
 */
function heat(place, { values, rows = [], columns = [], kind = "weight", most = null, digits = 2, marked = null, pick = null, corner = "", label = "" }) {
  const finite = values.flat().filter(Number.isFinite).map(Math.abs);
  const top = most ?? (greatest(finite) || 1), colour = kind === "signed" ? signedRamp() : weightRamp();
  const table = html("table", { class: "matrix" });
  if (label) table.setAttribute("aria-label", label);
  if (columns.length) table.append(html("thead", {}, html("tr", {}, ...(rows.length ? [html("td", {}, corner)] : []), ...columns.map((name) => html("th", { scope: "col" }, name)))));
  const body = html("tbody");
  values.forEach((line, i) => {
    const cells = line.map((value, j) => {
      const cell = html("td", { "data-value": value });
      if (kind !== "plain" && Number.isFinite(value)) {
        const rgb = colour(kind === "signed" ? (value / top + 1) / 2 : value / top);
        cell.style.background = css(rgb);
        cell.style.color = inkOn(rgb);
      } else if (value === -Infinity) cell.className = "never";
      if (marked?.(i, j)) cell.classList.add("marked");
      const text = digits === null ? "" : decimal(value, digits);
      if (pick) {
        const chooser = html("button", { type: "button", "aria-label": `${text || decimal(value, 3)} (${rows[i] ?? i + 1}, ${columns[j] ?? j + 1})`, "aria-pressed": String(Boolean(marked?.(i, j))) }, text);
        chooser.addEventListener("click", () => pick(i, j));
        cell.append(chooser);
      } else cell.append(text);
      return cell;
    });
    body.append(html("tr", {}, ...(rows.length ? [html("th", { scope: "row" }, rows[i])] : []), ...cells));
  });
  table.append(body);
  replaced(place, table);
}

/** A row of numbers as bars with their labels. */
function bars(place, { values, labels, most = 1, digits = 2, colour = "var(--w)", marked = null, label = "", text = (x) => decimal(x, digits) }) {
  const lines = values.map((value, i) => {
    const bar = html("i");
    bar.style.width = `${Math.max(0, Math.min(1, value / most)) * 100}%`;
    bar.style.background = typeof colour === "function" ? colour(i) : colour;
    return html("tr", marked?.(i) ? { class: "marked" } : {}, html("th", { scope: "row" }, labels[i]), html("td", { class: "length" }, bar), html("td", { class: "number", "data-value": value }, text(value)));
  });
  replaced(place, html("table", { class: "bars", ...(label ? { "aria-label": label } : {}) }, html("tbody", {}, ...lines)));
}

/** Replace a drawing, and keep the focus on its button of the same place. */
function replaced(place, made) {
  const buttons = [...place.querySelectorAll("button")], at = buttons.indexOf(document.activeElement);
  place.replaceChildren(made);
  if (at >= 0) made.querySelectorAll("button")[at]?.focus();
}

/**
 * The plane. It returns `update({arrows, points, hull, lines})`: each arrow or point is {at: [x, y], name, colour, size,
 * movable}; `hull` is a list of corners, `lines` are pairs of points. `drag(index, [x, y])` is called while a movable
 * arrow or point (the first that is near) is dragged.
 */
function plane(place, { low = -2, high = 2, label, drag = null }) {
  const size = 340, margin = 14, span = size - 2 * margin;
  const x = (value) => margin + ((value - low) / (high - low)) * span, y = (value) => size - x(value);
  const back = (event, picture) => {
    const box = picture.getBoundingClientRect(), scale = size / box.width;
    const of = (pixels) => Math.min(high, Math.max(low, low + ((pixels * scale - margin) / span) * (high - low)));
    return [of(event.clientX - box.left), of(box.bottom - event.clientY)];
  };
  const picture = svg("svg", { viewBox: `0 0 ${size} ${size}`, class: drag ? "plane drags" : "plane", role: "img", "aria-label": label });
  const layer = svg("g");
  picture.append(layer);
  place.append(picture);
  let movable = [], held = null;
  if (drag) {
    picture.addEventListener("pointerdown", (event) => {
      const at = back(event, picture), far = (p) => Math.hypot(p.at[0] - at[0], p.at[1] - at[1]);
      if (event.pointerType !== "mouse" && !event.target.classList.contains("handle")) return; // a finger scrolls the page
      held = movable.reduce((best, one) => (best === null || far(one) < far(best) ? one : best), null);
      if (held === null) return;
      picture.setPointerCapture(event.pointerId);
      drag(held.index, at);
      event.preventDefault();
    });
    picture.addEventListener("pointermove", (event) => { if (held) drag(held.index, back(event, picture)); });
    for (const end of ["pointerup", "pointercancel"]) picture.addEventListener(end, () => { held = null; });
  }
  return ({ arrows = [], points = [], hull = [], lines = [] }) => {
    const parts = [];
    for (const value of ticks(low, high, 4)) {
      parts.push(svg("line", { x1: x(value), x2: x(value), y1: y(low), y2: y(high), class: value === 0 ? "axis-line" : "grid-line" }),
        svg("line", { x1: x(low), x2: x(high), y1: y(value), y2: y(value), class: value === 0 ? "axis-line" : "grid-line" }));
    }
    if (hull.length) parts.push(svg("polygon", { points: hull.map(([a, b]) => `${x(a)},${y(b)}`).join(" "), class: "hull" }));
    for (const { from, to, colour = "var(--muted)", width = 1, dashed = false } of lines) {
      parts.push(svg("line", { x1: x(from[0]), y1: y(from[1]), x2: x(to[0]), y2: y(to[1]), stroke: colour, "stroke-width": width, "stroke-dasharray": dashed ? "4 3" : "none", "stroke-linecap": "round" }));
    }
    const named = [];
    for (const { at, name = "", colour = "var(--text)", size: width = 2.5, strength = 1, movable: moves } of arrows) {
      const length = Math.hypot(x(at[0]) - x(0), y(at[1]) - y(0)) || 1, ux = (x(at[0]) - x(0)) / length, uy = (y(at[1]) - y(0)) / length;
      const head = Math.min(11, length), tip = [x(at[0]), y(at[1])], base = [tip[0] - ux * head, tip[1] - uy * head];
      parts.push(svg("g", { opacity: strength, "data-name": name, "data-x": at[0], "data-y": at[1] },
        svg("line", { x1: x(0), y1: y(0), x2: base[0], y2: base[1], stroke: colour, "stroke-width": width, "stroke-linecap": "round" }),
        svg("polygon", { points: `${tip} ${base[0] - uy * head * 0.45},${base[1] + ux * head * 0.45} ${base[0] + uy * head * 0.45},${base[1] - ux * head * 0.45}`, fill: colour }),
        ...(moves ? [svg("circle", { cx: tip[0], cy: tip[1], r: 11, fill: colour, "fill-opacity": 0.22, stroke: colour, "stroke-width": 1.5 }),
          svg("circle", { cx: tip[0], cy: tip[1], r: 30, fill: "transparent", class: "handle" })] : [])));
      const away = moves ? 20 : 10 + 6 * Math.abs(uy); // the text begins past the tip, whichever way the arrow points
      named.push({ name, colour, px: tip[0] + ux * away, py: tip[1] + uy * away, ux, uy, bold: moves });
    }
    for (const { at, name = "", colour = "var(--text)", size: radius = 6, strength = 1, movable: moves } of points) {
      parts.push(svg("circle", { cx: x(at[0]), cy: y(at[1]), r: radius, fill: colour, "fill-opacity": strength, stroke: colour, "stroke-width": 1.5, "data-name": name, "data-x": at[0], "data-y": at[1] }));
      const outwards = Math.hypot(at[0], at[1]) || 1;
      named.push({ name, colour, px: x(at[0]) + (at[0] / outwards) * (radius + 9), py: y(at[1]) - (at[1] / outwards) * (radius + 9), bold: moves });
    }
    const taken = []; // [middle, height, width] of the names so far
    for (const { name, colour, px: beyond, py: level, ux = 0, uy = 0, bold } of named) {
      const long = 7.5 * name.length, sideways = Math.abs(ux) > 0.3, room = ux < 0 ? beyond : size - beyond, fits = sideways && room > long;
      const px = fits || !ux ? beyond : Math.min(size - long / 2 - 4, Math.max(long / 2 + 4, beyond));
      const side = fits ? (ux < 0 ? "end" : "start") : ux ? "middle" : px > size - 50 ? "end" : px < 50 ? "start" : "middle";
      const middle = px + { start: long / 2, middle: 0, end: -long / 2 }[side];
      let py = sideways && !fits ? level + (uy < 0 ? -20 : 20) : level;
      while (name && taken.some(([x, y, wide]) => Math.abs(y - py) < 14 && Math.abs(x - middle) < (wide + long) / 2)) py += py < size / 2 ? -14 : 14; // outwards
      if (name) taken.push([middle, py, long]);
      parts.push(svg("text", { x: Math.min(size - 4, Math.max(4, px)), y: Math.min(size - 5, Math.max(13, py + 4)), "text-anchor": side, style: `fill: ${colour}`, class: bold ? "name bold" : "name" }, name));
    }
    movable = [...arrows, ...points].map((one, index) => ({ ...one, index })).filter((one) => one.movable);
    layer.replaceChildren(...parts);
  };
}

/**
 * Curves. `lines`: [{name, colour, points: [[x, y], …], dashed, ends: [[low, high], …]}], `ends` an interval at each
 * point, `faint` thin, `dots` points alone; `x` and `y`: {label, low, high, log}; `at`: a vertical line at an x, which the legend calls `x.at`. Points that are not finite break a curve.
 */
function curves(place, { lines, x: across, y: up, at = null, label, height: usual = 250 }) {
  const height = Math.round(usual * lowered), width = widthOf(place, 720), left = 54, right = 14, top = 12, bottom = 42;
  const scaleOf = (axis, from, to) => {
    const of = axis.log ? Math.log10 : (value) => value;
    return (value) => from + ((of(value) - of(axis.low)) / (of(axis.high) - of(axis.low) || 1)) * (to - from);
  };
  const marks = (axis, count) => {
    if (!axis.log) return ticks(axis.low, axis.high, count);
    const powers = [];
    for (let p = Math.ceil(Math.log10(axis.low) - 1e-9); 10 ** p <= axis.high * 1.0001; p++) powers.push(10 ** p);
    return axis.ticks ?? powers;
  };
  const px = scaleOf(across, left, width - right), py = scaleOf(up, height - bottom, top);
  const inside = (value, axis) => Number.isFinite(value) && (!axis.log || value > 0);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "curves", role: "img", "aria-label": label });
  for (const value of marks(up, 4)) {
    picture.append(svg("line", { x1: left, x2: width - right, y1: py(value), y2: py(value), class: "grid-line" }),
      svg("text", { x: left - 7, y: py(value) + 4, "text-anchor": "end" }, say(value)));
  }
  for (const value of across.ticks ?? marks(across, width < 420 ? 4 : 8)) picture.append(svg("text", { x: px(value), y: height - bottom + 17, "text-anchor": "middle" }, say(value)));
  if (at !== null) picture.append(svg("line", { x1: px(at), x2: px(at), y1: top, y2: height - bottom, stroke: "var(--mark)", "stroke-width": 1.5, "stroke-dasharray": "4 3" }));
  for (const { name, colour, points, dashed, faint, dots, ends = [] } of lines) {
    const within = (y) => Math.max(top, Math.min(height - bottom, py(y)));
    ends.forEach(([low, high], i) => picture.append(svg("line", { x1: px(points[i][0]), x2: px(points[i][0]), y1: within(low), y2: within(high), stroke: colour, "stroke-width": 1.5, opacity: 0.6 })));
    if (dots) {
      for (const [a, b] of points) picture.append(svg("circle", { cx: px(a), cy: py(b), r: 5, fill: colour, "data-name": name }));
      continue;
    }
    let path = "", open = false;
    for (const [a, b] of points) {
      if (!inside(a, across) || !inside(b, up)) { open = false; continue; }
      const high = Math.max(top, Math.min(height - bottom, py(b)));
      path += `${open ? "L" : "M"}${px(a).toFixed(2)} ${high.toFixed(2)}`;
      open = true;
    }
    picture.append(svg("path", { d: path, fill: "none", stroke: colour, "stroke-width": faint ? 1.2 : 2.5, opacity: faint ? 0.45 : 1, "stroke-linejoin": "round", "stroke-dasharray": dashed ? "6 4" : "none", "data-name": name }));
  }
  picture.append(svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, across.label));
  const legend = html("div", { class: "legend" }, ...lines.filter((line) => line.name).map(({ name, colour, dashed, dots }) => {
    const sample = html("i", dots ? { class: "dot" } : dashed ? { class: "dashed" } : {});
    sample.style.color = colour;
    return html("span", {}, sample, name);
  }), ...(at !== null && across.at ? [html("span", {}, html("i", { class: "upright" }), across.at)] : []));
  place.replaceChildren(...(up.label ? [html("p", { class: "up" }, up.label)] : []), picture, legend);
}

for (const table of document.querySelectorAll("table.text")) { // on a phone each cell says its column
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  for (const line of table.tBodies[0].rows) [...line.cells].forEach((cell, i) => { cell.dataset.column = names[i]; });
}

// --- exercises ---

/** A number as people type it: a decimal comma, a true minus sign, a fraction and percent are read; else NaN. */
function typed(text) {
  const plain = text.trim().replace(/[−ー－‐–]/g, "-").replace(/[０-９．，％]/g, (c) => String.fromCharCode(c.charCodeAt(0) - 0xfee0)).replace(",", ".");
  const parts = /^([-+]?(?:\d+\.?\d*|\.\d+))(?:\s*\/\s*(\d+\.?\d*)|\s*(%))?$/.exec(plain);
  return parts ? Number(parts[1]) / Number(parts[3] ? 100 : parts[2] ?? 1) : NaN;
}
const flat = (answer) => [answer].flat(Infinity);
const same = (a, b, decimals) => typeof b === "string" ? a === b
  : flat(a).length === flat(b).length && flat(a).every((x, i) => Math.abs(x - flat(b)[i]) <= 1.0001 * 10 ** -decimals);

/** The verdict on an answer: "right", the name of a mistake, or "wrong". */
function judged(exercise, answer) {
  if (same(answer, exercise.answer, exercise.decimals)) return "right";
  const tiny = (mistake) => flat(answer).length === 1 && typeof mistake === "number" && Math.abs(answer - mistake) > Math.abs(mistake) / 2; // 0 is not what rounds to it
  return Object.keys(exercise.mistakes).find((name) => same(answer, exercise.mistakes[name], exercise.decimals) && !tiny(exercise.mistakes[name])) ?? "wrong";
}

/** What a wrong answer still tells: it is near, in another order, has another sign, unit or factor, or is no distribution. */
function hintOf(exercise, answer) {
  const right = flat(exercise.answer), size = 10 ** -exercise.decimals, near = (a, b, by = 1.0001 * size) => a.length === b.length && a.every((x, i) => Math.abs(x - b[i]) <= by);
  const sorted = (row) => row.toSorted((a, b) => a - b), several = right.length > 1, all = sum(answer), norm = dot(right, right);
  if (near(answer, right, 5 * size)) return t`Nearly: keep more decimals on the way, and round at the end.`;
  if (several && near(sorted(answer), sorted(right))) return t`These are the right numbers in another order.`;
  if (near(answer.map((x) => -x), right)) return t`The sign is wrong.`;
  if (near(answer.map((x) => x / 100), right)) return t`These are percent: divide by 100.`;
  if (several && right.every((x) => x >= 0) && Math.abs(sum(right) - 1) < 1e-9) return Math.abs(all - 1) > 0.02 * right.length ? t`Weights add up to 1; yours add up to ${decimal(all)}.` : "";
  const factor = dot(answer, right) / norm;
  return several && Math.abs(factor) > 0.05 && near(answer.map((x) => x / factor), right, 2 * size) ? t`Your numbers are ${decimal(factor)} times the right ones.` : "";
}

function askedIn(part) {
  const exercise = lesson.exercises[part.dataset.exercise], feedback = part.querySelector("[data-feedback]");
  const form = html("form", { class: "answer", novalidate: "" }), verdict = html("div", { class: "verdict", role: "status" });
  const matrix = typeof exercise.answer === "string" ? null : Array.isArray(exercise.answer) ? (Array.isArray(exercise.answer[0]) ? exercise.answer : [exercise.answer]) : [[exercise.answer]];
  let inputs = [];
  if (matrix) {
    const names = feedback.dataset.columns?.split("|") ?? [], rows = feedback.dataset.rows?.split("|") ?? [];
    const table = html("table", { class: "asked" });
    if (names.length) table.append(html("thead", {}, html("tr", {}, ...(rows.length ? [html("td")] : []), ...names.map((name) => html("th", { scope: "col" }, name)))));
    table.append(html("tbody", {}, ...matrix.map((line, i) => html("tr", {}, ...(rows.length ? [html("th", { scope: "row" }, rows[i])] : []), ...line.map((_, j) => {
      const input = html("input", { type: "text", inputmode: "decimal", autocomplete: "off", "aria-label": [rows[i], names[j]].filter(Boolean).join(", ") || t`Number ${j + 1}` });
      inputs.push(input);
      return html("td", {}, input);
    })))));
    form.append(table);
  } else {
    const group = html("fieldset", {}, html("legend", { class: "unseen" }, t`Answers`));
    part.querySelectorAll("[data-choice]").forEach((item) => {
      const input = html("input", { type: "radio", name: part.dataset.exercise, value: item.dataset.choice });
      inputs.push(input);
      const label = html("label", { class: "check" }, input, html("span"));
      label.lastChild.append(...item.childNodes);
      group.append(label);
    });
    part.querySelector("[data-choice]").parentNode.remove();
    form.append(group);
  }
  form.append(html("button", { type: "submit", class: "act first" }, t`Check`));
  const line = (name) => feedback.querySelector(`[data-for="${name}"]`);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const answer = matrix ? inputs.map((input) => typed(input.value)) : inputs.find((input) => input.checked)?.value;
    const missing = matrix ? answer.some(Number.isNaN) : answer === undefined;
    for (const input of inputs) input.classList.remove("off");
    if (missing) {
      verdict.className = "verdict";
      verdict.replaceChildren(html("p", {}, matrix ? t`Fill in every field with the number alone, without a unit: 0.25, 1/4 or 25%.` : t`Choose an answer first.`));
      return;
    }
    const found = judged(exercise, answer);
    verdict.className = `verdict ${found === "right" ? "right" : "wrong"}`;
    verdict.dataset.verdict = found;
    const says = html("p");
    says.innerHTML = line(found)?.innerHTML ?? ""; // the prose of this page
    const head = html("strong", {}, found === "right" ? t`Right.` : found === "wrong" ? t`Not yet.` : t`A known mistake.`);
    if (matrix && found === "wrong") {
      const off = answer.map((x, i) => Math.abs(x - flat(exercise.answer)[i]) > 1.0001 * 10 ** -exercise.decimals);
      inputs.forEach((input, i) => input.classList.toggle("off", off[i] && off.includes(false)));
      const right = off.filter((one) => !one).length;
      if (right) head.append(` ${t`${right} of ${off.length} numbers are right.`}`);
      const hint = hintOf(exercise, answer);
      verdict.dataset.hint = hint;
      if (hint) head.append(` ${hint}`);
    }
    verdict.replaceChildren(head, " ", says);
  });
  feedback.hidden = true;
  feedback.before(form, verdict);
}
for (const part of document.querySelectorAll(".part[data-exercise]")) askedIn(part);

// --- slides ---

let slides = [...document.querySelectorAll(".part")];
const shownNow = () => Math.max(0, slides.findIndex((part) => `#${part.id}` === location.hash));
function turn(to, focus = true) {
  const at = Math.min(Math.max(to, 0), slides.length - 1);
  slides.forEach((part, i) => { part.hidden = i !== at; });
  byId("previous").disabled = at === 0;
  byId("next").disabled = at === slides.length - 1;
  byId("screen").textContent = `${at + 1} / ${slides.length}`;
  if (location.hash !== `#${slides[at].id}`) history.replaceState(null, "", `#${slides[at].id}`);
  if (focus) slides[at].focus({ preventScroll: true });
  scrollTo(0, 0);
  fit(slides[at]);
}
/** Lower the curves of a slide, then make all of it smaller, until a wide screen holds it, but never too small to read. */
function fit(part) {
  const page = document.documentElement;
  for (const zoom of [1, 0.9, 0.8, 0.7]) {
    for (lowered of [1, 0.8, 0.6]) {
      part.style.zoom = zoom;
      part.style.setProperty("--lowered", lowered);
      redraw();
      if (innerWidth < 960 || page.scrollHeight <= innerHeight) return;
    }
  }
}
/** A section with `<hr>` between its parts becomes a slide for each, all with its title; the code goes with the last. */
function divided(part) {
  const [title] = part.querySelectorAll("h2"), marks = [...part.querySelectorAll(":scope > hr")];
  return [part, ...marks.map((mark, i) => {
    const slide = html("section", { class: part.className, id: `${part.id}-${i + 2}`, tabindex: -1 }, title.cloneNode(true));
    while (mark.nextSibling && mark.nextSibling !== marks[i + 1]) slide.append(mark.nextSibling);
    return slide;
  })];
}
function beginSlides() {
  document.body.classList.add("slides");
  document.querySelector(".turn").hidden = false;
  slides = slides.flatMap((part) => { const parts = divided(part); part.after(...parts.slice(1)); return parts; });
  byId("previous").addEventListener("click", () => turn(shownNow() - 1, false));
  byId("next").addEventListener("click", () => turn(shownNow() + 1, false));
  addEventListener("hashchange", () => turn(shownNow()));
  addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -1, PageDown: 1 }[event.key];
    if (!by || event.altKey || event.ctrlKey || event.metaKey || event.target.closest?.("input, select, .scroll")) return;
    event.preventDefault();
    turn(shownNow() + by);
  });
  addEventListener("beforeprint", () => { lowered = 1; for (const part of slides) { part.hidden = false; part.style.zoom = 1; } redraw(); });
  addEventListener("afterprint", () => turn(shownNow(), false));
  turn(shownNow(), false);
  addEventListener("load", () => scrollTo(0, 0)); // not to the section of the address
}

addEventListener("DOMContentLoaded", () => { // after the lesson's own drawings
  redraw();
  if (lesson.slides) beginSlides();
});
let wait = 0;
addEventListener("resize", () => { clearTimeout(wait); wait = setTimeout(() => (lesson.slides ? turn(shownNow(), false) : redraw()), 120); });
prefersDark.addEventListener("change", redraw);
