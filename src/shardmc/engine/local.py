"""Shards on this machine's devices: batches of them run through one compiled program."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.batch import Batch, Blocks, padded
from shardmc.engine.engine import DensityProgram, Engine, Program, ProgramCall, T, by_shard
from shardmc.errors import OptionError
from shardmc.guards.limits import needed_memory
from shardmc.model import Density
from shardmc.model.precision import Precision
from shardmc.model.shared import joined, with_shared
from shardmc.programs.compiled import COMPILES_FAST, CompiledFor, Options
from shardmc.programs.threads import Threads
from shardmc.types import Tree

_MOST_PROGRAMS = 32
"""Compiled programs that are kept, one for each kind of shards: about 2 MB each. A fit needs six or more."""
_SMALL = 1 << 14
"""Rows of a shard. Below that, compiling a program takes longer than running it a few times."""


def run_batch(program: Program[T], width: int, batch: Batch, per_shard: Tree, shared: Tree, count: int) -> T:
    """Run a program on every shard of a batch. Results are stacked along a first axis.

    If a program needs nothing but the density of its model, models that differ only in their numbers share it.
    """
    if not (isinstance(program, DensityProgram) and program.density_only and isinstance(batch, Batch)):
        return compiled_batch(program, width, None, batch, per_shard, shared, count)

    def run(kind: Density, numbers: Tree) -> T:
        return compiled_batch(program.with_model(kind), width, numbers, batch, per_shard, shared, count)

    return with_shared(run, program.model, batch.rows)


def _compiled_how(program: Program[Tree], width: int, numbers: Tree, batch: Batch, *_: object) -> Options:
    """Programs that run a few times on small shards compile fast."""
    is_small = isinstance(batch, Batch) and batch.capacity <= _SMALL
    runs_a_few_times = isinstance(program, DensityProgram) and program.runs_a_few_times
    return COMPILES_FAST if is_small and runs_a_few_times else {}


@partial(CompiledFor, static=2, most=_MOST_PROGRAMS, compiler_options=_compiled_how)
def compiled_batch(
    program: Program[T], width: int, numbers: Tree, batch: Batch, per_shard: Tree, shared: Tree, count: int
) -> T:
    """Run a program on every shard of a batch, with the numbers of its model.

    Shards run one after another (or `width` at a time) in one compiled loop. The body of the loop does not depend on
    the number of shards, so the batch size does not change the draws. A batch may be padded by repeating its last
    shard; only the first `count` shards are needed. With `width=1` the padding shards are skipped, and with `count=0`
    nothing is computed, whatever the width.
    """

    if numbers is not None:
        assert isinstance(program, DensityProgram)
        program = program.with_model(joined(program.model, numbers))

    @partial(jax.jit, inline=True)  # so that the program is traced once, for its shapes and for the loop
    def evaluate(i: jax.Array) -> T:
        # Materialised rows use XLA's fused matrix kernels. A lazy slice would not.
        rows, weights = lax.optimization_barrier(batch.take(i))
        # By default an accelerator rounds the factors of a matrix product to ten bits.
        with jax.default_matmul_precision("highest"):
            return program(rows, weights, jax.tree.map(lambda a: a[i], per_shard), shared)

    result = jax.eval_shape(evaluate, jnp.int32(0))  # once: tracing a program takes long

    def zeros(*axes: int) -> T:
        return jax.tree.map(lambda s: jnp.zeros((*axes, *s.shape), s.dtype), result)

    def add(i: jax.Array, results: T) -> T:
        put = partial(lax.dynamic_update_index_in_dim, index=i, axis=0)
        return jax.tree.map(put, results, evaluate(i))

    if width == 1:
        # It ends after the shards that are needed. With a condition in the loop there would be more to compile.
        return lax.fori_loop(jnp.int32(0), jnp.int32(count), add, zeros(batch.num_shards))

    def one(i: jax.Array) -> T:
        return lax.cond(i < count, evaluate, lambda _: zeros(), i)

    def every() -> T:
        return lax.map(one, jnp.arange(batch.num_shards), batch_size=width)

    # Shards that run in parallel are all computed, whatever `count` is. So count=0 is handled here.
    return lax.cond(count > 0, every, lambda: zeros(batch.num_shards))


@final
@dataclass(frozen=True)
class Local(Engine):
    """Runs shards on this machine, `batch` shards per call and `workers` calls at a time.

    Parameters
    ----------
    batch
        Shards per call of the compiled program. By default chosen from the number of shards.
    workers
        Calls at the same time. By default one per core on a CPU, two on an accelerator.
    width
        Shards that run in parallel inside a call. By default 1 on a CPU, where draws are then bit-identical for any
        batch size; on an accelerator as many as keep it busy.

    Examples
    --------
    >>> Local(workers=1)
    Local(batch=None, workers=1, width=None)
    """

    batch: int | None = None
    workers: int | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "workers", "width"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise OptionError(f"{name} of Local must be a positive whole number, not {value!r}.")

    def map(
        self,
        program: Program[T],
        blocks: Blocks,
        per_shard: Tree,
        shared: Tree,
        shards: Sequence[int] | None = None,
        on_done: Callable[[int], None] | None = None,
        on_failure: Callable[[int, str], None] | None = None,
    ) -> Iterator[tuple[int, T]]:
        wanted = list(range(blocks.num_shards)) if shards is None else list(shards)
        workers, size, width = self._sizes(program, blocks)
        precision = Precision.here()  # a setting of this thread; the threads of the pool do not have it

        def call(names: Sequence[int], batch: Batch) -> T:
            with precision.applied():
                mine = _of_batch(per_shard, names, batch)
                return jax.device_get(run_batch(program, width, batch, mine, shared, len(names)))

        def alone(names: Sequence[int]) -> Iterator[_Call[T]]:
            for name in names:
                for one, batch in blocks.batches([name], size):
                    yield one, partial(call, one, batch)

        def results(names: Sequence[int], get: Callable[[], T]) -> Iterator[tuple[int, T]]:
            for done, stacked in _successes((names, get), alone, on_failure):
                yield from by_shard(done, stacked, on_done)

        threads = Threads(workers, "shardmc")
        pending: deque[tuple[Sequence[int], Callable[[], T]]] = deque()
        try:
            for names, batch in blocks.batches(wanted, size):
                pending.append((names, threads.submit(partial(call, names, batch)).result))
                if len(pending) > workers:
                    yield from results(*pending.popleft())
            while pending:
                yield from results(*pending.popleft())
        finally:
            # Do not wait, so that an interruption takes effect at once. Finished results have been yielded.
            threads.close()

    def prepare(self, call: ProgramCall) -> Future[None] | None:
        """Compile a program in the background, by a call that computes no shard."""
        program, blocks, per_shard = call.program, call.blocks, call.per_shard
        if not blocks.in_memory:
            return None  # rows would have to be read
        _, size, width = self._sizes(program, blocks)
        precision = Precision.here()

        def compile_it() -> None:
            with precision.applied():
                names, batch = next(iter(blocks.batches(range(min(size, blocks.num_shards)), size)))
                run_batch(program, width, batch, _of_batch(per_shard, names, batch), call.shared, 0)

        return _compiler().submit(compile_it)

    def _sizes(self, program: Program[Tree], blocks: Blocks) -> tuple[int, int, int]:
        """Workers, shards per call and shards in parallel.

        They are the same for every call of a program on these blocks, so that it is compiled for one size only.
        """
        workers = self.workers or _default_workers()
        accelerated = is_accelerated()
        size = default_batch(blocks, 1 if accelerated else workers, accelerated)
        if blocks.most_in_memory is not None:
            # One batch in each call, one that waits for a call, and one that is being read.
            size = max(1, min(size, blocks.most_in_memory // (workers + 2)))
        size = self.batch or size
        return workers, size, min(self.width or default_width(program, blocks.slots), size)


_Call: TypeAlias = tuple[Sequence[int], Callable[[], T]]
"""Shards, and a function that returns their results."""


def _successes(
    call: _Call[T],
    alone: Callable[[Sequence[int]], Iterator[_Call[T]]],
    on_failure: Callable[[int, str], None] | None,
) -> Iterator[tuple[Sequence[int], T]]:
    """The results of some shards. If they fail together, they run one by one, so that only those fail that must."""
    names, get = call
    try:
        stacked = get()
    except jax.errors.JaxRuntimeError as error:
        if on_failure is None or needed_memory(error) is not None:
            raise
        if len(names) == 1:
            on_failure(names[0], (str(error).strip() or type(error).__name__).splitlines()[-1])
            return
        for one in alone(names):
            yield from _successes(one, alone, on_failure)
        return
    yield names, stacked


def _of_batch(per_shard: Tree, names: Sequence[int], batch: Batch) -> Tree:
    """The entries of the shards of a batch, the last one repeated as in the batch."""
    index = padded(names, batch.num_shards)
    return jax.tree.map(lambda a: np.asarray(a)[index], per_shard)


@cache
def _compiler() -> Threads:
    """One thread. The calling thread compiles too; if both need the same program, one waits for the other."""
    return Threads(1, "shardmc-compile")


def is_accelerated() -> bool:
    """Whether this process computes on an accelerator."""
    return jax.default_backend() != "cpu"


def default_batch(blocks: Blocks, devices: int, accelerated: bool) -> int:
    """Shards per call: a few calls per device (or core), so that all are busy to the end."""
    most = 128
    if not accelerated:
        # Many small shards share the cost of a call. A few large ones are enough, and their rows may have to be read.
        most = min(32, max(8, (1 << 18) // blocks.slots))
    return max(1, min(most, blocks.num_shards // (4 * devices)))


def default_width(program: Program[Tree], capacity: int) -> int:
    """Shards in parallel: one on a CPU; on an accelerator as many as the program has memory for."""
    if not is_accelerated():
        return 1
    together = (program if isinstance(program, DensityProgram) else DensityProgram).rows_together
    return max(1, min(16, min(together, _rows_that_fit()) // capacity))


def _rows_that_fit() -> int:
    """A row takes a few kilobytes if it is evaluated at a hundred points."""
    memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    return max(1 << 20, memory >> 13)


def _default_workers() -> int:
    if is_accelerated():
        return 2  # the next call is on the device while the results of the last one are copied
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
