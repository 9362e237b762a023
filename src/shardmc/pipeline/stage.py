"""The parts of a run: a job, the state that its stages fill in, and the interface of a stage."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from shardmc.check import Certificate, Certify, Polished
from shardmc.check.advice import ANY
from shardmc.data import Blocks
from shardmc.engine import Engine, ProgramCall
from shardmc.locate import Choice
from shardmc.model import Model
from shardmc.pipeline.counts import Nodes
from shardmc.posterior import ShardTable
from shardmc.posterior.records import GroupMoments
from shardmc.sample import Auto, Sampled, Sampler, ShardChains
from shardmc.types import Combiner, Finding, Located, Mode

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """What to compute: the model, the rows in their shards, and the options, all checked."""

    model: Model
    blocks: Blocks
    engine: Engine
    seed: int
    combiner: Combiner
    sampler: Sampler | Auto
    draws_per_shard: int = 0
    precision: str = "auto"
    nodes: int | None = None
    """Nodes by which effects of groups are integrated out; None to choose them."""
    keep: float | None = None
    """A row is kept in every shard if its leverage exceeds this times the largest share; None keeps none."""
    certify: Certify | None = None
    polish: bool = False
    shuffled: bool | None = None
    """Whether rows went to shards at random; None if that is not known."""
    options: frozenset[str] = ANY.options
    """The options of the call that advice may name."""
    mode_for: str = ""
    """The options that need a mode of all rows, whatever the sampler needs."""


@dataclass(frozen=True)
class PosteriorDraws:
    """Combined draws on the unconstrained and the natural scale."""

    theta: np.ndarray  # (draw, dim); NaN rows where a draw left the support
    natural: Mapping[str, np.ndarray]
    shard: np.ndarray | None


@dataclass(frozen=True)
class Checked:
    """What the checks found."""

    shards: ShardTable
    findings: tuple[Finding, ...]
    certificate: Certificate | None
    certified_at: np.ndarray | None  # (chosen,) the draws at which the certificate took its gradients


@dataclass(frozen=True)
class State:
    """The results of the stages so far."""

    blocks: Blocks
    """The partition of all rows."""
    shards: Blocks
    """The same partition, with the rows that every shard keeps."""
    precision: Choice | None = None
    mode: Mode | None = None
    nodes: Nodes | None = None
    """How finely effects of groups are integrated out."""
    kept: Sequence[np.ndarray] | None = None
    """Positions of the kept rows within each shard; None before they are chosen."""
    located: Located | None = None
    sampled: Sampled | None = None
    combined: PosteriorDraws | None = None
    checked: Checked | None = None
    polished: Polished | None = None
    groups: GroupMoments | None = None
    """The effects of groups, without their labels."""
    passes: Mapping[str, float] = field(default_factory=dict)
    """Stage -> how often it evaluated the likelihood of all rows."""
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(job: Job) -> State:
        """The state before the first stage. Shards that will keep rows have room for them: programs stay the same."""
        blocks = job.blocks
        if job.keep is not None:
            blocks = blocks.keep([np.empty(0, np.int64)] * blocks.num_shards)
        return State(blocks, blocks)

    def after(self, stage: Stage, *, passes: float | None = None, **found: object) -> State:
        """The state with the results of a stage, and how often it evaluated the likelihood of all rows."""
        counted = self.passes if passes is None else {**self.passes, stage.name: passes}
        return replace(self, passes=counted, **found)

    def account(self) -> np.ndarray:
        """The notes and passes as JSON, in an array that a run folder can hold."""
        return np.frombuffer(json.dumps([self.notes, self.passes]).encode(), np.uint8)

    def with_account(self, account: np.ndarray) -> State:
        """The state with the notes and passes that `account` returned."""
        notes, passes = json.loads(account.tobytes())
        return replace(self, notes=tuple(notes), passes=passes)

    def computing(self) -> AbstractContextManager[None]:
        """A context in which JAX computes in the precision that was chosen."""
        return nullcontext() if self.precision is None else self.precision.applied()


class Log(Protocol):
    """What the driver offers to a stage that works shard by shard."""

    def finished(self) -> Mapping[int, ShardChains]:
        """The shards that an earlier, interrupted call of this run has sampled."""
        ...

    def write(self, shard: int, chains: ShardChains) -> None:
        """Keep a sampled shard, or why it failed."""
        ...

    def counter(self, total: int) -> Callable[[int], None]:
        """A function to call after each of `total` steps."""
        ...

    def part(self, what: str, total: int) -> Callable[[int], None]:
        """A function to call with the number of further steps done, of `total` steps of a part of the stage.

        `what` says what the part does; "" stands for the whole stage.
        """
        ...


class Stage(ABC):
    """One step of a run. It does not depend on time, progress, files or other stages."""

    name: ClassVar[str]
    """As progress bars and reports show it."""
    part: ClassVar[str] = ""
    """The file of the run folder (without .npz) that keeps what this stage and those before it found."""

    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that are slow to import and first needed by `run`; imported while other stages run."""

    def applies(self, job: Job, state: State) -> bool:
        """Whether there is anything to do."""
        return True

    @abstractmethod
    def run(self, job: Job, state: State, log: Log) -> State:
        """The state with the results of this stage."""

    def programs(self, job: Job, state: State) -> Iterable[ProgramCall]:
        """The programs that `run` will need, as far as their shapes are known; compiled while other stages run."""
        return ()

    def save(self, state: State) -> dict[str, np.ndarray]:
        """Arrays for this stage's part of the run folder."""
        return {}

    def load(self, job: Job, state: State, arrays: Mapping[str, np.ndarray]) -> State:
        """The state that `save` was called with, as far as later stages need it."""
        return state


def known(found: T | None) -> T:
    """A result of an earlier stage, which must exist."""
    assert found is not None, "The stages are in the wrong order."
    return found
