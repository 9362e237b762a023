"""Programs that some versions of XLA compile to wrong numbers, without a word."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.programs.compiled import jit


def weighted_less_largest(x, y):
    """With jaxlib 0.10.2, `jax.jit` is off by more than 10 for most entries."""
    return (x * y).sum(-1) - y.max(-1)


def test_reductions_of_products_are_right():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3_000, 2)).astype(np.float32), rng.normal(size=(50, 3_000, 2)).astype(np.float32)
    np.testing.assert_allclose(
        jit(weighted_less_largest)(x, y), weighted_less_largest(x, y), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("count", [16_385, 32_769])
def test_products_of_rows_with_a_matrix_are_right(count):
    number = jnp.arange(count, dtype=jnp.float32)
    rows = jnp.stack((number, 0 * number, 0 * number), axis=1)
    length = jit(jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2)))(rows)
    np.testing.assert_allclose(length, np.arange(count, dtype=float) ** 2, rtol=1e-5)


@pytest.mark.slow
def test_a_choice_between_two_levels_is_sampled_right():
    """A multinomial logit as people write it: the chosen predictor less the log of a sum of exponentials."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=3_000).astype(np.float32)
    y = (rng.random(3_000) < 1 / (1 + np.exp(-(0.5 + x)))).astype(int)
    chosen = np.eye(2, dtype=np.float32)[y]

    def log_likelihood(params, rows):
        eta = jnp.stack([jnp.zeros_like(rows["x"]), params["a"] + params["b"] * rows["x"]], axis=-1)
        largest = eta.max(-1)
        return (rows["chosen"] * eta).sum(-1) - largest - jnp.log(jnp.exp(eta - largest[:, None]).sum(-1))

    model = shardmc.Model(
        log_likelihood,
        lambda params: -0.5 * (params["a"] ** 2 + params["b"] ** 2) / 100,
        {"a": (), "b": ()},
    )
    posterior = shardmc.fit(model, {"x": x, "chosen": chosen}, shards=2, draws=1_000)
    # With wrong log densities the chain accepts next to nothing.
    assert posterior.certificate.verdict == "within"
    assert posterior.shards.acceptance.min() > 0.8
    assert set(posterior.shards.sampler) == {"Independence"}
