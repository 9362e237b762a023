"""Compiled functions that keep their last few programs only, whatever models and shapes come."""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import cache, partial, update_wrapper
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Generic, TypeVar, final

import jax
import jax.numpy as jnp

from shardmc.errors import EngineError
from shardmc.programs.heap import return_freed_memory

T = TypeVar("T")


_TRIMMED_AFTER = 16
"""Memory is returned to the operating system after this many programs were dropped: about once a fit."""
_dropped = itertools.count(1)

_computed_in: int | None = None
"""The process in which the first program ran."""


def refuse_after_fork() -> None:
    """Refuse to compute in a process that was forked after JAX had computed: it would wait for threads for ever."""
    if _computed_in not in (None, os.getpid()):
        raise EngineError(
            "This process was forked from one that had already computed with shardmc, and JAX cannot compute in it. "
            "Start it with multiprocessing.get_context('spawn'), or fork before the first fit."
        )


_MISCOMPILES = "0.10.2"
"""The version of jaxlib whose programs return wrong numbers on a CPU for some reductions of products (issue 39103 of
JAX). The cause is a library of fused kernels, which can be switched off. It is the newest for Python 3.11."""


Options = Mapping[str, Any]
"""Options of XLA's compiler."""

COMPILES_FAST: Options = {"xla_cpu_use_fusion_emitters": False}
"""For programs that run a few times: on a CPU they compile in half the time, and some take longer to run."""
RUNS_ONCE: Options = {**COMPILES_FAST, "xla_backend_optimization_level": 0}
"""For programs that run once: they should compile fast, however long they run."""


@cache
def _is_known(option: str, value: Any) -> bool:
    """Whether the installed compiler has an option. If not, it refuses to compile."""

    def with_option() -> jax.Array:
        return jnp.int32(0)

    try:
        jax.jit(with_option, compiler_options={option: value}).lower().compile()
    except Exception:
        return False
    return True


def jit(function: Callable[..., T], **options: Any) -> Callable[..., T]:
    """`jax.jit` without the kernels that are wrong in the installed version of jaxlib.

    >>> float(jit(lambda x: 2 * x)(jnp.ones(())))
    2.0
    """
    chosen = dict(options.pop("compiler_options", {}))
    if version("jaxlib") == _MISCOMPILES:
        chosen["xla_cpu_experimental_ynn_fusion_type"] = ""
    chosen = {name: value for name, value in chosen.items() if _is_known(name, value)}
    return jax.jit(function, compiler_options=chosen or None, **options)


@final
class CompiledFor(Generic[T]):
    """A function compiled by JAX for its first arguments, such as a model, and the shapes of the others.

    `jax.jit` with static arguments would keep every model, and all programs that were ever compiled for it, as long as
    the process lives. Here the programs that were not used for the longest time are forgotten, and their models with
    them.

    Parameters
    ----------
    function
        The function to compile.
    static
        How many of its first arguments are part of the program. They must be hashable.
    most
        How many programs are kept. There is one for each value of these, and for each shape of the other arguments.
    compiler_options
        Options of the compiler, or a function of all arguments that returns them.

    Examples
    --------
    >>> power = CompiledFor(lambda exponent, x: x**exponent, static=1, most=8)
    >>> float(power(3, 2.0)), float(power(2, 3.0)), len(power)
    (8.0, 9.0, 2)
    """

    def __init__(
        self,
        function: Callable[..., T],
        *,
        static: int,
        most: int,
        compiler_options: Options | Callable[..., Options] = MappingProxyType({}),
    ) -> None:
        self._function, self._options = function, compiler_options
        self._static, self._most = static, most
        self._programs: OrderedDict[Hashable, Callable[..., T]] = OrderedDict()
        self._lock = threading.Lock()
        self.made = 0
        """The number of programs that were made, kept or not."""
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> T:
        global _computed_in
        refuse_after_fork()
        _computed_in = os.getpid()
        known, rest = arguments[: self._static], arguments[self._static :]
        return self._program(known, rest)(*rest)

    def __len__(self) -> int:
        """The number of programs that are kept."""
        return len(self._programs)

    def _program(self, known: tuple[Any, ...], rest: tuple[Any, ...]) -> Callable[..., T]:
        leaves, structure = jax.tree.flatten(rest)
        key = (known, structure, tuple(map(_kind, leaves)), jnp.result_type(float))
        with self._lock:
            program = self._programs.pop(key, None)
            if program is None:
                # A new function each time, because JAX keeps programs as long as the function lives.
                function = update_wrapper(partial(self._function, *known), self._function)
                options = self._options(*known, *rest) if callable(self._options) else self._options
                program = jit(function, compiler_options=options)
                self.made += 1
            self._programs[key] = program
            dropped = len(self._programs) > self._most
            while len(self._programs) > self._most:
                self._programs.popitem(last=False)
        if dropped and next(_dropped) % _TRIMMED_AFTER == 0:
            return_freed_memory()
        return program


def _kind(leaf: Any) -> Hashable:
    """Type and shape of an argument: what a program is compiled for."""
    return getattr(leaf, "dtype", type(leaf)), getattr(leaf, "shape", ())
