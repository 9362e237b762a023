"""Where rows come from and how they are dealt into shards."""

from shardmc.data.batch import Batch, Blocks, Rows
from shardmc.data.open import as_source
from shardmc.data.source import Partition, Source, Transform

__all__ = ["Batch", "Blocks", "Partition", "Rows", "Source", "Transform", "as_source"]
