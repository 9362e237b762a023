"""Methods of a posterior that later layers provide. `shardmc/__init__.py` lists them, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

HOMES: dict[str, str] = {}
"""Name of a function of a posterior -> its module."""


def provided(name: str) -> Callable[..., Any]:
    """The function of a posterior with this name."""
    return getattr(import_module(HOMES[name]), name)
