"""Draw the documentation's pictures, from exact densities: `python docs/pictures.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from scipy import special, stats

FOLDER = Path(__file__).parent / "pictures"
ROWS, SHARDS = 10_000, 10
OWN, POOLED, FULL = "#9aa5b1", "#d1495b", "#1b1b1e"


class LogOdds:
    """The density of log odds whose probability is Beta(a, b)."""

    def __init__(self, a: float, b: float) -> None:
        self.a, self.b = a, b
        self.mode = special.logit(a / (a + b))
        self.curvature = a * b / (a + b)

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        p = special.expit(theta)
        return stats.beta.pdf(p, self.a, self.b) * p * (1 - p)


def subposteriors(successes: np.ndarray, keep: bool) -> list[LogOdds]:
    """Rescaled subposteriors of equal shards under a uniform prior; `keep` puts all successes into every shard."""
    failures = ROWS / SHARDS - successes
    if keep:
        return [LogOdds(1 + successes.sum(), 1 + SHARDS * f) for f in failures]
    return [LogOdds(1 + SHARDS * s, 1 + SHARDS * f) for s, f in zip(successes, failures, strict=True)]


def panel(axes: tuple, title: str, successes: np.ndarray, keep: bool) -> None:
    full = LogOdds(1 + successes.sum(), 1 + ROWS - successes.sum())
    shards = subposteriors(successes, keep)
    sd = full.curvature**-0.5
    z = np.linspace(-8, 8, 800)
    theta = full.mode + sd * z
    for shard in shards:
        axes[0].plot(z, sd * shard(theta), color=OWN, lw=1)
    # Draws move by theta -> mode + root (theta - shard's mode), so densities by its inverse.
    roots = [np.sqrt(shard.curvature / full.curvature) for shard in shards]
    moved = [s(s.mode + (theta - full.mode) / root) / root for s, root in zip(shards, roots, strict=True)]
    axes[1].plot(z, sd * np.mean(moved, axis=0), color=POOLED, lw=2.5, label="shards moved and pooled")
    for ax in axes:
        ax.plot(z, sd * full(theta), color=FULL, lw=1.2, ls="--", label="posterior of all rows")
        ax.set(xlim=(-8, 8), yticks=[], ylim=(0, 0.55))
        ax.spines[["left", "right", "top"]].set_visible(False)
    axes[0].set_title(title, fontsize=10)
    axes[1].set_xlabel("log odds, in posterior sds", fontsize=9)


def main() -> None:
    mpl.rcParams["svg.hashsalt"] = "shardmc"
    rng = np.random.default_rng(3)
    common = rng.multivariate_hypergeometric([ROWS // SHARDS] * SHARDS, ROWS // 10)
    rare = rng.multivariate_hypergeometric([ROWS // SHARDS] * SHARDS, 10)
    figure, axes = plt.subplots(2, 3, figsize=(9.5, 4.2), sharex=True, constrained_layout=True)
    panel(axes[:, 0], "1000 successes in 10,000 rows", common, keep=False)
    panel(axes[:, 1], "10 successes, no row kept", rare, keep=False)
    panel(axes[:, 2], "10 successes, kept in every shard", rare, keep=True)
    axes[0, 0].plot([], [], color=OWN, lw=1, label="ten shards")
    handles = [
        line for ax in (axes[0, 0], axes[1, 0]) for line in ax.get_lines() if line.get_label()[0] != "_"
    ]
    by_label = {str(line.get_label()): line for line in handles}
    figure.legend(
        by_label.values(), by_label.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    FOLDER.mkdir(exist_ok=True)
    figure.savefig(FOLDER / "rare.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
