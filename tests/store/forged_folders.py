"""Folders of a stranger: manifests and arrays that say anything, under checksums that are right."""

import hashlib
import io
import json
import zipfile

import numpy as np

from attnscope.store.files import json_bytes
from attnscope.store.folder import digest_of

EMPTY = {"attnscope": "", "command": "scan", "files": {}, "growing": [], "undefined": [], "state": {}}


def forged(folder, **fields):
    """A folder whose manifest says that."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {name: value for name, value in (EMPTY | fields).items() if value is not ...}
    (folder / "manifest.json").write_bytes(json_bytes(content | {"sha256": digest_of(content)}))
    return folder


def forged_again(folder, change):
    """The same folder, its manifest changed by a function."""
    content = json.loads((folder / "manifest.json").read_bytes())
    del content["sha256"]
    change(content)
    (folder / "manifest.json").write_bytes(json_bytes(content | {"sha256": digest_of(content)}))


def replaced(folder, name, content):
    """The same folder, with other bytes in a file and their checksum in the manifest."""
    (folder / name).write_bytes(content)
    entry = [len(content), hashlib.sha256(content).hexdigest()]
    forged_again(folder, lambda manifest: manifest["files"].update({name: entry}))


def arrays(content, change=lambda outline: None, **members):
    """An archive of arrays with its outline changed by a function, and other members in it; ... leaves one out."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
        kept = {name: old.read(name) for name in old.namelist()}
        outline = json.loads(kept["dataset.json"])
        change(outline)
        kept["dataset.json"] = json.dumps(outline).encode()
        for name, value in (kept | members).items():
            if value is not ...:
                new.writestr(name, value)
    return made.getvalue()


def npy(values):
    """An array as NumPy writes it, objects too."""
    made = io.BytesIO()
    np.save(made, values, allow_pickle=True)
    return made.getvalue()
