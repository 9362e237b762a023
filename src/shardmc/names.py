"""Names that users choose: how they are shown and stored, so that different names stay different."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping

# Terminal control characters, characters that change the direction of text, and what XML and UTF-8 cannot hold.
_HIDDEN = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff"
_CONTROL = re.compile(f"[{_HIDDEN}]")
_IN_TEXT = re.compile(f"(?![\t\n\r])[{_HIDDEN}]")
_ESCAPED = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4})")

_PERCENT = re.compile(r"%(?=[0-9A-Fa-f]{2})")
_OUTER = re.compile(r"^[\s.]|\s$")
_TAKEN = re.compile(r"(?:c(?=hain$)|d(?=raw$)|z(?=arr\.json$))")
_DIMENSION = re.compile(r"_(?=dim(?:_[0-9]+)?$)")
_EMPTY = "%7E"  # no name becomes this one: ~ stays as it is
_LONGEST = 200  # bytes: a Zarr variable is a folder, whose name is limited to 255
_ENTRY = re.compile(r"(?P<name>.*)\[(?P<index>(?:0|[1-9]\d*)(?:,(?:0|[1-9]\d*))*)\]", re.DOTALL)
_COORDINATE = re.compile(r"(?P<name>.*)~(?P<index>0|[1-9]\d*)", re.DOTALL)


def shown(name: str) -> str:
    r"""A name for display, with control characters written as escapes.

    Different names stay different: in a name that looks like an escape, backslashes are doubled.

    >>> shown("a\x1b[31m"), shown("α/β"), shown(r"\xi"), shown(r"\x1b")
    ('a\\x1b[31m', 'α/β', '\\xi', '\\\\x1b')
    """
    if not (_CONTROL.search(name) or _ESCAPED.search(name)):
        return name
    return _CONTROL.sub(_escape, name.replace("\\", "\\\\"))


def shown_text(text: str) -> str:
    """A text for display, with control characters written as escapes. Line breaks and tabs stay.

    >>> shown_text("Column \\x1b[2J\\nhas no rows.")
    'Column \\\\x1b[2J\\nhas no rows.'
    """
    return _IN_TEXT.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def stored(name: str) -> str:
    """The name of a parameter as a variable in a file. Different names stay different.

    A slash would be a path, control characters are not allowed, and "chain", "draw", "x_dim" and "x_dim_0" are names
    of dimensions. Such characters, or one character of such a name, become %XX as in a URL. A % that looks like that
    becomes %25.

    >>> stored("beta"), stored("a/b"), stored("a÷b"), stored("chain"), stored("50%"), stored("%2F")
    ('beta', 'a%2Fb', 'a÷b', '%63hain', '50%', '%252F')
    """
    kept = _PERCENT.sub("%25", name)
    kept = _CONTROL.sub(_percent, kept).replace("/", "%2F")
    if unicodedata.normalize("NFC", kept) != kept:  # netCDF treats names that look the same as equal
        kept = "".join(c if c.isascii() else _quote(c) for c in kept)
    kept = _OUTER.sub(_percent, kept)
    kept = _DIMENSION.sub(_percent, kept)
    if _TAKEN.match(kept):
        kept = _quote(kept[0]) + kept[1:]
    if len(kept.encode()) <= _LONGEST:
        return kept or _EMPTY
    # %7E appears nowhere else, so no other name becomes this one.
    start = kept.encode()[: _LONGEST // 2].decode(errors="ignore")
    return f"{start}%7E{hashlib.sha256(kept.encode()).hexdigest()[:32]}"


def axis_names(name: str, count: int) -> tuple[str, ...]:
    """Names of a parameter's axes, if the user gave none.

    >>> axis_names("beta", 1), axis_names("cov", 2)
    (('beta_dim',), ('cov_dim_0', 'cov_dim_1'))
    """
    return (f"{name}_dim",) if count == 1 else tuple(f"{name}_dim_{k}" for k in range(count))


def stored_axis(name: str) -> str:
    """The name of an axis as a dimension in a file; those that `axis_names` gives differ from all stored names.

    >>> stored_axis("a/b_dim"), stored_axis("a/b")
    ('a%2Fb_dim', 'a%2Fb')
    """
    found = _DIMENSION.search(name)
    return stored(name[: found.start()]) + name[found.start() :] if found else stored(name)


def _percent(found: re.Match[str]) -> str:
    return _quote(found[0])


def _quote(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))


def clash(
    shapes: Mapping[str, tuple[int, ...]], opaque: Mapping[str, int] | None = None
) -> tuple[str, str] | None:
    """Two names, the second of them also the label of an entry of the first, such as a vector `a` and `a[0]`; or None.

    Labels of entries are "a[0]", "a[1,2]". Coordinates of a parameter whose entries are not free are "a~0". Only a
    scalar can have the name of an entry: every other label has one more bracket.

    Parameters
    ----------
    shapes
        Name -> shape.
    opaque
        Names of parameters with their own coordinates -> how many.

    Examples
    --------
    >>> clash({"a": (2,), "a[0]": ()}), clash({"a": (2,), "a[2]": ()}), clash({"a": (2,), "a[0]": (2,)})
    (('a', 'a[0]'), None, None)
    """
    for name in (name for name, shape in shapes.items() if shape == ()):
        entry, coordinate = _ENTRY.fullmatch(name), _COORDINATE.fullmatch(name)
        if entry and entry["name"] in shapes:
            index, shape = [int(k) for k in entry["index"].split(",")], shapes[entry["name"]]
            if len(index) == len(shape) and all(k < n for k, n in zip(index, shape, strict=True)):
                return entry["name"], name
        if coordinate and int(coordinate["index"]) < (opaque or {}).get(coordinate["name"], 0):
            return coordinate["name"], name
    return None


def quoted_where_taken(names: Iterable[str], taken: Iterable[str]) -> tuple[str, ...]:
    """Names in backticks, as in formulas, where something else has the same name.

    >>> quoted_where_taken(["x", "Intercept"], ["Intercept"])
    ('x', '`Intercept`')
    """
    own = set(taken)
    return tuple(f"`{name}`" if name in own else name for name in names)
