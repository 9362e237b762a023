"""Noise on what leaves a site: what it costs in accuracy, and how well one row stays hidden.

The attacker knows the model, the file of a site, and all its rows but the response of one. In linear regression with
known noise the mode is linear in that response, so the attacker solves for it, with the best weights for the noise.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from provenance import header, publish, table

import shardmc

DIM, SITES = 5, 5
LEVELS = (0.0, 1.0, 3.0, 10.0, 30.0)
TEXT = """# Noise on what leaves a site

{header}
Linear regression with {dim} coefficients and known residual sd 1, {rows:,} rows at {sites} sites of equal size,
{rounds} rounds of new rows. `noise` is the option of `sample_shard`.

- *error of the means*: root mean square of the error of the combined means, in posterior sd. *expected*: noise times
  sqrt(K / N). Without noise, the error is that of {draws:,} draws.
- *sd ratio*: sd of the combined draws divided by that of the posterior of all rows, mean over rounds and coefficients.
- *attack*: root mean square of the error with which somebody who knows all other rows of the site, and the predictors
  of the last one, recovers its response from the site's mode. Without the file, the error of the best guess is 1.

{table}
"""


def model() -> shardmc.Model:
    return shardmc.Model(
        lambda params, rows: -0.5 * (rows["y"] - rows["x"] @ params["beta"]) ** 2,
        lambda params: -0.5 * jnp.sum(params["beta"] ** 2) / 100,
        {"beta": DIM},
    )


def exact() -> shardmc.Exact:
    """Independent draws of a site's weighted posterior."""

    def draw(key, rows, weights, power):
        x = rows["x"]
        precision = power * (x.T @ (weights[:, None] * x) + jnp.eye(DIM) / 100)
        mean = jnp.linalg.solve(precision, power * (x.T @ (weights * rows["y"])))
        lower = jnp.linalg.cholesky(precision)
        return {"beta": mean + jax.scipy.linalg.solve_triangular(lower.T, jax.random.normal(key, (DIM,)))}

    return shardmc.Exact(draw)


def recovered(site, x: np.ndarray, y: np.ndarray) -> float:
    """The attacker's estimate of the last response of a site from its mode and all the rest."""
    weight = 1 / site.share
    precision = weight * x.T @ x + np.eye(DIM) / 100
    known = np.linalg.solve(precision, weight * x[:-1].T @ y[:-1])
    influence = np.linalg.solve(precision, weight * x[-1])
    # The noise of the mode has covariance proportional to the inverse of the precision.
    return float(influence @ precision @ (site.mode - known) / (influence @ precision @ influence))


def one_round(the_model, sampler, rows: int, draws: int, noise: float, seed: int):
    """Error of the combined means in posterior sd, sd ratios, and the attacker's error at the first site."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(rows), rng.normal(size=(rows, DIM - 1))]).astype(np.float32)
    y = (x @ rng.normal(size=DIM) + rng.normal(size=rows)).astype(np.float32)
    parts = list(zip(np.split(x, SITES), np.split(y, SITES), strict=True))
    sites = [
        shardmc.sample_shard(
            the_model,
            {"x": a, "y": b},
            share=1 / SITES,
            draws=draws // SITES,
            seed=seed,
            shard=i,
            sampler=sampler,
            noise=noise,
            precision="double",
        )
        for i, (a, b) in enumerate(parts)
    ]
    theta = shardmc.combine_sites(sites).theta
    wide, response = x.astype(np.float64), y.astype(np.float64)
    precision = wide.T @ wide + np.eye(DIM) / 100
    covariance = np.linalg.inv(precision)
    sd = np.sqrt(np.diag(covariance))
    error = (theta.mean(axis=0) - covariance @ wide.T @ response) / sd
    first = parts[0][0].astype(np.float64), parts[0][1].astype(np.float64)
    return error, theta.std(axis=0) / sd, recovered(sites[0], *first) - first[1][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    rows, draws, rounds = (1_000, 500, 2) if quick else (10_000, 5_000, 40)
    the_model, sampler = model(), exact()
    lines = []
    for noise in LEVELS:
        found = [one_round(the_model, sampler, rows, draws, noise, seed) for seed in range(rounds)]
        error, ratio, attack = (np.array(each) for each in zip(*found, strict=True))
        lines.append(
            (
                f"{noise:g}",
                f"{np.sqrt((error**2).mean()):.3f}",
                f"{noise * np.sqrt(SITES / rows):.3f}",
                f"{ratio.mean():.3f}",
                f"{np.sqrt((attack**2).mean()):.2g}",
            )
        )
    columns = ("noise", "error of the means", "expected", "sd ratio", "attack")
    text = TEXT.format(
        header=header("site_privacy.py"),
        dim=DIM,
        rows=rows,
        sites=SITES,
        rounds=rounds,
        draws=draws,
        table=table(columns, lines),
    )
    publish("site_privacy.md", text, quick)


if __name__ == "__main__":
    main()
