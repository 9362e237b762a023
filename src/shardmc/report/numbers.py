"""Numbers for readers: as many digits as are meaningful, true minus signs, and a dash for a missing value."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

DASH = "–"
_MINUS = "−"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST_DECIMALS = 7


def fixed(value: float, decimals: int, *, sign: bool = False) -> str:
    """A number with this many decimals, with a plus sign if `sign`.

    >>> fixed(-1.005, 1), fixed(0.04, 2, sign=True), fixed(float("nan"), 2)
    ('−1.0', '+0.04', '–')
    """
    if not math.isfinite(value):
        return DASH
    text = f"{value:{'+' if sign else ''},.{decimals}f}"
    # A number that rounds to zero has no sign.
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("+-")
    return text.replace("-", _MINUS)


def significant(value: float, digits: int = 3) -> str:
    """A number with this many significant digits; as a power of ten if it is very large or very small.

    >>> significant(0.0123456), significant(1234567.0), significant(1234.0), significant(-2.5e-9)
    ('0.0123', '1.23·10⁶', '1,234', '−2.50·10⁻⁹')
    """
    if not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(value)))
    if power < -4 or power > 5:
        return f"{value / 10.0**power:.{digits - 1}f}·10{str(power).translate(_SUPERSCRIPT)}".replace(
            "-", _MINUS
        )
    return fixed(value, max(0, digits - 1 - power))


def trimmed(value: float, digits: int = 4) -> str:
    """A number with at most this many significant digits, without trailing zeros.

    >>> trimmed(0.2), trimmed(14.0), trimmed(123.456), trimmed(2.0e-9)
    ('0.2', '14', '123.5', '2·10⁻⁹')
    """
    text, power, exponent = significant(value, digits).partition("·")
    return (text.rstrip("0").rstrip(".") if "." in text else text) + power + exponent


def probability(value: float) -> str:
    """A p-value.

    >>> probability(0.4321), probability(0.0234), probability(0.000999), probability(1e-7)
    ('0.43', '0.023', '0.001', '<0.001')
    """
    if not math.isfinite(value):
        return DASH
    if value < 0.0005:
        return "<0.001"
    return fixed(value, 2 if value >= 0.0995 else 3)


def count(value: float) -> str:
    """A whole number with commas between thousands.

    >>> count(12345.4)
    '12,345'
    """
    return fixed(value, 0)


def decimals(scale: float, digits: int = 2) -> int | None:
    """How many decimals show this many digits of a number of that size; None if it needs powers of ten.

    >>> decimals(0.0034), decimals(12.0), decimals(1e-12)
    (4, 0, None)
    """
    if not (math.isfinite(scale) and scale > 0):
        return None
    places = digits - 1 - math.floor(math.log10(scale))
    return None if places > _MOST_DECIMALS else max(0, places)


def like(value: float, scale: float) -> str:
    """A number to the decimals that its standard deviation `scale` allows.

    >>> like(1.23456, 0.0034), like(-1.5e-9, 1e-11)
    ('1.2346', '−1.500·10⁻⁹')
    """
    if not math.isfinite(value):
        return DASH
    places = decimals(scale)
    if places is None or abs(value) >= 1e9:
        gap = math.log10(abs(value) / scale) if value and scale > 0 and math.isfinite(scale) else 2
        return significant(value, int(np.clip(math.floor(gap) + 2, 2, 8)))
    return fixed(value, places)


def duration(seconds: float) -> str:
    """Time as people say it.

    >>> duration(0.0123), duration(4.4), duration(125), duration(7500)
    ('12 ms', '4.4 s', '2 min 5 s', '2 h 5 min')
    """
    if not math.isfinite(seconds):
        return DASH
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.001 else "<1 ms"
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def as_text(value: object) -> str:
    """A value of a plan or a finding as text. A number that is not finite becomes a dash."""
    if value is None:
        return "none"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{int(value):,}".replace("-", _MINUS)
    if isinstance(value, float | np.floating):
        return trimmed(float(value))
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        shown = ", ".join(as_text(v) for v in value[:8])
        return f"{shown}, … ({len(value)} in all)" if len(value) > 8 else shown
    if isinstance(value, dict):
        return ", ".join(f"{k}: {as_text(v)}" for k, v in value.items())
    return str(value)


def aligned(texts: Sequence[str]) -> list[str]:
    """Pad numbers on the right with spaces as wide as digits, so that a right-aligned column aligns at the points.

    >>> [text.replace("\u2007", "_").replace("\u2008", ".") for text in aligned(["1.25", "10", "–"])]
    ['1.25', '10.__', '–.__']
    """
    places = [len(t.partition(".")[2]) if "·" not in t else 0 for t in texts]
    most = max(places, default=0)
    if most == 0:
        return list(texts)
    point = "\u2008"  # as wide as a full stop
    return [t + ("" if n else point) + "\u2007" * (most - n) for t, n in zip(texts, places, strict=True)]
