"""Simulation-based calibration: ranks of parameters drawn from the prior among draws of their posterior.

    python benchmarks/calibration.py [--quick] [--processes 2]

Prints and writes docs/benchmarks/calibration.md and its figure, calibration.svg. Where draws are right, the rank of
the parameter that made the data among independent draws is uniform (Talts and others 2018).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# One process a core: threads of their own would only get into each other's way.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from provenance import DOCS, header, publish, table
from scipy import stats

import shardmc

NUM_ROWS, NUM_DRAWS = 4_000, 2_000
NUM_RANKED = 99
"""Draws among which the parameter is ranked: every twentieth, far apart enough to be independent."""
NUM_BINS = 20
LEVEL = 0.001


@dataclass(frozen=True)
class Case:
    """A model, its prior and its data as NumPy draws them."""

    name: str
    model: shardmc.Model
    draw_prior: Callable[[np.random.Generator], dict[str, np.ndarray]]
    draw_response: Callable[[dict[str, np.ndarray], np.ndarray, np.random.Generator], np.ndarray]


def _design(rng: np.random.Generator) -> np.ndarray:
    return np.column_stack([np.ones(NUM_ROWS), rng.normal(size=(NUM_ROWS, 2))]).astype(np.float32)


def logistic() -> Case:
    def log_likelihood(params, rows):
        x, y = rows
        eta = x @ params["beta"]
        return y * eta - jax.nn.softplus(eta)

    return Case(
        "logistic",
        shardmc.Model(log_likelihood, lambda p: -0.5 * jnp.sum(p["beta"] ** 2), {"beta": 3}),
        lambda rng: {"beta": rng.normal(size=3)},
        lambda params, x, rng: rng.random(len(x)) < 1 / (1 + np.exp(-x @ params["beta"])),
    )


def poisson() -> Case:
    def log_likelihood(params, rows):
        x, y = rows
        eta = x @ params["beta"]
        return y * eta - jnp.exp(eta)

    return Case(
        "Poisson",
        shardmc.Model(log_likelihood, lambda p: -0.5 * jnp.sum((p["beta"] / 0.5) ** 2), {"beta": 3}),
        lambda rng: {"beta": 0.5 * rng.normal(size=3)},
        lambda params, x, rng: rng.poisson(np.exp(x @ params["beta"])),
    )


def gaussian() -> Case:
    def log_likelihood(params, rows):
        x, y = rows
        z = (y - x @ params["beta"]) / params["sigma"]
        return -0.5 * z**2 - jnp.log(params["sigma"])

    def log_prior(params):
        log_sigma = jnp.log(params["sigma"])
        return -0.5 * jnp.sum(params["beta"] ** 2) - 0.5 * (log_sigma / 0.5) ** 2 - log_sigma

    return Case(
        "Gaussian",
        shardmc.Model(log_likelihood, log_prior, {"beta": 3, "sigma": "positive"}),
        lambda rng: {"beta": rng.normal(size=3), "sigma": np.exp(0.5 * rng.normal())},
        lambda params, x, rng: x @ params["beta"] + params["sigma"] * rng.normal(size=len(x)),
    )


CASES = {case.name: case for case in (logistic(), poisson(), gaussian())}


@dataclass(frozen=True)
class Method:
    """A way to fit: shards, combiner and kept rows."""

    name: str
    options: dict[str, object]


METHODS = {
    method.name: method
    for method in (
        Method("default, K = 10", {"shards": 10}),
        Method(
            "Algorithm 1, K = 40",
            {"shards": 40, "combiner": shardmc.Recenter.algorithm_1(), "keep": None},
        ),
    )
}


def ranks(job: tuple[str, str, int]) -> tuple[str, str, dict[str, int]]:
    """Rank of every parameter of one simulated data set."""
    name, method, seed = job
    case = CASES[name]
    rng = np.random.default_rng([seed, list(CASES).index(name)])
    truth = case.draw_prior(rng)
    x = _design(rng)
    y = case.draw_response(truth, x, rng).astype(np.float32)
    posterior = shardmc.fit(
        case.model,
        (x, y),
        draws=NUM_DRAWS,
        seed=seed,
        check=False,
        engine=shardmc.Local(workers=1),
        **METHODS[method].options,
    )
    spaced = np.linspace(0, posterior.num_draws - 1, NUM_RANKED).round().astype(int)
    found = {}
    for label, values in posterior.flat().items():
        base, _, index = label.partition("[")
        true = truth[base] if not index else truth[base][int(index[:-1])]
        found[label] = int(np.sum(values[spaced] < true))
    return name, method, found


def _start(cache: str) -> None:
    """Processes share what they compiled."""
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def collect(num_sets: int, processes: int) -> dict[tuple[str, str], dict[str, np.ndarray]]:
    """Ranks (data set,) of every parameter, by case and method."""
    jobs = [(case, method, seed) for case in CASES for method in METHODS for seed in range(num_sets)]
    with tempfile.TemporaryDirectory() as cache:
        context = multiprocessing.get_context("spawn")
        with context.Pool(processes, _start, (cache,)) as pool:
            return _gathered(pool.imap_unordered(ranks, jobs, chunksize=10), len(jobs))


def _gathered(
    results: Iterable[tuple[str, str, dict[str, int]]], total: int
) -> dict[tuple[str, str], dict[str, np.ndarray]]:
    lists: dict[tuple[str, str], dict[str, list[int]]] = {}
    for done, (case, method, found) in enumerate(results, 1):
        of = lists.setdefault((case, method), {})
        for label, rank in found.items():
            of.setdefault(label, []).append(rank)
        if done % 100 == 0:
            print(f"{done} of {total} fits", flush=True)
    return {key: {k: np.array(v) for k, v in of.items()} for key, of in lists.items()}


def counts(found: np.ndarray) -> np.ndarray:
    """How many ranks fall into each bin; all bins hold equally many of the 100 ranks."""
    return np.bincount(found * NUM_BINS // (NUM_RANKED + 1), minlength=NUM_BINS)


def p_value(found: np.ndarray) -> float:
    return float(stats.chisquare(counts(found)).pvalue)


def rows_of(collected: dict[tuple[str, str], dict[str, np.ndarray]]) -> list[list[object]]:
    """One row per method and model: the chi-square p-value of each parameter."""
    rows = []
    for method in METHODS:
        for case in CASES:
            of = collected[case, method]
            values = {label: p_value(found) for label, found in of.items()}
            verdict = "uniform" if min(values.values()) > LEVEL else "not uniform"
            said = ", ".join(f"{label} {p:.2g}" for label, p in values.items())
            rows.append([method, case, len(next(iter(of.values()))), said, verdict])
    return rows


def draw_histograms(collected: dict[tuple[str, str], dict[str, np.ndarray]], path: str | os.PathLike) -> None:
    """Rank histograms: a row per method, a column per parameter, with the band that holds 99 % of uniform ones."""
    columns = [(case, label) for case in CASES for label in collected[case, next(iter(METHODS))]]
    plt.rcParams.update({"font.size": 7, "axes.linewidth": 0.5, "svg.hashsalt": "calibration"})
    figure, axes = plt.subplots(len(METHODS), len(columns), figsize=(1.05 * len(columns), 1.2 * len(METHODS)))
    for across, method in zip(axes, METHODS, strict=True):
        for axis, (case, label) in zip(across, columns, strict=True):
            found = collected[case, method][label]
            low, high = stats.binom.interval(0.99, len(found), 1 / NUM_BINS)
            axis.axhspan(low, high, color="#d5dbe3", linewidth=0)
            right = p_value(found) > LEVEL
            axis.stairs(counts(found), fill=True, color="#2f6fb0" if right else "#c2452d")
            axis.set_ylim(0, 4 * len(found) / NUM_BINS)
            axis.set_xticks([])
            axis.set_yticks([])
        across[0].set_ylabel(method)
    for axis, (case, label) in zip(axes[0], columns, strict=True):
        axis.set_title(f"{case}\n{label}", fontsize=7)
    figure.tight_layout(pad=0.4)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few data sets; prints only")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--data-sets", type=int, default=None, help="simulated data sets of each model")
    options = parser.parse_args()
    num_sets = options.data_sets or (20 if options.quick else 1_000)
    start = time.perf_counter()
    collected = collect(num_sets, options.processes)
    seconds = time.perf_counter() - start
    columns = ("combination", "model", "data sets", "p-values of the ranks", f"at {LEVEL:g}")
    text = (
        "# Simulation-based calibration\n\n"
        + header("calibration.py", f"It took {seconds:.0f} s with {options.processes} processes.")
        + f"\nParameters are drawn from the prior, {NUM_ROWS:,} rows from the model; {NUM_DRAWS:,} draws of the "
        f"posterior are made from K shards and thinned to {NUM_RANKED}. The ranks of the parameters among them are "
        f"counted in {NUM_BINS} bins and compared with a uniform law by a chi-square test.\n\n"
        + table(columns, rows_of(collected))
        + "\nAlgorithm 1 is the paper's combination as printed, without kept rows. It fails, which shows that the test "
        "can detect a wrong method.\n"
        "\n![Rank histograms of every parameter under each combination](calibration.svg)\n"
        "\nA bar of uniform ranks is in the grey band with probability 0.99; red histograms fail the test.\n"
    )
    if not options.quick:
        draw_histograms(collected, DOCS / "calibration.svg")
    publish("calibration.md", text, options.quick)


if __name__ == "__main__":
    main()
