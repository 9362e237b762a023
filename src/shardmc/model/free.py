"""Which entries of a constrained value are free, and how they determine the rest of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

Kind = Literal["all", "simplex", "zero_sum", "symmetric", "lower", "correlation", "corr_cholesky", "opaque"]

KINDS: dict[str, Kind] = {
    "_Simplex": "simplex",
    "_ZeroSum": "zero_sum",
    "_PositiveDefinite": "symmetric",
    "_PositiveSemiDefinite": "symmetric",
    "_LowerCholesky": "lower",
    "_SoftplusLowerCholesky": "lower",
    "_ScaledUnitLowerCholesky": "lower",
    "_CorrMatrix": "correlation",
    "_CorrCholesky": "corr_cholesky",
}
"""NumPyro's constraint (its type) -> the structure of its values."""


@final
@dataclass(frozen=True, eq=False)
class FreeEntries:
    """The free entries of a value of some shape: a simplex without its last entry, the lower triangle of a matrix.

    As many of them as there are unconstrained coordinates, so that their covariance can be inverted; a support
    whose structure is not known ("opaque") takes all its entries instead.
    """

    kind: Kind
    shape: tuple[int, ...]  # of the natural value
    event: tuple[int, ...]  # its last axes, over which the structure extends
    positions: np.ndarray  # (free,) in the flattened event

    @staticmethod
    def of(constraint: Any, shape: tuple[int, ...], unconstrained_shape: tuple[int, ...]) -> FreeEntries:
        """The free entries of values of that shape under a NumPyro constraint (None: real)."""
        base = constraint
        while hasattr(base, "base_constraint"):
            base = base.base_constraint
        kind = KINDS.get(type(base).__name__, "all")
        if kind == "all" and math.prod(shape) != math.prod(unconstrained_shape):
            kind = "opaque"
        event_dim = 0 if kind in ("all", "opaque") else int(base.event_dim)
        event = shape[len(shape) - event_dim :]
        return FreeEntries(kind, shape, event, _positions(kind, event))

    @property
    def batch(self) -> tuple[int, ...]:
        return self.shape[: len(self.shape) - len(self.event)]

    @property
    def size(self) -> int:
        """How many entries are free."""
        return math.prod(self.batch) * len(self.positions)

    def take(self, values: np.ndarray) -> np.ndarray:
        """Free entries (draw, free) of natural values (draw, *shape)."""
        flat = values.reshape(len(values), math.prod(self.batch), math.prod(self.event))
        return flat[:, :, self.positions].reshape(len(values), self.size)

    def complete(self, free: np.ndarray) -> np.ndarray:
        """Natural values (draw, *shape) from their free entries; NaN where there is none, by the support or not."""
        draws, batch = len(free), math.prod(self.batch)
        free = free.reshape(draws, batch, len(self.positions))
        flat = np.zeros((draws, batch, math.prod(self.event)))
        flat[:, :, self.positions] = free
        values = flat.reshape(draws, batch, *self.event)
        match self.kind:
            case "simplex":
                values[..., -1] = 1 - values[..., :-1].sum(-1)
            case "zero_sum":
                for axis in range(2, values.ndim):
                    rest = values.sum(axis=axis)
                    np.moveaxis(values, axis, -1)[..., -1] = -rest
            case "symmetric" | "correlation":
                diagonal = np.arange(self.event[-1])
                values += np.swapaxes(np.tril(values, -1), -1, -2)
                if self.kind == "correlation":
                    values[..., diagonal, diagonal] = 1
            case "corr_cholesky":
                diagonal = np.arange(self.event[-1])
                with np.errstate(invalid="ignore"):
                    values[..., diagonal, diagonal] = np.sqrt(1 - (values**2).sum(-1))
            case "all" | "opaque" | "lower":
                pass
        return values.reshape(draws, *self.shape)

    def labels(self, name: str) -> list[str]:
        """Names of the free entries: "sigma", "beta[0]", "cov[1,0]"."""
        if not self.shape:
            return [name]
        batches = list(np.ndindex(*self.batch)) if self.batch else [()]
        within = [np.unravel_index(p, self.event) if self.event else () for p in self.positions]
        return [f"{name}[{','.join(str(int(i)) for i in (*b, *w))}]" for b in batches for w in within]


def _positions(kind: Kind, event: tuple[int, ...]) -> np.ndarray:
    """Positions of the free entries in the flattened event, in the order of NumPyro's unconstrained vectors."""
    if kind in ("all", "opaque"):
        return np.zeros(1, dtype=int)
    index = np.arange(math.prod(event)).reshape(event)
    if kind in ("simplex", "zero_sum"):
        return index[tuple(slice(n - 1) for n in event)].ravel()
    below = index[np.tril_indices(event[-1], -1)]
    return below if kind in ("correlation", "corr_cholesky") else np.concatenate([below, np.diagonal(index)])
