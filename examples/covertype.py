"""Covertype: what makes a patch of forest lodgepole pine? Logistic regression with a likelihood of one's own.

    python examples/covertype.py [--quick] [--data covtype.npz] [--out FOLDER]

581,012 patches of 30 m by 30 m in Colorado: ten measurements of the terrain and the wilderness area. The data are
the UCI set (scikit-learn's `fetch_covtype` has it) as one .npz file: X10 (row, 10), names (10,), wilderness and
cover_type (row,).
"""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
from options import options

import shardmc

LODGEPOLE_PINE = 2


def log_likelihood(params, rows):
    """One number per row: the log probability of what was seen there."""
    x, y = rows
    log_odds = params["intercept"] + x @ params["beta"]
    return y * log_odds - jnp.logaddexp(0.0, log_odds)


def log_prior(params):
    return -0.5 * jnp.sum((params["beta"] / 10) ** 2) - 0.5 * (params["intercept"] / 10) ** 2


def read(path: Path, quick: bool) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Standardised measurements and flags of all wilderness areas but the first, which would be collinear."""
    stored = np.load(path)
    every = slice(None, None, 20 if quick else 1)
    terrain = stored["X10"][every].astype(float)
    terrain = (terrain - terrain.mean(axis=0)) / terrain.std(axis=0)
    areas = stored["wilderness"][every, None] == np.arange(2, 5)
    x = np.column_stack([terrain, areas]).astype(np.float32)
    y = (stored["cover_type"][every] == LODGEPOLE_PINE).astype(np.float32)
    return x, y, [*map(str, stored["names"]), *(f"wilderness {k}" for k in range(2, 5))]


def main() -> None:
    given = options(__doc__ or "", "covtype.npz")
    x, y, columns = read(given.data, given.quick)
    print(f"{len(y):,} patches, {y.mean():.1%} of them lodgepole pine.")

    # The file is in the order of the map, so that neighbours are alike; by default rows go to shards at random.
    model = shardmc.Model(log_likelihood, log_prior, {"intercept": (), "beta": len(columns)})
    posterior = shardmc.fit(model, (x, y), draws=2_000 if given.quick else 10_000, seed=0)

    print(f"\n{posterior.certificate.sentence}")
    plan = posterior.plan
    print(f"{plan.shards} shards, {plan.kept_rows} rows kept in all of them, {posterior.num_draws:,} draws.")

    odds = np.exp(posterior.draws["beta"])
    low, high = np.quantile(odds, [0.025, 0.975], axis=0)
    table = pd.DataFrame({"odds ratio": odds.mean(axis=0), "2.5%": low, "97.5%": high}, index=columns)
    print("\nOdds of lodgepole pine, for one standard deviation more (terrain) or against wilderness 1:")
    print(table.sort_values("odds ratio").to_string(float_format="{:.3f}".format))

    # The paper's algorithm as printed averages the shards' means. The certificate sees what that does.
    printed = shardmc.fit(
        model,
        (x, y),
        draws=posterior.num_draws,
        shards=plan.shards,
        combiner="algorithm-1",
        keep=None,
        seed=0,
    )
    print(f"\nThe paper's Algorithm 1 as printed, for comparison: {printed.certificate.sentence}")

    written = posterior.save(given.out / "covertype.nc"), posterior.report(given.out / "covertype.html")
    print("\nWrote {} and {}.".format(*written))


if __name__ == "__main__":
    main()
