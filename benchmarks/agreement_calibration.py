"""How often shard agreement is right: random shards, a shard with flipped labels, and Covertype in file order.

    python benchmarks/agreement_calibration.py [--quick]

Prints and writes docs/benchmarks/agreement_calibration.md. NumPy only.
"""

from __future__ import annotations

import argparse

import numpy as np
from datasets import data_file
from provenance import header, publish, table
from scipy import special

from shardmc.check import Agreement, agree
from shardmc.types import Located, Mode

PRIOR_PRECISION = 0.01
COLUMNS = (
    "shards",
    "rows a shard",
    "runs",
    "a random shard named",
    "flipped shard named",
    "scatter, mean and largest",
)


def newton(family: str, x: np.ndarray, y: np.ndarray, weight: float, start: np.ndarray):
    """Modes (shard, dim) and curvatures of rows x (shard, row, dim) that count `weight` times, damped by halving."""
    theta = np.tile(start, (len(x), 1))

    def value(t):
        eta = np.einsum("krd,kd->kr", x, t)
        normaliser = np.logaddexp(0, eta) if family == "logistic" else np.exp(np.minimum(eta, 30))
        return weight * np.sum(y * eta - normaliser, axis=1) - 0.5 * PRIOR_PRECISION * np.sum(t**2, axis=1)

    for _ in range(60):
        eta = np.einsum("krd,kd->kr", x, theta)
        mean = special.expit(eta) if family == "logistic" else np.exp(np.minimum(eta, 30))
        spread = mean * (1 - mean) if family == "logistic" else mean
        gradient = weight * np.einsum("krd,kr->kd", x, y - mean) - PRIOR_PRECISION * theta
        curvature = weight * (x * spread[..., None]).transpose(0, 2, 1) @ x
        curvature += PRIOR_PRECISION * np.eye(x.shape[2])
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        decrement = np.sqrt(np.sum(step * gradient, axis=1))
        if decrement.max() < 1e-6:
            break
        length, before = np.ones(len(x)), value(theta)
        for _ in range(20):
            length[value(theta + length[:, None] * step) < before - 1e-9] /= 2
        theta = theta + length[:, None] * step
    return theta, curvature, decrement


def checked(family: str, x: np.ndarray, y: np.ndarray) -> Agreement:
    """Agreement of the shards (shard, row, dim)."""
    shards, rows, dim = x.shape
    all_rows = newton(family, x.reshape(1, -1, dim), y.reshape(1, -1), 1.0, np.zeros(dim))
    modes, curvatures, decrements = newton(family, x, y, float(shards), all_rows[0][0])
    mode = Mode(all_rows[0][0], all_rows[1][0], float(all_rows[2][0]), 0.0)
    found = (decrements < 0.01) & (np.linalg.eigvalsh(curvatures)[:, 0] > 0)
    located = Located(mode, modes, curvatures, found)
    return agree(located, np.full(shards, 1 / shards), np.full(shards, rows), [f"x{k}" for k in range(dim)])


def simulated(family: str, shards: int, rows: int, dim: int, intercept: float, seed: int):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(shards, rows, dim))
    x[..., 0] = 1
    eta = x @ np.concatenate([[intercept], 0.5 * np.sin(2 + np.arange(dim - 1))])
    if family == "logistic":
        return x, (rng.uniform(size=eta.shape) < special.expit(eta)).astype(float)
    return x, rng.poisson(np.exp(eta)).astype(float)


def random_shards(
    name: str, family: str, shards: int, rows: int, dim: int, intercept: float, runs: int
) -> list:
    named, flipped, scatter = 0, 0, []
    for seed in range(runs):
        x, y = simulated(family, shards, rows, dim, intercept, seed)
        agreement = checked(family, x, y)
        named += len(agreement.outliers) > 0
        scatter.append(agreement.scatter)
        if family == "logistic":
            y[shards // 2] = 1 - y[shards // 2]
            flipped += shards // 2 in checked(family, x, y).outliers
    found = f"{flipped}" if family == "logistic" else "-"
    return [name, rows, runs, named, found, f"{np.mean(scatter):.2f}, {np.max(scatter):.2f}"]


def covertype(shards: int, step: int) -> list | None:
    """Every `step`-th row of Covertype (intercept and three attributes), in file order and shuffled."""
    path = data_file("covtype.npz")
    if path is None:
        return None
    stored = np.load(path)
    attributes = stored["X10"][::step, :3].astype(float)
    x = np.column_stack(
        [np.ones(len(attributes)), (attributes - attributes.mean(axis=0)) / attributes.std(axis=0)]
    )
    y = (stored["cover_type"][::step] == 2).astype(float)
    rows = len(y) // shards
    order = np.random.default_rng(0).permutation(len(y))
    cells = []
    for name, index in (("file order", np.arange(len(y))), ("shuffled", order)):
        index = index[: shards * rows].reshape(shards, rows)
        agreement = checked("logistic", x[index], y[index])
        cells.append([name, shards, rows, len(agreement.outliers), f"{agreement.scatter:.2f}"])
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few runs; prints only")
    quick = parser.parse_args().quick
    runs = 5 if quick else 200
    cases = (
        ("100, logistic, d = 5", "logistic", 100, 200, 5, 0.0),
        ("100, logistic, rare ones, d = 5", "logistic", 100, 200, 5, -2.5),
        ("50, logistic, d = 10", "logistic", 50, 300, 10, 0.0),
        ("100, Poisson, d = 4", "Poisson", 100, 200, 4, 0.0),
    )
    text = "# Calibration of shard agreement\n\n" + header("agreement_calibration.py") + "\n"
    text += (
        "## Random shards, and one of them with flipped labels\n\nThe level is 0.01: a run may name a shard of random "
        "rows with "
        f"that probability.\n\n{table(COLUMNS, [random_shards(*case, runs) for case in cases])}\n"
    )
    real = covertype(100, 50 if quick else 5)
    if real is not None:
        columns = ("rows of Covertype, d = 4", "shards", "rows a shard", "shards named", "scatter")
        text += f"## Data in file order\n\n{table(columns, real)}"
    publish("agreement_calibration.md", text.rstrip() + "\n", quick)


if __name__ == "__main__":
    main()
