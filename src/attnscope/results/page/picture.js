// Pictures in a view: their patches are pointed at over them.

/** Put the tokens of pictures over them; returns the pictures. */
function putOverPictures(chips, names, views) {
  return views.map((view) => {
    const { grid } = patchBoxes(view);
    view.tokens.forEach((token) => {
      chips[token].replaceChildren();
      chips[token].title = names[token];
      chips[token].setAttribute("aria-label", names[token]);
      grid.append(chips[token]);
    });
    return html("div", { class: views.length > 1 ? "picture small" : "picture", role: "presentation" }, grid);
  });
}
