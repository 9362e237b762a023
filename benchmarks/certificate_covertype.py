"""What the certificate says of Covertype, next to the truth, and what part of a fit's time it takes.

    python benchmarks/certificate_covertype.py [--quick]

Prints and writes docs/benchmarks/certificate_covertype.md. The reference is one shard that holds all rows.
"""

from __future__ import annotations

import argparse

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


def certified(model, data, draws: int, reference: np.ndarray, numbers: tuple[int, ...]) -> str:
    rows = []
    for shards in numbers:
        for name, options in COMBINATIONS.items():
            fitted = shardmc.fit(model, data, shards=shards, draws=draws, **options)
            rows.append(row(f"{name}, K = {shards}", fitted.theta, fitted.certificate, reference))
            print(rows[-1], flush=True)
        options = COMBINATIONS["Algorithm 1"]
        fitted = shardmc.fit(model, data, shards=shards, draws=draws, polish=True, **options)
        rows.append(row(f"Algorithm 1, polished, K = {shards}", fitted.theta, fitted.certificate, reference))
        print(rows[-1], fitted.polished.sentence, flush=True)
    half = len(reference) // 2
    noise = truth(reference[:half], reference[half:])
    floor = ["noise: one half of the reference", noise[0], "", "", noise[1], "", noise[2], "", ""]
    return (
        f"## Errors, measured and true\n\nN = {len(data[1]):,}, d = 14, {draws:,} draws, {len(reference):,} draws of "
        "the reference. The mean error is that of the worst linear combination, which the certificate finds on one "
        f"half of the draws and measures on the other.\n\n{table(COLUMNS, [*rows, floor])}\n"
    )


def shares(model, data, draws: int, numbers: tuple[int, ...]) -> str:
    """Seconds of every stage; cold: nothing compiled yet, warm: the same call again."""
    rows = []
    for shards in numbers:
        for temperature in ("cold", "warm"):
            seconds = shardmc.fit(model, data, shards=shards, draws=draws, seed=1).seconds
            total = sum(seconds.values())
            said = ", ".join(f"{stage} {value:.2f}" for stage, value in seconds.items())
            share = f"{100 * seconds['check'] / total:.0f} %"
            rows.append([shards, temperature, draws, total, seconds["check"], share, said])
            print(rows[-1], flush=True)
    columns = (
        "shards",
        "programs",
        "draws",
        "seconds",
        "of which check",
        "share",
        "stages",
    )
    return (
        "## What it costs\n\nTwo calls in a row. The check is the certificate, shard agreement and chain diagnostics."
        f"\n\n{table(columns, rows)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and draws; prints only")
    quick = parser.parse_args().quick
    data = covertype(14, 100_000 if quick else 500_000)
    if data is None:
        return
    model, draws, numbers = logistic_model(14), 10_000, (20,) if quick else (100, 500)
    text = "# The certificate on Covertype\n\n" + header("certificate_covertype.py") + "\n"
    # Times come first, before anything is compiled.
    text += shares(model, data, draws, numbers)
    reference = reference_draws(model, data, 4_000 if quick else 30_000, Independence())
    text += certified(model, data, draws, reference, numbers)
    publish("certificate_covertype.md", text.rstrip() + "\n", quick)


if __name__ == "__main__":
    main()
