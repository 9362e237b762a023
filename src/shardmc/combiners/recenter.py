"""The paper's combination and its refinements: move every shard's draws to the full posterior and pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final, get_args

import numpy as np

from shardmc.combiners.moments import (
    VaryingDirections,
    clean_covariances,
    inflation,
    invertible_covariances,
    is_singular,
    listed_shards,
    pool,
    precisions,
    regularized,
    symmetric,
    transport,
)
from shardmc.errors import OptionError, unknown
from shardmc.types import Combined, Combiner, Located, ShardDraws

Center = Literal["auto", "mean", "precision", "balanced", "newton", "mode"]
Scale = Literal["auto", "none", "curvature", "draws"]
Spread = Literal["precision", "covariance"]

_SOURCE = {"none": None, "curvature": "mode", "draws": "draws"}
"""What the matrix of a shard is computed from."""


@final
@dataclass(frozen=True)
class Recenter(Combiner):
    """Move each shard's draws by theta -> c + A_i (theta - c_i), and pool them in proportion to the shares.

    Parameters
    ----------
    center
        From where (c_i) to where (c) the draws are moved.

        - "mean": from the mean of the shard's draws to the share-weighted mean of those means (Algorithm 1).
        - "precision": from the mean to the precision-weighted mean of the means, V sum a_i P_i m_i with
          V = (sum a_i P_i)^-1 (SwISS). It is exact for normal subposteriors.
        - "balanced": from the mean to a point between these two, where the errors that skewness gives them cancel
          (see `precision_weighted_mean`).
        - "newton": from the mean to the mode of all rows (Remark 1).
        - "mode": from the shard's mode to the mode of all rows. This keeps the difference between mean and mode
          that skewness causes.
        - numbers: from the mean to that point.
        - "auto": "mode" if modes are known, otherwise "balanced". On the natural scale it is "mean" instead of
          "balanced", because the spread often depends on the mean there, and precision weights would be biased.
    scale
        The matrix A_i: "none", the identity; "curvature", takes the inverse curvature at the shard's mode to
        that at the mode of all rows; "draws", takes the covariance of the shard's draws to the one named by
        `spread`; "auto", "curvature" if modes are known, otherwise "draws".
    spread
        The covariance aimed at with scale="draws": "precision", (sum a_i S_i^-1)^-1, or "covariance", the
        average sum a_i S_i.
    small_sample
        Undo the shrinkage by (T - 1) / T that recentring at the mean of T draws brings, and the bias of
        inverse covariances. False gives the algorithms as printed.
    space
        The scale of the parameters that the draws are on. Modes belong to the unconstrained scale.
    steps
        With center="newton", the number of Newton steps from the share-weighted mean of the means, as in the
        paper's examples, instead of the mode itself. Only `fit` can take them, as it has the rows.

    Notes
    -----
    With center="mode" and scale="curvature" a shard without a mode is matched to the mean and covariance of
    the other shards' moved draws. If no shard has one, center="auto" uses "newton" and scale="auto" uses "draws";
    "mode" and "curvature" are refused.

    Examples
    --------
    >>> draws = ShardDraws.of([[[0.0], [1.0]], [[4.0], [5.0]]])
    >>> Recenter.algorithm_1()(draws, None, np.random.default_rng(0)).values.ravel()
    array([2., 3., 2., 3.])
    """

    center: Center | Sequence[float] | np.ndarray = "auto"
    scale: Scale = "auto"
    spread: Spread = "precision"
    small_sample: bool = True
    space: Literal["unconstrained", "natural"] = "unconstrained"
    steps: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.center, str):
            if self.center not in get_args(Center):
                raise unknown("center of Recenter", self.center, get_args(Center))
        else:
            point = np.atleast_1d(np.asarray(self.center, dtype=np.float64))
            if point.ndim != 1 or not np.isfinite(point).all():
                raise OptionError("center of Recenter must be a name or finite numbers, one per parameter.")
            object.__setattr__(self, "center", tuple(point.tolist()))
        for name, given, kind in (("scale", self.scale, Scale), ("spread", self.spread, Spread)):
            if given not in get_args(kind):
                raise unknown(f"{name} of Recenter", given, get_args(kind))
        if self.space not in ("unconstrained", "natural"):
            raise unknown("space of Recenter", self.space, ("unconstrained", "natural"))
        if self.space == "natural" and (self.center in ("newton", "mode") or self.scale == "curvature"):
            raise OptionError(
                "Modes and curvatures are on the unconstrained scale: with space='natural' use "
                "center='mean', 'precision' or numbers, and scale='none' or 'draws'."
            )
        if self.steps is not None and (self.center != "newton" or self.steps < 0):
            raise OptionError(
                f'steps of Recenter must be a number from 0, and needs center="newton"; steps={self.steps!r} and '
                f"center={self.center!r} were given."
            )

    def settled(self, draws: ShardDraws, newton: Callable[[np.ndarray, int], np.ndarray]) -> Recenter:
        """With `steps`, the centre that these Newton steps reach from the mean of the shards' means."""
        if self.steps is None:
            return self
        return replace(self, center=newton(draws.shares @ draws.means, self.steps), steps=None)

    @staticmethod
    def algorithm_1(space: Literal["unconstrained", "natural"] = "unconstrained") -> Recenter:
        """Algorithm 1 of the paper as printed: means to the mean of means, no scaling, no correction."""
        return Recenter("mean", "none", small_sample=False, space=space)

    @staticmethod
    def swiss() -> Recenter:
        """SwISS (Vyner, Nemeth, Sherlock): affine from the draws, to the precision-weighted mean."""
        return Recenter("precision", "draws", spread="precision")

    def __call__(self, draws: ShardDraws, located: Located | None, rng: np.random.Generator) -> Combined:
        """Combine draws of the rescaled subposteriors; `rng` is not used."""
        if self.steps is not None:
            raise OptionError("Newton steps need the rows: use shardmc.fit, or give the centre as numbers.")
        located = None if self.space == "natural" else located
        center, scale, notes = self._resolve(draws, located)
        origins, target, center_notes = self._centers(center, draws, located)
        maps, map_notes = self._maps(scale, draws, located)
        about_mean = self.small_sample and center != "mode"
        moved = []
        for v, origin, matrix in zip(draws.values, origins, maps, strict=True):
            factor = inflation(len(v)) if about_mean else 1.0
            deviation = factor * (v - origin) if matrix is None else (v - origin) @ (factor * matrix.T)
            deviation += target
            moved.append(deviation)
        if located is not None and "mode" in (center, _SOURCE[scale]) and not located.found.all():
            moved = _match_to_others(draws, moved, located.found, rescale=scale != "none")
        pooled, shard, pool_notes = pool(moved, draws.shares)
        return Combined(pooled, shard, tuple(dict.fromkeys((*notes, *center_notes, *map_notes, *pool_notes))))

    def _resolve(self, draws: ShardDraws, located: Located | None) -> tuple[str, str, tuple[str, ...]]:
        """The centre ("given" for numbers) and scale to use, and notes on what was not possible."""
        center = self.center if isinstance(self.center, str) else "given"
        scale = self.scale
        if located is not None and located.shard_modes.shape != (draws.num_shards, draws.dim):
            raise OptionError(
                f"The modes are of {located.num_shards} shards with {located.shard_modes.shape[1]} "
                f"parameters, the draws of {draws.num_shards} shards with {draws.dim}."
            )
        any_mode = located is not None and bool(located.found.any())
        if center == "auto":
            without = "mean" if self.space == "natural" else "balanced"
            center = "mode" if any_mode else without if located is None else "newton"
        if scale == "auto":
            scale = "curvature" if center == "mode" and any_mode else "draws"
        uses_modes = "mode" in (center, _SOURCE[scale])
        if (uses_modes and not any_mode) or (center == "newton" and located is None):
            missing = "only draws were given" if located is None else "no shard has a mode"
            raise OptionError(
                f"Recenter(center={center!r}, scale={scale!r}) needs modes, and {missing}. "
                "Use center='mean', 'precision' or numbers, and scale='none' or 'draws'."
            )
        if located is None or located.found.all():
            return center, scale, ()
        if uses_modes:
            note = (
                f"No mode was found for {listed_shards(np.flatnonzero(~located.found))}: the mean and covariance of "
                "such a shard's draws were matched to those of the other shards' moved draws."
            )
            return center, scale, (note,)
        if self.center == "auto":
            note = "No shard has a mode: the means of their draws were moved to the mode of all rows."
            return center, scale, (note,)
        return center, scale, ()

    def _centers(
        self, center: str, draws: ShardDraws, located: Located | None
    ) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
        """Where each shard's draws are moved from, (shard, dim), and where to, (dim,)."""
        if center == "mean":
            return draws.means, draws.shares @ draws.means, ()
        if center in ("precision", "balanced"):
            target, notes = precision_weighted_mean(draws, center == "balanced", self.small_sample)
            return draws.means, target, notes
        if center == "given":
            target = np.asarray(self.center, dtype=np.float64)
            if target.shape != (draws.dim,):
                raise OptionError(f"center has {target.size} numbers; the draws have {draws.dim} parameters.")
            return draws.means, target, ()
        assert located is not None
        # Shards without a mode are matched to the others afterwards. Until then their means are finite placeholders.
        origins = np.where(located.found[:, None], located.shard_modes, draws.means)
        return (origins if center == "mode" else draws.means), located.mode.theta, ()

    def _maps(
        self, scale: str, draws: ShardDraws, located: Located | None
    ) -> tuple[Sequence[np.ndarray | None], tuple[str, ...]]:
        """The matrix A_i of each shard, None for the identity."""
        if scale == "none":
            return [None] * draws.num_shards, ()
        if scale == "draws":
            return maps_from_draws(draws, self.spread, self.small_sample)
        assert located is not None
        target = symmetric(np.linalg.inv(located.mode.curvature))
        maps: list[np.ndarray | None] = [None] * draws.num_shards
        shards = np.flatnonzero(located.found)
        covariances = symmetric(np.linalg.inv(located.shard_curvatures[shards]))
        for shard, matrix in zip(shards, transport(covariances, target), strict=True):
            maps[shard] = matrix
        return maps, ()


def precision_weighted_mean(
    draws: ShardDraws, balanced: bool, small_sample: bool = True
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The mean (sum a_i P_i)^-1 sum a_i P_i m_i of rescaled draws, and notes on degenerate shards.

    Let c be the share-weighted mean and P the average of the P_i. If a shard's precision depends on where its
    mean lies, as in every model with a third derivative, c and the precision-weighted mean are off by about the
    same, to either side, and weights P_i^(1/2) are right. If precisions differ for other reasons, weights P_i are.
    `balanced` takes P_i^(1 - f / 2), the power being taken in coordinates in which P is the identity, with
    f = max(0, 1 - sum_i |b_i|^2 / |sum_i b_i|^2), b_i = a_i (P_i - P)(m_i - c) in the norm of P^-1: the part of
    their sum beyond what unrelated b_i would give.
    """
    varying = VaryingDirections.of(draws)
    if varying.rank == 0:
        return varying.center, ()
    # In these coordinates c is zero.
    inner = varying.reduce(draws)
    weights, notes = precisions(inner, small_sample)
    if balanced:
        root = np.linalg.cholesky(np.tensordot(draws.shares, weights, axes=1))
        inverse_root = np.linalg.inv(root)
        whitened = symmetric(inverse_root @ weights @ inverse_root.T)
        parts = np.einsum("i,ijk,ik->ij", draws.shares, whitened - np.eye(inner.dim), inner.means @ root)
        total = (parts.sum(axis=0) ** 2).sum()
        related = max(0.0, 1 - (parts**2).sum() / total) if total > 0 else 0.0
        values, vectors = np.linalg.eigh(whitened)
        axes = root @ vectors
        weights = (axes * values[:, None, :] ** (1 - related / 2)) @ np.swapaxes(axes, 1, 2)
    average = np.tensordot(draws.shares, weights, axes=1)
    mean = np.linalg.solve(average, np.einsum("i,ijk,ik->j", draws.shares, weights, inner.means))
    return varying.lift(mean), notes


def maps_from_draws(
    draws: ShardDraws, spread: Spread, small_sample: bool = True
) -> tuple[Sequence[np.ndarray | None], tuple[str, ...]]:
    """The matrices that take the covariance of each shard's draws to a common one, and notes."""
    varying = VaryingDirections.of(draws)
    if varying.rank == 0:
        return [None] * draws.num_shards, ("The draws of no shard vary: they were moved, but not scaled.",)
    inner = varying.reduce(draws)
    covariances, notes = invertible_covariances(inner)
    if spread == "precision":
        precision, _ = precisions(inner, small_sample)
        target = symmetric(np.linalg.inv(np.tensordot(draws.shares, precision, axes=1)))
    else:
        target = np.tensordot(draws.shares, covariances, axes=1)
    maps = [transport(covariance, target) for covariance in covariances]
    if varying.is_everything:
        return maps, notes
    note = f"The shards vary in only {varying.rank} of {draws.dim} directions and were scaled in those alone."
    identity = np.eye(varying.rank)
    return [np.eye(draws.dim) + varying.basis @ (a - identity) @ varying.dual.T for a in maps], (note, *notes)


def _match_to_others(
    draws: ShardDraws, moved: list[np.ndarray], found: np.ndarray, rescale: bool
) -> list[np.ndarray]:
    """Give shards that were not found the mean (and covariance) of the moved draws of those that were."""
    others = ShardDraws.of([m for m, ok in zip(moved, found, strict=True) if ok], draws.shares[found])
    mean = others.shares @ others.means
    deviation = others.means - mean
    within = np.tensordot(others.shares, others.covariances, axes=1)
    spread = within + (deviation.T * others.shares) @ deviation
    maps = [np.eye(draws.dim)] * draws.num_shards
    if rescale and not is_singular(spread):
        maps = [
            transport(regularized(covariance, len(v) - 1, spread), spread)
            for covariance, v in zip(clean_covariances(draws), draws.values, strict=True)
        ]
    return [
        m if ok else mean + (v - v.mean(axis=0)) @ a.T
        for m, v, a, ok in zip(moved, draws.values, maps, found, strict=True)
    ]
