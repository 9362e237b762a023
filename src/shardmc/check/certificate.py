"""How wrong are draws of a posterior? Gradients of all rows at a hundred of them tell, without a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from shardmc.check.combination import Combination
from shardmc.check.correction import Correction
from shardmc.check.discrepancy import SteinTest
from shardmc.check.measured import Measured, measure
from shardmc.check.verdict import Bounds, Remedy, Verdict, judge
from shardmc.errors import OptionError
from shardmc.types import Mode

__all__ = ["Bounds", "Certificate", "certify", "choose", "polish"]

_ARRAYS = tuple(field.name for field in fields(Measured) if field.type == "np.ndarray")


@dataclass(frozen=True, eq=False)
class Certificate(Measured):
    """Measured errors of draws and the verdict on them, in words."""

    bounds: Bounds
    verdict: Verdict
    verdicts: tuple[Verdict, ...]
    """The verdict on each parameter by itself."""
    sentence: str
    advice: str
    mendable: bool = True
    """Whether its errors are known as those of mean and covariance, so that `polish` may mend them."""
    remedy: Remedy = ""
    """What would let it tell where it cannot: "gradients" at more draws, more "draws", or neither."""

    def __repr__(self) -> str:
        return (
            f"Certificate({self.sentence} From {self.num_gradients} gradients and {self.num_draws:,} draws.)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings, as JSON can hold them."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Certificate:
        """The certificate that `to_dict` wrote."""
        given = dict(stored)
        # Certificates of earlier versions do not tell the two parts of the standard errors apart.
        given.setdefault("mean_measured_se", given["mean_error_se"])
        given.setdefault("sd_measured_se", given["sd_ratio_se"])
        for name in _ARRAYS:
            given[name] = np.asarray(given[name], dtype=np.float64)
        for name in ("shifted", "widest", "narrowest"):
            given[name] = Combination.from_dict(given[name])
        given["stein"] = SteinTest(**given["stein"])
        given["bounds"] = Bounds(**given["bounds"])
        given["correction"] = Correction.from_dict(given["correction"])
        return Certificate(**{**given, "names": tuple(given["names"]), "verdicts": tuple(given["verdicts"])})


def choose(
    values: np.ndarray,
    shard: np.ndarray | None,
    count: int,
    rng: np.random.Generator,
    exclude: np.ndarray | None = None,
) -> np.ndarray:
    """Indices of the draws at which to compute the gradient: every shard gives its share.

    Systematic sampling along the draws sorted by shard, in random order within each, so that every draw has the same
    chance and each shard gives count * (its draws) / (all draws), rounded up or down.

    Parameters
    ----------
    values
        Combined draws, (draw, dim).
    shard
        The shard each draw came from, (draw,), or None.
    count
        How many to choose; all of them where there are fewer.
    rng
        Source of randomness.
    exclude
        Indices not to choose: those of an earlier certificate.

    Examples
    --------
    >>> shard = np.repeat([0, 1, 2], 100)
    >>> chosen = choose(np.zeros((300, 2)), shard, 30, np.random.default_rng(0))
    >>> np.bincount(shard[chosen]).tolist()
    [10, 10, 10]
    """
    if count < 1:
        raise OptionError(
            f"The certificate needs gradients at some draws; {count} were asked for. Ask for about 100."
        )
    free = np.arange(len(values))
    if exclude is not None:
        free = np.setdiff1d(free, exclude)
    order = rng.permutation(free)
    if shard is not None:
        order = order[np.argsort(np.asarray(shard)[order], kind="stable")]
    if count >= len(order):
        return np.sort(order)
    step = len(order) / count
    return np.sort(order[np.floor((rng.uniform() + np.arange(count)) * step).astype(int)])


def certify(
    values: np.ndarray,
    chosen: np.ndarray,
    scores: np.ndarray,
    mode: Mode,
    names: Sequence[str],
    ess: np.ndarray | float | None = None,
    bounds: Bounds | None = None,
    rng: np.random.Generator | None = None,
    shard: np.ndarray | None = None,
) -> Certificate:
    r"""Measure how far draws are from the posterior, from its gradients at some of them.

    With z = L^T (theta - mode), s = L^-1 grad log posterior, H = L L^T and r = s + z, draws of the posterior
    have E[s] = 0 and E[z s^T] = -I, so that

        m = mean(z) - mean_R(r)           error of the mean, in posterior standard deviations
        C = cov(z) - sym cov_R(z, r)      the draws' covariance over the posterior's

    where means of z are over all draws and those of r over the chosen ones, after a regression of r on quadratics of z
    has taken out most of its spread, and after the skewness of single parameters has been taken out of s (see
    `shardmc.check.straighten`). The identities are exact; that m and C are the errors themselves holds as far as
    what is left of r is small, which `nonlinearity` measures. What no draw comes near, such as a second mode far
    away, cannot be seen.

    Parameters
    ----------
    values
        Combined draws on the unconstrained scale, (draw, dim).
    chosen
        Indices of the draws with a gradient, (chosen,); see `choose`.
    scores
        Gradient of the log posterior of all rows there, (chosen, dim).
    mode
        Mode and curvature of all rows.
    names
        One name per parameter.
    ess
        Effective number of all draws, one number or one per parameter, where it is known to be below their number.
    bounds
        What counts as within; by default 0.1 sd and 10 %.
    rng
        For the folds of the regression and the signs of the bootstrap.
    shard
        The shard each draw came from, (draw,), with the draws of a shard in the order of its chain: it tells the
        effective number of draws, and deals draws of every shard to both halves, of which one finds the worst
        direction and the other tests it.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> mode = Mode(np.zeros(2), np.eye(2), 0.0, 1.0)
    >>> draws = rng.normal(size=(10_000, 2)) + [0.5, 0]
    >>> chosen = choose(draws, None, 100, rng)
    >>> certificate = certify(draws, chosen, -draws[chosen], mode, ["a", "b"], rng=rng)
    >>> certificate.verdict, certificate.sentence
    ('off', 'Off: the mean of a is 0.51 sd too high.')
    """
    if len(names) != len(mode.theta) or values.shape[1:] != mode.theta.shape:
        raise OptionError(
            f"The mode has {len(mode.theta)} parameters, but there are {len(names)} names "
            f"and draws of shape {values.shape}."
        )
    if scores.shape != (len(chosen), values.shape[1]):
        raise OptionError(
            f"Gradients have shape {scores.shape}; ({len(chosen)}, {values.shape[1]}) is needed."
        )
    rng = np.random.default_rng(0) if rng is None else rng
    bounds = Bounds() if bounds is None else bounds
    measured = measure(values, chosen, scores, mode, names, len(values) if ess is None else ess, shard, rng)
    return Certificate(**vars(measured), **vars(judge(measured, bounds)), bounds=bounds)


def polish(values: np.ndarray, certificate: Certificate) -> np.ndarray:
    """Apply the measured errors the other way round: -m and C^(-1/2), where they stand out of their noise.

    Draws far from where they should be are moved there first; how they are to be scaled is measured there next.
    Certify the result on other draws: `choose(..., exclude=chosen)`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> mode = Mode(np.zeros(2), np.eye(2), 0.0, 1.0)
    >>> draws = 2 * rng.normal(size=(10_000, 2)) + 1
    >>> chosen = choose(draws, None, 100, rng)
    >>> polished = polish(draws, certify(draws, chosen, -draws[chosen], mode, ["a", "b"], rng=rng))
    >>> polished.std(axis=0).round(1).tolist()
    [1.0, 1.0]
    """
    return certificate.correction(values)


def _plain(value: Any) -> Any:
    """Arrays as lists, at any depth."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value
