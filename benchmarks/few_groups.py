"""Mixed models with a few large groups: the nodes that shardmc chooses against exact integrals and many nodes.

    python benchmarks/few_groups.py [--quick]

With few groups the posterior of their sd is wide, and with many rows the effect of a group hardly moves: the nodes of
the quadrature must follow it over a wide range of that sd. Prints and writes docs/benchmarks/few_groups.md.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import pandas as pd
from arviz_stats.base import array_stats
from provenance import header, publish, table

import shardmc

SD = 0.15
NODES = 15
"""Nodes of the fit that is compared with, in one dimension more than enough."""


@dataclass(frozen=True)
class Case:
    """Simulated rows of a few groups."""

    family: str
    groups: int
    rows: int
    slope: bool = False

    def __str__(self) -> str:
        return f"{self.family}, {self.groups} groups of {self.rows:,}{', with slope' if self.slope else ''}"

    @property
    def formula(self) -> str:
        return f"y ~ x + ({'1 + x' if self.slope else '1'} | g)"

    def simulate(self) -> pd.DataFrame:
        rng = np.random.default_rng([self.groups, self.rows])
        g, x = np.repeat(np.arange(self.groups), self.rows), rng.normal(size=self.groups * self.rows)
        effects = SD * rng.normal(size=(2, self.groups))
        eta = 0.1 * x + effects[0, g] + (effects[1, g] * x if self.slope else 0)
        if self.family == "poisson":
            y = rng.poisson(np.exp(eta - 2))
        else:
            y = (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(int)
        return pd.DataFrame({"y": y, "x": x, "g": g})


CASES = (
    Case("poisson", 11, 5_000),
    Case("poisson", 40, 1_000),
    Case("bernoulli", 11, 5_000),
    Case("bernoulli", 20, 500),
    Case("poisson", 12, 2_000, slope=True),
)


def measure(case: Case, draws: int) -> list[object]:
    """A fit with the nodes that shardmc chooses, and one with many."""
    data = case.simulate()
    options = {"family": case.family, "shards": 1, "draws": draws, "predictive": False}
    begin = perf_counter()
    chosen = shardmc.glm(case.formula, data, **options)
    seconds = perf_counter() - begin
    many = shardmc.glm(case.formula, data, nodes=NODES, check=False, **{**options, "seed": 1})
    worst, largest, least = "", -np.inf, 0.0
    for name in (name for name in chosen.draws if name.startswith(("sd_", "cor_"))):
        one, other = (np.ravel(p.draws[name]) for p in (chosen, many))
        one, other = (np.log(a) if name.startswith("sd_") else np.arctanh(a) for a in (one, other))
        ess = [float(array_stats.ess(a[None], chain_axis=0, draw_axis=1)) for a in (one, other)]
        error, noise = (one.mean() - other.mean()) / other.std(), np.sqrt(1 / ess[0] + 1 / ess[1])
        if abs(error) > largest:
            worst, largest, least = name, abs(error), one.std() / other.std()
            shown = f"{error:+.3f} ± {noise:.3f} ({worst})"
    assert chosen.certificate is not None
    nodes = f"{chosen.plan.nodes}"
    if chosen.plan.nodes_of_correction:
        nodes += f", corrected by {chosen.plan.nodes_of_correction}"
    return [str(case), nodes, shown, f"{least:.3f}", chosen.certificate.verdict, f"{seconds:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small case; nothing is written")
    options = parser.parse_args()
    cases = (Case("poisson", 11, 500),) if options.quick else CASES
    rows = []
    for case in cases:
        rows.append(measure(case, 500 if options.quick else 20_000))
        print(*rows[-1], sep=" | ", flush=True)
    columns = (
        "case",
        "nodes",
        "error of a sd or correlation",
        "ratio of its sds",
        "certificate",
        "seconds, cold",
    )
    text = "# Few large groups\n\n" + header("few_groups.py")
    text += f"""
One shard, 20,000 draws. The fit with the nodes that shardmc chooses is compared with one that has {NODES} for
each effect, and another seed. Errors are in posterior sds of the logarithm of a sd, or of Fisher's z of a
correlation, with their Monte Carlo standard error. The parameter with the largest error is shown.

{table(columns, rows)}"""
    publish("few_groups.md", text, options.quick)


if __name__ == "__main__":
    main()
