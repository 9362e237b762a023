"""What warped coordinates do for skewed parameters: levels of a factor with one outcome only.

    python benchmarks/warped.py [--quick] [--note TEXT]

The same shards are sampled in the shards' frames and in warped coordinates. Covertype has six separated soil types. The
other rows are simulated: normal columns, and a factor with eight separated levels or none. Each fit runs twice in one
process, and the second is timed: the first compiles. Prints and writes docs/benchmarks/warped.md.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from datasets import covertype, logistic_model
from provenance import header, publish, table

import shardmc
from shardmc import HMC, Auto, Independence, Warped

COLUMNS = (
    "rows",
    "sampler",
    "acceptance",
    "passes",
    "s, sampling",
    "s, fit",
    "CPU s, fit",
    "smallest ESS",
    "ESS a second",
    "ESS a CPU second",
    "verdict",
)
SAMPLERS = {
    "independence": Independence(),
    "HMC, 8 chains": HMC(chains=8),
    "warped independence": Warped(),
    "warped HMC, 8 chains": Warped(HMC(chains=8)),
    "auto": Auto(),
}
QUICK = {name: SAMPLERS[name] for name in ("independence", "warped independence", "auto")}


def with_levels(num_rows: int, columns: int, levels: int, separated: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal columns and a factor, some of whose levels have a tenth of the rows of others and no success."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, columns))
    x[:, 0] = 1.0
    level = rng.integers(0, levels + 1, num_rows)
    level = np.where((level < separated) & (rng.random(num_rows) < 0.9), levels, level)
    chance = 1 / (1 + np.exp(-x @ rng.normal(0, 1 / np.sqrt(columns), columns)))
    y = (rng.random(num_rows) < chance) & (level >= separated)
    return np.column_stack([x, level[:, None] == np.arange(levels)]).astype(np.float32), y.astype(np.float32)


def measure(name: str, data: tuple[np.ndarray, np.ndarray], samplers: dict, draws: int) -> list[list[object]]:
    model, rows = logistic_model(data[0].shape[1]), []
    for label, sampler in samplers.items():
        for _ in range(2):
            start, cpu = time.perf_counter(), time.process_time()
            posterior = shardmc.fit(model, data, draws=draws, sampler=sampler, seed=1)
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        ess = float(posterior.summary().ess.min())
        row = [name, label, round(float(posterior.shards.acceptance.mean()), 2), posterior.passes["sample"]]
        row += [posterior.seconds["sample"], seconds, cpu, round(ess), round(ess / seconds), round(ess / cpu)]
        rows.append([*row, posterior.certificate.verdict])
        print(*rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few simulated rows; nothing is written")
    parser.add_argument("--note", default="", help="a sentence about the machine, for the page")
    arguments = parser.parse_args()
    quick = arguments.quick
    if quick:
        rows = measure("8 of 20 levels separated", with_levels(4_000, 5, 20, 8), QUICK, 500)
    else:
        rows = []
        real = covertype(53)
        if real is not None:
            rows += measure("Covertype, 53 coefficients", real, SAMPLERS, 10_000)
        for separated in (8, 0):
            data = with_levels(60_000, 50, 50, separated)
            rows += measure(f"100 coefficients, {separated} levels separated", data, SAMPLERS, 4_000)
    text = f"# Skewed parameters in warped coordinates\n\n{header('warped.py', arguments.note)}\n{table(COLUMNS, rows)}"
    publish("warped.md", text, quick)


if __name__ == "__main__":
    main()
