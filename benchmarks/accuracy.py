"""How close the combined draws are to the full posterior: the paper's synthetic data and Covertype.

    python benchmarks/accuracy.py [--quick] [--only synthetic|seeds|covertype-14|covertype-53|rare]

Prints and writes docs/benchmarks/accuracy-NAME.md for each part. The reference is one shard that holds all rows.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from datasets import covertype, logistic_model, synthetic_logistic
from provenance import header, publish, table
from scipy import stats

import shardmc
from shardmc import HMC, Independence, Recenter

COLUMNS = (
    "combination",
    "mean error, sd",
    "largest mean error",
    "sd ratios",
    "Gaussian KL",
    "draws",
    "seconds",
)


def moments(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return theta.mean(axis=0), np.atleast_2d(np.cov(theta.T))


def distance(theta: np.ndarray, reference: np.ndarray) -> tuple[float, float, float, float, float]:
    """Mahalanobis distance of the means, largest error in sds, extreme sd ratios, Gaussian KL of the moments."""
    (mean, cov), (ref_mean, ref_cov) = moments(theta), moments(reference)
    inverse = np.linalg.inv(ref_cov)
    gap = mean - ref_mean
    mahalanobis = float(gap @ inverse @ gap)
    _, log_det = np.linalg.slogdet(inverse @ cov)
    kl = 0.5 * (np.trace(inverse @ cov) - len(mean) - log_det + mahalanobis)
    sds = np.sqrt(np.diag(ref_cov))
    ratio = np.sqrt(np.diag(cov)) / sds
    return mahalanobis**0.5, float(np.abs(gap / sds).max()), float(ratio.min()), float(ratio.max()), float(kl)


def row(name: str, theta: np.ndarray, reference: np.ndarray, seconds: float = float("nan")) -> list[object]:
    mean, largest, low, high, kl = distance(theta, reference)
    return [name, mean, largest, f"{low:.3f} to {high:.3f}", kl, len(theta), f"{seconds:.1f}"]


def reference_draws(model, data, draws, sampler) -> np.ndarray:
    return shardmc.fit(model, data, shards=1, draws=draws, sampler=sampler, seed=99, check=False).theta


def laplace(model, data, draws: int) -> np.ndarray:
    return shardmc.fit(model, data, shards=2, draws=draws, combiner="laplace", check=False).theta


# The paper's own have no kept rows.
PAPER = {"Algorithm 1": Recenter.algorithm_1(), "Algorithm 1 + Newton centre": Recenter("newton", "none")}
COMBINATIONS = {
    "mode to mode": Recenter("mode", "none"),
    "affine (default)": Recenter(),
    "affine from draws (SwISS)": Recenter.swiss(),
}


def compare(
    model, data, shards, draws, reference, sampler="auto", keep=0.2, combinations=COMBINATIONS
) -> list:
    """The same shards' draws (same seed) under several combinations."""
    rows = []
    for name, combiner in combinations.items():
        start = time.perf_counter()
        fitted = shardmc.fit(
            model,
            data,
            shards=shards,
            draws=draws,
            sampler=sampler,
            combiner=combiner,
            keep=keep,
            check=False,
        )
        rows.append(row(f"{name}, K = {shards}", fitted.theta, reference, time.perf_counter() - start))
    return rows


def synthetic(quick: bool) -> str:
    x, y = synthetic_logistic(100_000)
    model = logistic_model(5)
    draws = 20_000 if quick else 200_000
    reference = reference_draws(model, (x, y), draws, Independence())
    rows = []
    for shards in (50, 100):
        rows += compare(model, (x, y), shards, draws, reference, keep=None, combinations=PAPER)
        rows += compare(model, (x, y), shards, draws, reference)
        rows += compare(
            model,
            (x, y),
            shards,
            draws // 10,
            reference,
            combinations={"consensus, full weights": "consensus"},
        )
    rows.append(row("Laplace", laplace(model, (x, y), draws), reference))
    half = len(reference) // 2
    rows.append(row("noise: one half of the reference against the other", reference[:half], reference[half:]))
    return f"## Synthetic logistic regression of the paper (N = 100,000, d = 5)\n\n{table(COLUMNS, rows)}\n"


def seeds(quick: bool) -> str:
    """The default's KL for several seeds and several references, as one pair of runs is mostly noise."""
    x, y = synthetic_logistic(100_000)
    model = logistic_model(5)
    draws = 20_000 if quick else 200_000
    references = [
        shardmc.fit(
            model, (x, y), shards=1, draws=draws, sampler=Independence(), seed=seed, check=False
        ).theta
        for seed in (99, 100, 101)
    ]
    rows = [
        [f"reference {i + 1}", *("" if i == j else distance(a, b)[4] for j, b in enumerate(references))]
        for i, a in enumerate(references)
    ]
    for shards in (50, 100):
        for seed in range(3):
            theta = shardmc.fit(model, (x, y), shards=shards, draws=draws, seed=seed, check=False).theta
            rows.append([f"K = {shards}, seed {seed}", *(distance(theta, b)[4] for b in references)])
    text = table(("Gaussian KL from", "reference 1", "reference 2", "reference 3"), rows)
    return f"## Synthetic logistic regression, default combination, {draws:,} draws each\n\n{text}\n"


def covertype_14(quick: bool) -> str:
    data = covertype(14, 100_000 if quick else 500_000)
    if data is None:
        return ""
    model = logistic_model(14)
    draws = 5_000 if quick else 50_000
    reference = reference_draws(model, data, draws, Independence())
    rows = []
    for shards in (20,) if quick else (100, 500):
        rows += compare(model, data, shards, draws, reference, keep=None, combinations=PAPER)
        rows += compare(model, data, shards, draws, reference)
    rows.append(
        row(
            "affine (default), no kept rows, K = 100",
            shardmc.fit(model, data, shards=100, draws=draws, keep=None, check=False).theta,
            reference,
        )
    )
    rows.append(row("Laplace", laplace(model, data, draws), reference))
    half = len(reference) // 2
    rows.append(row("noise: one half of the reference against the other", reference[:half], reference[half:]))
    return f"## Covertype, 10 attributes and wilderness (N = {len(data[1]):,}, d = 14)\n\n{table(COLUMNS, rows)}\n"


def covertype_53(quick: bool) -> str:
    data = covertype(53, 100_000 if quick else 500_000)
    if data is None:
        return ""
    model = logistic_model(53)
    draws = 1_000 if quick else 10_000
    reference = reference_draws(model, data, draws, HMC(chains=8, warmup=100))
    rows = []
    chosen = {"Algorithm 1 + Newton centre": Recenter("newton", "none"), "affine (default)": Recenter()}
    for keep in (None, 0.2):
        for named in compare(model, data, 20, draws, reference, keep=keep, combinations=chosen):
            named[0] = f"{named[0]}, {'no kept rows' if keep is None else 'kept rows'}"
            rows.append(named)
    rows.append(row("Laplace", laplace(model, data, draws), reference))
    half = len(reference) // 2
    rows.append(row("noise: one half of the reference against the other", reference[:half], reference[half:]))
    return f"## All of Covertype (N = {len(data[1]):,}, d = 53, separated soil types)\n\n{table(COLUMNS, rows)}\n"


def rare(quick: bool) -> str:
    """Beta-Bernoulli of the paper, K = 100: relative L2 from exact mixture densities, with and without kept rows."""
    rows = []
    for p in (0.1, 0.01, 0.001):
        for seed in range(2 if quick else 10):
            rows.append([p, seed, *rare_event(p, 100, seed)])
    mean = [
        [
            p,
            *(float(np.mean([r[k] for r in rows if r[0] == p])) for k in (2, 3)),
            int(np.mean([r[4] for r in rows if r[0] == p])),
        ]
        for p in (0.1, 0.01, 0.001)
    ]
    text = table(("p", "relative L2, kept rows", "relative L2, no kept rows", "rows kept"), mean)
    return f"## Beta-Bernoulli of the paper (N = 100,000, K = 100), default combination, exact densities\n\n{text}\n"


def rare_event(p: float, shards: int, seed: int) -> tuple[float, float, int]:
    """Relative L2 = int (p-q)^2 / int p^2 of the affine combination on the logit scale, from exact densities."""
    import jax.numpy as jnp

    y = (np.random.default_rng([seed, int(1e4 * p)]).random(100_000) < p).astype(np.float32)

    def log_likelihood(params, y):
        return y * jnp.log(params["p"]) + (1 - y) * jnp.log1p(-params["p"])

    model = shardmc.Model(
        log_likelihood,
        lambda params: -0.99 * (jnp.log(params["p"]) + jnp.log1p(-params["p"])),
        {"p": "unit_interval"},
    )
    return _affine_l2(model, y, shards, 0.2), _affine_l2(model, y, shards, None), _kept(model, y, shards)


def _located(model, y, shards, keep):
    from shardmc.data import Partition, as_source
    from shardmc.engine import Local
    from shardmc.locate import influential, locate, locate_shards

    blocks, engine = as_source(y).split(Partition(shards), 0), Local()
    mode = locate(model, blocks, engine)
    positions = [np.empty(0, np.int64)] * shards
    if keep is not None:
        positions = influential(model, blocks, mode, engine, keep).positions
    kept = blocks.keep(positions)
    return kept, locate_shards(model, kept, mode, engine)


def _kept(model, y, shards) -> int:
    return _located(model, y, shards, 0.2)[0].num_kept


def _affine_l2(model, y, shards, keep) -> float:
    kept, located = _located(model, y, shards, keep)
    total, n = float(y.sum()), len(y)
    a, b = 0.01 + total, 0.01 + n - total
    center, sd = float(located.mode.theta[0]), float(located.mode.curvature[0, 0]) ** -0.5
    grid = center + sd * np.linspace(-10, 10, 20_001)

    def beta_logit(eta, a, b):
        return np.exp(
            stats.beta.logpdf(1 / (1 + np.exp(-eta)), a, b) - np.logaddexp(0, eta) - np.logaddexp(0, -eta)
        )

    truth = beta_logit(grid, a, b)
    mixture = np.zeros_like(grid)
    for names, batch in kept.batches(range(shards), 1):
        rows, weights = batch.take(0)
        i = names[0]
        s, f = (
            float(np.sum(np.asarray(weights, float) * np.asarray(rows))),
            float(np.sum(np.asarray(weights, float))),
        )
        if not located.found[i]:
            continue
        scale = (located.shard_curvatures[i, 0, 0] / located.mode.curvature[0, 0]) ** 0.5
        own = located.shard_modes[i, 0] + (grid - center) / scale
        mixture += kept.shares[i] / scale * beta_logit(own, 0.01 + s, 0.01 + f - s)
    mixture /= kept.shares[located.found].sum()
    step = grid[1] - grid[0]
    return float(((truth - mixture) ** 2).sum() / (truth**2).sum()) if step else float("nan")


SECTIONS = {
    "synthetic": synthetic,
    "seeds": seeds,
    "covertype-14": covertype_14,
    "covertype-53": covertype_53,
    "rare": rare,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=SECTIONS)
    options = parser.parse_args()
    for name in [options.only] if options.only else SECTIONS:
        text = (
            f"# Accuracy: {name}\n\n"
            + header(f"accuracy.py --only {name}")
            + "\n"
            + SECTIONS[name](options.quick)
        )
        publish(f"accuracy-{name}.md", text, quick=options.quick)


if __name__ == "__main__":
    main()
