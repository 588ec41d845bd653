"""What `align` found, as files of a folder, and back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope._nulls import with_nulls
from attnscope.store import Signature
from attnscope.translation.alignment._aligned import Aligned, ShownPair
from attnscope.translation.alignment._baselines import Baselines
from attnscope.translation.alignment._links import AlignmentScore, Links, pharaoh, read_links
from attnscope.translation.alignment._word_weights import WordAlignment

if TYPE_CHECKING:
    from attnscope.store import OwnedFolder

LINKS, RECORD = "links.txt", "run.json"


def write_alignment(aligned: Aligned, folder: Path) -> None:
    """Write ``links.txt`` (Pharaoh's format, one pair a line) and ``run.json`` (all else) into a folder.

    Parameters
    ----------
    aligned
        From `align`.
    folder
        Folder of the files; it is there.

    Examples
    --------
    >>> import tempfile
    >>> from attnscope.translation.alignment import Aligned
    >>> aligned = Aligned("m", 0, None, False, [frozenset({(0, 1)})], None, None, 0, [], "{}")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_alignment(aligned, Path(folder))
    ...     (Path(folder) / "links.txt").read_text().strip()
    '0-1'
    """
    text = "".join(f"{pharaoh(links)}\n" for links in aligned.links)
    (folder / LINKS).write_text(text, encoding="utf-8")
    score, heads = aligned.score, aligned.heads
    record = {
        "signature": json.loads(aligned.signature),
        "model": aligned.model,
        "layer": aligned.layer,
        "head": aligned.head,
        "chosen_on_gold": aligned.chosen_on_gold,
        "score": None if score is None else vars(score),
        "baselines": None if aligned.baselines is None else vars(aligned.baselines),
        "heads": None
        if heads is None
        else {str(name): rates.values.tolist() for name, rates in heads.items()},
        "outside": aligned.outside,
        "pairs": [_parts(pair) for pair in aligned.pairs],
        "passed_over": aligned.passed_over,
    }
    (folder / RECORD).write_text(json.dumps(with_nulls(record), sort_keys=True) + "\n", encoding="utf-8")


def load_alignment(folder: OwnedFolder) -> Aligned:
    """What `align` returned, from the folder that it was written to.

    Raises
    ------
    AttnscopeError
        If a file is not what was written.

    Examples
    --------
    >>> import tempfile
    >>> from attnscope.store import OwnedFolder, Signature
    >>> from attnscope.translation.alignment import Aligned
    >>> swapped, signature = frozenset({(0, 1), (1, 0)}), Signature("align").to_json()
    >>> aligned = Aligned("m", 0, None, False, [swapped], None, None, 0, [], signature)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with OwnedFolder(Path(place) / "run", "align") as folder:
    ...         with folder.replacing(LINKS, RECORD) as new:
    ...             write_alignment(aligned, new)
    ...         load_alignment(folder).links == [swapped]
    True
    """
    record: dict[str, Any] = json.loads(folder.read(RECORD))
    folder.read(LINKS)  # checks it
    alignments = read_links(folder.path / LINKS)
    score, heads, baselines = record["score"], record["heads"], record["baselines"]
    return Aligned(
        record["model"],
        record["layer"],
        record["head"],
        record["chosen_on_gold"],
        alignments,
        None if score is None else _score(score),
        None if heads is None else _heads(heads),
        record["outside"],
        [_shown(parts, alignments) for parts in record["pairs"]],
        Signature.of(record["signature"]).to_json(),
        baselines=None if baselines is None else _baselines(baselines),
        passed_over=record["passed_over"],
    )


def _parts(pair: ShownPair) -> dict[str, Any]:
    """A pair without its links, which stand in their own file."""
    return {
        "line": pair.line,
        "source": pair.words.source,
        "target": pair.words.target,
        "weights": pair.words.weights.tolist(),
        "sure": sorted(pair.sure),
        "possible": sorted(pair.possible),
        "error_rate": pair.error_rate,
    }


def _shown(parts: dict[str, Any], alignments: list[Links]) -> ShownPair:
    words = WordAlignment(parts["source"], parts["target"], np.array(parts["weights"], dtype=np.float64))
    sure, possible = (frozenset((int(i), int(j)) for i, j in parts[name]) for name in ("sure", "possible"))
    links = alignments[parts["line"] - 1]
    return ShownPair(parts["line"], words, links, sure, possible, _number(parts["error_rate"]))


def _score(parts: dict[str, Any]) -> AlignmentScore:
    shares = (_number(parts[name]) for name in ("error_rate", "precision", "recall"))
    return AlignmentScore(*shares, links=parts["links"])


def _baselines(parts: dict[str, Any]) -> Baselines:
    return Baselines(
        **{name: _number(value) for name, value in parts.items() if name != "heads"}, heads=parts["heads"]
    )


def _heads(values: dict[str, Any]) -> xr.Dataset:
    rates = {name: np.array(rows, dtype=np.float64) for name, rows in values.items()}
    layers, heads = next(iter(rates.values())).shape
    coordinates = {"layer": range(layers), "head": range(heads)}
    return xr.Dataset({name: (("layer", "head"), rows) for name, rows in rates.items()}, coordinates)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
