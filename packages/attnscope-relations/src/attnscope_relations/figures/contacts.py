"""The contacts of a protein and the attention of a head, on one map."""

from __future__ import annotations

import numpy as np

from attnscope.results.figures import style
from attnscope.results.figures.panels import heat

_SIDE = 4.2  # inches
_RIGHT, _WRONG = "#0072B2", "0.45"


@style.figure_style()
def contact_map(title: str, contacts: np.ndarray, features: np.ndarray) -> style.Figure:
    """Draw contacts above the diagonal; below it what a head ranks pairs by, and its highest pairs, right or wrong.

    Parameters
    ----------
    title
        What is drawn: the head and the protein.
    contacts
        ``(residue, residue)``, symmetric: 1 where two residues are in contact, 0 where not, NaN where a pair does not
        count, as residues that are close in the sequence.
    features
        ``(residue, residue)``, symmetric, as `contact_features` returns them. As many pairs are marked as residues
        have others to pair with.
    """
    size, counted = len(contacts), np.isfinite(contacts)
    below = np.tril(counted)
    top = float(np.max(features[below], initial=0.0)) or 1.0
    figure = style.Figure(figsize=(_SIDE, _SIDE + 0.5), layout="constrained")
    figure.set_figwidth(_SIDE)
    axes = figure.add_subplot()
    shades = np.where(np.tril(np.ones_like(counted), -1), np.clip(features, 0, None), 0.0)
    edges = (0.5, size + 0.5, size + 0.5, 0.5)
    heat(axes, shades, "Greys", (0.0, 1.5 * top), extent=edges)
    mark = float(np.clip(150 / size, 1.5, 5))
    rows, columns = np.nonzero(np.triu(np.nan_to_num(contacts), 1))
    axes.plot(columns + 1, rows + 1, "s", color="0.25", markersize=mark, mew=0, label="Contact")
    pairs = np.argwhere(below)
    chosen = pairs[np.argsort(-features[below], kind="stable")[: int(counted.any(0).sum())]]
    right = contacts[chosen[:, 0], chosen[:, 1]] == 1
    looks = ((right, "o", _RIGHT, "in contact"), (~right, "x", _WRONG, "not in contact"))
    for kept, marker, colour, name in looks:
        at = chosen[kept] + 1
        label = f"{int(kept.sum())} {name}"
        axes.plot(at[:, 1], at[:, 0], marker, color=colour, markersize=mark, mew=0.9, label=label)
    axes.axline((1, 1), slope=1, color="0.6", linewidth=0.6)
    axes.set_title(style.drawable(title, longest=60), loc="left", parse_math=False)
    axes.set(xlabel="Residue", ylabel="Residue", xlim=edges[:2], ylim=edges[2:])
    axes.spines[:].set(visible=True, color="0.7")
    title = "Above the diagonal: the data. Below it: the pairs that the head ranks highest"
    figure.legend(loc="outside lower center", ncols=3, title=title)
    return figure
