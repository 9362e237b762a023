"""What gradients of a sample of the rows leave uncertain about the errors of the draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardmc.types import Gradients, Mode

if TYPE_CHECKING:
    from shardmc.check.verdict import Bounds

_PART = 0.2
"""Of a bound: a smaller standard error from sampled rows adds less than 2 % to what is uncertain anyway."""


def errors_of_rows(
    noise: np.ndarray, z: np.ndarray, directions: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Standard errors that come from sampled rows: of means and sds along the directions, and along any other."""
    # m changes by the mean of the noise, C by its covariance with z: see `certify`.
    shift = noise.mean(axis=1)  # (sampled shard, dim)
    centered = z - z.mean(axis=0)
    bend = np.einsum("tj,itk->ijk", centered, noise) / len(z)
    bend = (bend + np.swapaxes(bend, 1, 2)) / 2
    of_mean = np.linalg.norm(shift @ directions.T, axis=0)
    of_variance = np.linalg.norm(np.einsum("pj,ijk,pk->ip", directions, bend, directions), axis=0)
    # Along any combination: at most the largest eigenvalue.
    any_mean = float(np.linalg.norm(shift, ord=2))
    any_variance = float(np.sqrt(np.sum(np.linalg.norm(bend, ord=2, axis=(1, 2)) ** 2)))
    return of_mean, of_variance / 2, any_mean, any_variance / 2


def rows_suffice(noise: np.ndarray, points: np.ndarray, mode: Mode, bounds: Bounds) -> bool:
    """Whether sampled rows leave standard errors of at most a fifth of the bounds, for every parameter.

    Parameters
    ----------
    noise
        As in `Gradients`, (sampled shard, point, dim).
    points
        The points of the gradients, (point, dim).
    """
    basis = mode.frame.basis
    z = np.linalg.solve(basis, (points - mode.theta).T).T
    directions = basis / np.linalg.norm(basis, axis=1)[:, None]
    of_mean, of_sd, any_mean, any_sd = errors_of_rows(noise @ basis, z, directions)
    return bool(
        of_mean.max() <= _PART * bounds.mean
        and of_sd.max() <= _PART * bounds.sd
        and max(any_mean, any_sd) <= _PART * bounds.combination
    )


def joined_noise(found: list[Gradients]) -> np.ndarray | None:
    """The noise of several rounds of gradients, (sampled shard, point, dim). Those of all rows have none."""
    noisy = [each.noise for each in found if each.noise is not None]
    if not noisy:
        return None
    sampled = len(noisy[0])
    every = [np.zeros((sampled, *each.values.shape)) if each.noise is None else each.noise for each in found]
    return np.concatenate(every, axis=1)
