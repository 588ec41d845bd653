// Images: an offset in rows and columns of patches, its profile, and the patches to point at over the image itself.

/** What an offset is called: "1 up", "1 down 2 left", "itself". */
function saySteps(row, column) {
  const parts = [row && (row < 0 ? t`${-row} up` : t`${row} down`), column && (column < 0 ? t`${-column} left` : t`${column} right`)];
  return parts.filter(Boolean).join(" ") || t`itself`;
}

/** The image of a window, or null in a scan of text. */
const pictureOf = (shared, window) => shared?.pictures?.[window] ?? null;
/** Row and column of a token, or null where it is no patch. */
function placeOf(picture, token) {
  const patch = token - picture.start;
  return patch < 0 || patch >= picture.rows * picture.columns ? null : [Math.floor(patch / picture.columns), patch % picture.columns];
}
/** The images in the text of a window, and for each of its tokens the image and the place in its rows; none in other scans. */
const viewsOf = (shared, window) => shared?.views?.[window] ?? [];
const placesOf = (views) => new Map(views.flatMap((view) => view.tokens.map((token, place) => [token, { view, place }])));
/** From one token of an image to another of the same, in words; "" where they are not of one. */
function stepsWithin(places, from, to) {
  const [a, b] = [places.get(from), places.get(to)];
  if (!a || a.view !== b?.view) return "";
  const at = ({ place }) => [Math.floor(place / a.view.columns), place % a.view.columns];
  const [[row, column], [otherRow, otherColumn]] = [at(a), at(b)];
  return saySteps(otherRow - row, otherColumn - column);
}
/** An image in a text, over which its tokens are put, and a line that says how much lies on it. */
function viewBox(view) {
  const { grid } = patchBoxes(view), says = html("p", { class: "hint view" });
  return { grid, says, box: html("div", { class: view.name.includes("tile") ? "inset tile" : "inset", role: "presentation" }, grid, says) };
}

/** From one token, in words; "" where one of them is no patch. */
function steps(picture, from, to) {
  const [a, b] = [placeOf(picture, from), placeOf(picture, to)];
  return a && b ? saySteps(b[0] - a[0], b[1] - a[1]) : "";
}

/** A profile as a small map: the patch itself is framed in the middle. */
function drawPatchProfile(box, { rows, columns }, values, equal) {
  const width = Math.min(360, widthOf(box)), left = 46, top = 24, side = Math.floor((width - left - 8) / columns.length);
  const most = Math.max(...values.filter(Number.isFinite), 1e-9), colour = weightRamp();
  const height = top + side * rows.length + 40;
  const best = values.reduce((a, v, i) => (v !== null && v > (values[a] ?? -1) ? i : a), 0);
  const at = (i) => [rows[Math.floor(i / columns.length)], columns[i % columns.length]];
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t`Mean weight by offset in patches; the largest is ${say(values[best])}, ${saySteps(...at(best))}` });
  picture.style.maxWidth = `${width}px`;
  values.forEach((value, i) => {
    const x = left + (i % columns.length) * side, y = top + Math.floor(i / columns.length) * side;
    picture.append(svg("rect", { x, y, width: side - 1, height: side - 1, fill: value === null ? "var(--soft)" : css(colour(Math.sqrt(value / most))), stroke: "var(--line)" },
      svg("title", {}, value === null ? t`no patch has this neighbour` : t`${saySteps(...at(i))}: ${say(value)} (uniform: ${say(equal[i])})`)));
    if (value !== null && side >= 34 && value >= 0.005) {
      picture.append(svg("text", { x: x + side / 2, y: y + side / 2 + 4, "text-anchor": "middle", class: "over", "data-dark": value > 0.3 * most }, value.toFixed(2)));
    }
  });
  const [middleX, middleY] = [left + columns.indexOf(0) * side, top + rows.indexOf(0) * side];
  picture.append(svg("rect", { x: middleX - 0.5, y: middleY - 0.5, width: side, height: side, fill: "none", stroke: "var(--mark)", "stroke-width": 2 }));
  rows.forEach((row, i) => picture.append(svg("text", { x: left - 6, y: top + (i + 0.5) * side + 4, "text-anchor": "end" }, say(row))));
  columns.forEach((column, i) => picture.append(svg("text", { x: left + (i + 0.5) * side, y: top + rows.length * side + 15, "text-anchor": "middle" }, say(column))));
  picture.append(svg("text", { x: left, y: 14 }, t`rows ↓ (negative is up); largest ${say(values[best])}: ${saySteps(...at(best))}`),
    svg("text", { x: left + (side * columns.length) / 2, y: height - 6, "text-anchor": "middle" }, t`columns → (negative is left)`));
  box.replaceChildren(picture);
}

/** Where the tokens of an image stand to be pointed at: those that are no patches in a line, the patches over the image. */
function patchBoxes(picture) {
  const line = html("div", { role: "presentation" }), grid = html("div", { class: "patches", role: "presentation" });
  grid.style.gridTemplateColumns = `repeat(${picture.columns}, minmax(0, 1fr))`;
  grid.style.aspectRatio = `${picture.columns} / ${picture.rows}`;
  if (picture.source) grid.append(html("img", { alt: "", src: picture.source }));
  return { line, grid };
}
