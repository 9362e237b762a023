"""Shards whose rows are not at hand: how many there are is known, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from shardmc.data.batch import Batch, Blocks
from shardmc.errors import OptionError


@final
@dataclass(frozen=True, eq=False, repr=False)
class Elsewhere(Blocks):
    """Sizes and shares of shards that cannot be read from here."""

    sizes: np.ndarray
    parts: np.ndarray  # (shard,) in proportion to the shares

    @cached_property
    def shares(self) -> np.ndarray:
        return self.parts / self.parts.sum()

    @property
    def num_kept(self) -> int:
        return 0

    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        raise OptionError(
            "This needs rows, and they are not at hand: only draws and modes of their shards are."
        )

    def keep(self, positions: Sequence[np.ndarray]) -> Blocks:
        raise OptionError("Rows that are not at hand cannot be kept in every shard.")
