"""Memory of a formula on Parquet files of one and of ten million rows, worked out and fitted piece by piece.

    python benchmarks/formula_memory.py [--quick]

Each fit runs in a process of its own, whose peak resident memory is read when it ends. Prints and writes
docs/benchmarks/formula_memory.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from provenance import header, publish, table

PIECE = 500_000
FORMULA = "claims ~ age + np.log(income) + C(region) + age:C(sex)"
REGIONS = np.array(["centre", "east", "north", "south", "west"])


def write_rows(path: Path, num_rows: int) -> None:
    """Claims with exposure, sorted by region within each piece."""
    writer = None
    for number, start in enumerate(range(0, num_rows, PIECE)):
        rng = np.random.default_rng(number)
        size = min(PIECE, num_rows - start)
        region = np.sort(rng.integers(0, len(REGIONS), size))
        age, income = rng.uniform(18, 80, size), rng.lognormal(10, 0.6, size)
        sex, exposure = rng.integers(0, 2, size), rng.uniform(0.1, 1.0, size)
        eta = -2 + 0.01 * age - 0.05 * np.log(income) + 0.1 * region - 0.004 * age * sex
        columns = {
            "age": age,
            "income": income,
            "region": REGIONS[region],
            "sex": np.array(["f", "m"])[sex],
            "exposure": exposure,
            "claims": rng.poisson(np.exp(eta) * exposure),
        }
        piece = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, piece.schema)
        writer.write_table(piece, row_group_size=PIECE // 4)
    assert writer is not None
    writer.close()


def fit(path: str, scratch: str, memory: str, shards: str, draws: int) -> dict[str, object]:
    """Fit in this process; its peak memory in bytes, before the fit and after it."""
    from shardmc.data import as_source
    from shardmc.formulas import glm

    before = _peak()
    limit = None if memory == "default" else int(memory)
    source = as_source(path, memory=limit, scratch=scratch)
    count = shards if shards == "auto" else int(shards)
    posterior = glm(FORMULA, source, "poisson", exposure="exposure", shards=count, draws=draws, seed=0)
    assert posterior.certificate is not None
    return {
        "rows": source.num_rows,
        "parameters": len(posterior.names),
        "shards": posterior.plan.shards,
        "before": before,
        "peak": _peak(),
        "verdict": posterior.certificate.verdict,
        "seconds": sum(posterior.seconds.values()),
    }


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(path: Path, memory: str, shards: str, draws: int) -> dict:
    with tempfile.TemporaryDirectory(prefix="shardmc-bench-") as scratch:
        command = [sys.executable, __file__, "--one", str(path), scratch, memory, shards, str(draws)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
    return json.loads(shown.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows; nothing is written")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        *rest, draws = arguments.one
        print(json.dumps(fit(*rest, int(draws))))
        return
    scale, draws = (100, 1_000) if arguments.quick else (1, 10_000)
    rows = []
    with tempfile.TemporaryDirectory(prefix="shardmc-bench-") as folder:
        # Shards of the same size first, so that what differs is the number of rows alone; then the defaults.
        for num_rows, memory, shards in (
            (1_000_000, "0", 100 // scale),
            (10_000_000, "0", 1_000 // scale),
            (10_000_000, "default", "auto"),
        ):
            path = Path(folder) / f"{num_rows}.parquet"
            if not path.exists():
                write_rows(path, num_rows // scale)
            found = measure(path, memory, str(shards), draws)
            rows.append(
                [
                    f"{found['rows']:,}",
                    "from disk" if memory == "0" else "up to 1 GiB in memory (default)",
                    f"{path.stat().st_size / 1e6:.0f}",
                    f"{found['rows'] * found['parameters'] * 4 / 1e6:.0f}",
                    f"{found['before'] / 1e6:.0f}",
                    f"{found['peak'] / 1e6:.0f}",
                    found["parameters"],
                    found["shards"],
                    found["verdict"],
                    f"{found['seconds']:.0f}",
                ]
            )
            print(rows[-1], flush=True)
    columns = (
        "rows",
        "rows of the design are read",
        "Parquet, MB",
        "design, MB",
        "peak before, MB",
        "peak, MB",
        "parameters",
        "shards",
        "certificate",
        "seconds",
    )
    text = (
        "# A formula on ten million rows\n\n"
        + header("formula_memory.py")
        + f"\n`{FORMULA}`, Poisson, exposure `exposure`, {draws:,} draws. Resident memory of the process: "
        "before the fit (imports), and at its peak. `design` is what the formula's columns take in float32. Seconds "
        "include compilation, on a machine that did other work as well.\n\n" + table(columns, rows)
    )
    publish("formula_memory.md", text, arguments.quick)


if __name__ == "__main__":
    main()
