"""Numbers for people."""

import math


def significant(value: float, digits: int) -> str:
    """Round to so many digits; a large number is written out, not as a power of ten.

    Examples
    --------
    >>> significant(128.4, 2), significant(1234.5, 3), significant(0.0123, 2), significant(99.96, 3)
    ('130', '1,230', '0.012', '100')
    """
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e+" in text else text


def places(value: float, least: int) -> int:
    """Digits after the point that show two digits of a small number: so many at least, 9 at most.

    Examples
    --------
    >>> places(-0.000123, 3), places(0.5, 3), places(0.0, 3), places(1e-30, 3)
    (5, 3, 3, 9)
    """
    if not value or not math.isfinite(value):
        return least
    return min(max(least, 1 - math.floor(math.log10(abs(value)))), 9)


def percent(share: float) -> str:
    """Write a share in percent; a dash where there is none.

    Examples
    --------
    >>> percent(0.256), percent(float("nan"))
    ('25.6%', '–')
    """
    return f"{100 * share:.1f}%" if math.isfinite(share) else "–"


def count(number: int, what: str) -> str:
    """Say how many.

    Examples
    --------
    >>> count(1, "window"), count(2, "window"), count(0, "text")
    ('1 window', '2 windows', '0 texts')
    """
    return f"{number} {what}{'s' * (number != 1)}"
