"""Compiled functions that keep their last few programs only, whatever models and shapes come."""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial, update_wrapper
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar, final

import jax
import jax.numpy as jnp
from jax.core import Tracer

from shardmc.errors import EngineError
from shardmc.programs.kept import Entry, kind, watching
from shardmc.programs.process import TRACING, installed_version, return_freed_memory

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


Options: TypeAlias = Mapping[str, Any]
"""Options of XLA's compiler."""

COMPILES_FAST: Options = {"xla_cpu_use_fusion_emitters": False}
"""For programs that run a few times: on a CPU they compile faster, and some take longer to run."""
RUNS_ONCE: Options = {**COMPILES_FAST, "xla_backend_optimization_level": 0}
"""For programs that run once: they should compile fast, however long they run."""


@cache
def _parts() -> int:
    """Parts of a program that XLA compiles side by side on a CPU. It takes 32; more than cores only add work."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min(cores, 32)


@cache
def _is_known(option: str, value: Hashable) -> bool:
    """Whether the installed compiler has an option. If not, it refuses to compile."""

    def with_option() -> jax.Array:
        return jnp.int32(0)

    try:
        jax.jit(with_option, compiler_options={option: value}).lower().compile()
    except Exception:
        return False
    return True


@cache
def fuses_on_cpu() -> bool:
    """Whether programs for a CPU use XLA's library of fused kernels, in which log(1 + x) is fast."""
    numbers = re.findall(r"\d+", installed_version("jaxlib") or "")
    return tuple(map(int, numbers[:3])) > tuple(map(int, _MISCOMPILES.split(".")))


def jit(
    function: Callable[..., T],
    *,
    static_argnums: int | Sequence[int] = (),
    compiler_options: Options = MappingProxyType({}),
) -> Callable[..., T]:
    """`jax.jit` without the kernels that are wrong in the installed version of jaxlib.

    >>> float(jit(lambda x: 2 * x)(jnp.ones(())))
    2.0
    """
    return _wrapped(function, compiler_options, static_argnums)


def _wrapped(
    function: Callable[..., object], options: Options, static_argnums: int | Sequence[int] = ()
) -> jax.stages.Wrapped:
    chosen = _known(options)
    if installed_version("jaxlib") == _MISCOMPILES:
        chosen["xla_cpu_experimental_ynn_fusion_type"] = ""
    return jax.jit(function, static_argnums=static_argnums, compiler_options=chosen or None)


def _known(options: Options) -> dict[str, Any]:
    return {name: value for name, value in options.items() if _is_known(name, value)}


def compiled_with(lowered: jax.stages.Lowered, options: Options) -> jax.stages.Compiled:
    """Compile a program with these options, without those that the installed compiler lacks."""
    wanted = {"xla_cpu_parallel_codegen_split_count": _parts(), **options}
    try:
        return lowered.compile(compiler_options=wanted)
    except jax.errors.JaxRuntimeError:
        known = _known(wanted)
        if known == wanted:
            raise
        return lowered.compile(compiler_options=known)


def run_once(function: Callable[..., T], *arguments: object) -> T:
    """The function of these arguments, by a program that is not kept and compiles fast.

    >>> float(run_once(lambda x: 2 * x, 3.0))
    6.0
    """
    lowered = _wrapped(function, {}).lower(*arguments)
    return compiled_with(lowered, RUNS_ONCE)(*arguments)


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
        self._programs: OrderedDict[Hashable, _Program[T]] = OrderedDict()
        self._lock = threading.Lock()
        self.made = 0
        """The number of programs that were made, kept or not."""
        update_wrapper(self, function)

    def __call__(self, *arguments: object) -> T:
        global _computed_in
        refuse_after_fork()
        _computed_in = os.getpid()
        known, rest = arguments[: self._static], arguments[self._static :]
        return self._program(known, rest)(rest)

    def __len__(self) -> int:
        """The number of programs that are kept."""
        return len(self._programs)

    def _program(
        self, known: tuple[object, ...], rest: tuple[object, ...]
    ) -> Callable[[tuple[object, ...]], T]:
        leaves, structure = jax.tree.flatten(rest)
        ahead = _is_usual(leaves)
        key = (known, structure, tuple(map(kind, leaves)), _options_in_use(), ahead)
        with self._lock:
            program = self._programs.pop(key, None)
            if program is None:
                options = self._options(*known, *rest) if callable(self._options) else self._options
                program = _Program(self._function, known, options)
                self.made += 1
            self._programs[key] = program
            dropped = len(self._programs) > self._most
            while len(self._programs) > self._most:
                self._programs.popitem(last=False)
        if dropped and next(_dropped) % _TRIMMED_AFTER == 0:
            return_freed_memory()
        return program.compiled if ahead else program.jitted


@final
class _Program(Generic[T]):
    """One program: loaded from the folder of programs, or else compiled when it is first needed."""

    def __init__(self, function: Callable[..., T], known: tuple[object, ...], options: Options) -> None:
        self._function, self._known, self._options = function, known, options
        self._lock = threading.Lock()
        self._compiled: Callable[..., T] | None = None
        self._jit: Callable[..., T] | None = None

    def jitted(self, rest: tuple[object, ...]) -> T:
        """The result for these arguments, by a program that JAX compiles and finds again itself."""
        if self._jit is None:
            with TRACING:
                program = self._jit = self._jit or self._jitted(self._options)
                return program(*rest)
        return self._jit(*rest)

    def compiled(self, rest: tuple[object, ...]) -> T:
        """The result for these arguments. If two threads need the program, one waits for the other."""
        if self._compiled is None:
            with self._lock:
                if self._compiled is None:
                    self._compiled, result = self._first(rest)
                    return result
        assert self._compiled is not None
        return self._compiled(*rest)

    def _first(self, rest: tuple[object, ...]) -> tuple[Callable[..., T], T]:
        """The program and its first result: from the folder of programs if it is there and runs, or else compiled."""
        entry = Entry.of(self._function, self._known, rest, self._options)
        found = None if entry is None else entry.load()
        if found is not None:
            with suppress(jax.errors.JaxRuntimeError):  # another version of XLA wrote half of it, for example
                return found, jax.block_until_ready(found(*rest))
        program = self._compile(entry, rest)
        return program, program(*rest)

    def _compile(self, entry: Entry | None, rest: tuple[object, ...]) -> jax.stages.Compiled:
        with TRACING, watching() as seen:
            lowered = self._jitted({}).lower(*rest)
        program = compiled_with(lowered, self._options)
        if entry is not None:
            entry.save(program, seen)
        return program

    def _jitted(self, options: Options) -> jax.stages.Wrapped:
        # A new function each time, because JAX keeps programs as long as the function lives.
        function = update_wrapper(partial(self._function, *self._known), self._function)
        return _wrapped(function, options)


_DEBUGGING = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs")
_TRACED_WITH = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
)
"""The options of JAX that change what is traced."""


def _is_usual(leaves: Sequence[object]) -> bool:
    """Whether a program can be compiled ahead: all arguments are on the first device, and nothing is debugged."""
    if any(getattr(jax.config, option) for option in _DEBUGGING):
        return False
    if getattr(jax.config, "jax_default_device", None) is not None:
        return False
    first = _first_device()
    return all(
        not isinstance(leaf, Tracer) and leaf.sharding == first
        for leaf in leaves
        if isinstance(leaf, jax.Array)
    )


@cache
def _first_device() -> jax.sharding.SingleDeviceSharding:
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])


def _options_in_use() -> Hashable:
    return tuple(getattr(jax.config, option) for option in _TRACED_WITH)
