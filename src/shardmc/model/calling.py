"""Calls of functions that a user wrote: what they raise becomes one sentence that says which function it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from shardmc.errors import ModelError, ShardmcError
from shardmc.model.lookup import NotThere

_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (
        jax.errors.TracerArrayConversionError,
        "calls NumPy or SciPy on JAX arrays: use jax.numpy and jax.scipy instead",
    ),
    (
        jax.errors.TracerBoolConversionError,
        "decides by `if` on values of rows or parameters: use jax.numpy.where instead",
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "selects rows by a condition: use jax.numpy.where instead, every row must give a number",
    ),
    (
        jax.errors.ConcretizationTypeError,
        "needs values of rows or parameters for a shape or a loop: work the number out beforehand and give it to "
        "the model as a constant",
    ),
)


@contextmanager
def calling(function: str) -> Iterator[None]:
    """Turn what happens inside into a ModelError that names the function.

    >>> with calling("log_prior"):
    ...     {}["scale"]
    Traceback (most recent call last):
    shardmc.errors.ModelError: log_prior raised KeyError: 'scale'
    """
    try:
        yield
    except ShardmcError:
        raise
    except NotThere as error:
        raise error.as_model_error(function) from None
    except Exception as error:
        for kind, advice in _ADVICE:
            if isinstance(error, kind):
                raise ModelError(f"{function} {advice} ({type(error).__name__}).") from error
        lines = str(error).strip().splitlines() or [""]
        raise ModelError(f"{function} raised {type(error).__name__}: {lines[0]}") from error
