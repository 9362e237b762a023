"""Kept rows: where they are found, what they weigh, and that their table has few lengths."""

import jax
import numpy as np
import pytest

from shardmc.data import Partition
from shardmc.data.batch import flat_length, kept_length, power_of_four, rounded
from shardmc.errors import OptionError

from .conftest import make_source, shards_of


@pytest.fixture(params=["dict", "streamed"])
def blocks(request, tmp_path):
    return make_source(request.param, tmp_path).split(
        Partition(3, weights="weight", sizes=[3, 600, 400]), seed=0
    )


def test_kept_rows_are_in_every_shard_with_the_users_weight(blocks):
    before, own = shards_of(blocks), blocks.slots
    after = shards_of(blocks.keep([[1], [5, 599], []]))
    wanted = [before[0][0]["row"][1], before[1][0]["row"][5], before[1][0]["row"][599]]
    weights = [before[0][0]["weight"][1], before[1][0]["weight"][5], before[1][0]["weight"][599]]
    for rows, shard_weights in after.values():
        assert rows["row"][own : own + 3].tolist() == wanted
        assert shard_weights[own : own + 3].tolist() == weights
        assert (shard_weights[own + 3 :] == 0).all()
    assert after[0][1][1] == 0
    assert after[1][1][5] == 0
    assert after[1][1][599] == 0


def test_without_positions_there_is_no_room_for_kept_rows(blocks):
    nothing = blocks.keep([[1], [], []]).keep([])
    assert nothing.num_kept == 0
    (_, batch), *_ = nothing.batches([0], 1)
    assert batch.kept_rows is None
    assert batch.kept_positions is None


def test_keeping_nothing_has_the_shapes_of_keeping_a_few(blocks):
    nothing, some = blocks.keep([[], [], []]), blocks.keep([[1], [5], []])
    assert nothing.num_kept == 0
    plain = shards_of(blocks)
    for shard, (rows, weights) in shards_of(nothing).items():
        assert jax.tree.map(np.shape, rows) == jax.tree.map(np.shape, shards_of(some)[shard][0])
        own = len(plain[shard][1])
        assert weights[:own].tolist() == plain[shard][1].tolist()
        assert (weights[own:] == 0).all()


def test_keeping_again_starts_anew(blocks):
    once, twice = blocks.keep([[], [7], []]), blocks.keep([[0], [1], [2]]).keep([[], [7], [7]])
    assert (once.num_kept, twice.num_kept) == (1, 2)
    assert (shards_of(twice)[0][1][:3] > 0).sum() == (shards_of(blocks)[0][1][:3] > 0).sum()


def test_a_row_named_twice_is_kept_once(blocks):
    assert blocks.keep([[], [7, 7], []]).num_kept == 1


@pytest.mark.parametrize("positions", [[[3], [], []], [[-1], [], []], [[], []]])
def test_positions_outside_are_refused(blocks, positions):
    with pytest.raises(OptionError, match=r"cannot be kept: the shard has 3 rows|Positions of 2 shards"):
        blocks.keep(positions)


def test_a_negative_position_is_named(blocks):
    with pytest.raises(OptionError, match="Row -1 of shard 0 cannot be kept"):
        blocks.keep([[-1, 2], [], []])


def test_lengths_are_few_and_padding_is_small():
    assert len({rounded(count, 100_000) for count in range(1, 100_001)}) < 120
    assert len({rounded(count, 1 << 21) for count in range(1, 100_001)}) < 800
    for count in range(1, 5000):
        assert count <= rounded(count, 100_000) <= count * 9 / 8
        assert count <= rounded(count, 1 << 21) <= count * 65 / 64
        assert count <= kept_length(count, 4_096) <= max(128, count + 4_096 / 16)
        assert count <= power_of_four(count) <= max(16, 4 * count)


@pytest.mark.parametrize("shards", [7, 40])
def test_the_arrays_change_their_length_only_with_the_slices(shards):
    found = set()
    for num_rows in range(2_049 * shards, 2_304 * shards + 1, 97):
        sizes = np.full(shards, num_rows // shards) + (np.arange(shards) < num_rows % shards)
        found.add((flat_length(sizes), rounded(int(sizes.max()), num_rows)))
    assert found == {(2_304 * shards, 2_304)}
