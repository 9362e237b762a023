"""Memory of a process that fits many models: new functions, or a formula on new data, again and again.

    python benchmarks/many_fits.py [--fits 200] [--quick]

Every fit has another number of rows. Half of them have a model with other steps than all before, so that no compiled
program can be used again. Prints and writes docs/benchmarks/many_fits.md: the memory that the process holds after some
of the fits, and the number of compiled programs that are alive.
"""

from __future__ import annotations

import argparse
import gc
import resource
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from provenance import header, publish, table

import shardmc

SHOWN = (1, 10, 25, 50, 100, 150, 200)


def resident() -> float:
    """Memory of this process now, in MB."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize() / 1e6


def new_model(number: int) -> shardmc.Model:
    """A model whose steps are those of no other: a polynomial of another degree, and a number that meets the rows."""
    degree, factor = 1 + number % 7, 1 + number / 1_000

    def log_likelihood(params, rows):
        mean = sum(params["beta"][k] * rows["x"] ** k for k in range(degree + 1))
        return -0.5 * factor * (rows["y"] - mean) ** 2

    return shardmc.Model(
        log_likelihood, lambda params: -0.5 * jnp.sum(params["beta"] ** 2), {"beta": degree + 1}
    )


def fit_functions(number: int, rng: np.random.Generator) -> None:
    rows = rng.normal(size=(2, 5_000 + 37 * number)).astype(np.float32)
    shardmc.fit(new_model(number), {"x": rows[0], "y": rows[1]}, shards=4, draws=200)


def fit_formula(number: int, rng: np.random.Generator) -> None:
    count = 5_000 + 37 * number
    columns = {f"x{k}": rng.normal(size=count) for k in range(1 + number % 5)}
    columns["y"] = rng.poisson(np.exp(0.1 * columns["x0"]))
    shardmc.glm(f"y ~ {' + '.join(list(columns)[:-1])}", columns, "poisson", shards=4, draws=200)


CASES = {"new functions": fit_functions, "a formula on new data": fit_formula}


def measure(name: str, fits: int) -> list[list[object]]:
    rng, rows = np.random.default_rng(0), []
    for number in range(1, fits + 1):
        CASES[name](number, rng)
        if number in SHOWN or number == fits:
            gc.collect()
            programs = len(jax.devices()[0].client.live_executables())
            rows.append([name, number, round(resident()), programs])
            print(*rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fits", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="one fit of each case; nothing is written")
    parser.add_argument("--only", choices=list(CASES), help="one case, as each needs a process of its own")
    parser.add_argument("--lines", nargs="+", type=Path, help="files of printed lines to make the table from")
    arguments = parser.parse_args()
    if arguments.lines:
        printed = [line for path in arguments.lines for line in path.read_text().splitlines() if line]
        rows = [[line.rsplit(" ", 3)[0], *line.rsplit(" ", 3)[1:]] for line in printed]
    else:
        names = [arguments.only] if arguments.only else list(CASES)
        rows = [row for name in names for row in measure(name, 1 if arguments.quick else arguments.fits)]
    if arguments.only and not arguments.lines:
        return
    columns = ("fits of", "number", "MB in memory", "compiled programs")
    text = f"# Many fits in one process\n\n{header('many_fits.py')}\n{table(columns, rows)}"
    publish("many_fits.md", text, arguments.quick)


if __name__ == "__main__":
    main()
