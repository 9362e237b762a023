"""Combining commutes with linear maps where the method has it, and does not depend on the order of the shards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardmc.combiners import COMBINERS, named_combiner
from shardmc.types import Located, Mode, ShardDraws

DIM, SHARDS = 3, 5


def shards(scaling: str) -> tuple[ShardDraws, Located]:
    rng = np.random.default_rng(7)
    lengths = [200, 150, 200, 120, 90]
    roots = rng.normal(size=(SHARDS, DIM, DIM)) + 2 * np.eye(DIM)
    values = [
        rng.normal(size=(n, DIM)) @ r + rng.normal(size=DIM) for n, r in zip(lengths, roots, strict=True)
    ]
    draws = ShardDraws.of(values, rng.dirichlet(np.full(SHARDS, 20)), scaling)  # pyright: ignore
    curvatures = np.linalg.inv(np.swapaxes(roots, 1, 2) @ roots)
    mode = Mode(rng.normal(size=DIM), curvatures.mean(axis=0), 0.0, 1.0)
    return draws, Located(mode, draws.means, curvatures, np.ones(SHARDS, bool))


def transformed(draws: ShardDraws, located: Located, matrix: np.ndarray, shift: np.ndarray):
    inverse = np.linalg.inv(matrix)
    moved = replace(draws, values=tuple(v @ matrix.T + shift for v in draws.values))
    mode = replace(
        located.mode,
        theta=matrix @ located.mode.theta + shift,
        curvature=inverse.T @ located.mode.curvature @ inverse,
    )
    curvatures = inverse.T @ located.shard_curvatures @ inverse
    return moved, replace(
        located, mode=mode, shard_modes=located.shard_modes @ matrix.T + shift, shard_curvatures=curvatures
    )


EQUIVARIANT = [
    "recenter",
    "algorithm-1",
    "swiss",
    "consensus",
    "product",
    "weierstrass",
    "wasserstein",
    "mposterior",
]


@pytest.mark.parametrize("with_modes", [True, False])
@pytest.mark.parametrize("name", EQUIVARIANT)
def test_transforming_and_combining_commute(name, with_modes):
    made = named_combiner(name)
    draws, located = shards(made.scaling)
    rng = np.random.default_rng(8)
    matrix, shift = rng.normal(size=(DIM, DIM)) + 2 * np.eye(DIM), rng.normal(size=DIM)
    if name == "product":
        # Its draws are made with the Cholesky factor, which commutes with lower triangular maps.
        matrix = np.tril(np.abs(matrix))
    moved, moved_located = transformed(draws, located, matrix, shift)
    before = made(draws, located if with_modes else None, np.random.default_rng(9))
    after = made(moved, moved_located if with_modes else None, np.random.default_rng(9))
    np.testing.assert_allclose(after.values, before.values @ matrix.T + shift, rtol=1e-8, atol=1e-8)


def test_the_moments_of_the_parametric_product_commute_with_any_linear_map():
    draws, located = shards("fractional")
    draws = replace(draws, values=tuple(np.repeat(v, 50, axis=0) for v in draws.values))
    matrix = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0], [3.0, 0.0, 1.0]])
    moved, _ = transformed(draws, located, matrix, np.zeros(DIM))
    before = named_combiner("product")(draws, None, np.random.default_rng(1)).values @ matrix.T
    after = named_combiner("product")(moved, None, np.random.default_rng(1)).values
    # 10,000 draws: sd of a mean 0.01 sds, of a covariance 0.014.
    sd = before.std(axis=0)
    assert (np.abs(before.mean(axis=0) - after.mean(axis=0)) < 0.08 * sd).all()
    assert (np.abs(np.cov(before.T) - np.cov(after.T)) < 0.12 * np.outer(sd, sd)).all()


@pytest.mark.parametrize("with_modes", [True, False])
@pytest.mark.parametrize("name", ["recenter", "algorithm-1", "swiss", "wasserstein", "pie", "mposterior"])
def test_the_order_of_the_shards_does_not_matter_to_methods_that_pool(name, with_modes):
    made = named_combiner(name)
    draws, located = shards(made.scaling)
    order = np.array([3, 0, 4, 2, 1])
    shuffled, shuffled_located = reordered(draws, located, order)
    before = made(draws, located if with_modes else None, np.random.default_rng(0))
    after = made(shuffled, shuffled_located if with_modes else None, np.random.default_rng(0))
    assert before.shard is not None
    assert after.shard is not None
    for new, old in enumerate(order):
        np.testing.assert_allclose(
            after.values[after.shard == new], before.values[before.shard == old], rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize(
    "options", [{"weights": "full"}, {"weights": "diagonal"}, {"weights": "uniform"}, None]
)
def test_the_order_of_the_shards_does_not_matter_to_consensus_and_the_parametric_product(options):
    made = named_combiner("product") if options is None else named_combiner("consensus", **options)
    draws, located = shards("fractional")
    shuffled, _ = reordered(draws, located, np.array([3, 0, 4, 2, 1]))
    before = made(draws, None, np.random.default_rng(0)).values
    after = made(shuffled, None, np.random.default_rng(0)).values
    np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-9)


def reordered(draws: ShardDraws, located: Located, order: np.ndarray) -> tuple[ShardDraws, Located]:
    shuffled = ShardDraws(tuple(draws.values[i] for i in order), draws.shares[order], draws.scaling)
    return shuffled, replace(
        located,
        shard_modes=located.shard_modes[order],
        shard_curvatures=located.shard_curvatures[order],
    )


def test_every_registered_combiner_is_named_in_the_docstring_of_combine():
    from shardmc.combiners import combine

    assert combine.__doc__
    assert all(f'"{name}"' in combine.__doc__ for name in COMBINERS if name != "laplace")
