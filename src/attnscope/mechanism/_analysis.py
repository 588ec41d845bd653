"""What an analysis is: one record, which the command, its page, its figures and its reference read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.mechanism._study import Study


@dataclass(frozen=True)
class Section:
    """A section of the page: some analyses that belong together.

    Attributes
    ----------
    name, title
        Its address on the page, and its heading.
    says
        What is asked there, and how: words, or what makes them of what was found.

    Examples
    --------
    >>> from attnscope.mechanism import known_analyses
    >>> known_analyses()["waves"].section.title
    'Waves in queries and keys'
    """

    name: str
    title: str
    says: str | Callable[[xr.DataTree], str]


@dataclass(frozen=True)
class Picture:
    """A figure of an analysis.

    Attributes
    ----------
    name
        Its file, without suffix.
    title, reading
        What it shows, and how it is read; the latter may be made of what was found, as in a `Section`.
    draw
        Address of the function that draws it, ``package:function``: nothing here imports matplotlib. The function may
        give None where there is nothing to draw.
    of
        What it draws: the whole ``node``, some ``heads`` of it, or several nodes of the ``tree``.
    variable
        Variable of the node that a general figure draws, such as ``attnscope.figures.scan:overview``, the grid of all
        heads: an analysis needs no figure of its own.
    same_as
        Name of another figure, of which this one is a copy under another name: the page links to it by `title`.
    on_page
        Whether the page shows it; else it is a file only.
    with_tokens
        Whether tokens stand on its axes.

    Examples
    --------
    >>> from attnscope.mechanism import known_analyses
    >>> [(picture.name, picture.of) for picture in known_analyses()["waves"].pictures]
    [('wave-counts', 'node'), ('wave-columns', 'heads'), ('wave-curves', 'heads')]
    """

    name: str
    title: str = ""
    reading: str | Callable[[xr.DataTree], str] = ""
    draw: str = ""
    of: Literal["node", "heads", "tree"] = "node"
    variable: str = ""
    same_as: str = ""
    on_page: bool = True
    with_tokens: bool = False


@dataclass(frozen=True)
class TextTable:
    """A table of text that an analysis has in the place of a figure.

    Attributes
    ----------
    title, key
        Its heading, and what its words mean.
    columns
        Headings.
    lines
        Cells of each row, from the node.
    remark
        What else is to be said of the whole tree, in a sentence; empty where nothing is.

    Examples
    --------
    >>> table = TextTable("Heads", "Numbers", ("layer",), lambda node: [(str(int(node["layer"])),)], lambda tree: "")
    >>> import xarray as xr
    >>> table.columns, table.lines(xr.Dataset({"layer": 3}))
    (('layer',), [('3',)])
    """

    title: str
    key: str
    columns: tuple[str, ...]
    lines: Callable[[xr.Dataset], list[tuple[str, ...]]]
    remark: Callable[[xr.DataTree], str]


@dataclass(frozen=True)
class Requirement:
    """Something that a model must have.

    Attributes
    ----------
    name
        What it is.
    lacks
        Why a model does not have it; empty where it does.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> from attnscope.mechanism import Study
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> study = Study(BertModel(config).eval(), [[5, 6, 7, 8], [7, 8, 9, 5]], band=2)
    >>> two = Requirement("two layers", lambda study: "" if len(study.evidence.layers) > 1 else "it has one layer")
    >>> two.lacks(study)
    'it has one layer'
    """

    name: str
    lacks: Callable[[Study], str]


@dataclass(frozen=True)
class Analysis:
    """One way to ask why a head looks where it looks.

    Attributes
    ----------
    name
        Name of its node in the tree, its file in the run folder, and in the list of what was left out.
    title, definition
        What it gives, and the heading of docs/mathematics.md that defines it.
    compute
        From a model under study to a Dataset.
    needs
        What the model must have, or the analysis is left out and the reason told.
    section
        Section of the page; None where it has no figure.
    pictures, table
        How it is shown.
    units
        Units of its main quantity.
    asked
        Whether this study wants it; by default every study does.
    check
        Called before any text is read: raises if the analysis, asked for by name, cannot be had.
    settings
        What its numbers depend on beside the study's settings: part of the signature.
    of_arrays
        Whether it is NumPy's work alone, which then takes one thread: NumPy's threads and PyTorch's wait for each
        other by spinning.

    Examples
    --------
    >>> import xarray as xr
    >>> heads = Analysis("heads", "Number of heads", "Attention", lambda study: xr.Dataset({"heads": 12}))
    >>> heads.needs, heads.units
    ((), '1')
    """

    name: str
    title: str
    definition: str
    compute: Callable[[Study], xr.Dataset]
    needs: tuple[Requirement, ...] = ()
    section: Section | None = None
    pictures: tuple[Picture, ...] = ()
    table: TextTable | None = None
    units: str = "1"
    asked: Callable[[Study], bool] = field(default=lambda _: True)
    check: Callable[[Study], None] = field(default=lambda _: None)
    settings: Mapping[str, str | int | float] = field(default_factory=dict[str, "str | int | float"])
    of_arrays: bool = False
