// A walk: one step at a time. The address names the step, and the arrow keys go to its neighbours.
const stepParts = [...document.querySelectorAll(".step")];
function show(number, focus = false) {
  const at = Math.min(Math.max(number, 1), stepParts.length);
  stepParts.forEach((part, index) => { part.hidden = index + 1 !== at; });
  byId("step").value = at;
  byId("previous").disabled = at === 1;
  byId("next").disabled = at === stepParts.length;
  if (location.hash !== `#step-${at}`) history.replaceState(null, "", `#step-${at}`);
  if (focus) stepParts[at - 1].querySelector("h2").focus({ preventScroll: true });
}
const stepNow = () => Number(byId("step").value);
const ofAddress = () => Number(/^#step-(\d+)$/.exec(location.hash)?.[1] ?? 1);
byId("steps").hidden = false;
byId("previous").addEventListener("click", () => show(stepNow() - 1));
byId("next").addEventListener("click", () => show(stepNow() + 1));
byId("step").addEventListener("change", () => show(stepNow()));
addEventListener("hashchange", () => show(ofAddress()));
addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const scrolls = event.target.closest?.("select, .scroll");
  if (!by || event.altKey || event.ctrlKey || event.metaKey || (scrolls && (scrolls.tagName === "SELECT" || scrolls.scrollWidth > scrolls.clientWidth))) return;
  event.preventDefault();
  show(stepNow() + by, true);
});
addEventListener("beforeprint", () => { for (const part of stepParts) part.hidden = false; });
addEventListener("afterprint", () => show(stepNow()));
show(ofAddress());
