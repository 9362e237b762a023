"""How biased are the sds of many effects per group? Laplace, its second order, and matched moments.

    python benchmarks/laplace_bias.py [--quick]

Binary rows in groups, with an intercept and slopes that all have the same sd. For each method: how far it moves the
estimate of that sd, from the mean of its score at the true sd. Prints and writes docs/benchmarks/laplace_bias.md; with
--quick it writes nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from provenance import header, publish, table

from shardmc.data.grouped import GroupedRows
from shardmc.mixed import LinearEffects, Matched, blank_sites, points_for, product_rule
from shardmc.mixed.matched import GroupNormal, find_sites, tilted
from shardmc.model.precision import double_precision

TOTAL = 0.8
"""The sd of all effects of a row together."""
GROUPS = 10_000
"""Groups for which the bias is given in posterior sds."""
STEP = 0.02
SIZES, EFFECTS = (3, 10, 30, 100), (1, 3, 4, 8, 20)


def _params(log_sd: float) -> dict[str, jax.Array]:
    return {"intercept": jnp.asarray(0.3), "sd": jnp.exp(jnp.asarray(log_sd))}


def _effects(size: int) -> LinearEffects:
    return LinearEffects(
        lambda params, rows: params["intercept"] * jnp.ones_like(rows["y"]),
        lambda params, rows: rows["z"] * params["sd"],
        lambda params, rows, eta: -jnp.logaddexp(0.0, -(2 * rows["y"] - 1) * eta),
        lambda params: params["sd"] * jnp.eye(size),
        size,
    )


def _rows(rows: int, size: int, groups: int) -> GroupedRows:
    rng = np.random.default_rng([rows, size])
    z = rng.normal(size=(groups, rows, size))
    z[:, :, 0] = 1.0
    eta = 0.3 + TOTAL / np.sqrt(size) * np.einsum("gnq,gq->gn", z, rng.normal(size=(groups, size)))
    y = rng.random(eta.shape) < 1 / (1 + np.exp(-eta))
    leaves = {"z": jnp.asarray(z), "y": jnp.asarray(y, float)}
    sites = jax.tree.map(jnp.asarray, blank_sites(groups, rows))
    return GroupedRows(leaves, jnp.ones((groups, rows)), jnp.arange(groups), sites, None, True, True)


def _laplace(normal: GroupNormal, heights: jax.Array) -> jax.Array:
    """Laplace's approximation; `heights` are the log-likelihoods of the rows at the mode."""
    return normal.value + jnp.sum(normal.log_ratio(heights, normal.mean), axis=1)


def _second_order(normal: GroupNormal, eta: jax.Array) -> jax.Array:
    """What the third and fourth derivatives of the rows' log-likelihoods add to Laplace's approximation."""
    p = jax.nn.sigmoid(eta)
    w, h, covariance = p * (1 - p), normal.variance, normal.covariance
    third, fourth = -w * (1 - 2 * p), -w * (1 - 6 * w)
    bends = jnp.einsum("gi,gij,gj->g", third * h, covariance, third * h) / 8
    twists = jnp.einsum("gi,gij,gj->g", third, covariance**3, third) / 12
    return jnp.sum(fourth * h**2, axis=1) / 8 + bends + twists


def _dense(local: LinearEffects, params: dict[str, jax.Array], data: GroupedRows) -> jax.Array:
    """A dense product rule for one effect."""
    rule = jnp.asarray(product_rule(61, 1))
    columns, of_rows = local.columns(params, data.rows)[..., 0], local.of_rows(params, data)
    logs = jax.vmap(lambda node: jnp.sum(of_rows(columns * node[0]), axis=1) + node[1])(rule)
    return jax.nn.logsumexp(logs, axis=0)


METHODS = ("Laplace", "Laplace, second order", "matched moments", "matched moments, pairs")


def log_likelihoods(local: LinearEffects, data: GroupedRows, log_sd: float) -> jax.Array:
    """Of the groups (method, group): those of METHODS, and the reference."""
    params = _params(log_sd)
    laplace, matched, _ = find_sites(local, params, data)
    columns, of_rows = local.columns(params, data.rows), local.of_rows(params, data)
    at_mode = GroupNormal.given(columns, laplace[..., 0], laplace[..., 1])
    plain = _laplace(at_mode, of_rows(at_mode.mean))
    second = plain + _second_order(at_mode, params["intercept"] + at_mode.mean)
    with_sites = replace(data, effects={"sites": matched})
    normal, _ = Matched(local).normal(params, with_sites)
    alone = normal.value + jnp.sum(tilted(normal, of_rows)[0], axis=1)
    paired = Matched(local)(params, with_sites)
    if local.size == 1:
        exact = _dense(local, params, data)
    else:
        points = points_for(min(data.weights.shape[1], local.size), 1024)
        exact = Matched(local)(params, replace(with_sites, rule=jnp.asarray(points)))
    return jnp.stack([plain, second, alone, paired, exact])


def biases(rows: int, size: int, groups: int) -> list[object]:
    """One line of the table."""
    local, data = _effects(size), _rows(rows, size, groups)
    log_sd = float(np.log(TOTAL / np.sqrt(size)))

    values = jax.jit(lambda t: log_likelihoods(local, data, t))
    *scores, exact = np.asarray(values(log_sd + STEP) - values(log_sd - STEP)) / (2 * STEP)
    information = float(np.mean(exact**2))
    found: list[object] = [rows, size]
    for score in scores:
        shift = float(np.mean(score - exact)) / information
        found += [f"{100 * shift:+.2f} %", f"{shift * np.sqrt(GROUPS * information):+.2f}"]
    print(found, flush=True)
    return found


INTRODUCTION = f"""
Binary rows in groups, with an intercept and slopes whose effects all have the same sd, {TOTAL} in total for a row. Two
numbers for each method: the bias of that sd in percent, and in posterior sds if there are {GROUPS:,} groups. With 100
times as many groups, the second is 10 times as large. The reference is a dense product rule for one effect, and
importance sampling with 1,024 points for more. *Matched moments, pairs* is what shardmc uses beyond three effects.
The reference also takes pairs of rows from the expansion to fourth order and samples the rest, so with more than one
effect the last column does not show errors of higher orders of pairs; with one effect it does. The bias is one Newton
step from the true sd: numbers above 20 % only say that it is large.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one case; writes nothing")
    given = parser.parse_args()
    cases = [(3, 4)] if given.quick else [(rows, size) for size in EFFECTS for rows in SIZES]
    with double_precision():
        lines = [biases(rows, size, 60 if given.quick else 300) for rows, size in cases]
    columns = ["rows per group", "effects", *(c for m in METHODS for c in (f"{m}, bias", "in posterior sds"))]
    text = "# Bias with many effects per group\n\n" + header("laplace_bias.py") + INTRODUCTION
    publish("laplace_bias.md", text + table(columns, lines), given.quick)


if __name__ == "__main__":
    main()
