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
        shifted_sums=lambda rows, eta, shifts, weights, counted: family.log_likelihood_at_shifts(
            eta, shifts, rows["response"], None, weights, counted=counted
        ),
        slopes=lambda rows, eta: family.slopes(eta, rows["response"], None),
    )


def plain(family, data, eta, effects, logs):
    columns = data.rows["columns"][: effects.shape[1]]
    x = eta[:, None] + jnp.einsum("qjs,kqs->jks", columns, effects)
    each = data.weights[:, None] * family.log_likelihood(x, data.rows["response"][:, None], {}, None)
    heights = data.per_group(jnp.sum(each, axis=0).T).T + logs
    return jax.nn.logsumexp(heights, axis=0)


# Half of the sixteen combinations: every combination of three of the four is among them. Four rows are written out,
# twenty are a reduction.
CASES = [
    (family, effects, num_rows, joined)
    for i, family in enumerate((Bernoulli(), Poisson()))
    for j, effects in enumerate((1, 2))
    for k, num_rows in enumerate((4, 20))
    for joined in [(i + j + k) % 2 == 0]
]


@pytest.mark.parametrize(
    ("family", "effects", "num_rows", "joined"), CASES, ids=lambda value: getattr(value, "name", None)
)
def test_first_and_second_derivatives(family, effects, num_rows, joined):
    rng = np.random.default_rng(0)
    with double_precision():
        columns = rng.normal(size=(effects, num_rows, STRETCHES)) if effects > 1 else 1.0
        rows = {
            "response": jnp.asarray(rng.integers(0, 2, (num_rows, STRETCHES)), float),
            "columns": jnp.broadcast_to(jnp.asarray(columns), (effects, num_rows, STRETCHES)),
        }
        weights = jnp.asarray(rng.integers(0, 2, (num_rows, STRETCHES)), float)
        owner = jnp.arange(STRETCHES) if joined else jnp.asarray(OWNER)
        groups = STRETCHES if joined else 3
        blank = {"center": jnp.zeros((groups, 1))}
        data = GroupedRows(rows, weights, owner, blank, None, joined, True, "columns")
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


@pytest.mark.parametrize("reach", [0.5, 5.0, 40.0])  # of 40 the products of 30 rows underflow
@pytest.mark.parametrize("family", [Bernoulli(), Bernoulli("probit"), Poisson()], ids=str)
def test_shifted_sums_in_single_precision(family, reach):
    """Rows and nodes have their exponentials apart, which must neither overflow nor lose digits."""
    rng = np.random.default_rng(1)
    num_rows = 30
    response = rng.integers(0, 2, (num_rows, STRETCHES)) * (1.0 if family.name == "bernoulli" else 1e5)
    present = (np.arange(num_rows)[:, None] < [30, 12, 1, 7, 29]).astype(float)
    # A good fit, for which sums are far smaller than their terms, and one that is not.
    good = 20.0 * (response > 0) - 10.0 if family.name == "bernoulli" else np.log(np.maximum(response, 1e-3))
    eta = good + rng.uniform(-reach, reach, good.shape)
    shifts = np.array([-1.0, 0.0, 0.3])[:, None] * reach + rng.normal(size=STRETCHES)
    if family.name == "poisson":
        shifts = shifts / (100 * reach)

    def sums(real):
        given = [jnp.asarray(a, real) for a in (eta, shifts, response, present)]
        return family.log_likelihood_at_shifts(*given[:3], None, given[3], counted=True)

    found = np.asarray(jax.jit(lambda: sums(jnp.float32))())
    with double_precision():
        x = jnp.asarray(eta[:, None] + shifts)
        each = family.log_likelihood(x, jnp.asarray(response[:, None]), {}, None)
        wanted = np.asarray(jnp.sum(present[:, None] * each, axis=0))
    np.testing.assert_allclose(found, wanted, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("middle", [-6.0, -14.0, -25.0])
def test_shifts_of_a_group_without_counts_keep_small_means(middle):
    """Nodes of a group without counts reach far: its mean is tiny at the middle and of order 1 at the last ones."""
    eta = np.full((10, 2), middle)
    shifts = np.linspace(middle, -middle, 9)[:, None] * np.ones(2)
    given = [jnp.asarray(a, jnp.float32) for a in (eta, shifts, np.zeros((10, 2)))]
    found = Poisson().log_likelihood_at_shifts(*given, None, jnp.ones((10, 2)), counted=True)
    # A row without a count has -e^eta, to which the density that is left out adds 1.
    np.testing.assert_allclose(found, 10 * -np.expm1(middle + shifts), rtol=1e-5, atol=1e-4)
