"""What a fit costs against the number of rows N, of shards K and of parameters d, and where `shards="auto"` stands.

    python benchmarks/scaling.py [--quick]

Logistic regression on rows made on the fly. Every time is that of the second of two equal calls, so compiled; passes
(evaluations of all rows, a shard's evaluation counting as its share) do not depend on the machine. Prints and writes
docs/benchmarks/scaling.md and scaling.svg.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from provenance import DOCS, header, publish, table

import shardmc

ROWS_PER_SHARD = 20_000
DRAWS_PER_SHARD = 20
CHUNK = 100_000
QUICK_SHARDS = 10  # with --quick, so that most fits share their compiled programs


@dataclass(frozen=True)
class Point:
    """One fit: its size, its seconds and its passes over the rows."""

    rows: int
    shards: int
    dim: int
    draws: int
    seconds: float
    passes: float
    kept: int


def simulate(num_rows: int, dim: int) -> tuple[jax.Array, jax.Array]:
    """Intercept, standard normal columns and a logistic response, made chunk by chunk."""
    rng = np.random.default_rng(0)
    beta = rng.normal(size=dim).astype(np.float32) / np.sqrt(dim)
    x, y = np.empty((num_rows, dim), np.float32), np.empty(num_rows, np.float32)
    for start in range(0, num_rows, CHUNK):
        part = slice(start, min(start + CHUNK, num_rows))
        rng.standard_normal(dtype=np.float32, out=x[part])
        x[part, 0] = 1
        y[part] = rng.random(len(x[part]), dtype=np.float32) < 1 / (1 + np.exp(-x[part] @ beta))
    return jnp.asarray(x), jnp.asarray(y)


def model(dim: int) -> shardmc.Model:
    def log_likelihood(params, rows):
        x, y = rows
        eta = x @ params["beta"]
        return y * eta - (jnp.maximum(eta, 0) + jnp.log1p(jnp.exp(-jnp.abs(eta))))

    return shardmc.Model(log_likelihood, lambda p: -0.5 * jnp.sum(p["beta"] ** 2) / 100, {"beta": dim})


def measure(data, fitted: shardmc.Model, shards: int | str, draws: int) -> Point:
    seconds = 0.0
    posterior = None
    for _ in range(2):
        start = time.perf_counter()
        posterior = shardmc.fit(fitted, data, shards=shards, draws=draws, shuffle=False, seed=0)
        seconds = time.perf_counter() - start
    assert posterior is not None
    plan = posterior.plan
    passes = sum(posterior.passes.values())
    point = Point(plan.rows, plan.shards, fitted.dim, draws, seconds, passes, plan.kept_rows)
    print(point, flush=True)
    return point


def exponent(x: list[float], y: list[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def over_rows(quick: bool) -> list[Point]:
    """N at fixed rows and draws per shard."""
    counts = (1_960, 2_000) if quick else (100_000, 1_000_000, 10_000_000, 100_000_000)
    dim = 2 if quick else 8
    fitted = model(dim)
    points = []
    for count in counts:
        shards = QUICK_SHARDS if quick else count // ROWS_PER_SHARD
        points.append(measure(simulate(count, dim), fitted, shards, DRAWS_PER_SHARD * shards))
    return points


def over_shards(quick: bool) -> dict[int, tuple[list[Point], Point]]:
    """K at fixed N and draws, and the K that "auto" chooses."""
    sizes, draws = ((2_000,), DRAWS_PER_SHARD * QUICK_SHARDS) if quick else ((100_000, 1_000_000), 10_000)
    counts = (QUICK_SHARDS,) if quick else (10, 30, 100, 300, 1_000)
    dim = 2 if quick else 10
    fitted = model(dim)
    found = {}
    for size in sizes:
        data = simulate(size, dim)
        points = [measure(data, fitted, shards, draws) for shards in counts]
        found[size] = (points, measure(data, fitted, "auto", draws))
    return found


def over_parameters(quick: bool) -> list[Point]:
    """d at fixed N, K and draws."""
    dims = (2, 3) if quick else (2, 5, 10, 20, 50, 100, 200)
    size, shards, draws = (
        (2_000, QUICK_SHARDS, DRAWS_PER_SHARD * QUICK_SHARDS) if quick else (200_000, 20, 2_000)
    )
    return [measure(simulate(size, dim), model(dim), shards, draws) for dim in dims]


COLUMNS = ("rows", "shards", "parameters", "draws", "kept rows", "seconds", "passes", "ns a row and pass")


def _row(point: Point) -> list[object]:
    cost = point.seconds / (point.rows * point.passes) * 1e9
    return [
        f"{point.rows:,}",
        point.shards,
        point.dim,
        f"{point.draws:,}",
        point.kept,
        f"{point.seconds:.3g}",
        f"{point.passes:.0f}",
        f"{cost:.2f}",
    ]


def describe(rows: list[Point], shards: dict[int, tuple[list[Point], Point]], dims: list[Point]) -> str:
    text = "# How the cost grows\n\n" + header("scaling.py") + "\nCertificate included; compiled.\n"
    if rows:
        slope = exponent([p.rows for p in rows], [p.seconds for p in rows])
        large = [p for p in rows if p.rows >= 1_000_000]
        tail = exponent([p.rows for p in large], [p.seconds for p in large]) if len(large) > 1 else np.nan
        text += (
            f"\n## Rows\n\n{ROWS_PER_SHARD:,} rows and {DRAWS_PER_SHARD} draws a shard. Seconds grow like N to "
            f"the power {slope:.2f} over the whole range and {tail:.2f} from a million rows on.\n\n"
            + table(COLUMNS, map(_row, rows))
        )
    for size, (points, auto) in shards.items():
        best = min(points, key=lambda p: p.seconds)
        text += (
            f"\n## Shards, {size:,} rows\n\n10,000 draws. `auto` takes K = {auto.shards}: "
            f"{auto.seconds / best.seconds:.2f} times the time of the best of these, K = {best.shards}.\n\n"
            + table(COLUMNS, [*map(_row, points), ["**auto**", *_row(auto)[1:]]])
        )
    if dims:
        slope = exponent([p.dim for p in dims], [p.seconds for p in dims])
        text += f"\n## Parameters\n\nSeconds grow like d to the power {slope:.2f}.\n\n" + table(
            COLUMNS, map(_row, dims)
        )
    return text + "\n![Seconds against rows, shards and parameters](scaling.svg)\n"


def plot(rows: list[Point], shards: dict[int, tuple[list[Point], Point]], dims: list[Point]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
    axes[0].plot([p.rows for p in rows], [p.seconds for p in rows], "o-", color="#0072B2")
    axes[0].set(xlabel="rows", ylabel="seconds, compiled", title="fixed rows and draws a shard")
    for (size, (points, auto)), colour in zip(shards.items(), ("#0072B2", "#D55E00"), strict=False):
        axes[1].plot(
            [p.shards for p in points],
            [p.seconds for p in points],
            "o-",
            color=colour,
            label=f"{size:,} rows",
        )
        axes[1].plot([auto.shards], [auto.seconds], "*", color=colour, markersize=14)
    axes[1].set(xlabel="shards (star: auto)", title="10,000 draws")
    axes[1].legend(frameon=False)
    axes[2].plot([p.dim for p in dims], [p.seconds for p in dims], "o-", color="#0072B2")
    axes[2].set(xlabel="parameters", title="200,000 rows, 20 shards")
    for axis in axes:
        axis.set(xscale="log", yscale="log")
        axis.grid(alpha=0.3)
    figure.savefig(DOCS / "scaling.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes; nothing is written")
    quick = parser.parse_args().quick
    rows, shards, dims = over_rows(quick), over_shards(quick), over_parameters(quick)
    publish("scaling.md", describe(rows, shards, dims), quick)
    if not quick:
        plot(rows, shards, dims)


if __name__ == "__main__":
    main()
