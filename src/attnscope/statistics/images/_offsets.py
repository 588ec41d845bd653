"""What an offset in rows and columns of patches is called."""

from __future__ import annotations


def offset_name(row: int, column: int) -> str:
    """Name an offset as a kind of head.

    Parameters
    ----------
    row, column
        Patches down and to the right.

    Examples
    --------
    >>> [offset_name(*one) for one in ((0, 0), (0, -1), (1, 0), (-2, 0), (1, -2))]
    ['self', 'left', 'down', '2 up', '1 down 2 left']
    """
    if not row and not column:
        return "self"
    parts = [(abs(row), "up" if row < 0 else "down"), (abs(column), "left" if column < 0 else "right")]
    parts = [(steps, side) for steps, side in parts if steps]
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    return " ".join(f"{steps} {side}" for steps, side in parts)
