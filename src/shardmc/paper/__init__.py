"""The paper's results, recomputed: `shardmc reproduce NAME`."""

from shardmc.paper.registry import NAMES, reproduce

__all__ = ["NAMES", "reproduce"]
