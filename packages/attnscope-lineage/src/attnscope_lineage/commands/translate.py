"""`attnscope translate`: it writes a translation a line, or JSON."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attnscope.cli.output import json_text, print_note, progress_bar
from attnscope.options import OUTPUT, Flag
from attnscope_lineage.commands import emit_to

if TYPE_CHECKING:
    from attnscope_lineage.translation import Translations


def translate(
    arguments: dict[str, Any],
    *,
    out: Annotated[Path | None, OUTPUT, "Write the translations to this file. By default standard output."] = None,
    as_json: Annotated[bool, OUTPUT, Flag("json"), "Print JSON: translations with their scores."] = False,
) -> None:
    """Run the command."""
    import attnscope_lineage
    from attnscope.report import render
    from attnscope_lineage.translation import report

    n_best = arguments.get("n_best", 1)
    with progress_bar("translate") as bar:
        translations = attnscope_lineage.translate(scores=as_json or n_best > 1, progress=bar, **arguments)
    for number, left_out in enumerate(translations.left_out, start=1):
        if left_out:
            print_note(f"line {number}: {left_out} tokens at its end were cut off")
    if as_json:
        written = json_text(render.as_json(report(translations), "")) + "\n"
    else:
        written = "".join(f"{line}\n" for line in _lines(translations, n_best=n_best))
    emit_to(out, written, "--out")


def _lines(translations: "Translations", *, n_best: int) -> list[str]:
    if n_best == 1:
        return translations.texts
    return [
        f"{number} ||| {translation.text} ||| {math.nan if translation.score is None else translation.score:.4f}"
        for number, several in enumerate(translations)
        for translation in several
    ]
