"""What a reproduced result consists of: text, tables, figures, claims, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class Table:
    """A table as it is shown: one text per entry."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure and how to draw it."""

    name: str
    caption: str
    draw: Callable[[], Canvas]


@dataclass(frozen=True)
class Claim:
    """A sentence that the numbers support or do not."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Result:
    """One table or figure of the paper, recomputed."""

    name: str
    title: str
    text: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    claims: tuple[Claim, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Settings and raw values, for the JSON file."""


@dataclass(frozen=True)
class Call:
    """How a result is to be recomputed: the small version or the full one, from which seed, and who is told."""

    quick: bool = False
    seed: int = 0
    covtype: str | None = None
    tell: Callable[[int, int], None] = lambda done, total: None
    """Called with the number of finished steps and their total."""

    def choose(self, full: Any, quick: Any) -> Any:
        """The setting of the full version, or that of the quick one."""
        return quick if self.quick else full


def scientific(value: float | None) -> str:
    """A number in three digits, as tables show it.

    >>> scientific(0.000103)
    '1.03e-04'
    """
    if value is None:
        return "–"
    return f"{value:.2e}" if value == 0 or not 0.01 <= abs(value) < 1000 else f"{value:.3g}"
