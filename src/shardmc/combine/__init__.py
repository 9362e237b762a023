"""Combiners: from the shards' draws to draws of the full posterior."""

from shardmc.combine.recenter import Recenter
from shardmc.combine.registry import COMBINERS, combiner

__all__ = ["COMBINERS", "Recenter", "combiner"]
