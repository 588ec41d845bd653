"""The report of `roles`: number of heads with each role, next to uniform attention and the controls."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from attnscope.detection.role import ROLES
from attnscope.measure.stored import notes_of
from attnscope.report.reads import reads
from attnscope.report.schema import MATTERS, Finding, Quantity, Report, Row, Table, heads_by, rows_of, value_of
from attnscope.statistics.effects import INTERVALS
from attnscope.store.runs import skipped_note, skipped_of
from attnscope.support.numbers import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr


_LISTED = 5  # heads of a role in its row
_DRAWN = ("repeated", "needle")  # probes that do not read the windows of the corpus


def role_rows(roles: xr.Dataset) -> list[Row]:
    """How many heads have each role, next to uniform attention and the controls.

    Parameters
    ----------
    roles
        Result of `attnscope.roles` or `attnscope_cards.card`.

    Returns
    -------
    list of dict
        A row for each role: ``reached``, the number of heads at the threshold (None without one) of ``heads`` for which
        the role is defined; the same for each control under its name (``initialised``, ``shuffled``); ``best``, the
        highest score, of ``layer`` and ``head``, with its interval ``low`` and ``high``; ``controls_best``, the highest
        score of the controls; ``above``, the number of heads above that; ``passing``, the first heads that reach the
        threshold, or without one, those of `elbow`, as text; and ``equal``, the score of uniform attention.
    """
    rows: list[Row] = []
    controls = controls_of(roles)
    for name in map(str, roles.role.values):
        part = roles.sel(role=name)
        score, equal = part["score"].values, part["equal"].values
        others = {control: part["control_score"].sel(control=control).values for control in controls}
        layer, head = np.unravel_index(np.nanargmax(score), score.shape)
        highest = max((float(np.nanmax(values)) for values in others.values()), default=None)
        rows.append(
            {text: str(part[text].item()) for text in ("title", "definition", "source")}
            | {
                "role": name,
                "threshold": value_of(float(part["threshold"])),
                "reached": _count(name, score, equal),
                "heads": int(np.isfinite(score).sum()),
                "windows": int(part["windows"]),
                **{control: _count(name, values, equal) for control, values in others.items()},
                "controls_best": highest,
                "above": None if highest is None else int((score > highest).sum()),
                "passing": _passing_heads(part, name, highest),
                "layer": int(roles.layer.values[layer]),
                "head": int(head),
                "best": float(score[layer, head]),
                "low": value_of(float(part["low"].values[layer, head])),
                "high": value_of(float(part["high"].values[layer, head])),
                "equal": float(np.nanmax(equal)),
            }
        )
    return rows


def elbow(scores: np.ndarray, least: float) -> int:
    """How many of the highest scores stand out: those above `least`, up to the largest gap between adjacent ones.

    >>> elbow(np.array([0.1, 0.9, 0.2, 0.8]), 0.15)
    2
    """
    ordered = np.sort(scores[np.isfinite(scores)])[::-1]
    above = int((ordered > least).sum())
    gaps = -np.diff(ordered)[:above]
    return int(gaps.argmax()) + 1 if len(gaps) else above


def _passing_heads(part: xr.Dataset, name: str, controls: float | None) -> str:
    """The heads with a role, the highest score first; if none has it, the best in parentheses."""
    score, equal = part["score"].values, part["equal"].values
    ordered = np.argsort(-np.nan_to_num(score, nan=-np.inf), axis=None, kind="stable")
    named = [f"{part.layer.values[at // score.shape[1]]}.{at % score.shape[1]}" for at in ordered]
    if ROLES[name].threshold is None:
        number = elbow(score, float(np.nanmax(equal)) if controls is None else controls)
    else:
        reached = ROLES[name].reached(score, equal).reshape(-1)[ordered]
        named = [head for head, reaches in zip(named, reached, strict=True) if reaches] or named
        number = int(reached.sum())
    more = f" +{number - _LISTED}" if number > _LISTED else ""
    return " ".join(named[: min(number, _LISTED)]) + more if number else f"({named[0]})"


def _count(name: str, scores: np.ndarray, equal: np.ndarray) -> int | None:
    return None if ROLES[name].threshold is None else int(ROLES[name].reached(scores, equal).sum())


def controls_of(roles: xr.Dataset) -> list[str]:
    return [str(name) for name in roles.control.values] if "control" in roles.coords else []


def counts_sentences(roles: xr.Dataset, rows: Sequence[Row]) -> list[str]:
    """How many heads have a role, and the most with the weights of a control."""
    counted = [row for row in rows if row["reached"] is not None]
    number, reached = int(roles["score"].notnull().any("role").sum()), sum(map(len, heads_by_role(roles).values()))
    if not counted:
        return ["No threshold is published for these roles."]
    counts = [f"{row['title']} {row['reached']}" for row in counted if row["reached"]]
    first = f"{reached} of {number} heads {'has' if reached == 1 else 'have'} a role: {', '.join(counts)}."
    if sum(row["reached"] for row in counted) > reached:
        first = f"{reached} of {number} heads have a role, some of them several: {', '.join(counts)}."
    controls = controls_of(roles)
    most = max((row[name] for row in counted for name in controls), default=0)
    weights = " or ".join(controls)
    second = f"With {weights} weights, at most {most} {'head has' if most == 1 else 'heads have'} the same role."
    if not most:
        second = f"With {weights} weights, no head has one."
    return [first if reached else f"None of {number} heads has a role.", *([second] if controls else [])]


def roles_of_heads(roles: xr.Dataset) -> xr.DataArray:
    """The roles whose threshold each head reaches, in words."""
    every = zip(map(str, roles.role.values), roles["score"].values, roles["equal"].values, strict=True)
    reached = np.stack([ROLES[name].reached(score, equal) for name, score, equal in every])
    titles = [", ".join(roles.title.values[of_head]) for of_head in reached.reshape(len(reached), -1).T]
    cells = roles["score"].isel(role=0, drop=True)
    return cells.copy(data=np.array(titles, dtype=object).reshape(cells.shape))


def heads_by_role(roles: xr.Dataset) -> dict[str, list[tuple[int, int]]]:
    """Heads by the roles that they have together, those with most roles first."""
    by_role = heads_by(rows_of({"roles": roles_of_heads(roles)}, roles["score"].max("role")), lambda row: row["roles"])
    return dict(sorted(by_role.items(), key=lambda one: (-one[0].count(","), -len(one[1]))))


@reads("roles")
def report(roles: xr.Dataset) -> Report:
    """Which roles heads have."""
    rows = role_rows(roles)
    return Report(
        title=f"Roles of the heads of {roles.attrs['model']}",
        read=", ".join(texts_read(roles)),
        finding=Finding(
            counts_sentences(roles, rows), "scores at the threshold of a role; no test", heads_by_role(roles)
        ),
        tables=role_tables(roles, rows),
        result=roles,
        notes=role_notes(roles),
        care=CARE,
        method=" ".join(methods_of(roles, rows)),
    )


def methods_of(roles: xr.Dataset, rows: Sequence[Row]) -> list[str]:
    """Definitions of the roles with their sources, intervals, and controls."""
    defined = [f"{row['title'].capitalize()}: {row['definition'].rstrip('.')} ({row['source']})." for row in rows]
    untrained = " or ".join(controls_of(roles))
    return [*defined, INTERVALS, *([f"Controls have {untrained} weights; there is no test."] if untrained else [])]


CARE = {
    "A role reports where a head attends, not what it does.": MATTERS,
    "It is a score on these texts.": "A threshold is where its authors drew a line: a head just below is no other kind "
    "of head.",
}


def texts_read(roles: xr.Dataset) -> list[str]:
    """The texts of each probe."""
    notes = json.loads(roles.attrs["notes"])
    least, most = notes["tokens"]
    tokens = f"{least} to {most}" if least < most else str(most)
    if "sounds" in notes:
        return [f"{count(notes['sounds'], 'sound')} of {tokens} frames"]
    of_roles = [ROLES[str(name)] for name in roles.role.values]
    on_windows = [role.probe for role in of_roles if role.texts is None]
    windows = next((notes[probe] for probe in ("text", *on_windows) if probe in notes and probe not in _DRAWN), None)
    read = [] if windows is None else [f"{count(windows, 'window')} of {tokens} tokens"]
    read += [f"{notes['repeated']} repeated texts of random tokens"] if "repeated" in notes else []
    read += [f"{notes[role.probe]} texts of {role.title}" for role in of_roles if role.texts is not None]
    return read + ([f"needle prompts answered: {notes['needle']} of {notes['prompts']}"] if "needle" in notes else [])


def role_notes(roles: xr.Dataset) -> list[str]:
    """Notes on the texts, and the roles that were left out."""
    reasons = {name if name.endswith(" weights") else ROLES[name].title: why for name, why in skipped_of(roles).items()}
    return [*notes_of(roles).values(), *_short_notes(roles), *skipped_note(reasons)]


def _short_notes(roles: xr.Dataset) -> list[str]:
    """How many windows the scores of roles are means over that need longer ones than some of these."""
    whole = json.loads(roles.attrs["notes"]).get("text", 0)
    titles: dict[int, list[str]] = {}
    for name, title, windows in zip(roles.role.values, roles.title.values, roles.windows.values, strict=True):
        if ROLES[str(name)].exceeds and windows < whole:
            titles.setdefault(int(windows), []).append(title)
    return [
        f"{', '.join(several)}: mean over {windows} of {whole} windows (the others are too short)."
        for windows, several in titles.items()
    ]


def role_tables(roles: xr.Dataset, rows: Sequence[Row]) -> list[Table]:
    """Scores of all heads, number of heads with each role, and definitions."""
    controls = controls_of(roles)
    columns = {name: roles[name] for name in ("score", "low", "high", "windows_reached", "equal")}
    columns |= {name: roles.control_score.sel(control=name, drop=True) for name in controls}
    return [
        Table("heads", "Scores", _scores(controls), rows_of(columns, roles.score), terminal=0, page=0),
        Table("roles", "How many heads", _counts(controls), rows, terminal=len(rows)),
        Table("definitions", "Definitions", _DEFINITIONS, rows, terminal=0),
    ]


_DEFINITIONS = (
    Quantity("title", "role", detail="page"),
    Quantity("definition", unit="text", detail="page"),
    Quantity("source", "published in", "text", detail="page"),
)


def _counts(controls: Sequence[str]) -> list[Quantity]:
    untrained = "heads of the same model with untrained or shuffled weights that reach it"
    return [
        Quantity("role", detail="data"),
        Quantity("title", "role"),
        Quantity("threshold", "from", "threshold", "threshold of the score, from its source"),
        Quantity("reached", "heads", "count", "heads whose score reaches it"),
        Quantity("heads", "of", "count", detail="page"),
        Quantity("windows", unit="count", meaning="windows, texts or prompts that are long enough", detail="page"),
        *(Quantity(name, unit="count", meaning=untrained) for name in controls),
        Quantity("controls_best", "controls", "share", "highest score with such weights", detail="page"),
        Quantity(
            "above", "beyond", "count", "heads above all of those; of an untrained model about one, or half a head"
        ),
        Quantity("layer", unit="count", detail="data"),
        Quantity(
            "passing",
            "which heads",
            "text",
            "heads that reach the threshold, the highest score first; without a threshold, those above all controls, "
            "up to the largest gap between scores; in parentheses the best head, where none passes",
        ),
        Quantity("head", "best head", "head", "the head with the highest score, layer.head", detail="page"),
        Quantity("best", "highest", "share", "its score", low="low", high="high"),
        Quantity("equal", "uniform", "share", "score of uniform attention"),
    ]


def _scores(controls: Sequence[str]) -> list[Quantity]:
    others = {"windows_reached": "share of windows at the threshold", "equal": "uniform"}
    others |= {name: name for name in controls}
    return [
        Quantity("layer", unit="count", detail="data"),
        Quantity("head", unit="head", detail="data"),
        Quantity("role", detail="data"),
        Quantity("score", unit="share", detail="data", low="low", high="high"),
        *(Quantity(name, heading, "share", detail="data") for name, heading in others.items()),
    ]
