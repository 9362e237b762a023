"""Does a certificate that reads a part of the rows decide like one that reads all of them? Verdicts side by side.

    python benchmarks/certificate_rows.py [--quick] [--seeds 40] [--jobs 1]

Logistic regressions. Draws of a fit, as they are and with known errors, are certified with all rows and with
`rows="auto"`, each seed with other draws and another sample of the shards. Errors of the size of a bound are among
them: there the sample could change a verdict. Prints and writes docs/benchmarks/certificate_rows.md.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from provenance import header, publish, table

import shardmc
from shardmc.check import Certify, certify_draws
from shardmc.data import Partition, as_source
from shardmc.engine import Local
from shardmc.locate import SampledGradients, gradients, influential, locate
from shardmc.types import Gradients


class Case(NamedTuple):
    """A simulated logistic regression."""

    rows: int
    dim: int
    intercept: float = 0.0  # a low one makes a rare outcome and a skewed posterior
    shards: int = 40
    tails: float | None = (
        None  # degrees of freedom of the columns, if they are not normal: rows of high leverage
    )


CASES = {
    "40,000 rows, d = 4": Case(40_000, 4),
    "40,000 rows, d = 14": Case(40_000, 14),
    "40,000 rows, d = 4, 400 events": Case(40_000, 4, -5.0),
    "40,000 rows, d = 4, heavy tails": Case(40_000, 4, tails=3.0),
    "100,000 rows, d = 4, 200 shards": Case(100_000, 4, shards=200),
    "100,000 rows, d = 4, 1,000 events, 200 shards": Case(100_000, 4, -5.0, shards=200),
}
WRONG = {
    "as they are": (0.0, 1.0),
    "mean 0.05 sd off": (0.05, 1.0),
    "mean 0.1 sd off, the bound": (0.1, 1.0),
    "mean 0.15 sd off": (0.15, 1.0),
    "mean 0.3 sd off": (0.3, 1.0),
    "sd 10 % too large, the bound": (0.0, 1.1),
    "sd 25 % too large": (0.0, 1.25),
    "sd 20 % too small": (0.0, 0.8),
}
VERDICTS = ("within", "cannot tell", "off")


def logistic(dim: int) -> shardmc.Model:
    def log_likelihood(params, rows):
        eta = rows[0] @ params["b"]
        return rows[1] * eta - jnp.logaddexp(0.0, eta)

    return shardmc.Model(log_likelihood, lambda params: -0.5 * jnp.sum(params["b"] ** 2) / 25, {"b": dim})


def simulated(case: Case) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(case.dim)
    shape = (case.rows, case.dim - 1)
    columns = rng.normal(size=shape) if case.tails is None else rng.standard_t(case.tails, shape)
    x = np.column_stack([np.ones(case.rows), columns])
    slopes = np.append(case.intercept, 0.5 * rng.normal(size=case.dim - 1))
    y = rng.random(case.rows) < 1 / (1 + np.exp(-x @ slopes))
    return x.astype(np.float32), y.astype(np.float32)


def study(seeds: int, most: int, case: Case) -> list[list[str]]:
    dim, shards = case.dim, case.shards
    model, rows, engine = logistic(dim), simulated(case), Local()
    right = shardmc.fit(model, rows, shards=1, draws=2 * most, sampler="nuts", check=False).theta
    blocks = as_source(rows).split(Partition(shards), 0)
    mode = locate(model, blocks, engine)
    kept = blocks.keep(influential(model, blocks, mode, engine).positions)
    scale = np.linalg.norm(mode.frame.basis, axis=1)
    found = []
    for words, (shift, stretch) in WRONG.items():
        verdicts: dict[str, Counter[str]] = {"all": Counter(), "auto": Counter()}
        passes: dict[str, list[float]] = {"all": [], "auto": []}
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            some = right[rng.choice(len(right), most, replace=False)]
            center = some.mean(axis=0)
            draws = center + (some - center) * stretch
            draws[:, 0] += shift * scale[0]
            first, count = Certify().num_shards(shards)
            sample = rng.choice(shards, count, replace=False).tolist()
            auto = SampledGradients(model, kept, mode, engine, sample, first=first)

            def whole(points: np.ndarray) -> Gradients:
                return Gradients(gradients(model, blocks, mode, points, engine))

            for name, score in (("all", whole), ("auto", auto)):
                certificate, at = certify_draws(
                    model.names,
                    score,
                    mode,
                    draws,
                    None,
                    np.random.default_rng(seed),
                    lambda: np.full(dim, float(most)),
                    options=Certify(),
                )
                verdicts[name][certificate.verdict] += 1
                passes[name].append(auto.passes if name == "auto" else float(len(at)))
        counts = [" / ".join(str(verdicts[name][v]) for v in VERDICTS) for name in ("all", "auto")]
        found.append([words, *counts, *(f"{np.mean(passes[name]):.0f}" for name in ("all", "auto"))])
    return found


def studied(cases: dict[str, Case], seeds: int, most: int, jobs: int) -> Iterator[list[str]]:
    """The lines of the table. Cases run at the same time if there are several jobs."""
    if jobs == 1:
        found = map(partial(study, seeds, most), cases.values())
    else:
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            found = list(pool.map(partial(study, seeds, most), cases.values()))
    for name, lines in zip(cases, found, strict=True):
        yield from ([name, *line] for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="one seed of a small case; nothing is written")
    parser.add_argument("--jobs", type=int, default=1, help="cases at the same time")
    parser.add_argument("--remark", default="", help="a sentence about the machine, for the table")
    options = parser.parse_args()
    seeds, most, cases = options.seeds, 10_000, CASES
    if options.quick:
        seeds, most, cases = 1, 200, {"2,000 rows, d = 2": Case(2_000, 2, shards=10)}
    rows = studied(cases, seeds, most, options.jobs)
    columns = (
        "posterior",
        "draws",
        "all rows: within / cannot tell / off",
        "auto: within / cannot tell / off",
        "passes, all",
        "passes, auto",
    )
    text = f"# The certificate from a part of the rows\n\n{header('certificate_rows.py', options.remark)}\n"
    text += f"Each line counts {seeds} seeds, with other draws and other shards in the sample. Of 40 shards eight are "
    text += "read first, of 200 shards 16; more if they are not enough.\n\n"
    publish("certificate_rows.md", text + table(columns, rows), options.quick)


if __name__ == "__main__":
    main()
