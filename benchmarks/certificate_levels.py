"""Regressions with rare and separated levels, whose posteriors are skewed, and draws of them as good as exact.

Used by certificate_calibration.py. NumPy only; double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from shardmc.types import Mode

Batch = Callable[[np.ndarray], np.ndarray]
CHAINS = 256


@dataclass(frozen=True)
class Regression:
    """A posterior: its log density and score at many points (point, dim)."""

    name: str
    names: tuple[str, ...]
    log_density: Batch
    score: Batch
    mode: Mode


def problems() -> list[Callable[[], Regression]]:
    """Ten regressions with 10 to 40 rare or separated levels."""
    return [
        lambda: regression("logistic", 10, 1000, prior_sd=10.0, seed=1),
        lambda: regression("logistic", 24, 1000, prior_sd=10.0, seed=2),
        lambda: regression("logistic", 40, 1000, prior_sd=5.0, seed=3),
        lambda: regression("logistic", 15, 1000, prior_sd=25.0, seed=4),
        lambda: regression("Poisson", 10, 1000, prior_sd=10.0, seed=5),
        lambda: regression("Poisson", 24, 1000, prior_sd=5.0, seed=6),
        lambda: regression("Poisson", 40, 1000, prior_sd=10.0, seed=7),
        lambda: regression("Student t", 10, 1000, prior_sd=10.0, seed=8),
        lambda: regression("Student t", 20, 1000, prior_sd=5.0, seed=9),
        lambda: regression("Student t", 40, 1000, prior_sd=5.0, seed=10),
    ]


def regression(family: str, levels: int, num_rows: int, prior_sd: float, seed: int) -> Regression:
    """An intercept, three covariates and rare levels of 2 to 12 rows beside a common one.

    A level of a logistic or Poisson regression is separated where all its responses are 0, as many are here. The
    Student t regression has unknown scale and degrees of freedom, on the log scale.
    """
    rng = np.random.default_rng([seed, levels])
    sizes = rng.integers(2, 13, size=levels)
    level = np.zeros(num_rows, dtype=int)
    level[: sizes.sum()] = np.repeat(np.arange(1, levels + 1), sizes)
    x = np.column_stack(
        [np.ones(num_rows), rng.normal(size=(num_rows, 3)), level[:, None] == np.arange(1, levels + 1)]
    )
    effects = 0.7 * rng.normal(size=levels)
    names = ("intercept", "x1", "x2", "x3", *(f"level {k}" for k in range(1, levels + 1)))
    if family == "Student t":
        return _student(x, effects, prior_sd, rng, names, f"Student t, {levels} levels")
    beta = np.concatenate([[-1.5 if family == "logistic" else -1.0], [0.5, -0.4, 0.3], effects])
    eta = x @ beta
    if family == "logistic":
        y = (rng.uniform(size=num_rows) < special.expit(eta)).astype(float)
        value, slope = lambda e: y * e - np.logaddexp(0, e), lambda e: y - special.expit(e)
    else:
        y = rng.poisson(np.exp(eta)).astype(float)
        value, slope = lambda e: y * e - np.exp(e), lambda e: y - np.exp(e)
    separated = sum(y[level == k].sum() == 0 for k in range(1, levels + 1))
    log_density = lambda t: value(t @ x.T).sum(axis=1) - 0.5 * np.sum(t**2, axis=1) / prior_sd**2  # noqa: E731
    score = lambda t: slope(t @ x.T) @ x - t / prior_sd**2  # noqa: E731
    start = np.concatenate([[y.mean() - 1], np.zeros(x.shape[1] - 1)])
    name = f"{family}, {levels} levels, {separated} separated, prior sd {prior_sd:g}"
    return Regression(name, names, log_density, score, mode_of(log_density, score, start))


def _student(x, effects, prior_sd, rng, names, name) -> Regression:
    y = x @ np.concatenate([[0.5, 0.5, -0.4, 0.3], effects]) + rng.standard_t(4, size=len(x))

    def parts(t):
        tau, log_nu = t[:, -2:-1], t[:, -1:]
        nu = np.exp(log_nu)
        u = (y - t[:, :-2] @ x.T) * np.exp(-tau)
        return tau, log_nu, nu, u, u**2 / nu

    def log_density(t):
        tau, log_nu, nu, _, q = parts(t)
        constant = special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2) - 0.5 * log_nu - tau
        inside = constant[:, 0] * len(y) - np.sum((nu + 1) / 2 * np.log1p(q), axis=1)
        prior = np.sum(t[:, :-2] ** 2, axis=1) / prior_sd**2 + t[:, -2] ** 2 + (t[:, -1] - 1.5) ** 2
        return inside - 0.5 * prior

    def score(t):
        tau, _, nu, u, q = parts(t)
        pull = (nu + 1) / nu * u / (1 + q)
        of_beta = (pull * np.exp(-tau)) @ x - t[:, :-2] / prior_sd**2
        of_tau = np.sum(pull * u, axis=1) - len(y) - t[:, -2]
        rate = (special.digamma((nu + 1) / 2) - special.digamma(nu / 2) - 1 / nu)[:, 0] * len(y)
        rate = rate + np.sum(-np.log1p(q) + (nu + 1) / nu * q / (1 + q), axis=1)
        of_nu = 0.5 * nu[:, 0] * rate - (t[:, -1] - 1.5)
        return np.column_stack([of_beta, of_tau, of_nu])

    start = np.concatenate([np.linalg.lstsq(x, y, rcond=None)[0], [0.0, 1.5]])
    named = (*names, "log sigma", "log nu")
    return Regression(name, named, log_density, score, mode_of(log_density, score, start))


def mode_of(log_density: Batch, score: Batch, start: np.ndarray) -> Mode:
    """Newton's method with numerical second derivatives; steps are halved until the density grows."""
    theta = start.astype(float)
    for _ in range(200):
        values, vectors = np.linalg.eigh(_curvature(score, theta))
        step = vectors @ ((vectors.T @ score(theta[None])[0]) / np.maximum(np.abs(values), 1e-4))
        sizes = 0.5 ** np.arange(20)
        reached = log_density(theta + sizes[:, None] * step)
        better = reached > log_density(theta[None])
        if not better.any():
            break
        theta = theta + sizes[better.argmax()] * step
    return Mode(theta, _curvature(score, theta), 0.0, 0.0)


def _curvature(score: Batch, theta: np.ndarray, width: float = 1e-5) -> np.ndarray:
    steps = width * np.eye(len(theta))
    slopes = (score(theta + steps) - score(theta - steps)) / (2 * width)
    return -(slopes + slopes.T) / 2


def long_run(
    target: Regression, num_draws: int, rng: np.random.Generator, warmup: int = 120, every: int = 2
) -> np.ndarray:
    """Draws (draw, dim) of many Hamiltonian chains in whitened coordinates, thinned."""
    frame = target.mode.frame
    u = 0.3 * rng.normal(size=(CHAINS, frame.dim))
    density = lambda u: target.log_density(frame.to_theta(u))  # noqa: E731
    slope = lambda u: target.score(frame.to_theta(u)) @ frame.basis  # noqa: E731
    size, kept, now, pull = 0.2, [], density(u), slope(u)
    for step in range(warmup + every * -(-num_draws // CHAINS)):
        v = rng.normal(size=u.shape)
        energy, at, force, length = now - 0.5 * np.sum(v**2, axis=1), u, pull, size * rng.uniform(0.7, 1.3)
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(rng.integers(4, 14)):
                v = v + 0.5 * length * force
                at = at + length * v
                force = slope(at)
                v = v + 0.5 * length * force
            reached = density(at)
            change = np.nan_to_num(reached - 0.5 * np.sum(v**2, axis=1) - energy, nan=-np.inf)
        accept = np.log(rng.uniform(size=CHAINS)) < change
        u, now = np.where(accept[:, None], at, u), np.where(accept, reached, now)
        pull = np.where(accept[:, None], force, pull)
        if step < warmup:
            size *= np.exp(0.1 * (np.minimum(1, np.exp(np.minimum(change, 0))).mean() - 0.85))
        elif (step - warmup) % every == every - 1:
            kept.append(u)
    return frame.to_theta(np.concatenate(kept))[:num_draws]
