"""Ways in which a GPU could evaluate a logistic regression at many points, each tried by `gpu.py --parts`.

All give the sums (point,) over rows of log-likelihoods less those at a centre. shardmc lets XLA multiply matrices and
then sum a function of the products, which it writes to memory and reads again. The others keep products in registers,
or multiply in less time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import jax
import jax.numpy as jnp
from jax import lax

Way = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
"""way(x, y, center, points)."""


def log_likelihood(eta: jax.Array, y: jax.Array) -> jax.Array:
    return y * eta - (jnp.maximum(eta, 0) + jnp.log(1 + jnp.exp(-jnp.abs(eta))))


def product_then_sum(x: jax.Array, y: jax.Array, center: jax.Array, points: jax.Array) -> jax.Array:
    reference = log_likelihood(x @ center, y)
    return jax.vmap(lambda theta: jnp.sum(log_likelihood(x @ theta, y) - reference))(points)


def sums_of_columns(together: int) -> Way:
    """One reduction of several points, with each product written as a sum over columns."""

    def way(x: jax.Array, y: jax.Array, center: jax.Array, points: jax.Array) -> jax.Array:
        columns = lax.optimization_barrier(x.T + 0.0)

        def values(theta: jax.Array) -> jax.Array:
            parts = [column * coefficient for column, coefficient in zip(columns, theta, strict=True)]
            return log_likelihood(reduce(jnp.add, parts), y)

        reference = lax.optimization_barrier(values(center))

        def some(thetas: jax.Array) -> jax.Array:
            gains = tuple(values(theta) - reference for theta in thetas)
            zeros = (jnp.zeros((), x.dtype),) * together
            return jnp.stack(lax.reduce(gains, zeros, lambda a, b: tuple(map(jnp.add, a, b)), (0,)))

        return lax.map(some, points.reshape(-1, together, x.shape[1])).ravel()

    return way


def steps_by_short_factors(x: jax.Array, y: jax.Array, center: jax.Array, points: jax.Array) -> jax.Array:
    """The products at the centre, plus those of the steps from there by three short factors of each number."""
    here = x @ center
    reference = log_likelihood(here, y)
    steps = jnp.dot(x, (points - center).T, precision=lax.DotAlgorithmPreset.TF32_TF32_F32_X3)
    return jnp.sum(log_likelihood(here[:, None] + steps, y[:, None]) - reference[:, None], axis=0)


def one_kernel(rows: int, together: int, warps: int, blocks: int = 16) -> Way:
    """A kernel in Pallas: a tile of products, and its sum over blocks of rows, in registers."""

    def way(x: jax.Array, y: jax.Array, center: jax.Array, points: jax.Array) -> jax.Array:
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import triton

        count = points.shape[0]
        reference = log_likelihood(x @ center, y)
        wide = 16 - x.shape[1]  # Triton multiplies matrices of at least 16 columns
        padded, coefficients = jnp.pad(x, ((0, 0), (0, wide))), jnp.pad(points.T, ((0, wide), (0, 0)))
        programs = x.shape[0] // (rows * blocks)
        done = programs * rows * blocks

        def kernel(x_ref, y_ref, reference_ref, points_ref, sums_ref):
            i, k = pl.program_id(0), pl.program_id(1)
            thetas = points_ref[:, pl.ds(k * together, together)]

            def add(block, sums):
                some = pl.ds((i * blocks + block) * rows, rows)
                eta = lax.dot(x_ref[some, :], thetas, precision=lax.Precision.HIGHEST)
                return sums + log_likelihood(eta, y_ref[some][:, None]) - reference_ref[some][:, None]

            sums = lax.fori_loop(0, blocks, add, jnp.zeros((rows, together), x.dtype))
            sums_ref[pl.ds(i * count + k * together, together)] = jnp.sum(sums, axis=0)

        sums = pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((programs * count,), x.dtype),
            grid=(programs, count // together),
            in_specs=[pl.no_block_spec] * 4,
            out_specs=pl.no_block_spec,
            compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        )(padded, y, reference, coefficients)
        rest = product_then_sum(x[done:], y[done:], center, points)
        return sums.reshape(programs, count).sum(axis=0) + rest

    return way


WAYS: Mapping[str, Way] = {
    "product, then sum": product_then_sum,
    "8 points in one reduction": sums_of_columns(8),
    "16 points in one reduction": sums_of_columns(16),
    "steps by three short factors": steps_by_short_factors,
    "one kernel of 64 rows and 64 points": one_kernel(64, 64, 4),
    "one kernel of 64 rows and 128 points": one_kernel(64, 128, 8),
    "one kernel of 128 rows and 64 points": one_kernel(128, 64, 4),
}
