"""What the certificate says of Covertype, next to the truth, and what part of a fit's time it takes.

    python benchmarks/certificate_covertype.py [--quick] [--only errors|costs]

Prints and writes docs/benchmarks/certificate_covertype-NAME.md for each part. The reference is one shard that
holds all rows.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from accuracy import moments, reference_draws
from datasets import covertype, logistic_model
from provenance import header, publish, table
from scipy import linalg

import shardmc
from shardmc import Independence, Recenter

COLUMNS = (
    "combination",
    "mean error, sd",
    "certified",
    "its error",
    "largest of a parameter",
    "certified",
    "widest sd ratio",
    "certified",
    "verdict",
)
DRAWS = 10_000
COMBINATIONS = {
    "Algorithm 1": {"combiner": Recenter.algorithm_1(), "keep": None},
    "Algorithm 1 + Newton centre": {"combiner": Recenter("newton", "none"), "keep": None},
    "affine (default)": {},
}


def truth(theta: np.ndarray, reference: np.ndarray) -> tuple[float, float, float]:
    """Mahalanobis distance of the means, largest error of a mean in sds, largest sd ratio of any combination."""
    (mean, cov), (ref_mean, ref_cov) = moments(theta), moments(reference)
    gap = mean - ref_mean
    widest = float(np.sqrt(linalg.eigh(cov, ref_cov, eigvals_only=True)[-1]))
    return (
        float(np.sqrt(gap @ np.linalg.solve(ref_cov, gap))),
        float(np.abs(gap / np.sqrt(np.diag(ref_cov))).max()),
        widest,
    )


def row(name: str, theta: np.ndarray, certificate: shardmc.check.Certificate, reference: np.ndarray) -> list:
    distance, largest, widest = truth(theta, reference)
    said = certificate.shifted
    return [
        name,
        distance,
        f"{said.value:.3f} ± {said.se:.3f}",
        f"{100 * (said.value / distance - 1):+.1f} %" if distance > 0.5 else "",
        largest,
        float(np.abs(certificate.mean_error).max()),
        widest,
        f"{certificate.widest.value:.3f} ± {certificate.widest.se:.3f}",
        certificate.sentence,
    ]


def errors(quick: bool) -> str:
    data = covertype(14, 100_000 if quick else 500_000)
    if data is None:
        return ""
    model = logistic_model(14)
    reference = reference_draws(model, data, 4_000 if quick else 30_000, Independence())
    rows = []
    for shards in (20,) if quick else (100, 500):
        for name, options in COMBINATIONS.items():
            fitted = shardmc.fit(model, data, shards=shards, draws=DRAWS, **options)
            rows.append(row(f"{name}, K = {shards}", fitted.theta, fitted.certificate, reference))
            print(rows[-1], flush=True)
        options = COMBINATIONS["Algorithm 1"]
        fitted = shardmc.fit(model, data, shards=shards, draws=DRAWS, polish=True, **options)
        rows.append(row(f"Algorithm 1, polished, K = {shards}", fitted.theta, fitted.certificate, reference))
        print(rows[-1], fitted.polished.sentence, flush=True)
    half = len(reference) // 2
    noise = truth(reference[:half], reference[half:])
    floor = ["noise: one half of the reference", noise[0], "", "", noise[1], "", noise[2], "", ""]
    return (
        f"## Errors, measured and true\n\nN = {len(data[1]):,}, d = 14, {DRAWS:,} draws, {len(reference):,} draws of "
        "the reference. The mean error is that of the worst linear combination, which the certificate finds on one "
        f"half of the draws and measures on the other.\n\n{table(COLUMNS, [*rows, floor])}\n"
    )


class Meter:
    """Processor seconds of every stage, which do not depend on what else the machine does."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.process_time()
        self.seconds[stage] = now - self.started.setdefault(stage, now)


def costs(quick: bool) -> str:
    """Seconds of the check and of the whole; cold: nothing compiled yet, warm: the median of further calls."""
    data = covertype(14, 100_000 if quick else 500_000)
    if data is None:
        return ""
    model, rows = logistic_model(14), []
    for shards in (20,) if quick else (100, 500):
        runs = [_metered(model, data, shards, seed) for seed in range(6)]
        rows.append(_cost_row(shards, "cold", runs[:1]))
        rows.append(_cost_row(shards, "warm", runs[1:]))
        print(*rows[-2:], sep="\n", flush=True)
    columns = ("shards", "programs", "calls", "seconds", "of which check", "share", "stages")
    return (
        f"## What it costs\n\nN = {len(data[1]):,}, d = 14, {DRAWS:,} draws, gradients at 100 of them. Medians over "
        "the calls of processor seconds, which both cores count together. The check is the certificate, shard "
        f"agreement and chain diagnostics.\n\n{table(columns, rows)}\n"
    )


def _metered(model, data, shards: int, seed: int) -> dict[str, float]:
    meter = Meter()
    shardmc.fit(model, data, shards=shards, draws=DRAWS, seed=seed, progress=meter)
    return meter.seconds


def _cost_row(shards: int, programs: str, runs: list) -> list:
    middle = {stage: float(np.median([seconds[stage] for seconds in runs])) for stage in runs[0]}
    totals = [sum(seconds.values()) for seconds in runs]
    share = np.median([seconds["check"] / total for seconds, total in zip(runs, totals, strict=True)])
    stages = ", ".join(f"{stage} {value:.2f}" for stage, value in middle.items())
    return [shards, programs, len(runs), float(np.median(totals)), middle["check"], f"{share:.0%}", stages]


SECTIONS = {"errors": errors, "costs": costs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and draws; prints only")
    parser.add_argument("--only", choices=SECTIONS)
    options = parser.parse_args()
    # Costs come first, before anything is compiled.
    for name in [options.only] if options.only else ("costs", "errors"):
        title = f"# The certificate on Covertype: {name}\n\n" + header(
            f"certificate_covertype.py --only {name}"
        )
        publish(
            f"certificate_covertype-{name}.md",
            f"{title}\n{SECTIONS[name](options.quick).rstrip()}\n",
            options.quick,
        )


if __name__ == "__main__":
    main()
