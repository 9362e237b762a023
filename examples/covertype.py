"""Covertype: where does lodgepole pine grow? Logistic regression with your own likelihood.

    python examples/covertype.py [--quick] [--data covtype.npz] [--out FOLDER]

The rows are 581,012 patches of forest in Colorado, 30 m by 30 m each, with ten measurements of the terrain and the
wilderness area. The data are the UCI data set (scikit-learn's `fetch_covtype` downloads it) as one .npz file: X10
(row, 10), names (10,), wilderness (row,) and cover_type (row,).
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
    """The log probability of each row's outcome: one number per row."""
    x, y = rows
    log_odds = params["intercept"] + x @ params["beta"]
    return y * log_odds - jnp.logaddexp(0.0, log_odds)


def log_prior(params):
    return -0.5 * jnp.sum((params["beta"] / 10) ** 2) - 0.5 * (params["intercept"] / 10) ** 2


def read(path: Path, quick: bool) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Standardised measurements, and indicators of all wilderness areas except the first (the reference level)."""
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

    # Neighbouring rows of the file are similar, but that does not matter: fit assigns rows to shards at random.
    model = shardmc.Model(log_likelihood, log_prior, {"intercept": (), "beta": len(columns)})
    posterior = shardmc.fit(model, (x, y), draws=2_000 if given.quick else 10_000, seed=0)

    print(f"\n{posterior.certificate.sentence}")
    plan = posterior.plan
    print(f"{plan.shards} shards, {plan.kept_rows} rows kept in every shard, {posterior.num_draws:,} draws.")

    odds = np.exp(posterior.draws["beta"])
    low, high = np.quantile(odds, [0.025, 0.975], axis=0)
    table = pd.DataFrame({"odds ratio": odds.mean(axis=0), "2.5%": low, "97.5%": high}, index=columns)
    print(
        "\nOdds ratios of lodgepole pine, per standard deviation (terrain) or compared with wilderness area 1:"
    )
    print(table.sort_values("odds ratio").to_string(float_format="{:.3f}".format))

    # The paper's Algorithm 1 averages the means of the shards. The certificate measures the error of that.
    printed = shardmc.fit(
        model,
        (x, y),
        draws=posterior.num_draws,
        shards=plan.shards,
        combiner="algorithm-1",
        keep=None,
        seed=0,
    )
    print(f"\nThe paper's Algorithm 1, for comparison: {printed.certificate.sentence}")

    written = posterior.save(given.out / "covertype.nc"), posterior.report(given.out / "covertype.html")
    print("\nWrote {} and {}.".format(*written))


if __name__ == "__main__":
    main()
