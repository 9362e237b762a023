"""Effects of groups in a formula, such as (1 + x | region): how they are read from its text and from the rows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NotRequired, TypedDict, final

import numpy as np
import pandas as pd
import pyarrow as pa

from shardmc.data import Source
from shardmc.data.arrow import find_levels, labels, level_keys
from shardmc.errors import DataError, ModelError
from shardmc.formulas.chunk import Chunk
from shardmc.formulas.encoder import Encoder, StoredEncoder
from shardmc.formulas.spelling import without_terms

_OPEN, _CLOSE = "([{", ")]}"
DROP_MISSING = "drop them: drop_missing=True (--drop-missing on the command line)"
"""What to do with rows that have no group."""


@final
@dataclass(frozen=True)
class GroupTerm:
    """`(effects | factor)` as it is written: one factor each, so that `a/b` is two terms."""

    effects: str
    """The columns whose coefficients vary, such as "1 + x"."""
    columns: tuple[str, ...]
    """The columns whose values together name the group."""
    correlated: bool

    @property
    def factor(self) -> str:
        """The name of the factor, as R writes it."""
        return ":".join(self.columns)

    def __str__(self) -> str:
        return f"({self.effects} {'|' if self.correlated else '||'} {self.factor})"


def split_formula(text: str) -> tuple[str, list[GroupTerm]]:
    """A formula without its group terms, and these terms.

    >>> split_formula("y ~ x + (1 + x | school/class)")[0]
    'y ~ x'
    >>> [term.factor for term in split_formula("y ~ x + (1 + x | school/class)")[1]]
    ['school', 'school:class']
    >>> split_formula("y ~ (1 || g)")
    ('y ~ 1', [GroupTerm(effects='1', columns=('g',), correlated=False)])
    """
    if not isinstance(text, str) or "|" not in text:
        return text, []
    pieces, terms = [], []
    end = 0
    for start, stop, bar in _parenthesised(text):
        inside = text[start + 1 : stop]
        left, right = inside[: bar - start - 1], inside[bar - start - 1 :]
        pieces.append(text[end:start])
        terms += _terms(left.strip(), right, text)
        end = stop + 1
    if not terms:
        return text, []
    pieces.append(text[end:])
    refusal = f"In {text!r} a group term must be added with a plus sign, as in 'y ~ x + (1 | g)'."
    return without_terms(pieces, refusal), terms


def _parenthesised(text: str) -> Iterator[tuple[int, int, int]]:
    """Start and end of every pair of parentheses with a bar inside, and the place of the bar."""
    stack: list[tuple[int, bool]] = []
    quote, bars = "", {}
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "`'\"":
            quote = sign
        elif sign in _OPEN:
            called = bool(re.search(r"[\w.`\])]\s*$", text[:place]))
            stack.append((place, called or sign != "("))
        elif sign in _CLOSE and stack:
            start, inner = stack.pop()
            if start in bars:
                if inner or stack:
                    where = "a function" if inner else "other parentheses"
                    raise ModelError(
                        f"In {text!r} the bar | stands inside {where}; add a group term as in 'y ~ x + (1 | g)'."
                    )
                yield start, place, bars[start]
        elif sign == "|" and stack:
            bars.setdefault(stack[-1][0], place)


def _terms(effects: str, right: str, text: str) -> list[GroupTerm]:
    match = re.fullmatch(r"(\|\|?)(.*)", right, re.DOTALL)
    assert match is not None
    factor = match[2].strip()
    name = r"\s*(`[^`]+`|[^\W\d][\w.]*)\s*"
    if not effects or not re.fullmatch(rf"{name}(?:[/:]{name})*", factor):
        raise ModelError(
            f"The group term ({effects} {right.strip()}) of {text!r} is not understood: write (1 | g), (1 + x | g), "
            "(1 + x || g), (1 | a:b) or (1 | a/b), with names of columns after the bar."
        )
    parts = re.split(r"([/:])", factor)
    columns: list[str] = []
    found: list[tuple[str, ...]] = []
    for sign, column in zip(["", *parts[1::2]], parts[0::2], strict=True):
        if sign == "/":
            found.append(tuple(columns))
        columns.append(column.strip().strip("`"))
    found.append(tuple(columns))
    return [GroupTerm(effects, each, match[1] == "|") for each in found]


class StoredVarying(TypedDict):
    """A `Varying` as JSON can hold it."""

    encoder: StoredEncoder | None
    has_intercept: bool
    sds: list[float]
    correlated: bool


class StoredFactor(TypedDict):
    """A `Factor` as JSON can hold it."""

    labels: NotRequired[list[str]]
    columns: list[str]
    varying: list[StoredVarying]
    integrated: bool
    standardised: bool
    levels: str
    """A hash of the levels."""


@final
@dataclass(frozen=True)
class Varying:
    """Effects that vary together: columns with a coefficient of their own in every group."""

    encoder: Encoder | None
    """None if only the intercept varies."""
    has_intercept: bool
    sds: np.ndarray  # (column,) standard deviations of the columns, by which they are divided
    correlated: bool

    @property
    def names(self) -> tuple[str, ...]:
        return (
            *(("Intercept",) if self.has_intercept else ()),
            *(self.encoder.names if self.encoder else ()),
        )

    def matrix(self, chunk: Chunk, count: int) -> np.ndarray:
        """The columns, in units of their standard deviations, (row, effect)."""
        parts = [np.ones((count, 1))] if self.has_intercept else []
        if self.encoder is not None:
            parts.append(self.encoder.matrix(chunk) / self.sds)
        return np.concatenate(parts, axis=1)

    @property
    def units(self) -> np.ndarray:
        """Units of the columns, (effect,)."""
        return np.concatenate([np.ones(int(self.has_intercept)), self.sds])

    def to_dict(self) -> StoredVarying:
        return {
            "encoder": None if self.encoder is None else self.encoder.to_dict(),
            "has_intercept": self.has_intercept,
            "sds": self.sds.tolist(),
            "correlated": self.correlated,
        }

    @staticmethod
    def from_dict(stored: StoredVarying) -> Varying:
        encoder = stored["encoder"]
        return Varying(
            None if encoder is None else Encoder.from_dict(encoder),
            stored["has_intercept"],
            np.asarray(stored["sds"], np.float64),
            stored["correlated"],
        )


@final
@dataclass(frozen=True)
class Factor:
    """A grouping factor: the columns that name a group, the effects of its groups, and its levels."""

    columns: tuple[str, ...]
    varying: tuple[Varying, ...]
    integrated: bool
    """Whether its effects are integrated out. Otherwise they are parameters."""
    levels: pd.Index = field(compare=False, repr=False)
    counts: np.ndarray = field(compare=False, repr=False)  # (level,) rows
    standardised: bool = False
    """Whether parameters are effects divided by their sd: better where the rows say little about the effects."""

    @property
    def name(self) -> str:
        return ":".join(self.columns)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The levels as text."""
        return labels(self.levels)

    @property
    def effects(self) -> tuple[str, ...]:
        """Names of the effects of a group."""
        return tuple(name for each in self.varying for name in each.names)

    @property
    def units(self) -> np.ndarray:
        return np.concatenate([each.units for each in self.varying])

    @property
    def only_intercept(self) -> bool:
        return self.effects == ("Intercept",)

    @cached_property
    def correlated(self) -> tuple[tuple[int, int], ...]:
        """(first, number) of the effects of each correlated set of more than one."""
        found, start = [], 0
        for each in self.varying:
            if each.correlated and len(each.names) > 1:
                found.append((start, len(each.names)))
            start += len(each.names)
        return tuple(found)

    @property
    def sd_names(self) -> tuple[str, ...]:
        return tuple(f"sd_{self.name}__{effect}" for effect in self.effects)

    @property
    def correlation_names(self) -> tuple[str, ...]:
        """Names of the correlations, by rows of the lower triangle of each correlated set."""
        return tuple(
            f"cor_{self.name}__{self.effects[first + j]}__{self.effects[first + i]}"
            for first, number in self.correlated
            for i in range(number)
            for j in range(i)
        )

    def codes(self, table: pa.Table, *, strict: bool = True) -> np.ndarray:
        """The numbers of the rows' groups. An unknown group is an error, or -1 if not `strict`."""
        found = self.levels.get_indexer(level_keys(table, self.columns))
        if strict and (found < 0).any():
            raise DataError(f"The groups of {self.name!r} changed while the rows were read; run again.")
        return found.astype(np.int32)

    def matrix(self, chunk: Chunk, count: int) -> np.ndarray:
        return np.concatenate([each.matrix(chunk, count) for each in self.varying], axis=1)

    @cached_property
    def levels_hash(self) -> str:
        return hashlib.sha256("\x1f".join(map(str, self.levels)).encode()).hexdigest()[:16]

    def to_dict(self) -> StoredFactor:
        """As JSON can hold it: with labels only if the effects are parameters, because others may be very many."""
        stored: StoredFactor = {
            "columns": list(self.columns),
            "varying": [each.to_dict() for each in self.varying],
            "integrated": self.integrated,
            "standardised": self.standardised,
            "levels": self.levels_hash,
        }
        if not self.integrated:
            stored["labels"] = list(self.labels)
        return stored

    @staticmethod
    def from_dict(stored: StoredFactor) -> Factor:
        """The factor that `to_dict` wrote, without levels if they are integrated out."""
        varying = tuple(Varying.from_dict(each) for each in stored["varying"])
        labels = pd.Index(stored.get("labels", ()), dtype=object)
        return Factor(
            tuple(stored["columns"]),
            varying,
            stored["integrated"],
            labels,
            np.zeros(0, np.int64),
            stored["standardised"],
        )


def find_factors(
    terms: Sequence[GroupTerm], varying: Sequence[Varying], source: Source
) -> tuple[Factor, ...]:
    """The grouping factors of a formula: the one with the most levels is integrated out."""
    grouped: dict[tuple[str, ...], list[Varying]] = {}
    for term, each in zip(terms, varying, strict=True):
        grouped.setdefault(term.columns, []).append(each)
    found = {columns: find_levels(source, columns, DROP_MISSING) for columns in grouped}
    most = max(found, key=lambda columns: len(found[columns][0]))
    return tuple(
        Factor(columns, _independent(each), columns == most, *found[columns])
        for columns, each in grouped.items()
    )


_CLEAR = 10.0
"""The ratio of variances, between and within levels, above which rows say far more about effects than their sd does."""


def says_little(factor: Factor, pieces: Iterable[tuple[pa.Table, np.ndarray]]) -> bool:
    """Whether the rows of a factor's levels differ little in their response; `pieces` are tables and responses."""
    count = np.zeros(len(factor.levels))
    total, squares = np.zeros_like(count), 0.0
    for table, response in pieces:
        codes = factor.codes(table)
        count += np.bincount(codes, minlength=len(count))
        total += np.bincount(codes, response, minlength=len(count))
        squares += float(response @ response)
    mean = total / count
    between = count @ (mean - total.sum() / count.sum()) ** 2 / (len(count) - 1)
    within = (squares - count @ mean**2) / max(count.sum() - len(count), 1)
    return bool(between < _CLEAR * within)


def _independent(varying: Sequence[Varying]) -> tuple[Varying, ...]:
    names = [name for each in varying for name in each.names]
    for name in names:
        if names.count(name) > 1:
            raise ModelError(
                f"The effect {name!r} varies twice by the same factor; leave it out of one group term."
            )
    return tuple(varying)
