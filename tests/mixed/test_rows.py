"""Sums over rows at all nodes: their derivatives are those of the same sums written plainly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardmc.data.grouped import GroupedRows
from shardmc.formulas.families.counts import Poisson
from shardmc.formulas.families.successes import Bernoulli
from shardmc.mixed.rows import ByRows, log_sum
from shardmc.model.precision import double_precision

STRETCHES, NODES = 5, 3
OWNER = np.array([0, 0, 1, 2, 2])  # the group of each stretch


def by_rows(family, columns):
    return ByRows(
        predictor=lambda params, rows: rows["response"],
        columns=lambda rows: rows["columns"] if columns else None,
        sums=lambda rows, eta, weights, counted: family.log_likelihood_of_groups(
            eta, rows["response"], {}, None, weights, counted=counted
        ),
        slopes=lambda rows, eta: family.slopes(eta, rows["response"], None),
    )


def plain(family, data, eta, effects, logs):
    columns = data.rows["columns"][..., : effects.shape[1]]
    x = eta[:, None] + jnp.einsum("jsq,kqs->jks", columns, effects)
    each = data.weights[:, None] * family.log_likelihood(x, data.rows["response"][:, None], {}, None)
    heights = data.per_group(jnp.sum(each, axis=0).T).T + logs
    return jax.nn.logsumexp(heights, axis=0)


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("num_rows", [4, 20])  # written out, and as a reduction
@pytest.mark.parametrize("effects", [1, 2])
@pytest.mark.parametrize("family", [Bernoulli(), Poisson()], ids=lambda family: family.name)
def test_first_and_second_derivatives(family, effects, num_rows, joined):
    rng = np.random.default_rng(0)
    with double_precision():
        columns = rng.normal(size=(num_rows, STRETCHES, effects)) if effects > 1 else 1.0
        rows = {
            "response": jnp.asarray(rng.integers(0, 2, (num_rows, STRETCHES)), float),
            "columns": jnp.broadcast_to(jnp.asarray(columns), (num_rows, STRETCHES, effects)),
        }
        weights = jnp.asarray(rng.integers(0, 2, (num_rows, STRETCHES)), float)
        owner = jnp.arange(STRETCHES) if joined else jnp.asarray(OWNER)
        groups = STRETCHES if joined else 3
        blank = {"center": jnp.zeros((groups, 1))}
        data = GroupedRows(rows, weights, owner, blank, None, joined, True, rows_first=True)
        shapes = (num_rows, STRETCHES), (NODES, effects, STRETCHES), (NODES, groups)
        start = [jnp.asarray(rng.normal(size=shape)) for shape in shapes]
        ways = [jnp.asarray(rng.normal(size=(3, *shape))) for shape in shapes]
        of_group = jnp.asarray(rng.normal(size=groups))
        parts = by_rows(family, effects > 1)

        def along(function):
            def total(u):
                at = [a + jnp.tensordot(u + u**2, way, 1) for a, way in zip(start, ways, strict=True)]
                return of_group @ function(*at)

            u = jnp.array([0.1, -0.2, 0.05])
            return total(u), jax.grad(total)(u), jax.jacfwd(total)(u), jax.hessian(total)(u)

        found = jax.jit(lambda: along(lambda *at: log_sum(parts, data, *at)))()
        wanted = jax.jit(lambda: along(lambda *at: plain(family, data, *at)))()
    for mine, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-8, atol=1e-8)
