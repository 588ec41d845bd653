"""Wheels have the compiled catalogue of messages in place of its source, which a checkout reads itself."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Compiled(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self.folder = Path(tempfile.mkdtemp())
        source = Path(self.root, "src")
        for catalogue in source.rglob("*.po"):
            compiled = catalogue.relative_to(source).with_suffix(".mo")
            path = self.folder / compiled  # catalogues of several languages have one name
            path.parent.mkdir(parents=True)
            with catalogue.open("rb") as file, path.open("wb") as target:
                write_mo(target, read_po(file))
            build_data["force_include"][str(path)] = str(compiled)

    def finalize(self, version: str, *_: Any) -> None:
        if version != "editable":
            shutil.rmtree(self.folder)
