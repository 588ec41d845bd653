"""Directions of activations: steering vectors, probes, features of SAEs and lenses, from files or arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from attnscope.support.checks import shortly
from attnscope.support.errors import AttnscopeError, reason_of

if TYPE_CHECKING:
    from attnscope.intervention.activations import Change

_ENDING = ".safetensors"


@dataclass(frozen=True, eq=False)
class Direction:
    r"""A direction v of an activation, such as the residual stream, for `attnscope.edit` and `attribute`.

    A row x has the coefficient :math:`a = x^T v / v^T v` along it: it is a v plus a part at right angles to v. The
    length of v, as it is stored, is the unit of all coefficients.

    Examples
    --------
    >>> import torch
    >>> direction, rows = Direction(torch.tensor([0.0, 2.0])), torch.tensor([[3.0, 4.0]])
    >>> direction.coefficient(rows), direction.add(1.0)(rows), direction.remove()(rows), direction.set(0.5)(rows)
    (tensor([2.]), tensor([[3., 6.]]), tensor([[3., 0.]]), tensor([[3., 1.]]))
    """

    vector: Tensor  # v, ``(width,)``
    name: str = "the direction"  # in errors

    def __post_init__(self) -> None:
        if self.vector.ndim != 1 or not bool(torch.isfinite(self.vector).all()) or not bool(self.vector.any()):
            shape = tuple(self.vector.shape)
            raise AttnscopeError(f"found {self.name} of shape {shape}; expected finite numbers (width,), not all 0")

    @classmethod
    def of(cls, source: Any) -> Direction:
        """A direction from an array, numbers, or a file as ``file.safetensors[:tensor[:row]]``."""
        if isinstance(source, Direction):
            return source
        if not isinstance(source, str | Path):
            try:
                return cls(torch.tensor(np.asarray(source, dtype=np.float64)))
            except (TypeError, ValueError) as error:
                raise AttnscopeError(f"found {type(source).__name__} for a direction; expected numbers") from error
        path, ending, rest = str(source).partition(_ENDING)
        tensor, _, row = rest.removeprefix(":").partition(":")
        if not ending or (row and not row.isdecimal()):
            raise AttnscopeError(f"found the direction {str(source)!r}; expected file{_ENDING}, with :tensor and :row")
        return cls.read(path + ending, tensor, int(row) if row else None)

    @classmethod
    def read(
        cls, path: str | Path, tensor: str = "", row: int | None = None, *, column: int | None = None
    ) -> Direction:
        """Read a direction from a file of safetensors.

        Parameters
        ----------
        path
            The file.
        tensor
            Name of a tensor in it. By default the only one.
        row, column
            Row or column of a matrix: a feature of an SAE is a row of ``W_dec``, a column of ``decoder.weight``.

        Raises
        ------
        AttnscopeError
            If the file has no such tensor, row or column.
        """
        if row is not None and column is not None:
            raise AttnscopeError("found a row and a column of the direction; expected one of them")
        try:
            with safe_open(str(path), "pt") as file:
                names: list[str] = sorted(file.keys())
                name = tensor or (names[0] if len(names) == 1 else "")
                if name not in names:
                    raise AttnscopeError(f"found no tensor {tensor!r} in {path}; expected one of {', '.join(names)}")
                part: Any = file.get_slice(name)
                sizes = part.get_shape()
                at, axis = (column, 1) if row is None else (row, 0)
                if len(sizes) != (1 if at is None else 2) or (at is not None and at not in range(sizes[axis])):
                    wanted = "a vector" if at is None else f"a matrix with {'column' if axis else 'row'} {at}"
                    raise AttnscopeError(f"found {name} of shape {tuple(sizes)} in {path}; expected {wanted}")
                vector = part[:] if at is None else part[at] if axis == 0 else part[:, at]
        except (OSError, SafetensorError) as error:
            raise AttnscopeError(f"{path} is not a file of safetensors that can be read: {reason_of(error)}") from error
        return cls(vector, f"{name} of {path}")

    def coefficient(self, rows: Float[Tensor, "*any width"]) -> Float[Tensor, "*any"]:
        """The coefficient of each row along the direction, in single precision or more."""
        wide, vector = self._wide(rows)
        return wide @ vector / (vector @ vector)

    def add(self, amount: float | Tensor) -> Change:
        """Steer: the function that adds `amount` to the coefficient of each row."""
        _check_amount(amount)
        return lambda rows: self._moved(rows, amount)

    def remove(self) -> Change:
        """Project out: the function that takes the direction out of each row."""
        return self.set(0.0)

    def set(self, amount: float | Tensor) -> Change:
        """The function that sets the coefficient of each row."""
        _check_amount(amount)
        return lambda rows: self._moved(rows, amount - self.coefficient(rows)[..., None])

    def _wide(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        if rows.shape[-1] != len(self.vector):
            raise AttnscopeError(f"found {self.name} of {len(self.vector)} numbers; expected {rows.shape[-1]}")
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        return wide, self.vector.to(wide)

    def _moved(self, rows: Tensor, amount: Any) -> Tensor:
        wide, vector = self._wide(rows)
        return (wide + amount * vector).to(rows.dtype)


def _check_amount(amount: Any) -> None:
    if not isinstance(amount, int | float | Tensor) or not bool(torch.as_tensor(amount).isfinite().all()):
        raise AttnscopeError(f"found the amount {shortly(amount)}; expected finite numbers")
