"""Which tokens of a vision encoder are patches, in which rows and columns: told by the model's own numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float

from attnscope.attention import output_of
from attnscope.capture import has_class_token, patch_size_of, watching

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.attention import AttentionCall
    from attnscope.capture import Site

NOTHING = 1e-3  # of the largest change: what a token that another patch or frame makes may change by, through rounding


@dataclass(frozen=True)
class Grid:
    """The tokens of one image.

    Attributes
    ----------
    rows, columns
        Rows and columns of patches.
    start
        The token of the first patch; the others follow row by row.
    tokens
        All tokens, also those that are no patches.
    class_token
        Number of the class token; None without one.

    Examples
    --------
    >>> grid = Grid(rows=2, columns=2, start=2, tokens=6, class_token=0)
    >>> grid.names
    ('[class]', '[register 1]', 'r0c0', 'r0c1', 'r1c0', 'r1c1')
    >>> grid.registers
    [1]
    """

    rows: int
    columns: int
    start: int
    tokens: int
    class_token: int | None

    @property
    def patches(self) -> slice:
        """The tokens that are patches."""
        return slice(self.start, self.start + self.rows * self.columns)

    @property
    def registers(self) -> list[int]:
        """The tokens that are neither patches nor the class token."""
        patches = range(self.tokens)[self.patches]
        return [token for token in range(self.tokens) if token not in patches and token != self.class_token]

    @property
    def names(self) -> tuple[str, ...]:
        """What each token is called: ``[class]``, ``[register 1]``, ``r0c0`` for the patch in row 0, column 0."""
        named = {token: f"[register {number}]" for number, token in enumerate(self.registers, start=1)}
        if self.class_token is not None:
            named[self.class_token] = "[class]"
        return tuple(
            named.get(token) or "r{}c{}".format(*divmod(token - self.start, self.columns))
            for token in range(self.tokens)
        )


@torch.no_grad()
def grid_of(model: PreTrainedModel, pixels: Float[Tensor, "1 channel row column"]) -> Grid | str:
    """Find the patches: which token of the first layer changes when the pixels of one patch do.

    The first patch, its right neighbour, the one below it and the last one tell where patches begin and in which order
    they stand. Each must change one token and no other.

    Parameters
    ----------
    model
        In eval mode.
    pixels
        One image, as the model reads it.

    Returns
    -------
    Grid or str
        Or why there are no such rows and columns.

    Examples
    --------
    >>> from transformers import ViTConfig, ViTModel
    >>> config = ViTConfig(image_size=8, patch_size=4, hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    >>> grid_of(ViTModel(config).eval(), torch.zeros(1, 3, 8, 8))
    Grid(rows=2, columns=2, start=1, tokens=5, class_token=0)
    """
    size = patch_size_of(model.config)
    if size is None:
        return "its config tells no patch_size"
    rows, columns = pixels.shape[2] // size[0], pixels.shape[3] // size[1]
    if not rows or not columns:
        return f"its patch_size {size[0]} x {size[1]} is larger than the image"
    places = [(0, 0), (0, min(1, columns - 1)), (min(1, rows - 1), 0), (rows - 1, columns - 1)]
    probes = pixels.repeat(1 + len(places), 1, 1, 1)
    for probe, (row, column) in zip(probes[1:], places, strict=True):
        probe[:, row * size[0] : (row + 1) * size[0], column * size[1] : (column + 1) * size[1]] += pattern(
            size, probe
        )
    seen = first_states(model, {"pixel_values": probes})
    if seen is None:
        return "its weights alone can be seen, which do not tell which token is which patch"
    if seen.shape[0] != len(probes):
        return f"its first layer attends in {seen.shape[0] / len(probes):g} windows of an image"
    changes = (seen[1:] - seen[:1]).abs().amax(-1)
    places_of = [
        (change > NOTHING * change.amax()).nonzero()[:, 0].tolist() if change.amax() > 0 else []
        for change in changes
    ]
    first = places_of[0][0] if places_of[0] else 0
    if places_of != [[first + row * columns + column] for row, column in places]:
        return "in its first layer a patch is not one token, or patches do not stand row by row"
    is_class = first > 0 and any(has_class_token(module) for module in model.modules())
    return Grid(rows, columns, first, seen.shape[1], 0 if is_class else None)


def pattern(size: tuple[int, int], like: Tensor) -> Tensor:
    """What is added to a patch: the same each time, and not even, as a model may take off the mean.

    Parameters
    ----------
    size
        Rows and columns, pixels.
    like
        Image of the same channels, type and device, ``(channel, row, column)``.

    Examples
    --------
    >>> pattern((2, 3), torch.zeros(3, 8, 8)).shape
    torch.Size([3, 2, 3])
    """
    generator = torch.Generator().manual_seed(0)
    return torch.randn(like.shape[0], *size, generator=generator, dtype=torch.float32).to(like)


def first_states(model: PreTrainedModel, given: Mapping[str, Tensor]) -> Tensor | None:
    """Keys and values of the first layer, ``(image, token, width)``; None where they are not seen.

    Parameters
    ----------
    model
        Vision encoder, in eval mode.
    given
        Arguments of its forward pass.

    Examples
    --------
    >>> from transformers import ViTConfig, ViTModel
    >>> config = ViTConfig(image_size=8, patch_size=4, hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    >>> first_states(ViTModel(config).eval(), {"pixel_values": torch.zeros(1, 3, 8, 8)}).shape
    torch.Size([1, 5, 16])
    """
    states: list[Tensor] = []

    def look(site: Site, call: AttentionCall) -> Tensor:
        if site.index == 0 and call.key.shape[-1]:
            both = torch.cat([call.key, call.value], -1)
            states.append(both.transpose(1, 2).flatten(2).double())
        return output_of(call) if call.key.shape[-1] else call.query

    with watching(model, look, weights_suffice=True):
        model(**given)
    return states[0] if states else None
