"use strict";
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
