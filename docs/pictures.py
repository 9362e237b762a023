"""Draw the documentation's pictures, from exact densities: `python docs/pictures.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from scipy import special

FOLDER = Path(__file__).parent / "pictures"
ROWS, SHARDS = 10_000, 10
OWN, POOLED, FULL = "#9aa5b1", "#d1495b", "#1b1b1e"


class Density:
    """A density of one number, by its unnormalised logarithm on a grid; mode and curvature are those of its top."""

    def __init__(self, log_density: Callable[[np.ndarray], np.ndarray], grid: np.ndarray) -> None:
        values = log_density(grid)
        top = int(values.argmax())
        step = abs(grid[1] - grid[0])
        self._log_density = log_density
        self._log_mass = values[top] + np.log(np.exp(values - values[top]).sum() * step)
        self.mode = grid[top]
        around = log_density(self.mode + step * np.arange(-1, 2))
        self.curvature = -np.diff(around, 2)[0] / step**2

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        return np.exp(self._log_density(theta) - self._log_mass)


def log_odds(a: float, b: float) -> Density:
    """Of log odds whose probability is Beta(a, b)."""
    grid = special.logit(a / (a + b)) + np.linspace(-25, 25, 20_001) / np.sqrt(a * b / (a + b))
    return Density(lambda u: a * special.log_expit(u) + b * special.log_expit(-u), grid)


def log_spread(weight: float, rows: float, squares: float) -> Density:
    """Of log tau in y ~ N(0, 1 + tau^2) with tau ~ half-normal, from the sum of squares of rows with a weight."""

    def log_density(u: np.ndarray) -> np.ndarray:
        variance = 1 + np.exp(2 * u)
        return u - np.exp(2 * u) / 2 - weight * (rows * np.log(variance) + squares / variance) / 2

    return Density(log_density, np.linspace(-8, 2, 20_001))


def sign_unknown(weight: float, rows: float, total: float, squares: float) -> Density:
    """Of mu in y ~ N(|mu|, 3^2), whose sign the rows do not know: two modes alike."""

    def log_density(u: np.ndarray) -> np.ndarray:
        return -weight * (squares - 2 * np.abs(u) * total + rows * u**2) / 18

    # The grid starts on the right, so that of two modes alike every shard finds that one.
    return Density(log_density, np.linspace(-3, 3, 20_002)[::-1])


def bernoulli_shards(successes: np.ndarray, keep: bool = False) -> tuple[Density, list[Density]]:
    """All rows, and rescaled subposteriors of equal shards; `keep` puts all successes into every shard."""
    shards, total = len(successes), successes.sum()
    failures = ROWS / shards - successes
    if keep:
        found = [log_odds(1 + total, 1 + shards * f) for f in failures]
    else:
        found = [log_odds(1 + shards * s, 1 + shards * f) for s, f in zip(successes, failures, strict=True)]
    return log_odds(1 + total, 1 + ROWS - total), found


def spread_shards(rng: np.random.Generator) -> tuple[Density, list[Density]]:
    """A standard deviation next to zero."""
    squares = (rng.normal(scale=np.sqrt(1 + 0.15**2), size=(SHARDS, ROWS // SHARDS)) ** 2).sum(axis=1)
    found = [log_spread(SHARDS, ROWS / SHARDS, s) for s in squares]
    return log_spread(1, ROWS, squares.sum()), found


def sign_shards(rng: np.random.Generator) -> tuple[Density, list[Density]]:
    """Two modes."""
    y = rng.normal(0.13, 3.0, size=(SHARDS, ROWS // SHARDS))
    totals, squares = y.sum(axis=1), (y**2).sum(axis=1)
    found = [sign_unknown(SHARDS, ROWS / SHARDS, t, s) for t, s in zip(totals, squares, strict=True)]
    return sign_unknown(1, ROWS, totals.sum(), squares.sum()), found


def panel(
    axes: tuple, title: str, label: str, full: Density, shards: list[Density], reach: float = 8
) -> None:
    sd = full.curvature**-0.5
    z = np.linspace(-reach, reach, 600)
    theta = full.mode + sd * z
    for shard in shards[:30]:
        axes[0].plot(z, sd * shard(theta), color=OWN, lw=1)
    # Draws move by theta -> mode + root (theta - shard's mode), so densities by its inverse.
    roots = [np.sqrt(shard.curvature / full.curvature) for shard in shards]
    moved = [s(s.mode + (theta - full.mode) / root) / root for s, root in zip(shards, roots, strict=True)]
    axes[1].plot(z, sd * np.mean(moved, axis=0), color=POOLED, lw=2.5, label="shards moved and pooled")
    for ax in axes:
        ax.plot(z, sd * full(theta), color=FULL, lw=1.2, ls="--", label="posterior of all rows")
        ax.set(xlim=(-reach, reach), yticks=[], ylim=(0, 0.55))
        ax.spines[["left", "right", "top"]].set_visible(False)
    axes[0].set_title(title, fontsize=10)
    axes[1].set_xlabel(f"{label}, in posterior sds", fontsize=9)


def picture(name: str, panels: list[tuple]) -> None:
    figure, axes = plt.subplots(2, 3, figsize=(9.5, 4.2), sharex="col", constrained_layout=True)
    for column, arguments in zip(axes.T, panels, strict=True):
        panel(column, *arguments)
    axes[0, 0].plot([], [], color=OWN, lw=1, label="the shards")
    handles = [
        line for ax in (axes[0, 0], axes[1, 0]) for line in ax.get_lines() if line.get_label()[0] != "_"
    ]
    by_label = {str(line.get_label()): line for line in handles}
    figure.legend(
        by_label.values(), by_label.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    FOLDER.mkdir(exist_ok=True)
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})


def dealt(rng: np.random.Generator, shards: int, successes: int) -> np.ndarray:
    """How many of the successes each shard gets."""
    return rng.multivariate_hypergeometric([ROWS // shards] * shards, successes)


def main() -> None:
    mpl.rcParams["svg.hashsalt"] = "shardmc"
    rng = np.random.default_rng(3)
    common, rare = dealt(rng, SHARDS, ROWS // 10), dealt(rng, SHARDS, 10)
    picture(
        "rare",
        [
            ("1000 successes in 10,000 rows", "log odds", *bernoulli_shards(common)),
            ("10 successes, no row kept", "log odds", *bernoulli_shards(rare)),
            ("10 successes, kept in every shard", "log odds", *bernoulli_shards(rare, keep=True)),
        ],
    )
    many = dealt(rng, 200, 100)
    picture(
        "not",
        [
            ("100 successes, 200 shards of 50 rows", "log odds", *bernoulli_shards(many)),
            ("a standard deviation near 0", "log sd", *spread_shards(rng)),
            ("two modes", "mean", *sign_shards(rng), 12),
        ],
    )


if __name__ == "__main__":
    main()
