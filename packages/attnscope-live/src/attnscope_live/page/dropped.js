// Pictures that are dropped on a live view, pasted or chosen.

const LARGEST_PICTURE = 8 << 20, PICTURES = ["image/png", "image/jpeg", "image/webp"];

/** Send pictures that are dropped on an element, pasted or chosen: `sent` gets the model's name of each, `failed` why it has none. */
function pictureInput(root, channel, sent, failed) {
  const file = html("input", { type: "file", accept: PICTURES.join(","), "aria-label": t`Picture` });
  async function send(picture) {
    if (!picture) return;
    if (!PICTURES.includes(picture.type)) { failed(t`Found no picture: expected PNG, JPEG or WebP.`); return; }
    if (picture.size > LARGEST_PICTURE) { failed(t`The picture has ${say(picture.size / 2 ** 20)} MB; at most 8 MB can be sent.`); return; }
    const bytes = new Uint8Array(await picture.arrayBuffer());
    let text = "";
    for (let at = 0; at < bytes.length; at += 1 << 15) text += String.fromCharCode(...bytes.subarray(at, at + (1 << 15)));
    const { picture: name, error } = await channel.ask("picture", { data: btoa(text) });
    if (error) failed(error);
    else sent(name);
  }
  file.addEventListener("change", () => send(file.files[0]));
  root.addEventListener("dragover", (event) => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); });
  root.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    send(event.dataTransfer.files[0]);
  });
  root.addEventListener("paste", (event) => { if (event.clipboardData.files.length) send(event.clipboardData.files[0]); });
  return html("label", { class: "choose-picture" }, t`Drop a picture on this page, or choose one:`, " ", file);
}
