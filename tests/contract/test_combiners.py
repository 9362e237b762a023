"""What every combiner promises, whichever it is: shape, finite draws, sentences, the same draws for the same rng."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from shardmc.combiners import COMBINERS, named_combiner
from shardmc.errors import OptionError
from shardmc.types import Combined, Combiner, Located, Mode, ShardDraws

NAMES = sorted(COMBINERS)
SMALL = {"empirical-wasserstein": {"points": 20}}


def make(name: str) -> Combiner:
    return named_combiner(name, **SMALL.get(name, {}))


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
    return draws, Located(mode, modes, curvatures, everywhere)


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
        named_combiner(name, wrong_option=1)


def test_an_unknown_name_lists_the_valid_ones():
    with pytest.raises(OptionError, match=r"Did you mean 'consensus'\? Valid: algorithm-1, consensus"):
        named_combiner("consensuss")


PRECISION_WEIGHTED = {
    "consensus",
    "nonparametric-product",
    "partition-trees",
    "product",
    "recenter",
    "semiparametric-product",
    "swiss",
    "weierstrass",
}
"""Combiners that follow a narrow shard and ignore a wide one. The others give each shard the same say."""

USES_COVARIANCES = PRECISION_WEIGHTED | {"wasserstein", "empirical-wasserstein"}
"""Combiners that need each shard's covariance, correct a singular one and say so."""

USES_MODES = {"recenter", "laplace"}
FROM_SHARDS = [name for name in NAMES if name != "laplace"]
"""Combiners whose draws are made of the shards' draws. Laplace uses the modes alone."""


@dataclass(frozen=True)
class Degenerate:
    """Shards that go wrong, and what the combined draws must then look like."""

    change: Callable[[list[np.ndarray]], list[np.ndarray]]
    scale: tuple[float, float, float] = (1, 1, 1)
    """Order of magnitude of each coordinate's sd. 0: the coordinate is constant."""
    note: str = ""
    """What the combiners in USES_COVARIANCES say."""
    lengths: tuple[int, ...] = (60, 60, 60, 60)
    """Number of draws of each shard."""
    other_scale: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """Combiners whose draws have another scale."""


AVERAGED = [name for name in FROM_SHARDS if name not in PRECISION_WEIGHTED]
SINGULAR = r"covariance of shard 0 is singular"
SHRUNK = r"covariance of shard 0 was shrunk"
ONE_FIXED = r"only 2 of 3 directions"
NONE_VARIES = r"only 0 of 3 directions|The draws of no shard vary"
ONES = (1, 1, 1)
ZEROS = (0, 0, 0)
DEGENERATE = {
    "constant coordinate in one shard": Degenerate(lambda x: [x[0] * [0, 1, 1], *x[1:]], note=SINGULAR),
    "constant coordinate in all shards": Degenerate(
        lambda x: [v * [0, 1, 1] + [7, 0, 0] for v in x], (0, 1, 1), ONE_FIXED
    ),
    "other constant in each shard": Degenerate(
        lambda x: [v * [0, 1, 1] + [i, 0, 0] for i, v in enumerate(x)],
        (0, 1, 1),
        ONE_FIXED,
        other_scale={"mposterior": ONES},
    ),
    "dependent coordinates": Degenerate(lambda x: [v[:, [0, 1, 1]] for v in x], note=ONE_FIXED),
    "fewer draws than dimensions": Degenerate(
        lambda x: [x[0][:2], *x[1:]], note=SHRUNK, lengths=(2, 60, 60, 60)
    ),
    "fewer draws than dimensions everywhere": Degenerate(
        lambda x: [v[:2] for v in x],
        note=r"covariance of shards 0, 1, 2, 3 was shrunk",
        lengths=(2, 2, 2, 2),
        # The sd of two draws varies much.
        other_scale={
            "consensus": (0.3, 0.3, 0.3),
            "partition-trees": (0.1, 0.1, 0.1),
            "product": (0.05, 0.05, 0.05),
            "weierstrass": ZEROS,
        },
    ),
    "one draw in a shard": Degenerate(lambda x: [x[0][:1], *x[1:]], note=SHRUNK, lengths=(1, 60, 60, 60)),
    "one draw everywhere": Degenerate(
        lambda x: [v[:1] for v in x], ZEROS, NONE_VARIES, (1, 1, 1, 1), other_scale={"mposterior": ONES}
    ),
    "identical draws in a shard": Degenerate(lambda x: [np.ones_like(x[0]), *x[1:]], note=SINGULAR),
    "identical draws everywhere": Degenerate(lambda x: [np.ones_like(v) for v in x], ZEROS, NONE_VARIES),
    "a shard far away": Degenerate(
        lambda x: [x[0] + 5000, *x[1:]], other_scale={"mposterior": (1000, 1000, 1000)}
    ),
    "a shard very wide": Degenerate(
        lambda x: [x[0] * 1e6, *x[1:]], other_scale=dict.fromkeys(AVERAGED, (4e5, 4e5, 4e5))
    ),
    "a shard very narrow": Degenerate(
        lambda x: [x[0] * 1e-6, *x[1:]], (1e-6, 1e-6, 1e-6), other_scale=dict.fromkeys(AVERAGED, ONES)
    ),
    "coordinates of very different scales": Degenerate(
        lambda x: [v * [1e-9, 1, 1e9] for v in x], (1e-9, 1, 1e9)
    ),
    "far from zero": Degenerate(lambda x: [v * 1e-3 + 1e6 for v in x], (1e-3, 1e-3, 1e-3)),
    "one shard only": Degenerate(lambda x: x[:1], lengths=(60,)),
    "one shard with too few draws": Degenerate(
        lambda x: [x[0][:2]], note=SHRUNK, lengths=(2,), other_scale={"product": (0.1, 0.1, 0.1)}
    ),
}


def degenerate_shards(name: str, case: Degenerate) -> ShardDraws:
    sound, _ = gaussian_shards(name, 3, [60, 60, 60, 60])
    return ShardDraws.of(case.change(list(sound.values)), scaling=sound.scaling)


def wrong_with(name: str, case: Degenerate, combined: Combined) -> str | None:
    """What is not as expected of combined draws, if anything is."""
    sd = combined.values.std(axis=0)
    scale = np.array(case.other_scale.get(name, case.scale), float)
    offset = np.abs(combined.values).max(axis=0)
    if (sd > np.where(scale == 0, 1e-12 * offset, 3 * scale)).any() or (sd < 0.09 * scale).any():
        return f"sd {sd} and not about {scale}"
    if name in USES_COVARIANCES and case.note and not any(re.search(case.note, n) for n in combined.notes):
        return f"no {case.note!r} among {combined.notes}"
    most = sum(case.lengths) if make(name).pools else max(case.lengths)
    least = most / 2 if scale.any() else max(case.lengths)
    if not least <= len(combined.values) <= most:
        return f"{len(combined.values)} draws and not {least} to {most}"
    return None


@pytest.mark.parametrize("case", DEGENERATE.values(), ids=DEGENERATE)
def test_degenerate_shards_give_finite_draws_of_the_expected_scale_and_say_what_was_corrected(case):
    wrong = {}
    for name in FROM_SHARDS:
        draws = degenerate_shards(name, case)
        combined = run(name, draws, None)
        check(combined, draws)
        if problem := wrong_with(name, case, combined):
            wrong[name] = problem
    assert not wrong


@pytest.mark.parametrize("case", DEGENERATE.values(), ids=DEGENERATE)
def test_modes_stay_usable_where_draws_are_degenerate(case):
    """Laplace's draws do not depend on the shards' draws. Most combiners' draws do not depend on the modes."""
    for name in NAMES:
        draws = degenerate_shards(name, case)
        _, located = gaussian_shards(name, 3, [60] * draws.num_shards)
        combined = run(name, draws, located)
        check(combined, draws)
        if name == "laplace":
            sound = ShardDraws.of([np.zeros((n, 3)) for n in case.lengths], scaling=draws.scaling)
            np.testing.assert_array_equal(combined.values, run(name, sound, located).values)
        elif name not in USES_MODES:
            np.testing.assert_array_equal(combined.values, run(name, draws, None).values)


@pytest.mark.parametrize("name", FROM_SHARDS)
def test_a_parameter_that_is_constant_everywhere_stays_constant(name):
    combined = run(name, degenerate_shards(name, DEGENERATE["constant coordinate in all shards"]), None)
    np.testing.assert_allclose(combined.values[:, 0], 7, rtol=1e-12)
    assert (combined.values[:, 1:].std(axis=0) > 0.1).all()
