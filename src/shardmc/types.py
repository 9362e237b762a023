"""The values that pass between the stages: frames, modes, draws, combinations, findings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike

from shardmc.errors import OptionError

Tree: TypeAlias = Any
"""A pytree of arrays."""
Rows: TypeAlias = Tree
"""A pytree of arrays with a common first axis, one entry per row."""
Structure: TypeAlias = object
"""The structure of a pytree: JAX's PyTreeDef, a class that type checkers do not know."""
Params: TypeAlias = Mapping[str, Any]
"""Values of parameters by name: arrays."""
RowValues: TypeAlias = ArrayLike | str | None
"""One value for each row, or the name of a column."""
Data: TypeAlias = object
"""Rows as a user gives them: arrays, a table, or the path or URL of a file."""


@overload
def plain(value: Mapping[str, object]) -> dict[str, object]: ...
@overload
def plain(value: object) -> object: ...
def plain(value: object) -> object:
    """A value as JSON can hold it: arrays, tuples and mappings become lists and dicts, at any depth.

    >>> plain({"a": np.arange(2), "b": (1, np.float64(0.5))})
    {'a': [0, 1], 'b': [1, 0.5]}
    """
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


Scaling = Literal["rescaled", "fractional"]
"""Which subposterior of a shard: its likelihood rescaled to all rows, or its share of the posterior."""


@dataclass(frozen=True)
class Frame:
    """Coordinates u of the parameters: theta = center + basis @ u, with u about standard normal."""

    center: np.ndarray  # (dim,)
    basis: np.ndarray  # (dim, dim)

    @property
    def dim(self) -> int:
        return len(self.center)

    def to_theta(self, u: np.ndarray) -> np.ndarray:
        """Map coordinates (..., dim) to parameters (..., dim)."""
        return self.center + u @ self.basis.T

    def moved(self, u: np.ndarray) -> Frame:
        """The same coordinates with their origin at the point u."""
        return Frame(self.to_theta(u), self.basis)

    @staticmethod
    def identity(dim: int) -> Frame:
        return Frame(np.zeros(dim), np.eye(dim))

    @staticmethod
    def at(center: np.ndarray, curvature: np.ndarray) -> Frame:
        """The frame in which a Gaussian with that mode and curvature H = L L^T is standard: basis = L^-T."""
        lower = np.linalg.cholesky(curvature)
        return Frame(center, np.linalg.inv(lower).T)


@dataclass(frozen=True)
class Mode:
    """The maximum of the posterior of all rows, and its curvature (minus the Hessian) there."""

    theta: np.ndarray  # (dim,)
    curvature: np.ndarray  # (dim, dim)
    decrement: float
    """Newton decrement sqrt(g^T H^-1 g): the error of the mode in posterior standard deviations."""
    passes: float
    """How many passes over all rows it took."""
    shard_starts: np.ndarray | None = field(default=None, repr=False, compare=False)
    """The end of one Newton step on the rescaled subposterior of each shard, (shard, dim), if it is known."""
    shard_curvatures: np.ndarray | None = field(default=None, repr=False, compare=False)
    """The shards' curvatures at the mode, (shard, dim, dim), if they are costly and later steps need them."""
    shard_terms: ShardTerms | None = field(default=None, repr=False, compare=False)
    """The last terms that were computed, if they were of all shards: later steps need not compute them again."""

    @cached_property
    def frame(self) -> Frame:
        return Frame.at(self.theta, self.curvature)


@dataclass(frozen=True, eq=False)
class ShardTerms:
    """Gradients and curvatures of the shards' rescaled subposteriors at a point, without kept rows."""

    point: np.ndarray  # (dim,) as the device had it, in its precision
    gradients: np.ndarray  # (shard, dim)
    curvatures: np.ndarray  # (shard, dim, dim)


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of the log posterior of all rows at some points."""

    values: np.ndarray  # (point, dim)
    noise: np.ndarray | None = None  # (sampled shard, point, dim)
    """The uncertainty if only some shards were read: their deviations from their mean, scaled so that the variance of
    a linear function of the gradients is the sum of its squares over these shards."""
    more: Callable[[], Gradients] | None = None
    """Reads further shards at the same points. Once all shards are read, nothing is uncertain."""


@dataclass(frozen=True)
class Located:
    """The mode of all rows, and the modes and curvatures of the shards' rescaled subposteriors."""

    mode: Mode
    shard_modes: np.ndarray  # (shard, dim); rows of shards without a mode are NaN
    shard_curvatures: np.ndarray  # (shard, dim, dim), likewise
    found: np.ndarray  # (shard,) bool: converged to a mode with positive definite curvature
    passes: float = 0.0
    """How many passes over all rows the shards' modes took."""

    @property
    def num_shards(self) -> int:
        return len(self.shard_modes)

    def subset(self, shards: np.ndarray) -> Located:
        """The same for some shards."""
        return Located(self.mode, self.shard_modes[shards], self.shard_curvatures[shards], self.found[shards])


@dataclass(frozen=True)
class ShardDraws:
    """Draws of every shard's subposterior on the unconstrained scale. Shards may have different numbers of draws."""

    values: tuple[np.ndarray, ...]  # one (draw, dim) float64 array per shard
    shares: np.ndarray  # (shard,), sums to 1
    scaling: Scaling = "rescaled"

    @staticmethod
    def of(
        values: Sequence[np.ndarray] | np.ndarray,
        shares: np.ndarray | None = None,
        scaling: Scaling = "rescaled",
    ) -> ShardDraws:
        """Draws from arrays of shape (draw, dim), one per shard. Shares are equal by default."""
        arrays = tuple(np.asarray(v, dtype=np.float64) for v in values)
        if not arrays:
            raise OptionError("There are no shards to combine.")
        for shard, array in enumerate(arrays):
            if array.ndim != 2:
                raise OptionError(
                    f"Draws of shard {shard} have shape {array.shape}; the shape must be (draw, dim), even if dim is 1."
                )
            if array.shape[1] != arrays[0].shape[1]:
                raise OptionError(
                    f"Draws of shard {shard} have {array.shape[1]} columns, those of shard 0 have {arrays[0].shape[1]}."
                )
            if len(array) == 0:
                raise OptionError(f"Shard {shard} has no draws. Leave it out.")
            if not np.isfinite(array).all():
                raise OptionError(
                    f"Draws of shard {shard} hold {int((~np.isfinite(array)).sum())} values that are not finite."
                )
        share = (
            np.full(len(arrays), 1 / len(arrays)) if shares is None else np.asarray(shares, dtype=np.float64)
        )
        if share.shape != (len(arrays),) or not (np.isfinite(share) & (share > 0)).all():
            given = np.array2string(share, threshold=10, precision=4)
            raise OptionError(f"shares must be {len(arrays)} positive numbers, one per shard, not {given}.")
        return ShardDraws(arrays, share / share.sum(), scaling)

    @property
    def num_shards(self) -> int:
        return len(self.values)

    @property
    def dim(self) -> int:
        return self.values[0].shape[1]

    @cached_property
    def means(self) -> np.ndarray:
        """Mean of each shard's draws, (shard, dim)."""
        return np.stack([v.mean(axis=0) for v in self.values])

    @cached_property
    def covariances(self) -> np.ndarray:
        """Covariance (ddof 1) of each shard's draws, (shard, dim, dim); zero for a single draw."""
        return np.stack(
            [np.atleast_2d(np.cov(v.T)) if len(v) > 1 else np.zeros((self.dim,) * 2) for v in self.values]
        )


@dataclass(frozen=True)
class Combined:
    """Draws of the full posterior from a combiner, with notes for the user."""

    values: np.ndarray  # (draw, dim)
    shard: np.ndarray | None = None  # (draw,) the shard each draw came from, if it came from one
    notes: tuple[str, ...] = ()


class Combiner(ABC):
    """Turns shards' draws (and modes) into draws of the full posterior. Pure: arrays in, arrays out."""

    scaling: Scaling = "rescaled"
    """The kind of subposteriors that it combines."""
    pools: bool = True
    """Whether each output draw comes from one shard, so that T draws of K shards make about K T draws."""
    space: Literal["unconstrained", "natural"] = "unconstrained"
    """The scale of the parameters that it works on."""

    def settled(self, draws: ShardDraws, newton: Callable[[np.ndarray, int], np.ndarray]) -> Combiner:
        """The combiner after it has used the rows: `newton(start, steps)` takes Newton steps on the full posterior."""
        return self

    @abstractmethod
    def __call__(self, draws: ShardDraws, located: Located | None, rng: np.random.Generator) -> Combined:
        """Combine the shards' draws."""


@dataclass(frozen=True)
class Finding:
    """One thing a check found: how serious it is, what it is, what to do about it, and the numbers behind it."""

    level: Literal["note", "warning", "error"]
    check: str
    message: str
    advice: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


class Progress(Protocol):
    """Reports progress: `done` of `total` steps of a named stage are finished."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...
