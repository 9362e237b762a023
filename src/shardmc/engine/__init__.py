"""Engines: where shards run."""

from shardmc.engine.local import Local

__all__ = ["Local"]
