"""Numbers for people, to so many digits that count."""


def significant(value: float, digits: int) -> str:
    """Round to so many digits; a large number is written out, not as a power of ten.

    Examples
    --------
    >>> significant(128.4, 2), significant(1234.5, 3), significant(0.0123, 2), significant(99.96, 3)
    ('130', '1,230', '0.012', '100')
    """
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e+" in text else text
