// A page in a notebook: its frame, whose choice of a head and token is read back in Python, and the other way round.

function render({ model, el }) {
  const frame = document.createElement("iframe");
  Object.assign(frame, { title: "attnscope", srcdoc: model.get("_text") });
  frame.setAttribute("sandbox", "allow-scripts allow-downloads");
  const follow = () => { frame.style.colorScheme = { true: "light", false: "dark" }[document.body.dataset.jpThemeLight] ?? "normal"; }; // of JupyterLab
  frame.style.cssText = `width: 100%; height: ${model.get("_height")}px; border: 1px solid #ccc`;
  let heard = false; // a choice of the page itself is not told to it again
  const hear = ({ source, data }) => {
    if (source !== frame.contentWindow || !data?.attnscope) return;
    heard = true;
    for (const name of ["layer", "head", "token"]) model.set(name, data.attnscope[name] ?? null);
    heard = false;
    model.save_changes();
  };
  const tell = () => heard || frame.contentWindow?.postMessage({ attnscope: `${model.get("layer")}.${model.get("head")}` }, "*");
  addEventListener("message", hear);
  model.on("change:layer change:head", tell);
  const theme = new MutationObserver(follow);
  theme.observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
  follow();
  el.append(frame);
  return () => { theme.disconnect(); removeEventListener("message", hear); model.off("change:layer change:head", tell); };
}

export default { render };
