"""Many effects in many groups: 100,000 groups with an intercept and 20 independent slopes, ten binary rows each.

    python benchmarks/poverty.py [--quick] [--groups 100000] [--draws 3000]

The size of a public problem on which NUTS took 272 s on a large GPU for an effective sample size of 2. Prints and
writes docs/benchmarks/poverty.md; with --quick or fewer groups it writes nothing.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import pandas as pd
from provenance import header, publish, table

import shardmc

ROWS = 10
GROUPS = 100_000
SECONDS, CORES, ESS = 272.0, 2, 400.0
GRADIENTS = 60
"""Draws at which the certificate computes gradients."""


def simulated(groups: int, slopes: int) -> tuple[pd.DataFrame, dict[str, float]]:
    """Rows, and the true means and sds of the effects by the names that the fit gives them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(groups * ROWS, slopes))
    g = np.repeat(np.arange(groups), ROWS)
    means = np.concatenate([[-0.5], np.linspace(-0.5, 0.5, slopes)])
    sds = np.concatenate([[0.8], np.linspace(0.2, 0.5, slopes)])
    effects = means + sds * rng.normal(size=(groups, slopes + 1))
    eta = effects[g, 0] + np.sum(x * effects[g, 1:], axis=1)
    names = [f"x{k + 1}" for k in range(slopes)]
    data = pd.DataFrame(x, columns=names)
    data["g"], data["y"] = g, (rng.random(len(g)) < 1 / (1 + np.exp(-eta))).astype(np.int64)
    every = ["Intercept", *names]
    truth = dict(zip(every, means, strict=True)) | dict(
        zip((f"sd_g__{name}" for name in every), sds, strict=True)
    )
    return data, truth


def fit(data: pd.DataFrame, draws: int) -> tuple[shardmc.Posterior, float, float]:
    """The posterior, seconds, and seconds of all cores."""
    slopes = " + ".join(name for name in data.columns if name.startswith("x"))
    wall, cpu = time.perf_counter(), time.process_time()
    formula = f"y ~ {slopes} + (1 + {slopes} || g)"
    posterior = shardmc.glm(
        formula,
        data,
        family="bernoulli",
        draws=draws,
        certify=shardmc.Certify(GRADIENTS, max_draws=GRADIENTS, rows=0.2),
    )
    return posterior, time.perf_counter() - wall, time.process_time() - cpu


def _mean_and_smallest(values: np.ndarray) -> str:
    return f"{values.mean():.2f}, {values.min():.2f}"


def report(groups: int, slopes: int, draws: int) -> str:
    data, truth = simulated(groups, slopes)
    posterior, seconds, cpu = fit(data, draws)
    summary = posterior.summary().loc[list(truth)]
    errors = (summary["mean"] - pd.Series(truth)) / summary["sd"]
    sds = [name for name in truth if name.startswith("sd_")]
    ess = float(summary["ess"].min())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    rows = [
        ["CPU seconds, cold", cpu, f"below {CORES * SECONDS:g}"],
        ["seconds", seconds, f"below {SECONDS:g}, if the cores do nothing else"],
        ["smallest effective number of draws", ess, f"at least {ESS:g}"],
        ["shards", len(posterior.shards.share), ""],
        ["acceptance, mean and smallest", _mean_and_smallest(posterior.shards.acceptance), ""],
        ["largest error of a mean, in posterior sds", float(errors.drop(sds).abs().max()), ""],
        ["largest error of an sd, in posterior sds", float(errors[sds].abs().max()), ""],
        ["mean error of the sds, in posterior sds", float(errors[sds].mean()), "0 without bias"],
        ["peak memory", f"{peak / 1e9:.1f} GB", ""],
    ]
    text = "# Many effects in many groups\n\n" + header("poverty.py")
    text += (
        f"\n{groups:,} groups of {ROWS} binary rows, with an intercept and {slopes} independent slopes each: "
        f"{len(truth)} parameters of the population, {draws:,} draws, and a certificate from gradients at "
        f"{GRADIENTS} of them. Errors are differences of posterior means from the simulated truth.\n\n"
    )
    text += table(("", "measured", "aim"), rows)
    stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in posterior.seconds.items())
    certificate = posterior.certificate
    sentence = "" if certificate is None else f" The certificate: {certificate.sentence}"
    return text + f"\nSeconds of the stages: {stages}.{sentence}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few groups and effects; writes nothing")
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--slopes", type=int, default=20)
    parser.add_argument("--draws", type=int, default=3_000)
    given = parser.parse_args()
    if given.quick:
        given.groups, given.slopes, given.draws = 40, 3, 50
    publish("poverty.md", report(given.groups, given.slopes, given.draws), given.groups != GROUPS)


if __name__ == "__main__":
    main()
