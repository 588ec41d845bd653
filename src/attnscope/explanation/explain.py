"""`explain`: why does a head attend there? Every analysis that a model admits, and a verdict for each head."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xarray as xr

from attnscope.explanation.arrays.checks import in_band
from attnscope.explanation.catalogue import ANALYSES
from attnscope.explanation.evidence import labelled_sums, sums_of
from attnscope.explanation.study import Analysis, Study
from attnscope.opened import Opened
from attnscope.store.run import Batch, Job, Work
from attnscope.store.runs import RunFolder
from attnscope.store.units import Parts
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress


def load_explanation(run: RunFolder) -> xr.DataTree:
    """The tree that `explain` returned, from the folder of a finished run."""
    finished: dict[str, Any] = run.state["analyses"]
    analyses = {str(name): run.part(name) for name in finished["names"]}
    for number, other in enumerate(run.state.get("also", [])):  # position tables of other models, in older runs
        table = run.part(other["file"])
        analyses[f"also/{number}"] = table.assign_attrs(model=other["model"], identity=other["identity"])
    tree = xr.DataTree.from_dict(analyses)
    skipped = json.dumps(dict(finished["skipped"]))
    more = json.dumps(finished["requested"])
    tree.attrs = run.state["attributes"] | {"skipped": skipped, "more": more, "run": str(run.path)}
    return tree


_SHORT = 6  # tokens of a window: with fewer, the cross-spectrum has no waves
_CROSSED = "queries and keys are in different texts; use scan and align"


@dataclass(eq=False)
class Explanation(Job):
    """The analyses of a study; batches are sums over some texts, which other processes can read."""

    session: Opened
    study: Study
    more: Sequence[Analysis]
    keeps_batches = False

    def work(self) -> Work:
        """One pass over each text that holds queries and keys; analyses have few further ones."""
        shapes = [(1, len(window)) for window in self.study.windows]
        return Work(shapes, holds=True, uncounted="interventions and passes of single analyses")

    def batches(self) -> Iterator[Batch]:
        return map(Batch, self.study.units())

    def measure(self, batch: Batch) -> xr.Dataset:
        return labelled_sums(self.study.sums(batch.texts), batch.texts)

    def summarise(self, measured: Iterable[xr.Dataset]) -> dict[str, xr.Dataset]:  # noqa: ARG002
        """Every defined analysis by name; the reasons for the others go to `reasons`."""
        study = self.study
        study.made, study.folder = self.made, self.folder
        if self.folder is not None:
            parts = Parts(self.folder.path, self.signature)
            if parts.is_whole():
                study.stored_sums = lambda texts: None if (piece := parts.piece(texts)) is None else sums_of(piece)
        if study.evidence.crosses:
            study.reasons["cross_attention"] = _CROSSED
        chosen = (*ANALYSES, *self.more)
        study.run(chosen)
        if "verdict" in study.results:
            self.session.keep(study.key, study.results["verdict"])
        for result in study.results.values():
            study.reasons |= json.loads(result.attrs.get("left_out", "{}"))
        order = [analysis.name for analysis in chosen]
        remarks = [name for name in study.reasons if name not in order]
        study.reasons = {name: study.reasons[name] for name in (*remarks, *order) if name in study.reasons}
        return {name: study.results[name] for name in order if name in study.results}

    def result(self, nodes: dict[str, xr.Dataset], attributes: dict[str, str]) -> xr.DataTree:
        tree = xr.DataTree.from_dict(nodes)
        tree.attrs = attributes | {"skipped": json.dumps(self.study.reasons)}
        return tree

    def state(self, nodes: dict[str, xr.Dataset], attributes: dict[str, str]) -> dict[str, Any]:
        skipped = list(self.study.reasons.items())
        analyses = {"requested": [one.name for one in self.more], "names": list(nodes), "skipped": skipped}
        return {"analyses": analyses, "attributes": attributes}

    def is_complete(self, run: RunFolder) -> bool:
        before = run.state.get("analyses", {"requested": None, "names": []})
        requested = [analysis.name for analysis in self.more]
        return before["requested"] == requested and all(run.load(name) is not None for name in before["names"])

    def stored(self, run: RunFolder) -> xr.DataTree:
        self.study.tell(Progress("done", 1.0))
        return load_explanation(run)  # as a later call will read it


def check_lengths(length: int, band: int, frequencies: tuple[int, int] | None) -> None:
    """Reject settings before the texts are read."""
    if length < _SHORT:
        raise AttnscopeError(
            f"windows of {length} tokens are too short for waves; expected {_SHORT} or more: use a longer window "
            "(--window)"
        )
    if band >= length:
        raise AttnscopeError(
            f"band (--band) is {band}; in windows of {length} tokens the largest offset is {length - 1}: use a "
            "smaller band, or a longer window (--window)"
        )
    if frequencies is not None and not 1 <= frequencies[0] <= frequencies[1] <= length // 2:
        raise AttnscopeError(
            f"frequencies (--frequencies) are {frequencies[0]} to {frequencies[1]}; windows of {length} tokens have 1 "
            f"to {length // 2} cycles"
        )
    in_band(length, frequencies)
