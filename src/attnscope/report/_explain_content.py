"""What the page of an explanation says: its sections, its figures with how to read them, its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnscope.figures.explain import explain_figures
from attnscope.mechanism import foretold, mask_note, rank_heads, skipped_by_reason, summary
from attnscope.report._embed import picture
from attnscope.report._scan_content import pieces_note
from attnscope.reproduction.yamamoto2023 import COLUMNS as PAPER_COLUMNS
from attnscope.reproduction.yamamoto2023 import KEY as PAPER_KEY
from attnscope.reproduction.yamamoto2023 import SAME, paper_lines

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure of the page."""

    name: str
    title: str
    reading: str
    source: str  # data: address
    width: int  # pixels at its own size


@dataclass(frozen=True)
class Section:
    """An analysis, or several that belong together."""

    name: str
    title: str
    says: str
    pictures: list[Picture]


@dataclass(frozen=True)
class Published:
    """What the papers published beside what was found, and links to their figures."""

    elsewhere: list[tuple[str, str]]  # address on the page, number
    lines: list[tuple[str, ...]]
    columns: tuple[str, ...] = PAPER_COLUMNS
    key: str = PAPER_KEY


_SECTIONS = (
    (
        "heads",
        "All heads",
        (
            "Where each head looks, how much of that its positions explain, and whether two readings of its scores and "
            "one of its weights find the same offset. The two are of one trace, the scores summed along offsets: its "
            "peak (cross-correlation) and the phases of its transform (cross-spectrum). They are no second source; the "
            "weights are."
        ),
        ("verdict", "offset-agreement"),
    ),
    (
        "table",
        "The position table",
        (
            "What the model learned about positions before any attention: which waves the table is made of, how few "
            "dimensions hold it, and how long the layers keep it."
        ),
        (
            "position-spectrum",
            "position-components",
            "position-correlations",
            "position-models",
            "components-models",
        ),
    ),
    (
        "waves",
        "Waves in queries and keys",
        (
            "A head can only prefer an offset if its queries and keys carry the position. Here are the columns of "
            "both, after the rotation that the scores determine, that are waves along the text."
        ),
        ("wave-counts", "wave-columns", "wave-curves", "spectra-by-layer"),
    ),
    (
        "shift",
        "The shift between queries and keys",
        (
            "If keys are the queries moved by a fixed number of tokens, the head looks at a fixed offset. Three "
            "views of that shift, for the heads named. All are of the scores before any mask; offsets that the mask "
            "forbids are grey, and no peak is looked for there."
        ),
        ("cross-spectrum", "phase-maps", "cross-correlations", "peak-agreement"),
    ),
    (
        "controls",
        "Is the shift real?",
        (
            "A way to read off a shift may find one in anything. So the clearest heads are read again with the cause "
            "of their shift taken away: it must then be lost."
        ),
        ("shift-controls",),
    ),
    (
        "content",
        "Position or content",
        (
            "Every input is split into its mean at that position (P) and the rest (C). The products of queries and "
            "keys then have exactly four parts: PP, PC, CP and CC. What texts share at a position by chance is counted "
            "as content. A bias by distance (B: T5, ALiBi, DeBERTa) belongs to position, as far as all texts share it."
        ),
        ("position-content",),
    ),
    (
        "kernel",
        "What the position scheme foretells",
        (
            "Rotated queries and keys (RoPE) favour offsets at which their mean turns into phase; a bias favours them "
            "outright. Both give one curve over the offsets, with no word in it. Where it peaks, the head should look, "
            "if the scheme decides."
        ),
        ("scheme-kernel",),
    ),
    (
        "scheme",
        "The position scheme taken out",
        (
            "Each layer gets the inputs that it always gets; only its rotation or bias is changed. What is lost was "
            "the scheme's doing."
        ),
        ("rotation-effect", "bias-effect"),
    ),
    (
        "interventions",
        "Words and positions changed",
        (
            "A head that goes by position alone keeps its profile when words change, loses it without positions, and "
            "follows the position ids when these change places."
        ),
        ("interventions",),
    ),
    (
        "relearned",
        "Positions learned anew",
        (
            "Every token is followed by unknown ones; the position table is drawn at random and trained alone. A head "
            "that finds its neighbour by position then looks for it at the new distance. After few steps it does not "
            "yet: the loss tells how far the learning has come."
        ),
        ("relearned-table", "relearned-profiles", "relearned-maps"),
    ),
    (
        "paper",
        "The papers' figures and numbers",
        (
            "The figures of the paper by Yamamoto and Matsuzaki (2023) on this model, in the papers' form: one text, "
            "no biases. Layers and heads are counted from 0 here; the papers' head(8,9) is head 8 of layer 7."
        ),
        (
            "paper_figure_1",
            "paper_figure_2",
            "paper_figure_4",
            "paper_figure_6",
            "paper_figure_7",
            "emnlp_figure_14",
            "emnlp_figure_15",
        ),
    ),
)
_WITH_TOKENS = {"relearned-maps", "paper_figure_2"}
_NOT_SHOWN = {"paper_figure_6_minimal"}  # only as files, so that the page stays small

_FIGURES = {
    "verdict": (
        "Offsets and what position explains",
        (
            "One cell for each head: the number is the offset of its largest mean weight (−1 is the token before), "
            "none where that weight is no more than chance; the colour the share of the scores' profile that "
            "positions alone explain; a frame that both readings of the scores find the offset too."
        ),
    ),
    "offset-agreement": (
        "Two readings of the scores against the weights",
        (
            "One disc for each head that prefers an offset, larger the more it weighs it. On the diagonal weights and "
            "scores find the same offset. Both readings are of the same trace, so the right panel checks the reading, "
            "not the head."
        ),
    ),
    "position-spectrum": (
        "Waves in the position table",
        (
            "A line above the grey band is a wave that noise would not give; the number is its period in tokens. The "
            "dashed line takes all columns together, whatever the axes of the embedding. "
            "Words, on the right, are the control."
        ),
    ),
    "position-components": (
        "Dimensions that hold it",
        (
            "How much of the table's variance its first principal components hold. RoBERTa's 4 hold 50.5%, its 12 "
            "hold 92.2% (Yamamoto and Matsuzaki 2023)."
        ),
    ),
    "position-correlations": (
        "How long layers keep it",
        (
            "Canonical correlations of each layer's input with the table, of the components that hold 99.9% of the "
            "variance and of all. A curve that falls to the dashed line tells no more about positions than noise would."
        ),
    ),
    "position-models": (
        "Waves in the tables of several models",
        "The same for each model, at its own height. Periods in tokens can be compared where lengths differ.",
    ),
    "components-models": (
        "Dimensions that hold the tables",
        "The share of each table's variance that its first principal components hold; 4 and 12 are marked.",
    ),
    "wave-counts": (
        "How many columns are waves",
        (
            "Counted by Fisher's test on one text, strict enough for all heads together. On the right the most that "
            "the same head has when the tokens of the text are shuffled."
        ),
    ),
    "wave-columns": (
        "Which columns are waves",
        (
            "A row is a column, the largest singular value on top: disc and ring are the strongest frequencies of "
            "query and key, green ones are waves, an arc joins a cosine and its sine. Bars: the column's share of "
            "the scores. Columns of nearly equal singular values may trade places."
        ),
    ),
    "wave-curves": (
        "Queries and keys along the text",
        (
            "The columns that weigh most in the scores, along the first tokens of one text. Where both are waves, the "
            "key's is the query's moved by the head's offset."
        ),
    ),
    "spectra-by-layer": (
        "Frequencies by layer",
        "The largest amplitude over all columns, against what white noise gives in as many: red is more, blue less.",
    ),
    "cross-spectrum": (
        "Offset by frequency",
        (
            "Discs on one height are frequencies that favour one offset; large, dark discs count most. Beyond the "
            "dashed curves a phase tells the offset only up to whole periods."
        ),
    ),
    "phase-maps": (
        "The rotation from queries to keys",
        (
            "Dark spots are where its eigenvectors have their energy. Spots along a line through 0 are a shift by "
            "that many tokens; the line that gathers most, wrapped lines too, is named in red. Single spots depend on "
            "how the rotation is completed; the figure above does not."
        ),
    ),
    "cross-correlations": (
        "Scores along offsets",
        (
            "Above, each leading column; below, their sum, weighted by singular values. Waves of several periods add "
            "up near one offset and cancel further away."
        ),
    ),
    "peak-agreement": (
        "Do scores foretell weights?",
        (
            "All heads, by layer: how many weigh most the offset at which their mean scores are highest (dashed: with "
            "the scores of the layer's other heads), and how alike both profiles rank the offsets that the mask "
            "allows. Softmax lies between the two, so this is measured, not implied; where all weights are nearly "
            "equal it holds without any head preferring an offset."
        ),
    ),
    "shift-controls": (
        "The shift and its controls",
        (
            "Blue should lie at the right above, and orange near 0, off the red line below. A disc is one draw. In "
            "shuffled text a word still matches itself, at offset 0. Green is the offset by the rotation's angles, "
            "its free part chosen in four ways: where that misses the line, do not rely on the map of the rotation."
        ),
    ),
    "position-content": (
        "What the parts give",
        (
            "Above, the head's weights and those that position alone would give. Below, the parts' "
            "shares of the scores' profile and their Shapley values for the weight at the head's offset, with 95% "
            "intervals."
        ),
    ),
    "scheme-kernel": (
        "The scheme beside the scores",
        (
            "Mean scores, and what rotation or bias alone gives, about their means; the future of causal heads is left "
            "out. Dotted are the offsets of the largest weight and of the scheme's peak. Below, which pairs of columns "
            "make it: those that turn once in a few tokens tell neighbours apart, slow ones do not."
        ),
    ),
    "rotation-effect": (
        "Without the rotation",
        "Black is the model; each colour turns only some of the pairs of queries and keys, by their period in tokens.",
    ),
    "bias-effect": (
        "Without the bias",
        "Black is the model; the colour has the position bias of the scores set to its mean.",
    ),
    "relearned-table": (
        "The table before and after",
        (
            "Where the blue line stands above the dashed one, learning has made waves. A peak at the spacing says "
            "that rows of tokens and rows of unknown tokens differ: only the former are asked for anything."
        ),
    ),
    "relearned-profiles": (
        "Where the sharpest heads look",
        (
            "Black is plain text. With unknown tokens between, the head still looks at the next place and finds an "
            "unknown token; with positions learned anew, the peak should stand where the neighbour is now. Means over "
            "tokens, not over unknown ones."
        ),
    ),
    "relearned-maps": (
        "Weights with positions learned anew",
        "A spaced text; dots are unknown tokens, ␣ is a space. Stripes beside the diagonal go from token to token.",
    ),
    "paper_figure_1": (
        "Figure 1: kinds of heads",
        "In which share of the texts a head belongs to which cluster of profiles. One colour: alike on all texts.",
    ),
    "paper_figure_2": (
        "Figure 2: weights among the first 15 tokens",
        "Rows look at columns. Left of the red diagonal are earlier tokens. ␣ is a space.",
    ),
    "paper_figure_4": (
        "Figure 4: waves in queries and keys",
        "The leading columns of one head along the text. Where both are waves of one period, keys run ahead or behind.",
    ),
    "paper_figure_6": (
        "Figure 6: the rotation from queries to keys",
        (
            "Dark spots along a blue line are a shift by that many tokens. The rotation is completed as the papers "
            "did (LAPACK); paper_figure_6_minimal in the folder of figures shows the one nearest to the identity."
        ),
    ),
    "paper_figure_7": (
        "Figure 7: cross-correlations",
        "Above, the leading 20 columns; below, their sum weighted by singular values, with its peak within 10 tokens.",
    ),
    "emnlp_figure_14": (
        "EMNLP figure 14: scores of causal heads",
        "Stripes along the diagonal are scores that go by offset. Right of the diagonal a mask hides them.",
    ),
    "emnlp_figure_15": (
        "EMNLP figure 15: kinds of scores",
        "Two clusters of the scores' sums along offsets, before the mask.",
    ),
    "interventions": (
        "Before and after",
        (
            "Grey is before, blue after, dashed the profile in the order of the position ids. The number is the "
            "change of the weight at the head's offset, with its 95% interval over texts. Zeroing takes the model "
            "out of what it was trained on: means and shuffles are the fairer changes."
        ),
    ),
}

#: Columns of the table: key, heading, what a first click does.
COLUMNS = (
    ("layer", "Layer", "ascending"),
    ("attention", "Attention", "ascending"),
    ("head", "Head", "ascending"),
    ("offset_of_weights", "Offset by weights", "descending"),
    ("offset_of_spectrum", "Offset by cross-spectrum", "descending"),
    ("offset_of_correlation", "Offset by cross-correlation", "descending"),
    ("agree", "Scores agree", "descending"),
    ("chance", "By chance", "ascending"),
    ("offset_of_kernel", "Offset by scheme", "descending"),
    ("kernel_agrees", "Scheme foretells", "descending"),
    ("kernel_chance", "So by chance", "descending"),
    ("position_share", "Explained by position", "descending"),
    ("kernel_share", "Explained by scheme", "descending"),
    ("peak_weight", "Largest mean weight", "descending"),
    ("prefers", "More than chance", "descending"),
    ("coherence", "Coherence", "descending"),
)
_WHOLE = {"layer", "head"}
_SIGNED = {"offset_of_spectrum", "offset_of_correlation"}


def sections(
    tree: xr.DataTree,
    heads: Sequence[tuple[int, int]] | None,
    figures: Mapping[str, Figure] | None = None,
) -> list[Section]:
    """The sections that the tree has figures for."""
    drawn = explain_figures(tree, heads) if figures is None else figures.items()
    pictures = {name: _picture(name, figure) for name, figure in drawn if name not in _NOT_SHOWN}
    found: list[Section] = []
    for name, title, says, names in _SECTIONS:
        there = [pictures[one] for one in names if one in pictures]
        if name == "content" and "position_content" in tree.children:
            texts = tree["position_content"].attrs.get("texts", "few")
            says = f"{says} From the first {texts} windows."  # noqa: PLW2901
        if there:
            found.append(Section(name, title, says, there))
    return found


def published(tree: xr.DataTree, found: Sequence[Section]) -> Published | None:
    """The table of published numbers, where there is one, and which of the papers' figures other sections show."""
    if "paper" not in tree.children:
        return None
    there = {picture.name for section in found for picture in section.pictures}
    elsewhere = [(name, number) for name, number in SAME.items() if name in there]
    lines = paper_lines(tree["paper"].to_dataset())
    return Published(elsewhere=[(f"figure-{name}", _number(one)) for name, one in elsewhere], lines=lines)


def _number(name: str) -> str:
    return name.removeprefix("paper_").replace("_", " ").capitalize()


def table(tree: xr.DataTree) -> tuple[list[tuple[str, str, str]], list[list[tuple[str, str]]]]:
    """Columns that have values, and for each head its cells: what is shown and what is sorted by."""
    rows = rank_heads(tree)
    columns = [column for column in COLUMNS if any(row[column[0]] is not None for row in rows)]
    return columns, [[(_shown(key, row[key]), _sorted_by(row[key])) for key, _, _ in columns] for row in rows]


def headline(tree: xr.DataTree) -> list[str]:
    """What the table comes to, in sentences: those of the terminal."""
    return [one for one in (*summary(rank_heads(tree)), foretold(tree), mask_note(tree)) if one]


def forms(tree: xr.DataTree) -> list[tuple[str, str, str, str]]:
    """For each layer: its number, the form of its scores, how well they are reproduced, and what is amiss."""
    if "forms" not in tree.children:
        return []
    found = tree["forms"].to_dataset()
    return [
        (
            str(int(layer)),
            str(found["form"].values[row]),
            f"{float(found['error'].values[row]):.1e}".replace("-", "−").replace("nan", ""),
            str(found["reason"].values[row]),
        )
        for row, layer in enumerate(found["layer"].values)
    ]


def skipped(tree: xr.DataTree) -> list[tuple[str, str]]:
    """Analyses that are not defined here, and why, those of one reason together."""
    try:
        return skipped_by_reason(tree)
    except (TypeError, ValueError):
        return []


def _picture(name: str, figure: Figure) -> Picture:
    title, reading = _FIGURES[name]
    if name in _WITH_TOKENS:
        labels = (label.get_text() for axes in figure.axes for label in axes.get_yticklabels())
        reading = f"{reading} {pieces_note(labels)}".rstrip()
    return Picture(name, title, reading, *picture(figure))


def _shown(key: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key in _WHOLE or isinstance(value, str):
        return str(value)
    if key in {"offset_of_weights", "offset_of_kernel"}:
        text = f"{value:+.0f}"
    elif key in _SIGNED:
        text = f"{value:+.2f}"
    else:
        text = f"{value:.3f}"
    return {"+0": "0", "+0.00": "0.00", "-0.00": "0.00", "-0.000": "0.000"}.get(text, text).replace("-", "−")


def _sorted_by(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else f"{float(value):.6g}"
