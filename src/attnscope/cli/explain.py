"""`attnscope explain`: parse, call, print."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli import options
from attnscope.cli.explain_tables import as_dict, print_csv, print_tables
from attnscope.cli.output import new_console, progress_bar, tell
from attnscope.cli.place import PAGE, Forms, OutputFolder, draw_views, usual_folder

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.store import RunFolder

_SHOWN_IN_FIGURES = 4  # heads, where none was asked for; of a layer that was asked for, twice as many


_Window = Annotated[
    int | None,
    typer.Option(help="Tokens of a window; shorter ones are left out.", show_default="the model's length"),
]
_Target = Annotated[
    list[options.PathOrUrl] | None,
    typer.Option(
        parser=options.path_or_url,
        help=options.TARGET + "Cut like the text; they need not be parallel.",
    ),
]
_Frequencies = Annotated[
    str | None,
    typer.Option(
        metavar="LOW:HIGH",
        help="Frequencies, in cycles per window, that shifts are read off.",
        show_default="from 3",
    ),
]
_Completion = Annotated[
    str, typer.Option(help="Completion of the rotation in the phase maps: minimal, lapack, haar or thin.")
]
_Interventions = Annotated[
    bool,
    typer.Option(
        "--interventions", help="Interventions too: words and positions are changed, and heads watched."
    ),
]
_Paper = Annotated[
    bool, typer.Option("--paper", help="Settings of the papers, and their published numbers beside ours.")
]
_PublishedAs = Annotated[
    str | None,
    typer.Option(
        help="Name of the published model whose weights these are, where a folder cannot tell: roberta-base or gpt2."
    ),
]
_Relearn = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        help="Steps of learning the position table anew with unknown tokens between, such as 1000.",
    ),
]
_Also = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL", help="Model whose position table is shown beside this one's; may be repeated."
    ),
]


def explain(
    model: options.Model = options.BUNDLED,
    text: options.Texts = None,
    target: _Target = None,
    out: options.Out = None,
    repair: options.Repair = False,
    task: options.Task = None,
    ray: options.Ray = None,
    workers: options.Workers = None,
    ray_gpus: options.RayGpus = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    window: _Window = None,
    limit: Annotated[int, typer.Option(help="Largest number of windows.")] = 100,
    band: options.Band = 10,
    frequencies: _Frequencies = None,
    completion: _Completion = "minimal",
    interventions: _Interventions = False,
    paper: _Paper = False,
    published_as: _PublishedAs = None,
    relearn: _Relearn = None,
    also: _Also = None,
    layer: Annotated[
        int | None, typer.Option(help="Layer, counted from 0, of the heads in the figures of single heads.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Head, counted from 0, to show in the figures of single heads.")
    ] = None,
    seed: options.Seed = 0,
    field: options.Field = None,
    by_line: options.ByLine = False,
    tokenizer: options.Tokenizer = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    report: options.Report = True,
    figures: options.Figures = options.USUAL_FIGURES,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
) -> None:
    """Why does every head look there? Take queries and keys apart into positions, content and waves."""
    options.refuse_two_formats(as_json=as_json, as_csv=as_csv)
    formats = options.formats_of(figures, report=report)
    place = OutputFolder(out, usual_folder("explain"), ("paper.npz",) if paper else ())
    settings: dict[str, Any] = {"tokenizer": tokenizer, "window": window, "limit": limit, "band": band}
    settings |= {"completion": completion, "interventions": interventions, "paper": paper, "seed": seed}
    settings |= {"frequencies": _frequencies(frequencies), "also": also or [], "published_as": published_as}
    settings |= {"field": field, "by_line": by_line, "device": device, "dtype": dtype}
    from attnscope.cli.again import AskedAgain

    plain = not any((target, repair, relearn, revision, trust_remote_code))
    question = AskedAgain.of(model, text or None, command="explain", **settings) if plain else None
    tree = None if question is None else question.answer(place, partial(_read, layer=layer, head=head))
    if tree is None:
        tree = _analysed(
            model,
            text or None,
            targets=target or None,
            out=place,
            repair=repair,
            layer=layer,
            head=head,
            relearn=relearn,
            revision=revision,
            trust_remote_code=trust_remote_code,
            task=task,
            ray=ray,
            workers=workers,
            ray_gpus=ray_gpus,
            **settings,
        )
        if "task" in tree.attrs:  # another process keeps and prints the results
            tell(tree.attrs["task"])
            return
        if question is not None:
            question.note(Path(tree.attrs["run"]), json.loads(tree.attrs["signature"]))
    page = _draw(tree, _heads_to_show(tree, layer, head), formats, with_page=report)
    forms, folder = Forms(as_dict, print_csv, print_tables), Path(tree.attrs["run"])
    forms.show(tree, place, folder, page, as_json=as_json, as_csv=as_csv)


def _analysed(
    model: str,
    text: list[options.PathOrUrl] | None,
    *,
    paper: bool,
    published_as: str | None,
    relearn: int | None,
    **settings: Any,
) -> xr.DataTree:
    from attnscope.mechanism import explain as run_explain
    from attnscope.reproduction import yamamoto2023

    more = [] if relearn is None else [yamamoto2023.relearned(relearn)]
    yamamoto2023.check_published(published_as)
    if paper:
        more += yamamoto2023.analyses(published_as=published_as)
    longest = yamamoto2023.LONGEST if paper else None
    with progress_bar("explain") as show:
        return run_explain(model, text, more=more, longest=longest, progress=show, **settings)


def _read(run: RunFolder, *, layer: int | None, head: int | None) -> xr.DataTree:
    """An explanation that is there already, where it has the heads to show."""
    from attnscope.mechanism import load_explanation

    tree = load_explanation(run)
    _heads_to_show(tree, layer, head)
    return tree


def _heads_to_show(tree: xr.DataTree, layer: int | None, head: int | None) -> list[tuple[int, int]]:
    from attnscope.mechanism import best_heads

    number = _SHOWN_IN_FIGURES if layer is None and head is None else 2 * _SHOWN_IN_FIGURES
    return best_heads(tree, layer=layer, head=head, count=number)


def _print_relearned(relearned: xr.Dataset, folder: Path) -> None:
    """How far the loss fell, on standard error."""
    losses, kept = relearned.loss.values, folder / "relearned"
    said = f"relearned positions: loss {losses[0]:.3f} -> {losses[-1]:.3f}; model kept in {kept}"
    new_console(errors=True).print(said, highlight=False, markup=False, soft_wrap=True)


def _frequencies(given: str | None) -> tuple[int, int] | None:
    from attnscope.errors import AttnscopeError

    if given is None:
        return None
    low, _, high = given.partition(":")
    if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high)):
        raise AttnscopeError(
            f"--frequencies is {given!r}: give two whole numbers, the smaller first, as in 3:60"
        )
    return int(low), int(high)


def _draw(
    tree: xr.DataTree, heads: list[tuple[int, int]], formats: tuple[str, ...], *, with_page: bool
) -> Path | None:
    """The page, where it is wanted; before that it is said what was relearned."""
    from attnscope.store import RunFolder

    folder = Path(tree.attrs["run"])
    if "relearned" in tree.children:
        _print_relearned(tree["relearned"].to_dataset(), folder)
    if not with_page:
        return None

    def draw(place: Path) -> None:
        from attnscope.figures.explain import explain_figures, write_explain_figures
        from attnscope.report import write_explain_report

        figures = dict(explain_figures(tree, heads))
        write_explain_figures(tree, place / "figures", heads, figures, formats)
        write_explain_report(tree, place / PAGE, heads, figures)

    with RunFolder(folder, json.loads(tree.attrs["signature"])) as run:
        also = (
            [str(node.attrs["identity"]) for node in tree["also"].children.values()] if "also" in tree else []
        )
        return draw_views(run, [[list(head) for head in heads], sorted(tree.children), also, formats], draw)
