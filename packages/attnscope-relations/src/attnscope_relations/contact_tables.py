"""The report's tables of contacts: precision of the best head at each cut, next to controls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.report import schema
from attnscope.statistics.units import LEAST
from attnscope_relations.contacts import RELATION, SEPARATION
from attnscope_relations.summary import SIZE

if TYPE_CHECKING:
    import xarray as xr

_METHOD = (
    "Contacts: the weights of a head from residue to residue are symmetrised and corrected by their average product, "
    f"and pairs of residues that are {SEPARATION} or more apart are ranked by them; precision is the share of contacts "
    "among the first L, L/2 or L/5 pairs of a protein of L residues (Rao et al. 2021). Controls: the same for "
    "contacts of other proteins; pairs ranked by how often their separation is a contact in the other half of the "
    "proteins; all pairs. "
)
_TOGETHER = (
    "All heads together: logistic regression of whether a pair is a contact (L1 penalty, C = 0.15, as ESM has it), "
    "scored on proteins to which it was not fitted (5 folds). "
)


def contact_method(result: xr.Dataset) -> str:
    """How contacts are scored, for the methods of a paper; nothing without contacts."""
    return (_METHOD if "precision" in result else "") + (_TOGETHER if "contact_together" in result else "")


def contact_tables(result: xr.Dataset) -> list[schema.Table]:
    """The best head at each cut, and all heads; nothing without contacts."""
    if "precision" not in result:
        return []
    fewest = f"{LEAST} or more proteins"
    corrected = "for all heads and cuts"
    return [
        schema.Table(
            "contacts",
            "Contacts",
            _CONTACTS,
            _best(result),
            "How well heads rank pairs of residues.",
            corrected,
            least=fewest,
        ),
        schema.Table(
            "contact_heads", "Contacts by head", _CONTACT_HEADS, _heads(result), corrected=corrected, terminal=0
        ),
    ]


def contact_sentences(result: xr.Dataset) -> list[str]:
    """Which head ranks contacts best, next to chance; nothing without contacts."""
    if "precision" not in result:
        return []
    best = _best(result)[0]
    head, precision = f"{best['layer']}.{best['head']}", f"{best['precision']:.2f}"
    others = f"pairs ranked by their separation {best['separation']:.2f}, all pairs {best['chance']:.2f}"
    sentences = [f"Head {head} ranks contacts best: precision {precision} at L; {others}."]
    if best["shown"]:
        sentences.append(f"It is significantly, and by {SIZE:g} or more, above every control.")
    elif best["shown"] is not None:
        sentences.append(f"It is not significantly, or not by {SIZE:g}, above every control.")
    if "contact_together" in result:
        precision = f"{float(result.contact_together.sel(cut='L')):.2f}"
        if bool(result.contact_shown.sel(cut="L")):
            sentences.append(
                f"All heads together: precision {precision} at L, by {SIZE:g} or more above every control."
            )
        else:
            sentences.append(f"All heads together: precision {precision} at L, not shown to be above every control.")
    return sentences


def contact_headline(result: xr.Dataset) -> str:
    """The head that ranks contacts best, and whether it is above the controls."""
    best = _best(result)[0]
    head, precision = f"{best['layer']}.{best['head']}", f"{best['precision']:.2f}"
    if best["shown"]:
        return f"Head {head} ranks contacts: precision {precision} at L, above every control"
    return f"No head ranks contacts better than every control: the best, {head}, has precision {precision} at L"


def contact_heads(result: xr.Dataset) -> dict[str, list[tuple[int, int]]]:
    """The heads that rank contacts significantly better than every control, the best first."""
    heads = [(row["layer"], row["head"]) for row in _heads(result) if row["shown"]]
    return {RELATION: heads} if heads else {}


def _best(result: xr.Dataset) -> list[schema.Row]:
    """The best head of each cut."""
    rows: list[schema.Row] = []
    for cut in result.cut.values.tolist():
        at_cut = result.sel(cut=cut)
        layer, head = int(at_cut.precision_best_layer), int(at_cut.precision_best_head)
        best = at_cut.sel(layer=layer, head=head)
        row: schema.Row = {"cut": cut, "layer": layer, "head": head, "precision": float(best.precision)}
        names = (
            "low",
            "high",
            "held_out",
            "held_out_low",
            "held_out_high",
            "separation",
            "exchanged",
            "chance",
            "above",
        )
        row |= {name: schema.value_of(best[f"precision_{name}"].item()) for name in names}
        fresh = "precision_untrained_held_out"
        row["untrained"] = schema.value_of(best[fresh].item()) if fresh in best else None
        if "contact_together" in at_cut:
            ends = {end: f"contact_together{end}" for end in ("", "_low", "_high")}
            row |= {f"together{end}": schema.value_of(at_cut[name].item()) for end, name in ends.items()}
        row["shown"] = bool(best.precision_shown) if best.precision_tested else None
        rows.append(row | {"proteins": int(result.proteins)})
    return rows


def _heads(result: xr.Dataset) -> list[schema.Row]:
    names = ("precision_above", "precision_p", "precision_untrained", "precision_shown", "precision_tested")
    columns = {name.removeprefix("precision_"): result[name].sel(cut="L") for name in names if name in result}
    columns |= {_AT[cut]: result.precision.sel(cut=cut) for cut in _AT}
    rows = schema.rows_of(columns, result.precision.sel(cut="L", drop=True))
    rows.sort(key=lambda row: -row["at_l"])
    return [row | {"shown": bool(row["shown"]) if row["tested"] else None} for row in rows]


_CONTROLS = ("separation", "exchanged", "chance")
_AT = {"L": "at_l", "L/2": "at_half", "L/5": "at_fifth"}
_PRECISION = "share of contacts among the pairs that the head ranks highest"
_CONTACTS = (
    schema.Quantity("cut", "pairs", meaning="as many pairs as a protein has residues (L), or a part of that"),
    *schema.HEAD,
    schema.Quantity("precision", unit="share", meaning=_PRECISION, low="low", high="high", interval=True),
    schema.Quantity(
        "held_out",
        "held out",
        "share",
        "precision of the head that is best in the other half of the proteins",
        low="held_out_low",
        high="held_out_high",
    ),
    schema.Quantity(
        "together",
        unit="share",
        meaning="precision of all heads together, by the regression of other proteins",
        low="together_low",
        high="together_high",
    ),
    schema.Quantity("separation", unit="share", meaning="control: pairs ranked by how often their separation is one"),
    schema.Quantity("exchanged", unit="share", meaning="control: contacts of other proteins", detail="page"),
    schema.Quantity("chance", unit="share", meaning="control: share of contacts among all pairs", detail="page"),
    schema.Quantity("untrained", unit="share", meaning="held out, with fresh weights"),
    schema.Quantity("above", unit="above", meaning="precision less the largest control", significant="shown"),
    schema.Quantity("proteins", unit="count", meaning="proteins with contacts", detail="page"),
)
_CONTACT_HEADS = (
    *schema.HEAD,
    schema.Quantity("at_l", "at L", "share", _PRECISION),
    schema.Quantity("at_half", "at L/2", "share", "the same of half as many pairs"),
    schema.Quantity("at_fifth", "at L/5", "share", "the same of a fifth as many pairs"),
    schema.Quantity(
        "above", "precision, above", "above", "precision at L less the largest control", significant="shown"
    ),
    schema.Quantity("untrained", unit="share", meaning="precision at L of the same head with fresh weights"),
    schema.Quantity("p", unit="p", meaning="largest p-value of the tests against the controls"),
)
