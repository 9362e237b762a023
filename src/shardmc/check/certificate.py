"""How wrong are draws of a posterior? Gradients of all rows at about a hundred draws show it, without a reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np

from shardmc.check.advice import ANY, Remedies
from shardmc.check.directions import Combination, Correction
from shardmc.check.measured import Measured, measure
from shardmc.check.stein import SteinTest
from shardmc.check.verdict import Bounds, Remedy, Verdict, decide
from shardmc.errors import OptionError
from shardmc.names import shown_text
from shardmc.types import Mode, plain

_ARRAYS = tuple(field.name for field in fields(Measured) if field.type == "np.ndarray")


_FEWEST_SHARDS = 8
"""Shards to sample: with fewer the noise of the sample is not known well enough."""
_FIRST = 16
"""Shards that are read first, if the certificate chooses: enough to know the noise of the sample."""
_SAMPLED = 0.2
"""The part of the shards that are read next."""
_MOST_SAMPLED = 0.8
"""If the sample needs a larger part of the shards than this, all shards are read."""


@dataclass(frozen=True, eq=False)
class Certificate(Measured):
    """Measured errors of draws and the verdict on them, in words."""

    bounds: Bounds
    verdict: Verdict
    verdicts: tuple[Verdict, ...]
    """The verdict on each parameter by itself."""
    sentence: str
    advice: str
    correctable: bool = True
    """Whether the errors are errors of mean and covariance, which `polish` can correct."""
    remedy: Remedy = ""
    """What would settle "cannot tell": "gradients" at more draws, more "draws", or nothing."""

    def __repr__(self) -> str:
        counts = f"From {self.num_gradients} gradients and {self.num_draws:,} draws."
        return f"Certificate({shown_text(self.sentence)} {counts})"

    def to_dict(self) -> dict[str, object]:
        """Lists, numbers and strings, for JSON."""
        return plain(asdict(self))

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Certificate:
        """The certificate that `to_dict` wrote."""
        given = dict(stored)
        # Older certificates do not separate the two parts of the standard errors.
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
    """Choose the draws at which to compute the gradient: each shard contributes its share.

    Systematic sampling along the draws sorted by shard, in random order within each, so that every draw has the same
    chance and each shard gives count * (its draws) / (all draws), rounded up or down.

    Parameters
    ----------
    values
        Combined draws, (draw, dim).
    shard
        The shard each draw came from, (draw,), or None.
    count
        How many to choose. All of them if there are fewer.
    rng
        The random generator.
    exclude
        Indices to leave out: those of an earlier certificate.

    Examples
    --------
    >>> shard = np.repeat([0, 1, 2], 100)
    >>> chosen = choose(np.zeros((300, 2)), shard, 30, np.random.default_rng(0))
    >>> np.bincount(shard[chosen]).tolist()
    [10, 10, 10]
    """
    if count < 1:
        raise OptionError(
            f"The certificate needs gradients at some draws, but {count} were asked for; 100 are usual."
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
    row_noise: np.ndarray | None = None,
    remedies: Remedies = ANY,
) -> Certificate:
    r"""Measure how far draws are from the posterior, from its gradients at some of them.

    With z = L^T (theta - mode), s = L^-1 grad log posterior, H = L L^T and r = s + z, draws of the posterior
    have E[s] = 0 and E[z s^T] = -I, so that

        m = mean(z) - mean_R(r)           error of the mean, in posterior standard deviations
        C = cov(z) - sym cov_R(z, r)      the draws' covariance over the posterior's

    where means of z are over all draws and means of r over the chosen ones. Before that, the skewness of single
    parameters is taken out of s (see `shardmc.check.skewness`), and a regression of r on quadratics of z removes most
    of its variance. The identities are exact. m and C equal the errors as far as the rest of r is small, which
    `nonlinearity` measures. A second mode that no draw comes near cannot be seen.

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
        Effective number of draws, one number or one per parameter, if it is known to be below their number.
    bounds
        What counts as within bounds. By default 0.1 sd and 10 %.
    rng
        For the folds of the regression and the signs of the bootstrap.
    shard
        The shard each draw came from, (draw,), with the draws of a shard in the order of its chain. It is used for
        the effective number of draws, and to put draws of every shard into both halves: one half finds the worst
        direction, the other tests it.
    row_noise
        What sampling of rows leaves uncertain about the scores, (sampled shard, chosen, dim); see
        `shardmc.check.Gradients`.
    remedies
        What the caller can change. The advice names nothing else.

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
            f"Gradients have shape {scores.shape}; the shape must be ({len(chosen)}, {values.shape[1]})."
        )
    rng = np.random.default_rng(0) if rng is None else rng
    bounds = Bounds() if bounds is None else bounds
    worth = np.broadcast_to(np.asarray(len(values) if ess is None else ess, np.float64), mode.theta.shape)
    measured = measure(values, chosen, scores, mode, names, worth, shard, rng, row_noise)
    return Certificate(**vars(measured), **vars(decide(measured, bounds, remedies)), bounds=bounds)


def polish(values: np.ndarray, certificate: Certificate) -> np.ndarray:
    """Undo the measured errors by -m and C^(-1/2), where they are larger than their noise.

    Draws that are far off are only moved at first; their scale is measured again at the new place.
    Certify the result at other draws: `choose(..., exclude=chosen)`.

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


@dataclass(frozen=True)
class Certify:
    """The effort and the bounds of the certificate.

    Parameters
    ----------
    draws
        The number of draws at which the gradient of all rows is computed first. Each costs one evaluation of all rows.
    max_draws
        If these cannot tell and more would help, three times as many are used, up to this number.
    rows
        The part of the rows that each gradient reads. Below 1 it reads a sample of the shards, at least eight, after
        one evaluation of all rows: the certificate is cheaper and less precise, and takes that into account. With
        "auto", if rows went to shards at random, it reads 16 shards. If these leave standard errors above a fifth of
        the bounds, it reads a fifth of the shards, and then all of them.
    mean
        The largest error of a parameter's mean that is within bounds, in posterior standard deviations.
    sd
        The largest relative error of a parameter's standard deviation that is within bounds. For linear
        combinations of parameters the bound is twice the larger of the two.

    Examples
    --------
    >>> Certify(mean=0.05).bounds
    Bounds(mean=0.05, sd=0.1, combination=0.2)
    >>> Certify(draws=5)
    Traceback (most recent call last):
    shardmc.errors.OptionError: Certify(draws=5): draws must be at least 20; 100 is usual.
    """

    draws: int = 100
    max_draws: int = 1000
    rows: float | Literal["auto"] = "auto"
    mean: float = 0.1
    sd: float = 0.1

    def __post_init__(self) -> None:
        for name in ("draws", "max_draws"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise OptionError(f"Certify({name}={value!r}): {name} must be a whole number.")
        if self.draws < 20:
            raise OptionError(f"Certify(draws={self.draws}): draws must be at least 20; 100 is usual.")
        if self.max_draws < self.draws:
            raise OptionError(
                f"Certify(draws={self.draws}, max_draws={self.max_draws}): max_draws must not be below draws."
            )
        part = _SAMPLED if self.rows == "auto" else self.rows
        if isinstance(part, bool) or not (isinstance(part, int | float) and 0 < part <= 1):
            raise OptionError(
                f'Certify(rows={self.rows!r}): rows is a part of all rows, above 0 and at most 1, or "auto".'
            )
        for name in ("mean", "sd"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 < value < 0.5):
                raise OptionError(
                    f"Certify({name}={value!r}): the bound must lie between 0 and 0.5; 0.1 is usual."
                )

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.mean, self.sd, 2 * max(self.mean, self.sd))

    def num_shards(self, available: int) -> tuple[int, int]:
        """How many shards a gradient reads first, and how many before it reads all. Both are all if most are needed.

        >>> Certify().num_shards(500), Certify().num_shards(50), Certify(rows=0.2).num_shards(500)
        ((16, 100), (10, 10), (100, 100))
        >>> Certify(rows=1).num_shards(100), Certify(rows=0.2).num_shards(9)
        ((100, 100), (9, 9))
        """
        part = _SAMPLED if self.rows == "auto" else self.rows
        wanted = max(math.ceil(part * available), _FEWEST_SHARDS)
        if wanted > _MOST_SAMPLED * available:
            return available, available
        return min(_FIRST, wanted) if self.rows == "auto" else wanted, wanted

    def stages(self, available: int) -> list[int]:
        """The total number of gradients after each stage.

        >>> Certify().stages(10_000), Certify().stages(200), Certify(max_draws=100).stages(10_000)
        ([100, 300, 1000], [100, 200], [100])
        """
        most = min(self.max_draws, available)
        counts = [min(self.draws, most)]
        while counts[-1] < most:
            more = 3 * counts[-1]
            counts.append(most if 1.5 * more > most else more)
        return counts


def certify_options(certify: Certify | bool, check: bool = True) -> Certify | None:
    """The options that `certify=` stands for. None means no certificate."""
    if not isinstance(certify, Certify | bool):
        raise OptionError(
            f"certify must be True, False or shardmc.Certify(...), not {certify!r}; "
            "for example certify=shardmc.Certify(mean=0.05)."
        )
    if certify is False or not check:
        return None
    return Certify() if certify is True else certify
