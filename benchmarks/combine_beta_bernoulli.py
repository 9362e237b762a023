"""Distances of all combiners on the paper's Beta-Bernoulli example, with exact draws of the subposteriors.

    python benchmarks/combine_beta_bernoulli.py [--quick]

Prints and writes docs/benchmarks/combine_beta_bernoulli.md. 100,000 Bernoulli(p) observations, prior Beta(0.01, 0.01),
K shards; every combiner gets exact draws of the subposteriors that it combines, on the log odds and on the natural
scale. L2 is the integral of (p - q)^2 in units of the posterior's standard deviation, p by a kernel density of the
draws and q the exact posterior, mean over several data sets.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from provenance import header, publish, table
from scipy import stats

from shardmc.combiners import Recenter, named_combiner
from shardmc.combiners.distance import marginal_l2, noise_floor
from shardmc.types import Combiner, Located, Mode, ShardDraws

NUM_ROWS = 100_000
PRIOR = 0.01
CASES = [(p, k) for p in (0.1, 0.01, 0.001) for k in (50, 100)]
METHODS: dict[str, Combiner] = {
    "algorithm-1": Recenter.algorithm_1(),
    "swiss": Recenter.swiss(),
    **{
        name: named_combiner(name)
        for name in (
            "consensus",
            "product",
            "nonparametric-product",
            "semiparametric-product",
            "weierstrass",
            "mposterior",
            "wasserstein",
            "pie",
            "empirical-wasserstein",
        )
    },
}


def log_odds(a: np.ndarray, b: np.ndarray, num_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Log odds of Beta(a, b) draws, (shard, draw, 1), also where the draws themselves underflow."""

    def log_gamma(shape: np.ndarray) -> np.ndarray:
        # Gamma(s) is Gamma(s + 1) times U^(1/s), whose logarithm does not underflow for small s.
        size = (len(shape), num_draws)
        return np.log(rng.gamma(shape[:, None] + 1, size=size)) + np.log(rng.random(size)) / shape[:, None]

    return (log_gamma(a) - log_gamma(b))[:, :, None]


def located(a: np.ndarray, b: np.ndarray, total_a: float, total_b: float) -> Located:
    """Modes and curvatures on the scale of the log odds, where Beta(a, b) has those log(a / b) and a b / (a + b)."""
    mode = Mode(np.log([total_a / total_b]), np.array([[total_a * total_b / (total_a + total_b)]]), 0.0, 1.0)
    curvatures = (a * b / (a + b))[:, None, None]
    return Located(mode, np.log(a / b)[:, None], curvatures, np.ones(len(a), bool))


def natural(eta: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(eta, -700, 700)))


def on_log_odds(successes: np.ndarray, rows: int, num_draws: int, seed: int) -> dict[str, np.ndarray]:
    """Combined draws of p by every method, combined as log odds."""
    num_shards, failures = len(successes), rows - successes
    total = successes.sum(), failures.sum()
    rescaled = PRIOR + num_shards * successes, PRIOR + num_shards * failures
    fractional = PRIOR / num_shards + successes, PRIOR / num_shards + failures
    rng = np.random.default_rng(seed)
    shards = {
        "rescaled": ShardDraws.of(log_odds(*rescaled, num_draws, rng)),
        "fractional": ShardDraws.of(log_odds(*fractional, num_draws, rng), scaling="fractional"),
    }
    where = located(*rescaled, PRIOR + total[0], PRIOR + total[1])
    found = {
        "recenter": Recenter()(shards["rescaled"], where, rng).values,
        "recenter, from draws": Recenter()(shards["rescaled"], None, rng).values,
    }
    # Successes are kept in every shard, with weight 1, where their leverage (1 - p) / (N p) is above 0.2 / K.
    p = total[0] / NUM_ROWS
    if (1 - p) / (NUM_ROWS * p) > 0.2 / num_shards:
        kept = np.full(num_shards, PRIOR + total[0]), PRIOR + total[1] * failures * num_shards / total[1]
        draws = ShardDraws.of(log_odds(*kept, num_draws, rng))
        where = located(*kept, PRIOR + total[0], PRIOR + total[1])
        found["recenter, influential rows kept"] = Recenter()(draws, where, rng).values
    else:
        found["recenter, influential rows kept"] = found["recenter"]
    found |= {name: method(shards[method.scaling], None, rng).values for name, method in METHODS.items()}
    laplace = named_combiner("laplace")(shards["rescaled"], where, rng)
    return {name: natural(values) for name, values in (found | {"laplace": laplace.values}).items()}


def on_natural_scale(successes: np.ndarray, rows: int, num_draws: int, seed: int) -> dict[str, np.ndarray]:
    """Combined draws of p by every method, combined as they are."""
    num_shards, failures = len(successes), rows - successes
    rng = np.random.default_rng(seed)
    rescaled = log_odds(PRIOR + num_shards * successes, PRIOR + num_shards * failures, num_draws, rng)
    power = (PRIOR - 1) / num_shards + 1
    fractional = log_odds(power + successes, power + failures, num_draws, rng)
    shards = {
        "rescaled": ShardDraws.of(natural(rescaled)),
        "fractional": ShardDraws.of(natural(fractional), scaling="fractional"),
    }
    found = {"recenter, from draws": Recenter(space="natural")(shards["rescaled"], None, rng).values}
    return found | {
        name: method(shards[method.scaling], None, rng).values for name, method in METHODS.items()
    }


def distances(
    run: Callable[..., dict[str, np.ndarray]], num_draws: int, data_sets: int
) -> list[list[object]]:
    """One row per method: the mean L2 distance for every p and K."""
    columns: dict[str, list[float]] = {}
    for p, num_shards in CASES:
        sums: dict[str, list[float]] = {}
        floors: dict[str, list[float]] = {}
        for seed in range(data_sets):
            rows = NUM_ROWS // num_shards
            successes = np.random.default_rng([seed, num_shards]).binomial(rows, p, size=num_shards)
            posterior = stats.beta(PRIOR + successes.sum(), PRIOR + NUM_ROWS - successes.sum())
            for name, values in run(successes, rows, num_draws, seed).items():
                sums.setdefault(name, []).append(marginal_l2(values, posterior))
            for label, count in (("K T", num_shards * num_draws), ("T", num_draws)):
                floor = noise_floor(posterior, count, ["l2"], seed=seed)["l2"]
                floors.setdefault(f"noise floor of {label} exact draws", []).append(floor)
        for name, found in (sums | floors).items():
            columns.setdefault(name, []).append(float(np.mean(found)))
        print(f"p = {p}, K = {num_shards}", flush=True)
    return [[name, *(f"{value:.2e}" for value in found)] for name, found in columns.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    num_draws, data_sets = (500, 1) if options.quick else (4000, 3)
    head = ["method", *(f"p = {p}, K = {k}" for p, k in CASES)]
    text = (
        "# All combiners on the Beta-Bernoulli example\n\n"
        + header("combine_beta_bernoulli.py")
        + f"\nN = {NUM_ROWS:,}, prior Beta({PRIOR}, {PRIOR}), T = {num_draws:,} exact draws of each subposterior, "
        + f"mean over {data_sets} data sets. The entries are L2 distances of the density of p from the exact "
        + "posterior's, in units of its standard deviation. At p = 0.001 some shards hold no success.\n\n"
        + "## Combined as log odds\n\n"
        + table(head, distances(on_log_odds, num_draws, data_sets))
        + "\n## Combined on the natural scale\n\n"
        + table(head, distances(on_natural_scale, num_draws, data_sets))
    )
    publish("combine_beta_bernoulli.md", text, options.quick)


if __name__ == "__main__":
    main()
