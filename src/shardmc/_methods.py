"""Methods of a posterior that later layers provide. They are named in `shardmc/__init__.py`, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

HOMES: dict[str, str] = {}
"""Function of a posterior -> the module that has it."""


def provided(name: str) -> Callable[..., Any]:
    """The function of a posterior with this name."""
    return getattr(import_module(HOMES[name]), name)
