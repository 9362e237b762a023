"""JAX settings that change numbers, for a block of code in one thread; the global configuration stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


def double_precision(enabled: bool = True) -> AbstractContextManager[Any]:
    """A context in which JAX computes in float64, or in float32.

    >>> with double_precision():
    ...     print(jnp.zeros(1).dtype)
    float64
    """
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(enabled)
    from jax.experimental import enable_x64  # pyright: ignore - where JAX had it before 0.8

    return enable_x64(enabled)


@dataclass(frozen=True)
class Precision:
    """The JAX settings that change numbers, so that other threads and processes can use those of the caller.

    >>> with double_precision():
    ...     precision = Precision.here()
    >>> with precision.applied():
    ...     print(jnp.zeros(1).dtype)
    float64
    """

    double: bool
    matmul: str | None

    @staticmethod
    def here() -> Precision:
        """The settings of this thread."""
        return Precision(jnp.result_type(float) == jnp.float64, jax.config.jax_default_matmul_precision)  # type: ignore[attr-defined]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use them in this thread, inside the context."""
        with double_precision(self.double), jax.default_matmul_precision(self.matmul):
            yield
