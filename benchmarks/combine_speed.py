"""How long every combiner takes, and how much memory, on 100 shards of 10,000 draws of 20 parameters.

    python benchmarks/combine_speed.py [--quick]

Prints and writes docs/benchmarks/combine_speed.md. Each method runs in a process of its own; its memory is what the
process needed beyond the draws themselves.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time

import numpy as np
from provenance import header, publish, table

from shardmc.combiners import COMBINERS, named_combiner
from shardmc.types import Located, Mode, ShardDraws

SLOW = ("nonparametric-product", "semiparametric-product", "empirical-wasserstein")


def shards(num_shards: int, num_draws: int, dim: int, scaling) -> tuple[ShardDraws, Located]:
    """Normal subposteriors that scatter as random shards do, and their modes."""
    rng = np.random.default_rng(0)
    width = np.sqrt(num_shards) if scaling == "fractional" else 1.0
    modes = rng.normal(size=(num_shards, dim)) * np.sqrt(num_shards - 1)
    values = [m + width * rng.normal(size=(num_draws, dim)) for m in modes]
    draws = ShardDraws.of(values, scaling=scaling)
    curvatures = np.tile(np.eye(dim), (num_shards, 1, 1))
    mode = Mode(modes.mean(axis=0), np.eye(dim), 0.0, 1.0)
    return draws, Located(mode, modes, curvatures, np.ones(num_shards, bool))


def measure(name: str, num_shards: int, num_draws: int, dim: int) -> tuple[int, float, float, float]:
    """Number of draws out, seconds of the first and of the best call, MiB beyond the draws."""
    method = named_combiner(name)
    draws, located = shards(num_shards, num_draws, dim, method.scaling)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    count = 0
    for _ in range(1 if name in SLOW else 3):
        # A new object, because moments are remembered by the draws that they belong to.
        fresh = ShardDraws.of(draws.values, scaling=draws.scaling)
        begin = time.perf_counter()
        count = len(method(fresh, located, np.random.default_rng(0)).values)
        seconds.append(time.perf_counter() - begin)
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return count, seconds[0], min(seconds), memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    size = (10, 1000, 5) if options.quick else (100, 10_000, 20)
    found = {}
    for name in COMBINERS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[name] = pool.apply(measure, (name, *size))
        print(f"{name}: {found[name][1]:.2f} s", flush=True)
    base = found["algorithm-1"][2]
    rows = [
        [name, count, f"{first:.2f}", f"{best:.2f}", f"{best / base:.1f}", f"{memory:.0f}"]
        for name, (count, first, best, memory) in found.items()
    ]
    text = (
        "# Speed of the combiners\n\n"
        + header("combine_speed.py")
        + f"\n{size[0]} shards of {size[1]:,} draws of {size[2]} parameters, "
        + f"{size[0] * size[1] * size[2] * 8 / 2**20:.0f} MiB. Seconds of the first call and of the best of three "
        + "(one for the last kinds of product and barycentre); the ratio is of the best to that of algorithm-1; "
        + "memory is what the process needed beyond the draws.\n\n"
        + table(["method", "draws out", "first call, s", "best, s", "ratio", "memory, MiB"], rows)
    )
    publish("combine_speed.md", text, options.quick)


if __name__ == "__main__":
    main()
