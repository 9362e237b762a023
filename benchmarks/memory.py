"""Peak memory of fit on 500,000 x 54 float32 rows, in a process of its own.

python benchmarks/memory.py [--quick]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

import numpy as np
from provenance import header, publish, table


def measure(num_rows: int, dim: int, shards: int) -> None:
    """Run in the child: simulate, fit, print the peak resident memory of the process in MB."""
    from datasets import logistic_model

    import shardmc

    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_rows, dim), dtype=np.float32)
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-x[:, 0]))).astype(np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    fitted = shardmc.fit(logistic_model(dim), (x, y), shards=shards, draws=10_000)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(x.nbytes / 1e6, before, after, fitted.shards.sampler[0], fitted.certificate.verdict, sep=";")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=3, type=int)
    options = parser.parse_args()
    if options.child:
        measure(*options.child)
        return
    rows = []
    for num_rows, dim, shards in (
        ((50_000, 10, 20),) if options.quick else ((500_000, 54, 50), (500_000, 14, 100))
    ):
        child = [sys.executable, __file__, "--child", str(num_rows), str(dim), str(shards)]
        done = subprocess.run(child, capture_output=True, text=True, check=True)
        data, before, after, sampler, verdict = done.stdout.strip().splitlines()[-1].split(";")
        rows.append(
            [f"{num_rows:,} x {dim}", shards, sampler, float(data), float(before), float(after), verdict]
        )
    columns = ("rows", "shards", "sampler", "data, MB", "before fit, MB", "peak, MB", "certificate")
    text = "# Peak memory of fit\n\n" + header("memory.py") + "\n" + table(columns, rows)
    publish("memory.md", text, options.quick)


if __name__ == "__main__":
    main()
