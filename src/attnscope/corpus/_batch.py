"""Windows padded to one length, as tensors that a model takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnscope.corpus.windows import Window
from attnscope.errors import AttnscopeError


@dataclass(frozen=True, eq=False)
class Batch:
    """Windows side by side, padded on the right.

    Attributes
    ----------
    input_ids : Int64[Tensor, "batch position"]
        Token ids.
    valid : Bool[Tensor, "batch position"]
        False on padding.
    special : Bool[Tensor, "batch position"]
        True on special tokens, False on padding.
    groups : Int64[Tensor, "batch position"], optional
        The number of the group of each token, -1 on padding; None where tokens are in no groups.

    Examples
    --------
    >>> window = Window((0, 5), (True, False), ((0, 0), (0, 3)), "text 1", 0, ("<s>", "The"))
    >>> collate([window], pad_id=1).input_ids
    tensor([[0, 5]])
    """

    input_ids: Int[Tensor, "batch position"]
    valid: Bool[Tensor, "batch position"]
    special: Bool[Tensor, "batch position"]
    groups: Int[Tensor, "batch position"] | None = None

    @property
    def attention_mask(self) -> Int[Tensor, "batch position"] | None:
        """What a model takes as ``attention_mask``; None where nothing is padded."""
        return None if bool(self.valid.all()) else self.valid.long()

    def to(self, device: torch.device | str) -> "Batch":
        """The same on another device."""
        groups = None if self.groups is None else self.groups.to(device)
        return Batch(self.input_ids.to(device), self.valid.to(device), self.special.to(device), groups)


def collate(windows: Sequence[Window], pad_id: int) -> Batch:
    """Put windows side by side, padded on the right to the longest.

    Parameters
    ----------
    windows : sequence of Window
        At least one.
    pad_id : int
        Token id for padding. Padding is masked, so any id that the model knows will do.

    Returns
    -------
    Batch
        Tensors of shape ``(batch, position)``.

    Raises
    ------
    AttnscopeError
        No window.

    Examples
    --------
    >>> short = Window((0,), (True,), ((0, 0),), "text 1", 0, ("<s>",))
    >>> long = Window((0, 5), (True, False), ((0, 0), (0, 3)), "text 2", 0, ("<s>", "The"))
    >>> collate([short, long], pad_id=1).attention_mask
    tensor([[1, 0],
            [1, 1]])
    """
    if not windows:
        raise AttnscopeError("found no window to put into a batch; expected at least one: give some windows")
    longest = max(map(len, windows))
    shape = (len(windows), longest)
    input_ids = torch.full(shape, pad_id, dtype=torch.int64)
    valid, special = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    groups = torch.full(shape, -1) if all(window.groups for window in windows) else None
    for row, window in enumerate(windows):
        input_ids[row, : len(window)] = torch.tensor(window.ids, dtype=torch.int64)
        special[row, : len(window)] = torch.tensor(window.special, dtype=torch.bool)
        valid[row, : len(window)] = True
        if groups is not None:
            groups[row, : len(window)] = torch.tensor(window.groups)
    return Batch(input_ids, valid, special, groups)
