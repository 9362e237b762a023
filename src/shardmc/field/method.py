"""What a subsampling method is: a Markov chain on the posterior of all rows that reads few rows per step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from shardmc.errors import OptionError
from shardmc.field.rows import RowPosterior


class Tuned(NamedTuple):
    """Numbers that a method chose before it starts."""

    values: Any
    """A pytree of arrays for `step`."""
    thin: int
    """Steps per draw."""
    evaluations: int = 0
    """Rows that were evaluated to find them."""
    notes: tuple[str, ...] = ()


class Stepped(NamedTuple):
    """One step of a chain."""

    evaluations: jax.Array  # () rows whose log-likelihood or gradient was evaluated
    acceptance: jax.Array  # () 1 if the proposal was accepted; always 1 for methods without one


class Subsampler(ABC):
    """A chain in coordinates in which the posterior is about standard normal. Implementations are frozen dataclasses.

    The chain's state is a pytree whose first entry is the position.
    """

    needs_expansion: ClassVar[bool] = False
    """Whether it uses gradient and Hessian of all rows at the mode, which take one pass."""
    together: ClassVar[bool] = True
    """Whether chains advance together. If their steps take different numbers of rows, they run one after another."""
    advice: ClassVar[str]
    """What to do if the draws are off."""

    minibatch: int
    chains: int
    warmup: int

    @abstractmethod
    def tune(self, posterior: RowPosterior, key: jax.Array) -> Tuned:
        """Choose step sizes and the like."""

    @abstractmethod
    def start(self, u: jax.Array) -> tuple[jax.Array, ...]:
        """The state of a chain at u."""

    @abstractmethod
    def step(
        self, posterior: RowPosterior, values: Any, key: jax.Array, state: Any
    ) -> tuple[tuple[jax.Array, ...], Stepped]:
        """The next state."""


def check_counts(method: object, **least: int) -> None:
    """Refuse options of a method that are not whole numbers from their least value on."""
    for name, smallest in least.items():
        value = getattr(method, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < smallest:
            kind = type(method).__name__
            raise OptionError(f"{name} of {kind} must be a whole number from {smallest}, not {value!r}.")


def check_range(method: object, name: str, low: float, high: float) -> None:
    """Refuse an option of a method that does not lie strictly between two numbers."""
    value = getattr(method, name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < high:
        limit = f"must be above {low:g}" if np.isinf(high) else f"must lie between {low:g} and {high:g}"
        raise OptionError(f"{name} of {type(method).__name__} {limit}; {value!r} was given.")
