"""Peak memory of fit, in a process of its own: small arrays, and large ones that are copied or stay in place.

python benchmarks/memory.py [--quick] [--note "what else ran"]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
from provenance import header, publish, table

COPY, STAY = "copied", "in place"
KINDS = {
    "matrix, float32": ("float32", True),
    "matrix, float64": ("float64", True),
    "columns, float32": ("float32", True),
    "matrix, float32, shuffle=False": ("float32", False),
}
PIECE = 1 << 18
LARGE = """
## Large arrays

20 million rows of 14 columns and a response, in 100 shards: a matrix and a vector, or a vector for each column. A copy
has the rows in the order of the shards, in float32. Arrays that stay in place are not copied: every batch of shards
gathers its rows. Both ways give the same draws, to the last bit. CPU seconds include compilation.

"""


def simulate(num_rows: int, dim: int, dtype: str, order: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a logistic regression, made piece by piece, so that making them needs no memory besides them."""
    rng = np.random.default_rng(0)
    x, y = np.empty((num_rows, dim), dtype, order), np.empty(num_rows, dtype)
    for start in range(0, num_rows, PIECE):
        part = rng.standard_normal((min(PIECE, num_rows - start), dim), dtype=np.float32)
        x[start : start + PIECE] = part
        y[start : start + PIECE] = rng.random(len(part)) < 1 / (1 + np.exp(-part[:, 0]))
    return x, y


def model_and_rows(kind: str, num_rows: int, dim: int) -> tuple[Any, Any]:
    import jax.numpy as jnp
    from datasets import logistic_model

    import shardmc

    columns = kind.startswith("columns")
    x, y = simulate(num_rows, dim, KINDS[kind][0], "F" if columns else "C")
    if not columns:
        return logistic_model(dim), (x, y)

    def log_likelihood(params: Any, rows: Any) -> Any:
        eta = jnp.stack(rows["x"], axis=1) @ params["beta"]
        return rows["y"] * eta - jnp.logaddexp(0.0, eta)

    model = shardmc.Model(log_likelihood, lambda p: -0.5 * jnp.sum((p["beta"] / 10) ** 2), {"beta": dim})
    return model, {"x": [x[:, j] for j in range(dim)], "y": y}


def peak() -> float:
    """The most resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(kind: str, num_rows: int, dim: int, shards: int, memory: int) -> None:
    """Run in the child: simulate, fit, print memory in MB, CPU seconds, and what the draws are."""
    import jax

    import shardmc
    from shardmc.data import as_source

    model, rows = model_and_rows(kind, num_rows, dim)
    data = sum(array.nbytes for array in jax.tree.leaves(rows)) / 1e6
    source = as_source(rows, memory=None if memory < 0 else memory)
    before, start = peak(), time.process_time()
    fitted = shardmc.fit(model, source, shards=shards, draws=10_000, shuffle=KINDS[kind][1])
    seconds = time.process_time() - start
    digest = hashlib.sha256(fitted.theta.tobytes()).hexdigest()[:12]
    print(
        data, before, peak(), seconds, fitted.shards.sampler[0], fitted.certificate.verdict, digest, sep=";"
    )


def in_child(kind: str, num_rows: int, dim: int, shards: int, memory: int = -1) -> list[Any]:
    """Data, memory before and at most, and CPU seconds; sampler, verdict, digest. Programs are compiled anew."""
    child = [sys.executable, __file__, "--child", kind, *map(str, (num_rows, dim, shards, memory))]
    environment = {**os.environ, "SHARDMC_PROGRAMS": "off"}
    done = subprocess.run(child, capture_output=True, text=True, check=True, env=environment)
    *numbers, sampler, verdict, digest = done.stdout.strip().splitlines()[-1].split(";")
    return [*map(float, numbers), sampler, verdict, digest]


def small(quick: bool) -> str:
    rows = []
    sizes = ((50_000, 10, 20),) if quick else ((500_000, 54, 50), (500_000, 14, 100))
    for num_rows, dim, shards in sizes:
        data, before, most, _, sampler, verdict, _ = in_child("matrix, float32", num_rows, dim, shards)
        rows.append([f"{num_rows:,} x {dim}", shards, sampler, data, before, most, verdict])
    columns = ("rows", "shards", "sampler", "data, MB", "before fit, MB", "peak, MB", "certificate")
    return table(columns, rows)


def large(quick: bool) -> str:
    num_rows, dim, shards = (50_000, 10, 40) if quick else (20_000_000, 14, 100)
    rows = []
    for kind in KINDS:
        digests = set()
        for way, memory in ((COPY, 1 << 40), (STAY, 0 if quick else 1 << 30)):
            data, before, most, seconds, *_, digest = in_child(kind, num_rows, dim, shards, memory)
            rows.append([kind, way, data, before, most - before, seconds])
            digests.add(digest)
        if len(digests) > 1:
            raise SystemExit(f"{kind}: the draws are not the same.")
    columns = (
        "arrays",
        "rows are",
        "data, MB",
        "before fit, MB",
        "peak above that, MB",
        "CPU seconds of fit",
    )
    return table(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--note", default="")
    parser.add_argument("--child", nargs=5)
    options = parser.parse_args()
    if options.child:
        kind, *numbers = options.child
        measure(kind, *map(int, numbers))
        return
    text = (
        "# Peak memory of fit\n\n" + header("memory.py", options.note) + "\n" + small(options.quick) + LARGE
    )
    publish("memory.md", text + large(options.quick), options.quick)


if __name__ == "__main__":
    main()
