"""The number of shards that is chosen."""

from types import SimpleNamespace

import pytest

from shardmc.pipeline.counts import number_of_shards


@pytest.mark.parametrize(
    ("rows", "groups", "many_effects", "expected"),
    [
        (1_000_000, None, False, 100),
        (1_000_000, 100_000, False, 31),
        (1_000_000, 100_000, True, 22),  # each sd is known from few groups
        (1_000, None, False, 1),
    ],
)
def test_chosen_from_the_number_of_rows_or_groups(rows, groups, many_effects, expected):
    source = SimpleNamespace(num_rows=rows, num_units=groups or rows)
    assert number_of_shards("auto", source, 20, 10_000, many_effects=many_effects) == expected
