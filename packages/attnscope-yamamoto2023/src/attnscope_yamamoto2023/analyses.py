"""The papers' figures and numbers as analyses: ``attnscope explain --analyses yamamoto2023``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from attnscope.explanation.study import Analysis, Picture, Section, TextTable
from attnscope.explanation.tables import position_table
from attnscope.support.errors import AttnscopeError
from attnscope_yamamoto2023 import rows as single
from attnscope_yamamoto2023.drawing import left_out
from attnscope_yamamoto2023.models import PAPER_LENGTH, Subject, check_published, published_name
from attnscope_yamamoto2023.positions.rotation import phase_map, shift_controls
from attnscope_yamamoto2023.positions.table import POSITION_MODELS, POSITION_PCA, POSITION_SPECTRUM, position_cca
from attnscope_yamamoto2023.positions.wave_removal import wave_removal
from attnscope_yamamoto2023.positions.waves import query_key_waves, spectra_by_layer
from attnscope_yamamoto2023.rows import KEY, paper_lines, table_of
from attnscope_yamamoto2023.rows import TABLE_COLUMNS as COLUMNS

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.explanation.study import Study
    from attnscope_yamamoto2023.models import ShownHead

PAPER = Section(
    "paper",
    "The papers' figures and numbers",
    "The figures of the paper by Yamamoto and Matsuzaki (2023) on this model, in the papers' form: one text, no "
    "biases. Layers and heads are counted from 0 here; the papers' head(8,9) is head 8 of layer 7.",
)


def table_as(published_as: str) -> Analysis:
    """The table of published numbers, for a model with the weights of a published one."""
    check_published(published_as)
    settings = {"published_as": published_as}
    return replace(PAPER_TABLE, compute=partial(_table, published_as=published_as), settings=settings)


def _subject(study: Study) -> Subject:
    subject = study.shared.get("yamamoto2023")
    if not isinstance(subject, Subject):
        study.shared["yamamoto2023"] = subject = Subject(study)
    return subject


def _shown(study: Study) -> list[ShownHead]:
    subject = _subject(study)
    if subject.shown is None:
        subject.shown = single.shown_heads(subject)
        note = single.stand_ins(subject, subject.shown)
        if note:
            study.reasons["heads_of_the_papers"] = note
    return subject.shown


def lacks_heads(study: Study) -> str:
    return "" if _shown(study) else "no head attends mainly to one side"


def lacks_bilinear_heads(study: Study) -> str:
    there = any(shown.layer.projections.form == "bilinear" for shown in _shown(study))
    return "" if there else "no head that attends mainly to one side has scores that are bilinear in X"


def lacks_causal_heads(study: Study) -> str:
    there = any(shown.layer.site.kind == "causal" for shown in _shown(study))
    return "" if there else "the model has no causal heads"


def _check(study: Study) -> None:
    """Reject translators, and models without a position table."""
    if study.with_targets:
        raise AttnscopeError(
            "yamamoto2023 (--analyses) needs a model that reads one text: leave out either it or the target (--target)"
        )
    position_table(study.model)  # raises with the model's own scheme


def _table(study: Study, published_as: str | None = None) -> xr.Dataset:
    return table_of(_subject(study), published_as or published_name(study.name, study.identity))


FIGURE_1 = Analysis(
    "figure_1",
    "Figure 1: kinds of heads",
    "The papers' numbers",
    lambda study: _subject(study).clusters,
    check=_check,
    section=PAPER,
    pictures=(
        Picture(
            "paper_figure_1",
            "Figure 1: kinds of heads",
            "The share of texts in which a head is in each cluster of profiles. One colour: the same on all texts.",
            draw="attnscope.results.figures.maps:label_pies",
        ),
    ),
)
FIGURE_2 = Analysis(
    "figure_2",
    "Figure 2: weights among the first tokens",
    "The papers' numbers",
    lambda study: single.maps(_subject(study), _shown(study)),
    needs=(lacks_heads,),
    section=PAPER,
    pictures=(
        Picture(
            "paper_figure_2",
            "Figure 2: weights among the first 15 tokens",
            "Rows are queries, columns are keys. Left of the red diagonal are earlier tokens. ␣ is a space.",
            draw="attnscope_yamamoto2023.drawing:maps_of_heads",
            with_tokens=True,
        ),
    ),
)
FIGURE_4 = Analysis(
    "figure_4",
    "Figure 4: waves in queries and keys",
    "The papers' numbers",
    lambda study: single.series(_subject(study), _shown(study)),
    needs=(lacks_bilinear_heads,),
    section=PAPER,
    pictures=(
        Picture(
            "paper_figure_4",
            "Figure 4: waves in queries and keys",
            "The leading columns of one head along the text. If both are waves of one period, keys lead or lag.",
            draw="attnscope_yamamoto2023.drawing:waves_of_head",
        ),
    ),
)
FIGURE_6 = Analysis(
    "figure_6",
    "Figure 6: the rotation from queries to keys",
    "The papers' numbers",
    lambda study: single.phases(_subject(study), _shown(study)),
    needs=(lacks_bilinear_heads,),
    section=PAPER,
    pictures=(
        Picture(
            "paper_figure_6",
            "Figure 6: the rotation from queries to keys",
            "Dark spots along a blue line mean attention at that offset; the papers' Δ is its negative, Δ = −offset. "
            "The rotation is completed as in the papers (LAPACK); paper_figure_6_minimal in the folder of figures has "
            "the one nearest to the identity.",
            draw="attnscope_yamamoto2023.drawing:phases_as_published",
        ),
        Picture(
            "paper_figure_6_minimal", draw="attnscope_yamamoto2023.drawing:phases_completed_minimally", on_page=False
        ),
    ),
)
FIGURE_7 = Analysis(
    "figure_7",
    "Figure 7: cross-correlations",
    "The papers' numbers",
    lambda study: single.correlations(_subject(study), _shown(study)),
    needs=(lacks_bilinear_heads,),
    section=PAPER,
    pictures=(
        Picture(
            "paper_figure_7",
            "Figure 7: cross-correlations",
            "Above: the leading 20 columns. Below: their sum weighted by singular values, with its peak within 10 "
            "tokens.",
            draw="attnscope_yamamoto2023.drawing:correlations_of_heads",
        ),
    ),
)
FIGURE_14 = Analysis(
    "figure_14",
    "EMNLP figure 14: scores of causal heads",
    "The papers' numbers",
    lambda study: single.scores(_subject(study), _shown(study)),
    needs=(lacks_causal_heads,),
    section=PAPER,
    pictures=(
        Picture(
            "emnlp_figure_14",
            "EMNLP figure 14: scores of causal heads",
            "Stripes along the diagonal are scores that depend on the offset. The mask hides scores right of it.",
            draw="attnscope_yamamoto2023.drawing:score_maps",
        ),
    ),
)
FIGURE_15 = Analysis(
    "figure_15",
    "EMNLP figure 15: kinds of scores",
    "The papers' numbers",
    lambda study: _subject(study).score_clusters,
    needs=(lacks_causal_heads,),
    section=PAPER,
    pictures=(
        Picture(
            "emnlp_figure_15",
            "EMNLP figure 15: kinds of scores",
            "Two clusters of the scores' sums along offsets, before the mask.",
            draw="attnscope.results.figures.maps:label_pies",
        ),
    ),
)
FIGURES = (FIGURE_1, FIGURE_2, FIGURE_4, FIGURE_6, FIGURE_7, FIGURE_14, FIGURE_15)
PAPER_TABLE = Analysis(
    "paper",
    "Published numbers and this model's",
    "The papers' numbers",
    _table,
    section=PAPER,
    check=_check,
    pictures=(
        Picture("paper_figure_3", "Figure 3: waves in the position table", same_as="position-spectrum"),
        Picture("paper_figure_5", "Figure 5: frequencies by layer", same_as="spectra-by-layer"),
        Picture("paper_figure_8", "Figure 8: waves in the tables of several models", same_as="position-models"),
        Picture("paper_figure_9", "Figure 9: dimensions of the position table", same_as="position-components"),
    ),
    table=TextTable("Published numbers and this model's", KEY, COLUMNS, paper_lines, left_out),
    configured=table_as,
    longest=PAPER_LENGTH,
)
OF_POSITIONS = (
    POSITION_SPECTRUM,
    POSITION_PCA,
    POSITION_MODELS,
    position_cca,
    query_key_waves,
    spectra_by_layer,
    phase_map,
    shift_controls,
    wave_removal,
)
ANALYSES = (*OF_POSITIONS, *FIGURES, PAPER_TABLE)
