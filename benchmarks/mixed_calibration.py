"""Simulation-based calibration of a mixed model: ranks of intercept and sd of the groups among their draws.

    python benchmarks/mixed_calibration.py [--quick] [--data-sets 200]

Parameters are drawn from the prior, binary rows in groups from the model, and draws from the posterior. If the draws
are right, the ranks of the parameters among them are uniform (Talts and others 2018). Prints and writes
docs/benchmarks/mixed_calibration.md.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
from provenance import header, publish, table
from scipy import special, stats

import shardmc
from shardmc.data import Source
from shardmc.formulas.families import Bernoulli
from shardmc.formulas.linear_model import model_of, named_draws
from shardmc.formulas.preparing import Prepared, prepare
from shardmc.model import Model
from shardmc.posterior import Posterior

GROUPS, SIZE, DRAWS = 200, 5, 1_000
NUM_RANKED, NUM_BINS = 99, 10
"""Every tenth draw: far enough apart to be independent."""
LEVEL = 0.005
SHAPE, RATE = 8.0, 10.0
PRIORS = {"Intercept": "normal(0, 1)", "sd_g__Intercept": f"gamma({SHAPE:g}, {RATE:g})"}


@dataclass
class Formula:
    """A formula as a front end of `fit`, with one model for all data sets, so that it is compiled once.

    `glm` would make a new model for each, because the search for the mode starts from the mean of the response.
    """

    mode_for: ClassVar[str] = ""
    text: str
    model: Model | None = None
    prepared: Prepared | None = None

    def open(self, source: Source, seed: int) -> tuple[Source, Model]:
        priors = {name: prior for name, prior in PRIORS.items() if name == "Intercept" or "|" in self.text}
        self.prepared = prepare(
            self.text,
            source,
            Bernoulli(),
            priors,
            offset=None,
            exposure=None,
            trials=None,
            drop_missing=False,
        )
        self.model = self.model or model_of(self.prepared)
        return self.prepared.source, self.model

    def finish(self, posterior: Posterior) -> Posterior:
        return posterior

    def draws(self, data: pd.DataFrame, shards: int, seed: int) -> dict[str, np.ndarray]:
        posterior = shardmc.fit(self, data, shards=shards, draws=DRAWS, seed=seed, check=False)
        assert self.prepared is not None
        return named_draws(self.prepared.design, posterior.draws)


def simulated(seed: int) -> tuple[dict[str, float], pd.DataFrame]:
    """Parameters from the prior, and rows."""
    rng = np.random.default_rng(seed)
    truth = {"Intercept": rng.normal(), "sd_g__Intercept": rng.gamma(SHAPE, 1 / RATE)}
    g = np.repeat(np.arange(GROUPS), SIZE)
    eta = truth["Intercept"] + (truth["sd_g__Intercept"] * rng.normal(size=GROUPS))[g]
    return truth, pd.DataFrame({"g": g, "y": (rng.random(len(g)) < special.expit(eta)).astype(int)})


METHODS = {
    "1 shard": ("y ~ 1 + (1 | g)", 1),
    "2 shards": ("y ~ 1 + (1 | g)", 2),
    "groups ignored": ("y ~ 1", 2),
}


def collect(num_sets: int, methods: list[str]) -> dict[tuple[str, str], np.ndarray]:
    """Ranks (data set,) by method and parameter."""
    fits = {method: Formula(METHODS[method][0]) for method in methods}
    found: dict[tuple[str, str], list[int]] = {}
    spaced = np.linspace(0, DRAWS - 1, NUM_RANKED).round().astype(int)
    for seed in range(num_sets):
        truth, data = simulated(seed)
        for method, formula in fits.items():
            draws = formula.draws(data, METHODS[method][1], seed)
            for name in truth.keys() & draws.keys():
                found.setdefault((method, name), []).append(int(np.sum(draws[name][spaced] < truth[name])))
        if seed % 20 == 19:
            print(f"{seed + 1} of {num_sets} data sets", flush=True)
    return {key: np.array(ranks) for key, ranks in found.items()}


def row_of(method: str, name: str, ranks: np.ndarray) -> list[object]:
    """p-values of a chi-square test on bins and of a Kolmogorov-Smirnov test on the ECDF of the ranks."""
    counts = np.bincount(ranks * NUM_BINS // (NUM_RANKED + 1), minlength=NUM_BINS)
    squares = float(stats.chisquare(counts).pvalue)
    # Ranks are whole numbers; a uniform number in each step makes them continuous.
    spread = (ranks + np.random.default_rng(0).random(len(ranks))) / (NUM_RANKED + 1)
    ecdf = float(stats.kstest(spread, "uniform").pvalue)
    verdict = "uniform" if min(squares, ecdf) > LEVEL else "not uniform"
    return [method, name, len(ranks), " ".join(map(str, counts)), f"{squares:.2g}", f"{ecdf:.2g}", verdict]


COLUMNS = (
    "fit",
    "parameter",
    "data sets",
    f"ranks in {NUM_BINS} bins",
    "p, chi-square",
    "p, ECDF",
    f"at {LEVEL:g}",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few data sets; prints only")
    parser.add_argument("--data-sets", type=int, default=None)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    given = parser.parse_args()
    num_sets = given.data_sets or (2 if given.quick else 200)
    start = time.perf_counter()
    collected = collect(num_sets, given.methods)
    rows = [row_of(method, name, collected[method, name]) for method, name in sorted(collected)]
    text = (
        "# Calibration of mixed models\n\n"
        + header("mixed_calibration.py", f"It took {time.perf_counter() - start:.0f} s.")
        + f"\nIntercept and sd of the groups are drawn from their priors, {PRIORS['Intercept']} and "
        f"{PRIORS['sd_g__Intercept']}, and {SIZE} binary rows for each of {GROUPS} groups from the model. {DRAWS:,} "
        f"draws of the posterior are thinned to {NUM_RANKED}. The ranks of the parameters among them should be "
        "uniform. The model that ignores the groups is the negative control: its ranks must not be uniform.\n\n"
        + table(COLUMNS, rows)
    )
    publish("mixed_calibration.md", text, given.quick)


if __name__ == "__main__":
    main()
