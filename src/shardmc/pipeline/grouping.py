"""The stages of a fit whose effects of groups are integrated out: the mode, with every group's own centre."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np

from shardmc.data.grouped import GroupedBlocks
from shardmc.errors import ModelError
from shardmc.locate import Start, choose_precision, locate
from shardmc.locate.ascent import Ascent
from shardmc.locate.terms import Evaluator, Expansion, sampled_score
from shardmc.mixed import (
    GroupLikelihood,
    LinearEffects,
    LocalEffects,
    blank_centers,
    blank_sites,
    center_groups,
    moments_of_effects,
    points_for,
    product_rule,
)
from shardmc.model import Model
from shardmc.pipeline.stage import Job, Log, Stage, State, known
from shardmc.posterior.groups import GroupMoments
from shardmc.types import Frame, Mode

_FIRST_GROUPS = 4_000
"""Groups from which the search for the mode starts."""
_ROUNDS = 12
_LADDER = {1: (3, 5, 7, 9, 13, 19, 27, 39), 2: (3, 5, 7, 9, 13, 17), 3: (3, 5, 7, 9)}
"""Nodes in each direction that are tried, by the number of effects of a group."""
_FIRST = 1
"""The place in the ladder with which the search for the mode starts."""
_PINNED = 0.05
"""The sd within which the log sd of effects that are parameters is held at first."""
POINTS = 64
"""Points of importance sampling for the certificate, with many effects in each group."""
SCORE_ERROR = 0.01
"""Quadrature may move the mode by this much, in posterior standard deviations."""


@final
class LocateGroups(Stage):
    """Find the mode of all rows, each group's centre there, the number of nodes and the precision."""

    name = "locate"

    def run(self, job: Job, state: State, log: Log) -> State:
        blocks = state.blocks
        assert isinstance(blocks, GroupedBlocks)
        search = _Search(job, blocks)
        search.start()
        search.finish()
        place = search.choose_nodes()
        search.use_nodes(place)
        choice = choose_precision(job.precision, job.model, search.blocks, job.engine, search.mode.frame)
        with choice.applied():
            if choice.double:
                search.finish()
            centered = recentered(job, blocks, search.mode.theta, place)
        return state.after(
            self,
            passes=search.passes,
            precision=choice,
            mode=search.mode,
            blocks=centered,
            shards=centered,
            nodes=place,
        )


@final
class DescribeGroups(Stage):
    """The moments of the effects of every group, at the mean of the parameters' draws."""

    name = "effects"

    def run(self, job: Job, state: State, log: Log) -> State:
        blocks = state.blocks.for_certificate
        assert isinstance(blocks, GroupedBlocks)
        theta = known(state.combined).theta
        point = theta[np.isfinite(theta).all(axis=1)].mean(axis=0)
        found = moments_of_effects(job.model, _likelihood(job.model), blocks, point, job.engine)
        moments = GroupMoments((), point, found["mean"], found["covariance"], found["third"], found["slope"])
        return state.after(self, passes=1.0 + job.model.dim, groups=moments)


def _likelihood(model: Model) -> GroupLikelihood:
    likelihood = model.log_likelihood_function
    assert isinstance(likelihood, GroupLikelihood)
    return likelihood


def _with_rule(blocks: GroupedBlocks, size: int, place: int) -> GroupedBlocks:
    ladder = _LADDER[size]
    place = min(place, len(ladder) - 2)
    return replace(
        blocks, rule=product_rule(ladder[place], size), finer=product_rule(ladder[place + 1], size)
    )


def _blank(model: Model, blocks: GroupedBlocks, place: int) -> GroupedBlocks:
    """The blocks before anything is known of their groups."""
    local = _likelihood(model).local
    if local is None:
        return blocks
    groups, length = len(blocks.layout.order), blocks.layout.length
    if isinstance(local, LinearEffects):
        points = points_for(min(length, local.size), POINTS)
        return replace(blocks.with_effects(blank_sites(groups, length)), finer=points)
    count = sum(int(np.prod(p.shape)) for p in model.parameters.values())
    centers = blank_centers(groups, local.size, count)
    return _with_rule(blocks.with_effects(centers), local.size, place)


def recentered(job: Job, blocks: GroupedBlocks, theta: np.ndarray, place: int) -> GroupedBlocks:
    """The blocks with all groups centred at theta. The result depends on nothing else, so that a run can resume."""
    local = _likelihood(job.model).local
    if local is None:
        return blocks
    return center_groups(job.model, local, _blank(job.model, blocks, place), theta, job.engine)[0]


class _Search:
    """A search for the mode in which the centres of the groups follow the parameters."""

    def __init__(self, job: Job, blocks: GroupedBlocks) -> None:
        self.model, self.engine = job.model, job.engine
        self.likelihood = _likelihood(job.model)
        self.blocks = _blank(job.model, blocks, _FIRST)
        self.frame = Frame(np.asarray(job.model.initial, np.float64), np.eye(job.model.dim))
        self.passes = 0.0
        self.mode: Mode

    def _center(self, shards: Sequence[int] | None) -> None:
        if self.likelihood.local is None:
            return
        self.blocks, passes = center_groups(
            self.model, self.likelihood.local, self.blocks, self.frame.center, self.engine, shards
        )
        self.passes += passes

    def start(self) -> None:
        """Come near the mode, from some shards if there are enough.

        With effects as parameters, the density has no bound where they and their sd are zero. So the sd is held
        until the effects are known, and then set to theirs.
        """
        few = self._some()
        some = few if 4 * len(few) <= self.blocks.num_shards else None
        pinned = self.likelihood.sds_of_parameters(self.model)
        if len(pinned):
            held = np.zeros(self.model.dim)
            held[pinned] = _PINNED**-2
            start = self.frame.center
            self._approach(some, Expansion(start, np.zeros_like(start), np.diag(held)))
            theta = self.likelihood.with_observed_sds(self.model, self.frame.center)
            self.frame = Frame(theta, self.frame.basis)
        self._approach(some)

    def _approach(self, some: Sequence[int] | None, added: Expansion | None = None) -> None:
        for _ in range(_ROUNDS):
            self._center(some)
            ascent = Ascent(Evaluator(self.model, self.blocks, self.engine, added), some, self.frame)
            if not ascent.finite:
                raise ModelError(
                    "The log posterior is not finite at the starting point. Scale the columns, or give another "
                    "starting point."
                )
            ascent.climb(1.0)
            self.passes += ascent.evaluate.passes
            end = ascent.local.frame(ascent.frame).moved(ascent.local.step(1.0).u)
            moved = np.linalg.norm(np.linalg.solve(end.basis, end.center - self.frame.center))
            self.frame = end
            if moved < 2.0 or self.likelihood.local is None:
                return

    def finish(self) -> None:
        """Find the mode of all rows, with the centres that belong to it."""
        for _ in range(_ROUNDS):
            self._center(None)
            ascent = Ascent(Evaluator(self.model, self.blocks, self.engine), None, self.frame)
            start = Start(self.frame, True, 0.0, ascent)
            self.mode = locate(self.model, self.blocks, self.engine, start=start)
            self.passes += self.mode.passes
            step = np.linalg.solve(self.mode.frame.basis, self.mode.theta - self.frame.center)
            self.frame = self.mode.frame
            if np.linalg.norm(step) < 0.5 or self.likelihood.local is None:
                return

    def choose_nodes(self) -> int:
        """The place in the ladder of the fewest nodes whose score agrees with that of the next larger rule.

        The scores are those of some shards, scaled to all rows.
        """
        if not isinstance(self.likelihood.local, LocalEffects):
            return 0
        size, frame = self.likelihood.local.size, self.mode.frame
        ladder = _LADDER[size]
        some = self._some()
        sds = np.linalg.norm(frame.basis, axis=1)
        before: np.ndarray | None = None
        for place, number in enumerate(ladder):
            # Padded, so that one compiled program serves all.
            rule = np.zeros((ladder[-1] ** size, size + 1))
            rule[:, -1] = -1e30
            rule[: number**size] = product_rule(number, size)
            score = sampled_score(self.model, replace(self.blocks, rule=rule), frame, self.engine, some)
            self.passes += float(self.blocks.shares[list(some)].sum())
            # In whitened coordinates the shift of the mode is the difference of the scores.
            if before is not None and np.max(np.abs(frame.basis @ (score - before)) / sds) < SCORE_ERROR:
                return place - 1
            before = score
        return len(ladder) - 2

    def use_nodes(self, place: int) -> None:
        """Find the mode again if it was found with other nodes."""
        if isinstance(self.likelihood.local, LocalEffects) and place != _FIRST:
            self.blocks = _with_rule(self.blocks, self.likelihood.local.size, place)
            self.finish()

    def _some(self) -> range:
        """A few shards with enough groups to learn from."""
        sizes = np.cumsum(self.blocks.sizes)
        return range(min(int(np.searchsorted(sizes, _FIRST_GROUPS)) + 1, len(sizes)))
