"""Shards that are part of a larger whole: the same rows, each counting more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from shardmc.data.batch import Batch, Blocks


@final
@dataclass(frozen=True, eq=False, repr=False)
class Rescaled(Blocks):
    """Blocks whose every row counts `factor` times.

    Of N rows in all these shards hold M; with factor N / M their subposteriors are rescaled to N rows. Shares are still
    those among these shards and sum to 1.
    """

    blocks: Blocks
    factor: float
    sizes: np.ndarray = field(init=False)
    portable: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", self.blocks.sizes)
        object.__setattr__(self, "portable", self.blocks.portable)

    @property
    def num_kept(self) -> int:
        return self.blocks.num_kept

    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        for names, batch in self.blocks.batches(shards, size):
            kept = None if batch.kept_weights is None else batch.kept_weights * self.factor
            yield names, replace(batch, factors=batch.factors * self.factor, kept_weights=kept)

    def keep(self, positions: Sequence[np.ndarray]) -> Rescaled:
        return Rescaled(self.blocks.keep(positions), self.factor)
