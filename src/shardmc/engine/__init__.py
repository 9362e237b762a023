"""Engines: where shards run."""

from shardmc.engine.dask import Dask
from shardmc.engine.local import Local

__all__ = ["Dask", "Local"]
