// Every page: tables that sort, folded parts that links and print open, and downloads of charts.

// Tables sort by the column whose heading is clicked: data-value holds the number or the word; cells without one come last.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...[...table.tHead.rows].at(-1).cells];
  headings.forEach((heading, column) => heading.querySelector("button")?.addEventListener("click", () => {
    const now = heading.getAttribute("aria-sort");
    const order = now === "none" ? heading.dataset.first : now === "ascending" ? "descending" : "ascending";
    for (const other of headings) if (other.ariaSort !== null) other.setAttribute("aria-sort", other === heading ? order : "none");
    const sign = order === "ascending" ? 1 : -1;
    const value = row => row.cells[column].dataset.value;
    const rows = [...table.tBodies[0].rows];
    const compare = (a, b) => Number(a) - Number(b) || (isNaN(a) ? a.localeCompare(b) : 0);
    rows.sort((a, b) => (value(a) === "") - (value(b) === "") || sign * compare(value(a), value(b)));
    table.tBodies[0].append(...rows);
  }));
}

/** Open the folded part that an address leads to. */
function unfold() {
  const target = document.getElementById(location.hash.slice(1));
  for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  target?.scrollIntoView();
}
addEventListener("hashchange", unfold);
if (location.hash) unfold();
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("main details:not([open])")];
  for (const part of folded) part.open = true;
});
addEventListener("afterprint", () => { for (const part of folded) part.open = false; });

// The signature on one line, and the software as BibTeX, to be copied.
for (const button of document.querySelectorAll("[data-copy]")) {
  const text = byId(button.dataset.copy), name = button.textContent;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = t`Copied`;
      setTimeout(() => { button.textContent = name; }, 2000);
    } catch { // a frame may not write to the clipboard: the text is selected instead
      byId("signature").open = true;
      getSelection().selectAllChildren(text);
    }
  });
}

/** What is about the chosen head has its name in that of its file. */
const fileName = (name) => (typeof state === "undefined" || state.head === null ? name : `head-${numberOf(state.head)}-${name}`);

/** A button that saves what it stands under. */
function offer(name, kind, make, named = (own) => own) {
  const button = html("button", { type: "button", class: "save", title: t`Save as ${name}` }, kind);
  button.addEventListener("click", async () => {
    const address = URL.createObjectURL(await make()), link = html("a", { href: address, download: named(name) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  });
  return button;
}

/** A drawing by itself: colours of the page become those of now. */
function drawing(box) {
  const picture = box.querySelector("svg").cloneNode(true);
  picture.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  picture.prepend(svg("style"));
  picture.firstChild.textContent = `text { font: 11px sans-serif; fill: ${variable("--muted")}; }`;
  const text = new XMLSerializer().serializeToString(picture).replace(/var\((--[a-z]+)\)/g, (_, name) => variable(name));
  return new Blob([text], { type: "image/svg+xml" });
}
for (const box of document.querySelectorAll("figure > .chart")) box.previousElementSibling?.append(offer(`${box.id}.svg`, "SVG", () => drawing(box), fileName));
for (const canvas of document.querySelectorAll("figure > canvas")) {
  canvas.parentNode.querySelector("figcaption")?.append(offer(`${canvas.id}.png`, "PNG", () => new Promise((resolve) => { canvas.toBlob(resolve); }), fileName));
}
if (byId("map")) byId("map-frame").querySelector("figcaption").append(offer("map.svg", "SVG", () => drawing(html("div", {}, svgOfMap(state.map, drawn.view, at(state.head)))), fileName));
const numbersBox = document.getElementById("overview-title");
numbersBox?.append(offer("heads.json", "JSON", () => new Blob([byId("data").textContent], { type: "application/json" })));
