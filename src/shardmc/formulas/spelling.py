"""Parts of a formula that are options here: offset(...) among the terms, and cbind(...) or c(...) on the left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar, final

from shardmc.errors import ModelError, OptionError
from shardmc.formulas.expression import parse_expression
from shardmc.formulas.families import Family, families_with
from shardmc.formulas.formula import LONGEST

T = TypeVar("T")
_NAME = re.compile(r"`[^`]+`|[A-Za-z_]\w*")
_COLUMN = rf"\s*({_NAME.pattern})\s*"


@final
@dataclass(frozen=True)
class Spelled:
    """A formula without the parts that are options, and these options."""

    text: str
    offset: str | None = None
    trials: str | None = None

    @property
    def columns(self) -> list[str]:
        """Columns that the options read, which `.` does not stand for."""
        given = (self.offset, self.trials)
        return [name for text in given if text is not None for name in parse_expression(text).columns]


def read_spelling(text: str) -> Spelled:
    """Separate offset(...) and cbind(...) from a formula, as R has them.

    >>> read_spelling("y ~ x + offset(log(z))")
    Spelled(text='y ~ x', offset='log(z)', trials=None)
    >>> read_spelling("cbind(s, f) ~ x")
    Spelled(text='s ~ x', offset=None, trials='(s) + (f)')
    """
    left, tilde, right = text.partition("~") if isinstance(text, str) else (text, "", "")
    if not tilde or len(text) > LONGEST:
        return Spelled(text)
    trials = None
    for start, stop, inside in _calls(left, "cbind"):
        parts = [part.strip() for part in _split(inside)]
        if len(parts) != 2 or not all(parts) or left[:start].strip() or left[stop:].strip():
            raise ModelError("cbind needs two columns, as in 'cbind(successes, failures) ~ x'.")
        left = parts[0] if _NAME.fullmatch(parts[0]) else f"I({parts[0]})"
        trials = f"({parts[0]}) + ({parts[1]})"
    pieces, offsets, end = [], [], 0
    for start, stop, inside in _calls(right, "offset"):
        pieces.append(right[end:start])
        offsets.append(inside.strip())
        end = stop
    if not offsets and trials is None:
        return Spelled(text)
    pieces.append(right[end:])
    pieces[0] = f"{left.strip()} ~{pieces[0]}"
    advice = f"In {text!r} an offset must be added with a plus sign, as in 'y ~ x + offset(log(z))'."
    offset = offsets[0] if len(offsets) == 1 else " + ".join(f"({each})" for each in offsets)
    return Spelled(without_terms(pieces, advice), offset or None, trials)


def refuse_cbind(spelled: Spelled, family: Family) -> None:
    """Refuse cbind(...) for families without trials."""
    if spelled.trials is not None and not family.takes_trials:
        raise OptionError(
            f"cbind(successes, failures) belongs to family {families_with('takes_trials')}, not to {family.name!r}."
        )


def split_counts(text: str) -> tuple[str, tuple[str, ...]]:
    """The formula with the first column alone as its response, and all the columns of counts.

    >>> split_counts("c(bus, car, foot) ~ age")
    ('bus ~ age', ('bus', 'car', 'foot'))
    """
    found = re.match(rf"\s*(?:c|cbind)\(({_COLUMN}(?:,{_COLUMN})*)\)\s*~", text)
    columns = re.findall(_COLUMN, found[1]) if found else []
    if found is None or len(columns) < 3:
        raise ModelError(
            "Family 'multinomial' needs the columns with the counts of three or more levels, as in "
            "'c(bus, car, foot) ~ age'; for two take family 'binomial'."
        )
    if len(set(columns)) < len(columns):
        raise ModelError(f"The counts {found[1].strip()} name a column twice; leave one of them out.")
    return f"{columns[0]} ~{text[found.end() :]}", tuple(name.strip("`") for name in columns)


def one_of(option: str, in_formula: str | None, given: T | None) -> T | str | None:
    """An option from the formula or from the call; both are refused."""
    if in_formula is not None and given is not None:
        raise OptionError(f"{option} is given twice, in the formula and as {option}=: leave one of them out.")
    return given if in_formula is None else in_formula


def without_terms(pieces: Sequence[str], refusal: str) -> str:
    """A formula from what is around terms that were taken out; one of the signs around each goes too."""
    fixed = pieces[0]
    for piece in pieces[1:]:
        before, after = fixed.rstrip(), piece.lstrip()
        if after and after[0] not in "+-":
            raise ModelError(refusal)
        if before.endswith("+"):
            fixed = f"{before[:-1].rstrip()} {after}" if after else before[:-1].rstrip()
        elif not before.endswith("~"):
            raise ModelError(refusal)
        else:
            fixed = f"{before} {after[1:].lstrip()}" if after.startswith("+") else f"{before} 1 {after}"
    return fixed.strip()


def _calls(text: str, function: str) -> Iterator[tuple[int, int, str]]:
    """Calls of a function outside all parentheses: start, end, and what is inside its own."""
    depths = _depths(text)
    for match in re.finditer(rf"(?<![\w.`]){function}\s*\(", text):
        if depths[match.start()] > 0:
            continue
        stop = next((k for k in range(match.end(), len(depths)) if depths[k] == 0), None)
        if stop is not None:
            yield match.start(), stop, text[match.end() : stop - 1]


def _split(text: str) -> list[str]:
    """A text at its commas outside of parentheses."""
    depths = _depths(text)
    ends = [-1, *(k for k, sign in enumerate(text) if sign == "," and depths[k] == 0), len(text)]
    return [text[a + 1 : b] for a, b in pairwise(ends)]


def _depths(text: str) -> list[int]:
    """How many parentheses are open before each character and at the end; a large number inside quotes."""
    depths, quote, depth = [0], "", 0
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "`'\"":
            quote = sign
        else:
            depth += (sign in "([{") - (sign in ")]}")
        depths.append(len(text) if quote else depth)
    return depths
