"""Double precision for some lines of this thread, without touching JAX's global configuration."""

from contextlib import AbstractContextManager
from typing import Any

import jax


def double_precision() -> AbstractContextManager[Any]:
    """A context in which JAX computes in float64.

    >>> import jax.numpy as jnp
    >>> with double_precision():
    ...     print(jnp.zeros(1).dtype)
    float64
    """
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # pyright: ignore - where JAX had it before 0.8

    return enable_x64()
