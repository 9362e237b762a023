"""Peak memory of a mixed model whose rows come from Parquet files: ten times the rows and groups, about the same peak.

    python benchmarks/mixed_memory.py [--groups 100000] [--draws 2000] [--quick]

Each size is fitted in a process of its own, on files that this process wrote. Prints and writes
docs/benchmarks/mixed_memory.md; with --quick or other sizes it writes nothing.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from mixed_cases import SD
from provenance import header, publish, table

SIZE = 10  # rows of a group
RATIO = 10
"""The second table has so many times the rows and groups."""
MOST = 1.5
"""The aim: the peak of the second over that of the first."""
PIECE = 1_000_000  # rows of a file


def write(folder: Path, groups: int) -> None:
    """Binary rows in files; those of a group lie in any of them."""
    rng = np.random.default_rng(0)
    effects = SD * rng.standard_normal(groups)
    count = groups * SIZE
    # A fixed stride visits every row once, in an order without pattern that needs no memory.
    stride = next(s for s in range(int(0.618 * count), count) if np.gcd(s, count) == 1)
    for number, start in enumerate(range(0, count, PIECE)):
        g = (np.arange(start, min(start + PIECE, count)) * stride % count) // SIZE
        x = rng.standard_normal((2, len(g)))
        eta = -0.5 + 0.5 * x[0] - 0.4 * x[1] + effects[g]
        y = (rng.random(len(g)) < 1 / (1 + np.exp(-eta))).astype(np.int8)
        pq.write_table(pa.table({"g": g, "x1": x[0], "x2": x[1], "y": y}), folder / f"{number:03d}.parquet")


def fit(folder: str, draws: int) -> None:
    """In a process of its own: fit and print the peak resident memory, before and after."""
    import shardmc

    peaks = []
    for step in (lambda: None, lambda: shardmc.glm(FORMULA, folder, family="bernoulli", draws=draws)):
        posterior = step()
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    found = {"before": peaks[0], "peak": peaks[1], "seconds": sum(posterior.seconds.values())}
    print(json.dumps({**found, "shards": posterior.plan.shards, "verdict": posterior.certificate.verdict}))


FORMULA = "y ~ x1 + x2 + (1 | g)"


def run(*arguments: str) -> str:
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=100_000, help="groups of the smaller table")
    parser.add_argument("--draws", type=int, default=2_000)
    parser.add_argument("--quick", action="store_true", help="200 groups twice, few draws")
    parser.add_argument("--fit", metavar="FOLDER", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fit:
        fit(given.fit, given.draws)
        return
    sizes, draws = (given.groups, RATIO * given.groups), given.draws
    if given.quick:
        sizes, draws = (200, 200), 200
    rows, peaks = [], []
    for groups in sizes:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), groups)
            found = json.loads(run("--fit", folder, "--draws", str(draws)).strip().splitlines()[-1])
        peaks.append(found["peak"])
        shown = [found[name] for name in ("shards", "before", "peak", "seconds", "verdict")]
        rows.append([f"{groups * SIZE:,}", f"{groups:,}", *shown])
    columns = ("rows", "groups", "shards", "before the fit, MB", "peak, MB", "seconds", "certificate")
    ratio = peaks[1] / peaks[0]
    text = "# Peak memory of a mixed model from Parquet\n\n" + header("mixed_memory.py")
    text += f"\n`{FORMULA}`, binary, {draws:,} draws.\n\n" + table(columns, rows)
    text += f"\nThe peaks have the ratio {ratio:.2f}. The aim is at most {MOST}: "
    text += f"{'reached' if ratio <= MOST else '**missed**'}.\n"
    publish("mixed_memory.md", text, given.quick or given.groups != 100_000)


if __name__ == "__main__":
    main()
