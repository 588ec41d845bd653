"""The table of verbs: every function that users import, with the modules of what it leaves behind.

Imports of `attnscope`, the list of commands, run folders, pages, notebooks and the reference derive from it. A package
adds verbs of its own by the entry point `attnscope.verbs`, which names a table like `VERBS`.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Literal, NamedTuple

from attnscope.support.errors import AttnscopeError, reason_of

GROUP = "attnscope.verbs"  # of entry points: how other packages add theirs


class Next(NamedTuple):
    """A question that follows a run, and the command that answers it on the same model and texts."""

    question: str
    command: str
    more: str = ""  # options; {head} is the first head of the finding, {heads} are the first ones
    needs: str = ""  # what must have been typed


class Verb(NamedTuple):
    """Modules of a verb, by their full names."""

    group: str  # heading in the help and in the reference
    result: Literal["Dataset", "DataTree", ""] = ""  # class of xarray; empty: a class of its own
    contains: tuple[str, ...] = ()  # nodes, variables or dimensions that every result has
    function: str = ""  # module with the function; empty: the file of its name in `attnscope.verbs`
    command: str = ""  # module with its command, if that does more than the signature says
    report: str = ""  # module with its `report`
    figures: str = ""  # module with `figures`, `captions` and `grid`
    page: str = ""  # module with the `write` of a page that does not consist of figures and tables
    load: str = ""  # module and function that open its run folder
    files: str = ""  # module with `files`, which writes its heads as other tools read them
    stored: Literal["by window", "at once", "in steps"] = "by window"  # how its run folder grows
    unit: str = "window"  # what the progress of a run counts
    after: tuple[Next, ...] = ()  # the next questions, whose commands the terminal names


VERBS = {
    "scan": Verb(
        "Look", "Dataset", ("window", "head"), command="attnscope.cli.scan", report="attnscope.results.scan_report",
        figures="attnscope.results.figures.scan", page="attnscope.results.page.scan",
        load="attnscope.measure.stored:load_scan",
        after=(Next("why", "explain"), Next("whether it matters", "intervene")),
    ),
    "generate": Verb(
        "Look", "Dataset", ("span_weight",), command="attnscope.cli.generate",
        report="attnscope.comparison.generated", page="attnscope.results.page.generation",
        load="attnscope.measure.generation:load_generation", unit="prompt",
        after=(Next("where heads attend in the prompts", "scan"),),
    ),
    "roles": Verb(
        "Look", "Dataset", ("role",), command="attnscope.cli.roles", report="attnscope.detection.report",
        figures="attnscope.results.figures.roles", load="attnscope.store.runs:load_part",
        after=(Next("whether these heads matter", "intervene", "--heads {heads}"),),
    ),
    "examples": Verb(
        "Look", "Dataset", ("example", "feature"), report="attnscope.detection.example_report",
        load="attnscope.store.runs:load_part",
        after=(Next("whether these heads matter", "intervene", "--heads {heads}"),),
    ),
    "watch": Verb("Look"),
    "measure_weights": Verb("Look"),
    "weights": Verb("Look"),
    "received": Verb("Look"),
    "view": Verb("Look", command="attnscope.cli.view"),
    "set_language": Verb("Look"),
    "explain": Verb(
        "Explain", "DataTree", command="attnscope.cli.explain", report="attnscope.explanation.report",
        figures="attnscope.results.figures.explain", load="attnscope.explanation.explain:load_explanation",
        after=(Next("whether it matters", "intervene"),),
    ),
    "intervene": Verb(
        "Test", "DataTree", ("effects",), report="attnscope.intervention.verdicts",
        figures="attnscope.results.figures.intervene", load="attnscope.store.runs:load_tree",
        after=(Next("where this head attends", "examples", "--heads {head}"),),
    ),
    "patch": Verb(
        "Test", "DataTree", ("patched",), report="attnscope.intervention.patch_findings",
        figures="attnscope.results.figures.patch", load="attnscope.store.runs:load_tree", unit="pair",
        after=(Next("through which connections", "edges"),),
    ),
    "pairs": Verb("Test"),
    "edit": Verb("Test"),
    "head_outputs": Verb("Test"),
    "diff": Verb(
        "Compare", "Dataset", ("statistic",), report="attnscope.comparison.diff",
        figures="attnscope.results.figures.diff", load="attnscope.store.runs:load_part",
    ),
    "contrasts": Verb("Compare", "Dataset", ("p",)),
    "expect": Verb("Compare"),
    "statistic": Verb("Add"),
    "role": Verb("Add"),
    "ablation": Verb("Add"),
    "reader": Verb("Add"),
    "open_run": Verb("Runs"),
    "runs": Verb("Runs"),
}  # fmt: skip

#: Analyses of `explain` in a package of this repository, and the name of all.
_OF_POSITIONS = (
    *("yamamoto2023", "relearned", "paper", "position_spectrum", "position_pca", "position_cca", "position_models"),
    *("waves", "spectra", "phase_map", "controls", "wave_removal"),
    *(f"figure_{number}" for number in (1, 2, 4, 6, 7, 14, 15)),
)

#: Verbs, analyses, types of models and a class that packages of this repository add.
IN_PACKAGES: dict[str, str] = {
    **dict.fromkeys(("walk", "lesson", "train", "translate", "score", "align", "compare"), "attnscope-lineage"),
    **dict.fromkeys(("attnscope-recurrent", "attnscope-transformer"), "attnscope-lineage"),
    **dict.fromkeys(("circuits", "attribute", "edges"), "attnscope-circuits"),
    "card": "attnscope-cards",
    "relations": "attnscope-relations",
    "HeadMonitor": "attnscope-monitor",
    **dict.fromkeys(_OF_POSITIONS, "attnscope-yamamoto2023"),
}
_NEEDS = {"attnscope-relations": ("attnscope-lineage",)}  # other packages of this repository


@cache
def verbs() -> Mapping[str, Verb]:
    """Every verb by name: those of `VERBS`, and those that installed packages add."""
    from importlib.metadata import entry_points

    joined = dict(VERBS)
    for entry in entry_points(group=GROUP):
        try:
            added: Mapping[str, Verb] = entry.load()
        except (ImportError, AttributeError) as error:
            raise AttnscopeError(
                f"{entry.value}, which adds commands, cannot be imported: {reason_of(error)}. Reinstall the package, "
                "or uninstall it"
            ) from error
        for name, verb in added.items():
            if name in joined:
                raise AttnscopeError(
                    f"{entry.value} adds a command {name!r}, but that name is taken: uninstall the package, or tell "
                    "its authors"
                )
            joined[name] = verb
    return joined


def verb_of(name: str) -> Verb:
    """The entry of a verb."""
    if name not in verbs():
        raise AttnscopeError(where_to_find(name) or f"found no command {name!r}: install the package that adds it")
    return verbs()[name]


def function_of(name: str) -> Callable[..., Any]:
    """The function of a verb."""
    return getattr(import_module(verb_of(name).function or f"attnscope.verbs.{name}"), name)


def address_of(name: str) -> str:
    """The name of a verb in Python, such as ``attnscope.scan``."""
    package = verb_of(name).function.partition(".")[0] or "attnscope"
    return f"{package}.{name}"


def where_to_find(name: str) -> str:
    """How to install what a package of this repository adds; empty for other names."""
    package = IN_PACKAGES.get(name, "")
    folders = " ".join(f"packages/{one}" for one in (*_NEEDS.get(package, ()), package))
    return package and f"{name} is in {package}: in a copy of the repository, pip install {folders}"
