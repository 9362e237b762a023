"""What a user waits for: the first run ever, a second process, another seed, another prior, a few more rows.

    python benchmarks/first_use.py [--repeats 3] [--quick]

Covertype, d = 14, 100 shards, 10,000 draws, certificate included. Every process is a new one, and its seconds include
loading Python's modules, but not reading the file of the rows. The modules are compiled to byte code before, as an
installer does. Prints and writes docs/benchmarks/first_use.md: the median of the repeats.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from provenance import header, publish, table

WORDS = {
    "first": "first run ever",
    "second": "second process",
    "loading": "of that: loading the library",
    "off": "a process with `SHARDMC_PROGRAMS=off`",
    "same": "same process, the same fit again",
    "seed": "same process, another seed",
    "prior": "same process, another prior",
    "rows": "same process, 0.1 % fewer rows",
    "many": "same process, 5 % fewer rows",
}


def child(quick: bool) -> None:
    """One process: its first fit, and what follows in it."""
    begin = time.perf_counter()
    import jax
    import jax.numpy as jnp
    from datasets import covertype, synthetic_logistic

    import shardmc

    loading = time.perf_counter() - begin
    rows = None if quick else covertype(14, 581_012)
    rows = synthetic_logistic(20_000) if rows is None else rows
    dim, reading = rows[0].shape[1], time.perf_counter() - begin - loading

    def fit(count: int, seed: int, scale: float) -> float:
        def log_likelihood(params, rows):
            eta = rows[0] @ params["beta"]
            return rows[1] * eta - jnp.logaddexp(0.0, eta)

        model = shardmc.Model(
            log_likelihood, lambda params: -0.5 * jnp.sum((params["beta"] / scale) ** 2), {"beta": dim}
        )
        some = jax.tree.map(lambda a: a[:count], rows)
        start = time.perf_counter()
        shardmc.fit(model, some, shards=100, draws=500 if quick else 10_000, seed=seed)
        return time.perf_counter() - start

    count = len(rows[1])
    fit(count, 0, 10.0)
    found = {"loading": loading, "reading": reading, "same": fit(count, 0, 10.0), "seed": fit(count, 1, 10.0)}
    found |= {"prior": fit(count, 0, 5.0), "rows": fit(int(0.999 * count), 0, 10.0)}
    print(json.dumps(found | {"many": fit(int(0.95 * count), 0, 10.0)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few rows and draws; nothing is written")
    parser.add_argument("--remark", default="", help="a sentence about the machine, for the table")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.quick)
        return
    compileall.compile_dir(Path(__file__).parents[1] / "src", quiet=1)
    found: dict[str, list[float]] = {name: [] for name in WORDS}
    for _ in range(1 if options.quick else options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            for name, place in (("first", folder), ("second", folder), ("off", "off")):
                start = time.perf_counter()
                command = [sys.executable, __file__, "--child"]
                command += ["--quick"] if options.quick else []
                process = subprocess.run(
                    command,
                    check=True,
                    capture_output=True,
                    text=True,
                    env={**os.environ, "SHARDMC_PROGRAMS": place},
                )
                total, after = time.perf_counter() - start, json.loads(process.stdout.splitlines()[-1])
                found[name].append(total - sum(after.values()) + after["loading"])
                if name == "second":
                    for key in after.keys() & WORDS.keys():
                        found[key].append(after[key])
    rows = [[words, f"{statistics.median(found[name]):.2f}"] for name, words in WORDS.items()]
    text = f"# First use\n\n{header('first_use.py', options.remark)}\n{table(('what a user does', 'seconds'), rows)}"
    publish("first_use.md", text, options.quick)


if __name__ == "__main__":
    main()
