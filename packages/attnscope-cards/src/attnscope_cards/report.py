"""The report of `card`: every head with its roles, kept shares and effects, and how halves of the texts agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr

from attnscope.detection.report import (
    CARE,
    counts_sentences,
    heads_by_role,
    methods_of,
    role_notes,
    role_rows,
    role_tables,
    roles_of_heads,
    texts_read,
)
from attnscope.detection.role import ROLES
from attnscope.detection.roles import SHARED
from attnscope.report import schema
from attnscope.report.reads import reads
from attnscope.statistics.effects import EFFECTS
from attnscope.support.numbers import count
from attnscope_cards.head_files import STREAMS, pooled


@reads("card")
def report(card: xr.Dataset) -> schema.Report:
    """What is known of every head."""
    counts = role_rows(card)
    agreement = {column: card.get(column) for one in _AGREEMENT[1:] for column in one.columns}
    by_role = schema.rows_of(agreement, card.title)
    scores, *others = role_tables(card, counts)
    sentences = [*counts_sentences(card, counts), *_cache_sentences(card)]
    if "auroc" in card:
        ranked = [row for row in by_role if row["auroc"] is not None]
        best = min(ranked, key=lambda row: (row["auroc_p"], -abs(row["auroc"] - 0.5)))
        sentences.append(
            f"The published heads differ from the others most in {best['title']}: AUROC {best['auroc']:.2f} "
            f"({best['auroc_low']:.2f} to {best['auroc_high']:.2f}), p = {best['auroc_p']:.4f} next to random lists "
            "with as many heads of each layer, corrected for all roles."
        )
    checks = _check_rows(card) if "check_p" in card else []
    sentences += _check_sentences(checks)
    groups, rows = heads_by_role(card), _head_rows(card)
    smallest = next(iter(_kept(card)), "")  # heads that need more than this cache come first
    order = [(min(STREAMS, row.get(smallest) or STREAMS), not row["roles"], row["rank"]) for row in rows]
    first = [rows[at] for at in sorted(range(len(rows)), key=order.__getitem__)[: schema.Table.terminal]]
    certainty = "scores at the threshold of a role; no test"
    kept = _kept(card)
    if kept:
        read_by, first_kept = texts_read(card)[0], kept[0]
        certainty = f"heads by their mean over {read_by}, without intervals"
        _, recent, sinks = first_kept.split("_")
        less = f"less than 95% on the latest {recent} and first {sinks}"
        most = f"95% or more on the latest {recent} and first {sinks}"
        ranked = sorted(  # a sink is kept by any cache
            (row for row in rows if row[first_kept] is not None),
            key=lambda row: ("sink" in (row["roles"] or ""), -row[first_kept]),
        )
        groups = schema.heads_by(ranked, lambda row: less if row[first_kept] < STREAMS else most, most, less)
        if bool(card.low.sel(role=kept).notnull().any()):
            certainty = f"heads by their mean over {read_by}; each share has a 95% interval"
    return schema.Report(
        colour=next(iter(kept), ""),
        title=f"Card of the heads of {card.attrs['model']}",
        read=", ".join(texts_read(card)),
        finding=schema.Finding(sentences, certainty, groups, headline=(_cache_sentences(card) or sentences)[0]),
        tables=[
            schema.Table("heads", "Heads", _heads(card), rows, best=[row for row in rows if row in first]),
            *(
                [schema.Table("check", _CHECKED, _CHECK, checks, corrected="for all caches and points")]
                if checks
                else []
            ),
            replace(scores, name="scores"),
            *others,
            schema.Table(
                "stability", "Agreement between halves of the texts", _AGREEMENT, by_role, terminal=len(by_role)
            ),
        ],
        result=card,
        notes=role_notes(card),
        care=CARE,
        method=" ".join([*methods_of(card, counts), *[EFFECTS] * ("effect" in card), *[_OF_CHECK] * bool(checks)]),
    )


def _cache_sentences(card: xr.Dataset) -> list[str]:
    """For each cache, the number of heads of which it keeps nearly all of the weight."""
    sentences: list[str] = []
    for name in _kept(card):
        recent, sinks = name.split("_")[1:]
        tokens = f"{recent} tokens" if sinks == "0" else f"{recent} and first {sinks} tokens"
        score = card.score.sel(role=name).values
        sentences.append(
            f"A cache of the latest {tokens} keeps 95% of the weight or more for "
            f"{int((score >= STREAMS).sum())} of {int(np.isfinite(score).sum())} heads."
        )
        if bool((card[SHARED] > 1).any()):
            least = pooled(card, score, lowest=True)
            sentences.append(
                f"The cache {recent}+{sinks} does so for all query heads of {int((least >= STREAMS).sum())} of "
                f"{int(np.isfinite(least).sum())} key-value heads, which share their keys."
            )
    return sentences


_CHECKED = "Loss with more and more key-value heads limited to a cache"
_OF_CHECK = (
    "Key-value heads are limited to a cache by masks, in the order that the other half of the texts gives. Under the "
    "null this order is a random one; p is the share of 20 orders, itself among them, whose area under the loss curve "
    "is as small, corrected for all caches (Westfall and Young 1993)."
)
_CHECK = (
    schema.Quantity("cache", meaning="latest + first tokens"),
    schema.Quantity("limited", unit="count", meaning="key-value heads that are limited to the cache"),
    schema.Quantity("size", "keys kept", "percent", meaning="share of all keys that remain"),
    schema.with_ends("card", "by the card", "nats", "change of the loss, least needed first", interval=True),
    schema.Quantity("random", "at random", "nats", "mean over random orders"),
    schema.with_ends(
        "difference", "", "nats", "of both", significant="difference_shown", interval=True,
    ),
    schema.Quantity(
        "p", "p of the curve", "p", "share of orders whose area under the curve is as small, corrected for all caches",
    ),
)  # fmt: skip


def _check_rows(card: xr.Dataset) -> list[schema.Row]:
    """The points of the curves, without the last one, at which all heads are limited."""
    card = card.isel(point=slice(0, -1))
    named: dict[str, xr.DataArray | None] = {
        f"card{end}": card[f"check_effect{end}"].sel(order="card") for end in ("", "_low", "_high")
    }
    named |= {f"difference{end}": card[f"check_difference{end}"] for end in ("", "_low", "_high")}
    named |= {"random": card.check_effect.sel(order="random"), "limited": card.check_limited}
    named |= {"size": card.check_size, "p": card.check_p}
    named["difference_shown"] = card.check_difference_shown.astype(object).where(card.check_difference_tested)
    return schema.rows_of(named, card.check_size)


def _check_sentences(rows: list[schema.Row]) -> list[str]:
    """For each cache, the loss with about half of the heads limited."""
    sentences: list[str] = []
    for cache in dict.fromkeys(row["cache"] for row in rows):
        points = [row for row in rows if row["cache"] == cache]
        row = points[len(points) // 2]
        sentences.append(
            f"With {count(row['limited'], 'key-value head')} limited to {cache} tokens, the loss changes by "
            f"{row['card']:+.3f} nats in the order of the card and by {row['random']:+.3f} nats in random orders "
            f"(p = {row['p']:.2f})."
        )
    return sentences


def _head_rows(card: xr.Dataset) -> list[schema.Row]:
    cells = xr.where(card.score.notnull().any("role"), 0.0, np.nan)
    scores = card.score.sel(role=[name for name in card.role.values if name not in _kept(card)])
    order = np.argsort(np.argsort(-scores.values.reshape(scores.shape[0], -1)), 1).min(0, initial=cells.size)
    columns: dict[str, xr.DataArray | None] = {
        "rank": cells.copy(data=order.reshape(cells.shape)),  # best over the roles
        "key_head": card["head"] // card[SHARED],
        "roles": roles_of_heads(card),
        "listed": card.get("listed"),
    }
    for name in _kept(card):
        part = card.sel(role=name)
        columns |= {name: part.score, f"{name}_low": part.low, f"{name}_high": part.high}
    for ablation in map(str, card.ablation.values) if "effect" in card else ():
        columns |= schema.effect_columns(card.sel(ablation=ablation), ablation)
    return schema.rows_of(columns, cells)


def _kept(card: xr.Dataset) -> list[str]:
    return [name for name in map(str, card.role.values) if name.startswith("kept_")]


def _heads(card: xr.Dataset) -> list[schema.Quantity]:
    meaning = "share of the weight on tokens that a cache of these latest + first tokens keeps"
    lost = "change of the loss in nats without the head"
    limited = "change of the loss in nats if the keys of its key-value head are limited to the cache"
    of_roles = (
        "published roles whose threshold it reaches; for sinks and local heads also twice uniform attention's score"
    )
    return [
        *schema.HEAD,
        schema.Quantity("key_head", unit="count", detail="data", meaning="key-value head of its layer that it reads"),
        schema.Quantity("roles", meaning=of_roles),
        schema.Quantity("listed", unit="count", detail="page", meaning="1: in the published file"),
        *(schema.with_ends(name, ROLES[name].title, "share", meaning) for name in _kept(card)),
        *(
            schema.effect_quantity(
                name,
                heading=name.replace("_", " ", 1).replace("_", "+"),
                meaning=limited if name.startswith("limit_") else lost,
            )
            for name in (map(str, card.ablation.values) if "effect" in card else ())
        ),
    ]


_HALVES = "rank correlation over heads between scores on two halves of the texts"
_AUROC = "AUROC: pairs of a published and another head that it ranks so; 0.5 by chance"
_AGREEMENT = (
    schema.Quantity("role", detail="data"),
    schema.Quantity("title", "role"),
    schema.with_ends("stability", "rank correlation", "share", _HALVES, interval=True),
    schema.with_ends("auroc", "published", "share", _AUROC, interval=True),
    schema.Quantity(
        "auroc_p",
        "p",
        "p",
        "chance of an AUROC as far from the mean of random lists with as many heads of each layer, corrected for all "
        "roles",
    ),
)
