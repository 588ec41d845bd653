"""`attnscope intervene`: parse, call, print."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from attnscope.cli import options
from attnscope.cli.output import TABLE_ROWS, emit_rows, new_console, print_note, progress_bar
from attnscope.cli.place import Forms, OutputFolder, draw_page, usual_folder
from attnscope.support.numbers import with_nulls

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

    from attnscope.intervention.effects import Effect
    from attnscope.intervention.verdicts import HeadVerdict

_Ablations = Annotated[
    str, typer.Option(help="Stand-ins for a head's output, with commas between: zero, mean, resample.")
]
_Steps = Annotated[int, typer.Option(help="Points of the integrated gradients; 0 leaves out all estimates.")]
_Search = Annotated[
    bool,
    typer.Option("--search", help="Search too: random sets of heads taken out, and a sparse regression."),
]
_Curves = Annotated[
    bool, typer.Option("--curves", help="Curves too: more and more heads taken out, in several orders.")
]
_ForbidOffset = Annotated[
    list[int] | None,
    typer.Option(
        help="Offset (key minus query) at which heads may not look: -1 is the token before; may be repeated."
    ),
]
_ForbidFirst = Annotated[bool, typer.Option("--forbid-first", help="First token: heads may not look at it.")]
_ForbidToken = Annotated[
    list[str] | None, typer.Option(help="Token at which heads may not look, by its text; may be repeated.")
]
_Renormalise = Annotated[
    bool, typer.Option(help="Rows scaled to their sum before, where something in them is forbidden.")
]
_Together = Annotated[
    list[str] | None,
    typer.Option(help="Heads taken out together, beside each alone, as in 0.1,0.3; may be given again."),
]
_Why = Annotated[bool, typer.Option(help="Causes beside the effects, as explain finds them.")]


@options.takes(
    *options.READING,
    "target",
    "window",
    "limit",
    "band",
    "seed",
    *options.UNITS,
    "batch_size",
    "variants",
    "repair",
    *options.WRITING,
    limit=100,
    examples=(
        ("attnscope intervene", "the bundled model on the bundled text"),
        ("attnscope intervene gpt2 corpus.txt --ablations zero", "one ablation of every head"),
        ("attnscope intervene --together 0.1,0.3 --forbid-offset -1", "a set of heads; an offset forbidden"),
    ),
)
def intervene(
    ablations: _Ablations = "zero,mean,resample",
    steps: _Steps = 5,
    search: _Search = False,
    curves: _Curves = False,
    together: _Together = None,
    forbid_offset: _ForbidOffset = None,
    forbid_first: _ForbidFirst = False,
    forbid_token: _ForbidToken = None,
    renormalise: _Renormalise = True,
    why: _Why = True,
    *,
    reading: dict[str, Any],
    output: options.Output,
) -> None:
    """Test whether a head matters: ablate every head, one at a time, and measure the loss."""
    from attnscope.intervention.intervene import intervene as run_intervene

    place = OutputFolder(output.out, usual_folder("intervene"))
    with progress_bar("intervene") as show:
        tree = run_intervene(
            **reading,
            ablations=[name.strip() for name in ablations.split(",")],
            steps=steps,
            search=search,
            curves=curves,
            together=[options.heads_of("--together", names) for names in together or ()],
            forbid_offsets=forbid_offset or (),
            forbid_first=forbid_first,
            forbid_tokens=forbid_token or (),
            renormalise=renormalise,
            why=why,
            out=place,
            progress=show,
        )
    if "task" in tree.attrs:  # another process keeps and prints the results
        print_note(tree.attrs["task"])
        return
    page, forms = (
        _draw(tree, output.formats) if output.report else None,
        Forms(as_dict, print_csv, print_tables),
    )
    forms.show(tree, place, Path(tree.attrs["run"]), page, as_json=output.as_json, as_csv=output.as_csv)


def _draw(tree: xr.DataTree, formats: tuple[str, ...]) -> Path | None:
    from attnscope.results.figures.intervene import intervention_figures
    from attnscope.results.page.intervene import write_intervention_report

    return draw_page(tree, formats, intervention_figures, write_intervention_report)


_ENDS = ("mean", "low", "high", "shown")  # of an effect
_FEW = 10  # heads in the table of what is forbidden
_EFFECT = (
    "zero, mean, resample: change of the loss in nats when nothing (zero), the head's mean (mean) or what it gives on "
    "another text (resample) stands in for it."
)
_TOLD = "* is significant (p < 0.05, corrected for all heads and ablations)."
_SHUFFLED = (
    "shuffled: change of the loss when each row of the head's weights is shuffled among the keys that it may "
    "look at; near 0, it does not matter to the model where this head looks."
)
_TOGETHER = (
    "without all: change of the loss without a chosen set at once; sum alone: of the changes without each. A "
    "difference above 0: its heads stand in for each other; below 0: they are needed for the same thing."
)
_SEARCH = "search: change of the loss without the head by a sparse regression on random sets; 0 where it needs none."
_COLUMNS = (
    "kind, peak, weight: where the head looks, as scan has it (weight: share of all weight at the peak)."
)
_POSITION = "pos.: share of the scores' profile that position explains, as explain has it."
_FORBIDDEN = (
    "weight forbidden: the share of a head's weight that lies where it may not look (near 0, the rule cannot change "
    "it); loss: its change, nats, when that head alone looks elsewhere."
)


def as_dict(tree: xr.DataTree, folder: Path) -> dict[str, Any]:
    """What ``--json`` prints."""
    from attnscope.intervention.verdicts import headline, verdicts
    from attnscope.store.runs import skipped_of

    heads = [asdict(row) | {"matters": row.matters} for row in verdicts(tree)]
    return {
        "signature": json.loads(tree.attrs["signature"]),
        "says": headline(tree),
        "heads": with_nulls(heads),
        "together": with_nulls(_together_rows(tree)),
        "skipped": skipped_of(tree),
        "run": str(folder),
    }


def _together_rows(tree: xr.DataTree) -> list[dict[str, Any]]:
    if "together" not in tree.children:
        return []
    sets = tree["together"].to_dataset().drop_vars(["loss_change", "source"]).transpose("set", "ablation")
    rows = [
        {"heads": str(name), "ablation": str(ablation)}
        | {str(key): value.values[place, row].item() for key, value in sets.data_vars.items()}
        for place, name in enumerate(sets["set"].values)
        for row, ablation in enumerate(sets.ablation.values)
    ]
    for row in rows:
        for told in ("", "between_"):
            row[f"{told}shown"] = row[f"{told}shown"] if row.pop(f"{told}tested") else None
    return rows


def print_csv(tree: xr.DataTree) -> None:
    """One line for each head, with the signature that names the run's folder."""
    from attnscope.intervention.verdicts import verdicts
    from attnscope.store.signature import Signature

    signature = Signature.from_json(tree.attrs["signature"]).short
    rows: list[dict[str, Any]] = []
    for row in sorted(verdicts(tree), key=lambda row: (row.layer, row.head)):
        plain = asdict(row)
        effects = plain.pop("effects")
        effects["shuffled"] = plain.pop("shuffled") or dict.fromkeys(_ENDS)
        effects["forbidden"] = plain.pop("forbidden") or dict.fromkeys(_ENDS)
        plain |= {f"{name}_{key}": value for name, effect in effects.items() for key, value in effect.items()}
        rows.append(plain | {"matters": row.matters, "signature": signature})
    emit_rows(rows)


def print_tables(tree: xr.DataTree) -> None:
    """The headline, a table of heads, and how to read it."""
    from attnscope.intervention.verdicts import verdicts
    from attnscope.results.account import account_of

    console = new_console()
    rows = verdicts(tree)
    account = account_of("intervene", tree)
    console.print(f"{tree.attrs['model']}: {account.read}", highlight=False, markup=False)
    for sentence in account.headline:
        console.print(sentence, style="bold", highlight=False, markup=False)
    console.print(_table(rows[:TABLE_ROWS]))
    if len(rows) > TABLE_ROWS:
        console.print(f"and {len(rows) - TABLE_ROWS} more heads: --csv lists all", highlight=False)
    if together := _together_rows(tree):
        console.print(_together_table(together))
    if "forbidden" in tree.children:
        console.print(_forbidden_table(rows))
    for note in account.notes:
        console.print(note, style="dim", highlight=False, markup=False)
    asked = {
        _COLUMNS: True,
        _POSITION: any(row.position_share is not None for row in rows),
        _EFFECT: True,
        _TOLD: rows[0].matters is not None,
        _SHUFFLED: any(row.shuffled for row in rows),
        _SEARCH: "search" in tree.children,
        _TOGETHER: "together" in tree.children,
        _FORBIDDEN: "forbidden" in tree.children,
    }
    for note in (*(note for note, said in asked.items() if said), *account.care):
        console.print(note, style="dim", highlight=False, markup=False)


def _table(rows: list[HeadVerdict]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    crossing = len({row.attention for row in rows}) > 1
    why = any(row.position_share is not None for row in rows)
    headings = [
        "head",
        *(["type"] if crossing else []),
        "kind",
        "peak",
        "weight",
        *(["pos."] if why else []),
    ]
    for heading in headings:
        table.add_column(heading, justify="left" if heading in {"type", "kind"} else "right")
    shuffled = any(row.shuffled is not None for row in rows)
    if shuffled:
        table.add_column("shuffled", justify="right", no_wrap=True)
    for name in rows[0].effects:
        table.add_column(name, justify="right", no_wrap=True)
    searched = any(row.searched is not None for row in rows)
    if searched:
        table.add_column("search", justify="right", no_wrap=True)
    for row in rows:
        share = "" if row.position_share is None else f"{row.position_share:.2f}"
        peak = f"{row.peak_offset:+.0f}" if np.isfinite(row.peak_offset) else ""
        cells = [f"{row.layer}.{row.head}", *([row.attention] if crossing else []), row.kind]
        cells += [peak, f"{row.peak_weight:.2f}", *([share] if why else [])]
        changes = [*([row.shuffled] if shuffled else []), *row.effects.values()]
        last = [f"{row.searched or 0:+.3f}"] if searched else []
        table.add_row(*cells, *(_change(change) for change in changes), *last)
    return table


def _forbidden_table(rows: list[HeadVerdict]) -> Table:
    """Heads whose loss changes most where they may not look."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("head", "weight forbidden", "loss", "95% interval"):
        table.add_column(heading, justify="right")
    known = [(row, row.forbidden) for row in rows if row.forbidden is not None]
    for row, effect in sorted(known, key=lambda item: -abs(item[1].mean))[:_FEW]:
        ends = [f"{end:+.{effect.digits}f}" for end in (effect.low, effect.high)]
        interval = " to ".join(ends) if np.isfinite(effect.low) else ""
        name = f"{row.layer}.{row.head}"
        table.add_row(name, f"{row.forbidden_weight or 0:.3f}", _change(effect), interval)
    return table


def _together_table(rows: list[dict[str, Any]]) -> Table:
    """Chosen sets of heads, beside the sum of what each of them loses alone."""
    from rich import box
    from rich.table import Table

    from attnscope.intervention.effects import Effect

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in (
        "heads",
        "ablation",
        "without all",
        "sum alone",
        "difference",
        "95% interval",
    ):
        table.add_column(heading, justify="left" if heading in {"heads", "ablation"} else "right")
    for row in rows:
        effect = Effect(row["effect"], row["effect_low"], row["effect_high"], row["shown"])
        between = Effect(row["between"], row["between_low"], row["between_high"], row["between_shown"])
        ends = [f"{end:+.{between.digits}f}" for end in (between.low, between.high)]
        table.add_row(
            row["heads"],
            row["ablation"],
            _change(effect),
            f"{row['alone']:+.3f}",
            _change(between),
            " to ".join(ends) if np.isfinite(between.low) else "",
        )
    return table


def _change(effect: Effect | None) -> str:
    return "" if effect is None else f"{effect.mean:+.{effect.digits}f}{'*' if effect.shown else ' '}"
