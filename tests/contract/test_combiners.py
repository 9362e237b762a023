"""What every combiner promises, whichever it is: shape, finite draws, sentences, the same draws for the same rng."""

from __future__ import annotations

import numpy as np
import pytest

from shardmc.combine import COMBINERS, combiner
from shardmc.errors import OptionError, ShardmcError
from shardmc.types import Combined, Combiner, Located, Mode, ShardDraws

NAMES = sorted(COMBINERS)
SMALL = {"empirical-wasserstein": {"points": 20}}


def make(name: str) -> Combiner:
    return combiner(name, **SMALL.get(name, {}))


def gaussian_shards(name: str, dim: int, lengths: list[int], shares=None) -> tuple[ShardDraws, Located]:
    """Shards with normal subposteriors around a common mean, and their modes."""
    rng = np.random.default_rng(5)
    num_shards = len(lengths)
    modes = rng.normal(size=(num_shards, dim))
    curvatures = np.stack([np.eye(dim) * (1 + 0.1 * i) for i in range(num_shards)])
    values = [m + rng.normal(size=(n, dim)) for m, n in zip(modes, lengths, strict=True)]
    draws = ShardDraws.of(values, shares, COMBINERS[name]().scaling)
    curvature = np.tensordot(draws.shares, curvatures, axes=1)
    mode = Mode(draws.shares @ modes, curvature, 0.0, 1.0)
    everywhere = np.ones(num_shards, bool)
    return draws, Located(mode, draws.shares, modes, curvatures, np.zeros(num_shards), everywhere)


def run(name: str, draws: ShardDraws, located: Located | None, seed: int = 0) -> Combined:
    return make(name)(draws, located, np.random.default_rng(seed))


def check(combined: Combined, draws: ShardDraws) -> None:
    assert combined.values.ndim == 2
    assert combined.values.shape[1] == draws.dim
    assert combined.values.dtype == np.float64
    assert np.isfinite(combined.values).all()
    if combined.shard is not None:
        assert combined.shard.shape == (len(combined.values),)
        assert combined.shard.min() >= 0
        assert combined.shard.max() < draws.num_shards
    for note in combined.notes:
        assert note[0].isupper(), note
        assert note.endswith("."), note


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("lengths", [[100, 100, 100], [100], [100, 60, 37]], ids=["equal", "one", "unequal"])
def test_draws_are_finite_and_of_the_right_shape(name, dim, lengths):
    draws, located = gaussian_shards(name, dim, lengths)
    combined = run(name, draws, located)
    check(combined, draws)
    if make(name).pools:
        assert sum(lengths) / 2 <= len(combined.values) <= sum(lengths)
    else:
        assert len(combined.values) <= max(lengths) * 1.5


@pytest.mark.parametrize("name", NAMES)
def test_unequal_shares(name):
    draws, located = gaussian_shards(name, 2, [100, 100, 100], np.array([0.5, 0.3, 0.2]))
    check(run(name, draws, located), draws)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_rng_gives_the_same_draws_and_the_input_is_left_alone(name):
    draws, located = gaussian_shards(name, 2, [100, 80])
    before = [v.copy() for v in draws.values]
    first, second = run(name, draws, located, seed=3), run(name, draws, located, seed=3)
    np.testing.assert_array_equal(first.values, second.values)
    assert first.notes == second.notes
    for a, b in zip(before, draws.values, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "laplace"])
def test_modes_are_not_needed(name):
    draws, _ = gaussian_shards(name, 2, [100, 100])
    check(run(name, draws, None), draws)


@pytest.mark.parametrize("name", NAMES)
def test_a_combiner_is_a_frozen_value_that_says_what_it_takes(name):
    one, other = make(name), make(name)
    assert one == other
    assert hash(one) == hash(other)
    assert one.scaling in ("rescaled", "fractional")
    assert one.space in ("unconstrained", "natural")
    assert isinstance(one.pools, bool)
    with pytest.raises(OptionError, match="wrong_option"):
        combiner(name, wrong_option=1)


def test_an_unknown_name_lists_the_valid_ones():
    with pytest.raises(OptionError, match=r"Did you mean 'consensus'\? Valid: algorithm-1, consensus"):
        combiner("consensuss")


DEGENERATE = {
    "constant coordinate in one shard": lambda x: [x[0] * [0, 1, 1], *x[1:]],
    "constant coordinate in all shards": lambda x: [v * [0, 1, 1] + [7, 0, 0] for v in x],
    "other constant in each shard": lambda x: [v * [0, 1, 1] + [i, 0, 0] for i, v in enumerate(x)],
    "dependent coordinates": lambda x: [v[:, [0, 1, 1]] for v in x],
    "fewer draws than dimensions": lambda x: [x[0][:2], *x[1:]],
    "fewer draws than dimensions everywhere": lambda x: [v[:2] for v in x],
    "one draw in a shard": lambda x: [x[0][:1], *x[1:]],
    "one draw everywhere": lambda x: [v[:1] for v in x],
    "identical draws in a shard": lambda x: [np.ones_like(x[0]), *x[1:]],
    "identical draws everywhere": lambda x: [np.ones_like(v) for v in x],
    "a shard far away": lambda x: [x[0] + 5000, *x[1:]],
    "a shard very wide": lambda x: [x[0] * 1e6, *x[1:]],
    "a shard very narrow": lambda x: [x[0] * 1e-6, *x[1:]],
    "coordinates of very different scales": lambda x: [v * [1e-9, 1, 1e9] for v in x],
    "far from zero": lambda x: [v * 1e-3 + 1e6 for v in x],
    "one shard only": lambda x: x[:1],
    "one shard with too few draws": lambda x: [x[0][:2]],
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("with_modes", [True, False], ids=["modes", "draws"])
def test_degenerate_shards_are_handled_or_refused_by_name(name, case, with_modes):
    sound, located = gaussian_shards(name, 3, [60, 60, 60, 60])
    values = DEGENERATE[case](list(sound.values))
    draws = ShardDraws.of(values, scaling=sound.scaling)
    if draws.num_shards < sound.num_shards:
        _, located = gaussian_shards(name, 3, [60] * draws.num_shards)
    if name == "laplace" and not with_modes:
        pytest.skip("laplace is about modes")
    try:
        combined = run(name, draws, located if with_modes else None)
    except ShardmcError as error:
        assert "shard" in str(error)  # noqa: PT017
    else:
        check(combined, draws)


@pytest.mark.parametrize("name", ["swiss", "consensus", "product", "weierstrass", "wasserstein"])
@pytest.mark.parametrize(
    "case",
    [
        "constant coordinate in one shard",
        "fewer draws than dimensions",
        "one draw in a shard",
        "identical draws in a shard",
    ],
)
def test_what_was_mended_is_said(name, case):
    sound, _ = gaussian_shards(name, 3, [60, 60, 60, 60])
    draws = ShardDraws.of(DEGENERATE[case](list(sound.values)), scaling=sound.scaling)
    notes = run(name, draws, None).notes
    assert any("covariance of shard 0" in note for note in notes), notes


@pytest.mark.parametrize("name", ["swiss", "consensus", "product", "weierstrass", "wasserstein"])
def test_a_parameter_that_is_constant_everywhere_stays_constant(name):
    sound, _ = gaussian_shards(name, 3, [60, 60, 60, 60])
    values = DEGENERATE["constant coordinate in all shards"](list(sound.values))
    combined = run(name, ShardDraws.of(values, scaling=sound.scaling), None)
    np.testing.assert_allclose(combined.values[:, 0], 7, rtol=1e-12)
    assert (combined.values[:, 1:].std(axis=0) > 0.1).all()
    assert any("only 2 of 3 directions" in note for note in combined.notes)
