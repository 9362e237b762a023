"""The driver of a run: time, progress, checkpoints in the run folder, programs and modules loaded ahead."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

import numpy as np

from shardmc.data import Source
from shardmc.data.gathered import return_unused_memory
from shardmc.engine import Engine
from shardmc.guards.limits import memory_explained
from shardmc.model import Model
from shardmc.model.precision import Precision
from shardmc.pipeline.stage import Job, Stage, State, known
from shardmc.posterior import Plan, Posterior
from shardmc.programs.compiled import refuse_after_fork
from shardmc.programs.threads import aside
from shardmc.sample import ShardChains
from shardmc.store.records import Manifest, package_versions
from shardmc.types import Progress

if TYPE_CHECKING:
    from shardmc.store.run import Run


class Folder:
    """A run folder, locked during the whole run. Without a path nothing is kept or found.

    With `overwrite`, an earlier run in the folder is removed when the new one begins.
    """

    def __init__(self, path: str | os.PathLike[str] | None, overwrite: bool = False) -> None:
        self._run: Run | None = None
        self._overwrite = overwrite
        if path is not None:
            from shardmc.store.run import Run  # imported here because most fits need no folder, nor its lock

            self._run = Run(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._run is not None:
            self._run.close(failed=kind is not None)

    def expect(self, source: Source, plan: Mapping[str, object]) -> None:
        """Refuse a folder that belongs to other rows or another plan, before a row is read."""
        if self._run is not None and not self._overwrite:
            self._run.expect(plan, source.fingerprint, source.num_rows)

    def begin(self, source: Source, rows: Source, model: Model, plan: Plan) -> None:
        """Start the run in the folder, or resume the same one; refuse another. The model reads `rows` of the source."""
        if self._run is not None:
            computed = model.fingerprint(rows.row_shapes())
            if self._overwrite:
                self._run.discard()
            self._run.begin(Manifest(plan.to_dict(), data=source.fingerprint, model=computed))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found in the folder."""
        return () if self._run is None else tuple(self._run.notes)

    def finished(self) -> dict[int, ShardChains]:
        """The shards that an earlier call finished."""
        if self._run is None:
            return {}
        return {i: ShardChains.from_arrays(self._run.read(i)) for i in self._run.finished()}

    def write(self, shard: int, chains: ShardChains) -> None:
        """Keep one finished shard, or why it failed."""
        if self._run is None:
            return
        if chains.failure:
            self._run.write_failure(shard, chains.failure)
        else:
            self._run.write(shard, chains.arrays())

    def read_part(self, name: str) -> Mapping[str, np.ndarray] | None:
        """What a stage of an earlier call saved; None if there is nothing, or nothing intact."""
        return None if self._run is None else self._run.read_part(name)

    def write_part(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep what a stage saves."""
        if self._run is not None:
            self._run.write_part(name, arrays)

    def write_posterior(self, posterior: Posterior) -> None:
        """Keep the result."""
        if self._run is not None:
            posterior.save(self._run.path("posterior.nc"))


_ACCOUNT = "account"
"""The entry of a part that holds the notes and passes of the stages so far."""
P = ParamSpec("P")
R = TypeVar("R")


_SAVE_MEMORY = (
    "Take more shards, fewer draws or single precision, where the call has these options (shards=, draws=, "
    "precision=). To read files shard by shard, give shardmc.data.as_source a smaller limit (memory=, or --memory). "
    "Finished shards of a run folder are kept."
)


class Driver:
    """Runs the stages of a job one by one and assembles the posterior."""

    def __init__(self, folder: Folder | None = None, progress: Progress | bool | None = None) -> None:
        refuse_after_fork()
        self._folder = Folder(None) if folder is None else folder
        self._progress = progress if callable(progress) else None
        self._seconds: dict[str, float] = {}

    def timed(self, name: str, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function, and record its time and progress under this name."""
        self._report(name, 0, 1)
        start = time.perf_counter()
        with memory_explained(f"The stage {name!r}", _SAVE_MEMORY):
            result = verb(*args, **kwargs)
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start
        self._report(name, 1, 1)
        return result

    def run(self, job: Job, stages: Sequence[Stage], state: State | None = None) -> State:
        """Run the stages that an earlier call of the same run has not finished."""
        state, remaining = self._resumed(job, stages, State.of(job) if state is None else state)
        _load_modules(remaining)
        ahead = _Ahead(job.engine)
        for position, stage in enumerate(remaining):
            if not stage.applies(job, state):
                continue
            with state.computing():
                ahead.compile(remaining[position:], job, state)
                log = _StageLog(stage.name, self._folder, self._report)
                state = self.timed(stage.name, stage.run, job, state, log)
            if not state.blocks.in_memory or state.blocks.most_in_memory is not None:
                return_unused_memory()
            if stage.part:
                self._folder.write_part(stage.part, {**stage.save(state), _ACCOUNT: state.account()})
        return replace(state, notes=(*state.notes, *ahead.notes()))

    def posterior(self, job: Job, state: State, plan: Plan) -> Posterior:
        """The posterior that the stages have computed."""
        combined, checked = known(state.combined), known(state.checked)
        mode = None if state.located is None else state.located.mode
        precision = state.precision
        return Posterior(
            draws=combined.natural,
            theta=combined.theta,
            names=tuple(job.model.names),
            shard=combined.shard,
            shards=checked.shards,
            mode=None if mode is None else mode.theta,
            curvature=None if mode is None else mode.curvature,
            certificate=checked.certificate,
            polished=state.polished,
            groups=state.groups,
            variables=job.model.variables,
            findings=checked.findings,
            notes=(*(() if precision is None else precision.notes), *self._folder.notes, *state.notes),
            plan=plan if precision is None else replace(plan, **precision.plan),
            seconds=self._seconds,
            passes=state.passes,
            versions=package_versions(),
            origin={"date": time.strftime("%Y-%m-%d %H:%M")},
        )

    def _resumed(self, job: Job, stages: Sequence[Stage], state: State) -> tuple[State, Sequence[Stage]]:
        """The last state that the run folder holds, and the stages that come after it."""
        for position in reversed(range(len(stages))):
            stage = stages[position]
            arrays = self._folder.read_part(stage.part) if stage.part else None
            if arrays is not None:
                restored = stage.load(job, state, arrays).with_account(arrays[_ACCOUNT])
                return restored, stages[position + 1 :]
        return state, stages

    def _report(self, stage: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(stage, done, total)


@dataclass(frozen=True)
class _StageLog:
    """The log for a stage that works shard by shard."""

    name: str
    folder: Folder
    report: Progress

    def finished(self) -> Mapping[int, ShardChains]:
        return self.folder.finished()

    def write(self, shard: int, chains: ShardChains) -> None:
        self.folder.write(shard, chains)

    def counter(self, total: int) -> Callable[[int], None]:
        advance = self.part("", total)
        return lambda _: advance(1)

    def part(self, what: str, total: int) -> Callable[[int], None]:
        name, done = f"{self.name}: {what}" if what else self.name, 0
        if what:
            self.report(name, 0, total)

        def advance(steps: int) -> None:
            nonlocal done
            done = min(done + steps, total)
            self.report(name, done, total)

        return advance


def _load_modules(stages: Sequence[Stage]) -> None:
    """Import the modules that these stages list, in a thread. A failure is raised where the module is needed."""
    missing = [name for stage in stages for name in stage.modules if name not in sys.modules]
    if missing:
        aside(lambda: [import_module(name) for name in missing], "shardmc-modules")


class _Ahead:
    """Compiles the programs of later stages while earlier ones run."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked: set[Stage] = set()
        self._compiling: list[tuple[Stage, Future[None]]] = []
        self._precision = Precision.here()

    def compile(self, stages: Sequence[Stage], job: Job, state: State) -> None:
        """Compile the programs that these stages list.

        Before the precision is chosen, they are compiled for the usual one. If another is chosen, compilations that
        have not begun are cancelled.
        """
        first, *later = stages
        if state.precision is None and state.blocks.of_groups:
            return  # groups have no centres yet
        if self._precision != Precision.here():
            self._precision = Precision.here()
            for _, compiling in self._compiling:
                compiling.cancel()
            self._asked.clear()
        self._asked.add(first)  # it compiles what it needs by itself
        for stage in later:
            if stage in self._asked:
                continue
            for call in stage.programs(job, state):
                self._asked.add(stage)
                compiling = self._engine.prepare(call)
                if compiling is not None:
                    self._compiling.append((stage, compiling))

    def notes(self) -> tuple[str, ...]:
        """What failed in the background. Compilations that have not begun are cancelled; those that run are left."""
        failed = {}
        for stage, compiling in self._compiling:
            if compiling.cancel() or not compiling.done():
                continue
            if (error := compiling.exception()) is not None:
                failed[stage.name] = str(error).partition("\n")[0]
        return tuple(
            f"A program of the stage {name!r} could not be compiled ahead: {error}"
            for name, error in failed.items()
        )
