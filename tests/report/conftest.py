"""Posteriors made by hand, whose every part is known, for the report to show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardmc.check.agreement import agree
from shardmc.check.certificate import Certificate, certify, choose
from shardmc.check.certification import polish_draws
from shardmc.posterior import Plan, Posterior, ShardTable
from shardmc.report import write_report
from shardmc.types import Finding, Located, Mode

FINDINGS = (
    Finding(
        "error", "rows", "Column x holds one value only.", "Leave it out.", {"column": "x", "value": 812.5}
    ),
    Finding(
        "warning",
        "chains",
        "R-hat of beta[1] is 1.03 in shard 7.",
        "Draw more.",
        {"shards": [7], "r_hat": 1.03},
    ),
    Finding("note", "chains", "All shards used the independence sampler."),
)


@pytest.fixture(scope="session")
def make_posterior() -> Callable[..., Posterior]:
    """A function that makes a Gaussian posterior of `dim` coordinates from `shards` shards."""
    return gaussian_posterior


@pytest.fixture(scope="session")
def cases() -> dict[str, Posterior]:
    """Posteriors of every kind that a report must cope with."""
    plain = gaussian_posterior(4, 12)
    return {
        "within": plain,
        "off": gaussian_posterior(6, 30, shift=0.5, corrupted=(3, 21)),
        "uncertified": gaussian_posterior(4, 12, certified=False),
        "not pooled": gaussian_posterior(4, 12, pooled=False),
        "one shard": gaussian_posterior(3, 1, 400),
        "one coordinate": gaussian_posterior(1, 12),
        "lost draws": gaussian_posterior(4, 12, lost=40),
        "failed shard": _with_failure(plain, 5),
        "bare": _bare(plain),
        "polished": _polished(gaussian_posterior(4, 12, shift=3.0)),
    }


@pytest.fixture(scope="session")
def rendered(cases: dict[str, Posterior], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of each of them."""
    folder = tmp_path_factory.mktemp("pages")
    return {name: write_report(posterior, folder / f"{name}.html") for name, posterior in cases.items()}


def _with_failure(posterior: Posterior, shard: int) -> Posterior:
    """The same with one shard that gave no draws."""
    table = posterior.shards
    changed = {}
    for name in ("acceptance", "ess", "r_hat", "draws", "mode", "disagreement"):
        values = np.array(getattr(table, name), float)
        values[shard] = np.nan
        changed[name] = values
    keep = posterior.shard != shard
    return replace(
        posterior,
        draws={name: values[keep] for name, values in posterior.draws.items()},
        theta=posterior.theta[keep],
        shard=posterior.shard[keep],
        shards=replace(table, **changed),
    )


def _polished(posterior: Posterior) -> Posterior:
    """The same with the certificate's correction applied."""
    assert posterior.certificate is not None
    assert posterior.shard is not None
    rng, curvature = np.random.default_rng(1), posterior.curvature
    assert curvature is not None
    known = Mode(posterior.mode, curvature, 0.001, 5.0)

    def again(theta: np.ndarray) -> Certificate:
        chosen = choose(theta, posterior.shard, 100, rng)
        scores = -(theta[chosen] - known.theta) @ curvature
        return certify(theta, chosen, scores, known, posterior.names, rng=rng)

    theta, certificate, polished = polish_draws(posterior.theta, posterior.certificate, again)
    return replace(
        posterior,
        draws=_natural(theta, posterior.names),
        theta=theta,
        certificate=certificate,
        polished=polished,
        plan=replace(posterior.plan, polish=True),
        seconds={**posterior.seconds, "polish": 0.7},
        passes={**posterior.passes, "polish": 100.0},
    )


def _bare(posterior: Posterior) -> Posterior:
    """Draws that somebody sampled elsewhere: little is known about them but the draws."""
    shards, dim = posterior.shards.num_shards, len(posterior.names)
    missing = np.full(shards, np.nan)
    table = replace(
        posterior.shards,
        acceptance=missing,
        ess=np.full((shards, dim), np.nan),
        r_hat=np.full((shards, dim), np.nan),
        sampler=("",) * shards,
        mode=None,
        disagreement=None,
    )
    draws, theta, names = posterior.draws, posterior.theta, posterior.names
    plan = Plan(rows=1000 * shards, shards=shards, seed=0, combiner="Recenter()")
    return Posterior(draws, theta, names, posterior.shard, table, plan)


def gaussian_posterior(
    dim: int = 5,
    shards: int = 20,
    per_shard: int = 100,
    *,
    seed: int = 0,
    shift: float = 0.0,
    certified: bool = True,
    pooled: bool = True,
    lost: int = 0,
    corrupted: Sequence[int] = (),
    names: Sequence[str] | None = None,
    findings: tuple[Finding, ...] | None = None,
) -> Posterior:
    """Recentred draws of exact Gaussian shards.

    `shift` moves the first coordinate by so many posterior sds, `lost` draws are NaN, `corrupted` shards lie 30 sds
    away; without `pooled` draws have no shard. The last coordinate is the logarithm of a positive parameter.
    """
    rng = np.random.default_rng(seed)
    scale = 10.0 ** -np.linspace(1, 2.5, dim)
    mode = np.round(rng.normal(size=dim), 2)
    root = np.tril(rng.normal(size=(dim, dim)) * 0.4 / np.sqrt(dim)) + np.eye(dim)
    root = scale[:, None] * root
    curvature = np.linalg.inv(root @ root.T)
    center = mode + np.sqrt(max(shards - 1, 0)) * rng.normal(size=(shards, dim)) @ root.T
    center[list(corrupted)] += 30 * np.sqrt(shards) * scale
    noise = rng.normal(size=(shards, per_shard, dim)) @ root.T
    moved = mode + noise
    moved[:, :, 0] += shift * np.linalg.norm(root[0])
    theta = moved.reshape(-1, dim)
    origin = np.repeat(np.arange(shards), per_shard)
    known = Mode(mode, curvature, 0.001, 5.0)
    labels = _labels(dim) if names is None else tuple(names)
    certificate = None
    if certified:
        chosen = choose(theta, origin, 100, rng)
        certificate = certify(theta, chosen, -(theta[chosen] - mode) @ curvature, known, labels, rng=rng)
    if lost:
        theta = theta.copy()
        theta[:: len(theta) // lost] = np.nan
    located = Located(
        known,
        center,
        np.tile(curvature, (shards, 1, 1)),
        np.ones(shards, bool),
    )
    agreement = (
        agree(located, np.full(shards, 1 / shards), np.full(shards, 1000), labels) if shards > 1 else None
    )
    noticed = [] if agreement is None else agreement.findings
    return Posterior(
        draws=_natural(theta, labels),
        theta=theta,
        names=labels,
        shard=origin if pooled else None,
        shards=_table(center[:, None] + noise, center, None if agreement is None else agreement.q, rng),
        mode=mode,
        curvature=curvature,
        certificate=certificate,
        findings=(*noticed, *FINDINGS) if findings is None else findings,
        notes=("One note: 3 shards were read from the run folder.",),
        plan=_plan(shards, per_shard, pooled),
        seconds={"read": 0.21, "split": 0.013, "locate": 1.9, "sample": 4.4, "combine": 0.05, "check": 0.8},
        passes={"locate": 14.0, "sample": 120.0, "check": 100.0},
        versions={"shardmc": "0.1.0", "jax": "0.10.2", "numpy": "2.4.6", "python": "3.11.9"},
    )


def _labels(dim: int) -> tuple[str, ...]:
    return (*(f"beta[{k}]" for k in range(dim - 1)), "sigma") if dim > 1 else ("sigma",)


def _natural(theta: np.ndarray, labels: Sequence[str]) -> dict[str, np.ndarray]:
    """`beta[0]`, `beta[1]`, ... as one array; any other name by itself; the last one exponentiated."""
    named = (
        {"beta": theta[:, :-1]} if labels[0] == "beta[0]" else dict(zip(labels, theta.T[:-1], strict=False))
    )
    return {**named, labels[-1]: np.exp(theta[:, -1])}


def _table(
    draws: np.ndarray, center: np.ndarray, q: np.ndarray | None, rng: np.random.Generator
) -> ShardTable:
    shards, per_shard, dim = draws.shape
    return ShardTable(
        share=np.full(shards, 1 / shards),
        size=np.full(shards, 1000),
        acceptance=rng.uniform(0.75, 0.95, size=shards),
        divergences=np.zeros(shards, int),
        ess=per_shard * rng.uniform(0.5, 0.9, size=(shards, dim)),
        r_hat=1 + 0.004 * rng.exponential(size=(shards, dim)),
        sampler=tuple(["independence"] * (shards - shards // 10) + ["hmc"] * (shards // 10)),
        draws=draws,
        mode=center,
        disagreement=q,
    )


def _plan(shards: int, per_shard: int, pooled: bool) -> Plan:
    return Plan(
        rows=1000 * shards,
        shards=shards,
        draws=shards * per_shard,
        draws_per_shard=per_shard,
        seed=7,
        shuffle=True,
        stratified=False,
        weighted=False,
        keep=0.2,
        sampler="Auto()",
        combiner="Recenter()" if pooled else "Consensus()",
        scaling="rescaled" if pooled else "fractional",
        kept_rows=12,
    )
