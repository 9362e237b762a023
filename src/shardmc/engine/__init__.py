"""Engines: where shards run."""

from shardmc.engine.dask import Dask
from shardmc.engine.engine import DensityProgram, Engine, ProgramCall, in_order
from shardmc.engine.local import Local

__all__ = ["Dask", "DensityProgram", "Engine", "Local", "ProgramCall", "in_order"]
