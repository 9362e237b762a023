"""Does a certificate that reads a fifth of the rows decide like one that reads all of them? Verdicts side by side.

    python benchmarks/certificate_rows.py [--quick] [--seeds 40]

Logistic regressions. Draws of a fit, as they are and with known errors, are certified with all rows and with
`rows="auto"`, each seed with other draws and another sample of the shards. Prints and writes
docs/benchmarks/certificate_rows.md.
"""

from __future__ import annotations

import argparse
from collections import Counter

import jax.numpy as jnp
import numpy as np
from provenance import header, publish, table

import shardmc
from shardmc.check import Certify, certify_draws
from shardmc.data import Partition, as_source
from shardmc.engine import Local
from shardmc.locate import SampledGradients, gradients, influential, locate
from shardmc.types import Gradients

# Name: rows, columns, intercept (a low one makes a rare outcome and a skewed posterior), shards.
CASES = {
    "40,000 rows, d = 4": (40_000, 4, 0.0, 40),
    "40,000 rows, d = 14": (40_000, 14, 0.0, 40),
    "40,000 rows, d = 4, 400 events": (40_000, 4, -5.0, 40),
}
WRONG = {
    "as they are": (0.0, 1.0),
    "mean 0.3 sd off": (0.3, 1.0),
    "mean 0.15 sd off": (0.15, 1.0),
    "sd 25 % too large": (0.0, 1.25),
    "sd 20 % too small": (0.0, 0.8),
}
VERDICTS = ("within", "cannot tell", "off")


def logistic(dim: int) -> shardmc.Model:
    def log_likelihood(params, rows):
        eta = rows[0] @ params["b"]
        return rows[1] * eta - jnp.logaddexp(0.0, eta)

    return shardmc.Model(log_likelihood, lambda params: -0.5 * jnp.sum(params["b"] ** 2) / 25, {"b": dim})


def simulated(count: int, dim: int, intercept: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(dim)
    x = np.column_stack([np.ones(count), rng.normal(size=(count, dim - 1))])
    slopes = np.append(intercept, 0.5 * rng.normal(size=dim - 1))
    return x.astype(np.float32), (rng.random(count) < 1 / (1 + np.exp(-x @ slopes))).astype(np.float32)


def study(case: tuple[int, int, float, int], seeds: int, most: int) -> list[list[str]]:
    count, dim, intercept, shards = case
    model, rows, engine = logistic(dim), simulated(count, dim, intercept), Local()
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
            auto = SampledGradients(model, kept, mode, engine, sorted(rng.choice(shards, shards // 5, False)))

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="one seed of a small case; nothing is written")
    parser.add_argument("--remark", default="", help="a sentence about the machine, for the table")
    options = parser.parse_args()
    seeds, most, cases = options.seeds, 10_000, CASES
    if options.quick:
        seeds, most, cases = 1, 200, {"2,000 rows, d = 2": (2_000, 2, 0.0, 10)}
    rows = [[name, *line] for name, case in cases.items() for line in study(case, seeds, most)]
    columns = (
        "posterior",
        "draws",
        "all rows: within / cannot tell / off",
        "auto: within / cannot tell / off",
        "passes, all",
        "passes, auto",
    )
    text = f"# The certificate from a fifth of the rows\n\n{header('certificate_rows.py', options.remark)}\n"
    text += f"Each line counts {seeds} seeds, with other draws and other shards in the sample.\n\n"
    publish("certificate_rows.md", text + table(columns, rows), options.quick)


if __name__ == "__main__":
    main()
