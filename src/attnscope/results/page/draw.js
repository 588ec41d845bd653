"use strict";
// Drawing helpers: elements, numbers, colours and axes. All text goes in as text, never as markup.

/** A message in the page's language: its values are numbered, as in Python's f-strings. */
const words = JSON.parse(document.getElementById("words")?.textContent ?? "{}");
function t(parts, ...values) {
  const message = parts.reduce((all, part, i) => `${all}{${i - 1}}${part}`);
  return (words[message] ?? message).replace(/\{(\d+)\}/g, (_, i) => values[i]);
}

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);

function moveFocus(items, from, to) {
  items[from].tabIndex = -1;
  items[to].tabIndex = 0;
  items[to].focus();
}

function say(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-4 || size >= 1e6) return value.toExponential(1).replace(/-/g, "−");
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits }).replace("-", "−");
}
const share = (value) => (value > 0 && value < 0.005 ? "<1%" : value >= 0.995 && value < 1 ? ">99%" : `${Math.round(100 * value)}%`);

/** Round numbers between low and high, about `count` of them. */
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(10)));
  return found;
}

// Colours: those of the element that is drawn in, a page or the view in a notebook. Never dark in print.
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let home = document.body, printing = false;
const dark = () => !printing && getComputedStyle(home).backgroundColor.match(/[\d.]+/g).slice(0, 3).every((part) => part < 128);

const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
const WEIGHT = {
  light: ["#ffffff", "#d6e6f4", "#abd0e6", "#6aaed6", "#3787c0", "#105ba4", "#08306b"],
  dark: ["#171b21", "#15314f", "#164b7d", "#2470b3", "#4b9be0", "#93c7f5", "#f2f9ff"],
};
const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
function ramp(stops) {
  const colours = stops.map(channels);
  return (x) => {
    const at = Math.min(Math.max(x, 0), 1) * (colours.length - 1);
    const i = Math.min(Math.floor(at), colours.length - 2);
    return colours[i].map((c, k) => Math.round(c + (at - i) * (colours[i + 1][k] - c)));
  };
}
const weightRamp = () => ramp(dark() ? WEIGHT.dark : WEIGHT.light);
const signedRamp = () => ramp(["#0072b2", dark() ? "#2c323a" : "#f1f1f1", "#d55e00"]);
const css = (rgb) => `rgb(${rgb.join(" ")})`;
const variable = (name) => getComputedStyle(home).getPropertyValue(name).trim();

/** Width to draw a chart at: that of its box, so that letters keep their size on any screen. */
const widthOf = (node, most = 760) => Math.max(240, Math.min(most, Math.floor(node.clientWidth) || most));

/** A bar of colours with numbers below; returns where to set the pointer. */
function drawScale(box, { colour, low, high, label, position }) {
  const width = widthOf(box, 600), left = 8, right = 8, span = width - left - right;
  const id = `${box.id}-ramp`;
  const stops = Array.from({ length: 17 }, (_, i) => svg("stop", { offset: i / 16, "stop-color": css(colour(i / 16)) }));
  const place = position ?? ((value) => (value - low) / (high - low));
  const pointer = svg("path", { d: "M0 0l-5-7h10z", fill: "currentColor", visibility: "hidden" });
  const picture = svg("svg", { viewBox: `0 0 ${width} 38`, role: "img", "aria-label": t`${label}: from ${say(low)} to ${say(high)}` },
    svg("defs", {}, svg("linearGradient", { id }, ...stops)),
    svg("rect", { x: left, y: 10, width: span, height: 11, rx: 2, fill: `url(#${id})`, stroke: "var(--line)" }), pointer);
  for (const value of ticks(low, high, width < 420 ? 5 : 6)) {
    const x = left + span * place(value);
    picture.append(svg("line", { x1: x, x2: x, y1: 21, y2: 25, stroke: "var(--muted)" }),
      svg("text", { x, y: 36, "text-anchor": "middle" }, say(value)));
  }
  box.replaceChildren(picture, html("p", { class: "scale-name" }, label));
  return (value) => {
    const shown = value !== null && value !== undefined;
    pointer.setAttribute("visibility", shown ? "visible" : "hidden");
    if (shown) pointer.setAttribute("transform", `translate(${left + span * Math.min(1, place(value))} 9)`);
  };
}

/**
 * Bars with their numbers: rows {name, text, value, ends, marks, strong}; `marks` are [value, colour], `ends` those of
 * an interval; with `axis` a scale of this name is below. Bars begin at 0, or at the lower end where that is above; where values can be below 0, orange is above it, and
 * blue below.
 */
function drawBars(rows, { low, high, label, width, axis = "" }) {
  const paper = html("canvas").getContext("2d"), step = 24;
  paper.font = `600 11px ${getComputedStyle(home).fontFamily}`;
  const room = (texts, most) => Math.min(most * width, 14 + Math.max(...texts.map((text) => paper.measureText(text).width)));
  const left = room(rows.map(({ name }) => name), 0.45), right = room(rows.map(({ text }) => text), 0.35), span = width - left - right;
  const x = (value) => left + (span * (Math.min(Math.max(value, low), high) - low)) / (high - low || 1), zero = x(Math.max(0, low));
  const fitted = (name) => { let end = name.length; while (end && paper.measureText(name.slice(0, end)).width > left - 12) end -= 1; return end < name.length ? `${name.slice(0, end - 1)}…` : name; };
  const picture = svg("svg", { viewBox: `0 0 ${width} ${rows.length * step + (axis ? 38 : 4)}`, role: "img",
    "aria-label": `${label}: ${rows.map(({ name, text }) => `${name} ${text}`).join("; ")}` });
  rows.forEach(({ name, text, value, ends, marks = [], strong }, i) => {
    const y = i * step + 4, look = strong ? "strong" : "";
    const line = (at, from, to, more) => svg("line", { x1: x(at), x2: x(at), y1: y + from, y2: y + to, ...more });
    picture.append(svg("text", { x: left - 8, y: y + 12, "text-anchor": "end", class: look }, fitted(name)),
      svg("rect", { x: left, y, width: span, height: 16, fill: "var(--soft)" }));
    if (value !== null) picture.append(svg("rect", { x: Math.min(zero, x(value)), y: y + 2, width: Math.max(1, Math.abs(x(value) - zero)), height: 12, fill: low >= 0 ? "var(--accent)" : value > 0 ? "#d55e00" : "#0072b2", opacity: strong ? 1 : 0.45 }));
    if (ends) picture.append(svg("line", { x1: x(ends[0]), x2: x(ends[1]), y1: y + 8, y2: y + 8, stroke: "var(--text)", "stroke-width": 1.5 }), ...ends.map((end) => line(end, 4, 12, { stroke: "var(--text)" })));
    if (low < 0) picture.append(line(0, -1, 17, { stroke: "var(--muted)" }));
    picture.append(...marks.filter(([at]) => at !== null).map(([at, colour]) => line(at, -1, 17, { stroke: colour, "stroke-width": 2.5 })),
      svg("text", { x: width - right + 8, y: y + 12, class: look }, text));
  });
  if (axis) for (const value of ticks(low, high, 5)) picture.append(svg("text", { x: x(value), y: rows.length * step + 16, "text-anchor": "middle" }, say(value)));
  if (axis) picture.append(svg("text", { x: left + span / 2, y: rows.length * step + 33, "text-anchor": "middle" }, axis));
  return picture;
}

/** Mean and band of a profile over offsets. */
function drawProfile(box, offsets, mean, low, high, colour, unit) {
  const width = widthOf(box), height = 216, left = 52, right = 12, top = 22, bottom = 40;
  const most = Math.max(...high.filter(Number.isFinite), ...mean.filter(Number.isFinite), 1e-9) * 1.05;
  const first = offsets[0], last = offsets[offsets.length - 1];
  const x = (offset) => left + ((offset - first) / (last - first || 1)) * (width - left - right);
  const y = (value) => height - bottom - (value / most) * (height - top - bottom);
  const kept = offsets.map((_, i) => i).filter((i) => mean[i] !== null);
  const best = kept.reduce((a, b) => (mean[b] > mean[a] ? b : a), kept[0]);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": t`Mean weight by offset; the largest is ${say(mean[best])} at offset ${say(offsets[best])}` });
  for (const value of ticks(0, most, 4)) {
    picture.append(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: "var(--line)" }),
      svg("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, say(value)));
  }
  for (const value of ticks(first, last, width < 400 ? 5 : 10).filter(Number.isInteger)) {
    picture.append(svg("text", { x: x(value), y: height - bottom + 15, "text-anchor": "middle" }, say(value)));
  }
  const wide = kept.filter((i) => high[i] !== null);
  const band = [...wide.map((i) => `${x(offsets[i])},${y(high[i])}`), ...wide.toReversed().map((i) => `${x(offsets[i])},${y(low[i])}`)];
  picture.append(
    svg("line", { x1: x(0), x2: x(0), y1: top - 4, y2: height - bottom, stroke: "var(--muted)", "stroke-dasharray": "2 3" }),
    svg("polygon", { points: band.join(" "), fill: colour, opacity: 0.28 }),
    svg("polyline", { points: kept.map((i) => `${x(offsets[i])},${y(mean[i])}`).join(" "), fill: "none", stroke: colour, "stroke-width": 2, "stroke-linejoin": "round" }),
    ...kept.map((i) => svg("circle", { cx: x(offsets[i]), cy: y(mean[i]), r: 3.2, fill: colour },
      svg("title", {}, t`offset ${say(offsets[i])}: ${say(mean[i])}` + (high[i] === null ? "" : t` (${say(low[i])} to ${say(high[i])})`)))),
    svg("text", { x: left, y: top - 10 }, t`← attends left`),
    svg("text", { x: x(0), y: top - 10, "text-anchor": last > 0 ? "middle" : "end" }, t`itself`),
    ...(last > 0 ? [svg("text", { x: width - right, y: top - 10, "text-anchor": "end" }, t`attends right →`)] : []),
    svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, t`offset in ${unit} (key − query)`));
  box.replaceChildren(picture);
}

/** Histogram of a head over windows, and below it where the head stands among all heads. */
function drawDistribution(box, { counts, means, value, units, colour, noun }) {
  const width = widthOf(box), left = 52, right = 12, span = width - left - right;
  const height = counts ? 206 : 76;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t`Mean ${say(value)} ${units}` });
  if (counts) {
    const [low, high] = counts.range, most = Math.max(...counts.n), floor = 106, top = 14;
    const step = span / counts.n.length, y = (n) => floor - (n / most) * (floor - top);
    for (const n of ticks(0, most, 2).filter(Number.isInteger)) {
      picture.append(svg("line", { x1: left, x2: width - right, y1: y(n), y2: y(n), stroke: "var(--line)" }),
        svg("text", { x: left - 7, y: y(n) + 4, "text-anchor": "end" }, say(n)));
    }
    counts.n.forEach((n, i) => {
      if (n) picture.append(svg("rect", { x: left + i * step + 0.5, y: y(n), width: step - 1, height: floor - y(n), fill: colour },
        svg("title", {}, t`${noun}s: ${n}, from ${say(low + ((high - low) * i) / counts.n.length)} to ${say(low + ((high - low) * (i + 1)) / counts.n.length)}`)));
    });
    for (const v of ticks(low, high, width < 400 ? 3 : 5)) {
      picture.append(svg("text", { x: left + (span * (v - low)) / (high - low), y: floor + 15, "text-anchor": "middle" }, say(v, 4)));
    }
    picture.append(svg("text", { x: left, y: 8 }, t`${noun}s`),
      svg("text", { x: width - right, y: floor + 29, "text-anchor": "end" }, t`this head, each ${noun}` + (units && ` (${units})`)));
  }
  const base = height - 36, known = means.filter((m) => m !== null);
  const least = Math.min(...known), greatest = Math.max(...known);
  const x = (v) => left + (greatest > least ? (span * (v - least)) / (greatest - least) : span / 2);
  picture.append(svg("line", { x1: left, x2: width - right, y1: base, y2: base, stroke: "var(--line)" }),
    ...known.map((m) => svg("line", { x1: x(m), x2: x(m), y1: base - 12, y2: base, stroke: "var(--muted)", opacity: 0.45 })));
  if (value !== null) {
    picture.append(svg("line", { x1: x(value), x2: x(value), y1: base - 16, y2: base + 2, stroke: "var(--mark)", "stroke-width": 3 }));
  }
  for (const v of ticks(least, greatest > least ? greatest : least + 1, width < 400 ? 3 : 5)) {
    if (v <= greatest) picture.append(svg("text", { x: x(v), y: base + 15, "text-anchor": "middle" }, say(v)));
  }
  picture.append(svg("text", { x: width - right, y: base + 29, "text-anchor": "end" }, t`all heads, mean over ${noun}s; red: this head`));
  box.replaceChildren(picture);
}
