"""How many dimensions hold the position table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.explanation.analyses.position_spectrum import TABLE
from attnscope.explanation.arrays.components import principal_components
from attnscope.explanation.study import POSITION_TABLE, Analysis, Picture, table_of_model
from attnscope.support.arguments import validated

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture.load import Model
    from attnscope.explanation.study import Study


@validated
def position_pca(model: Model | Study | None = None, *, part: str | None = None, centred: bool = True) -> xr.Dataset:
    """Principal components of a model's position table (docs/mathematics.md, Principal components).

    Parameters
    ----------
    model, part
        As in `position_spectrum`.
    centred
        See `attnscope.explanation.arrays.components.principal_components`.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.arrays.components.principal_components`: over ``component`` ``singular_value`` and
        ``cumulative_share``.

    Raises
    ------
    AttnscopeError
        If the model has no table of absolute positions: the scheme that it has instead is named.
    """
    return principal_components(table_of_model(model, part), centred=centred)


ANALYSIS = Analysis(
    "position_pca",
    "Dimensions that hold the position table",
    "Principal components",
    lambda study: principal_components(study.evidence.tables[0].rows),
    needs=(POSITION_TABLE,),
    section=TABLE,
    pictures=(
        Picture(
            "position-components",
            "Dimensions that hold it",
            "How much of the table's variance its first principal components hold. RoBERTa's 4 hold 50.5%, its 12 "
            "hold 92.2% (Yamamoto and Matsuzaki 2023).",
            draw="attnscope.results.figures.positions:position_components",
        ),
        Picture(
            "components-models",
            "Dimensions that hold the tables",
            "The share of each table's variance that its first principal components hold; 4 and 12 are marked.",
            draw="attnscope.results.figures.explain:components_of_models",
            of="tree",
        ),
    ),
    units="share",
    of_arrays=True,
)
