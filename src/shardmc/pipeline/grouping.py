"""The stages of a fit whose effects of groups are integrated out: the mode, with every group's own centre."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np

from shardmc.data.grouped import GroupedBlocks
from shardmc.errors import ModelError
from shardmc.locate import Start, choose_precision, locate
from shardmc.locate.ascent import DECREMENT, Ascent, Quadratic
from shardmc.locate.expansion import Expansion
from shardmc.locate.gradient_sums import sampled_scores
from shardmc.locate.terms import Evaluator
from shardmc.mixed import (
    GroupLikelihood,
    LinearEffects,
    LocalEffects,
    blank_centers,
    blank_sites,
    center_groups,
    corrected,
    moments_of_effects,
    points_for,
    product_rule,
)
from shardmc.model import Model
from shardmc.pipeline.counts import LADDER, Nodes
from shardmc.pipeline.stage import Job, Log, Stage, State, known
from shardmc.posterior.records import GroupMoments
from shardmc.types import Frame, Mode

_FIRST_GROUPS = 4_000
"""Groups from which the search for the mode starts."""
_ROUNDS = 12
"""The most times that groups are centred anew in a search."""
_SCORE_STEPS = 30
"""The most steps by scores alone."""
_LONGEST = 1.0
"""The longest step by scores, in the model's coordinates."""
_CLOSE = DECREMENT / 4
"""The Newton decrement at which the search by scores alone ends. The curvature of all groups is computed there."""
_NEAR = 1.0
"""The Newton decrement up to which groups are centred anew from time to time."""
_STAYED = 2.0
"""Groups need no other centres if the point moved by less than this, in posterior standard deviations."""
_FLATTEST = 1e-6
"""Smaller eigenvalues of products of scores, relative to the largest, are lost in rounding."""
_FIRST = 1
"""The place in the ladder with which the search for the mode starts."""
_PINNED = 0.05
"""The sd within which the log sd of effects that are parameters is held at first."""
_POINTS = 32
"""Points of importance sampling for the certificate, with many effects in each group."""
_SCORE_ERROR = 0.01
"""Quadrature may move the mode by this much, in posterior standard deviations."""
_CURVATURE_ERROR = 0.03
"""A corrected rule may miss this part of the curvature: the posterior sd is then wrong by half of it."""
_DRAWS = 16
"""Draws at which that is measured. Three draws show only a small part of what a rule with three nodes misses."""
_USUAL = 3
"""The place in the ladder up to which rules share one compiled program for their scores."""


@final
class LocateGroups(Stage):
    """Find the mode of all rows, each group's centre there, the number of nodes and the precision."""

    name = "locate"

    def run(self, job: Job, state: State, log: Log) -> State:
        blocks = state.blocks
        assert isinstance(blocks, GroupedBlocks)
        search = _Search(job, blocks)
        search.start()
        nodes = search.choose_nodes() if job.nodes is None else Nodes.given(job.nodes)
        search.use_nodes(nodes)
        search.finish()
        choice = choose_precision(job.precision, job.model, search.blocks, job.engine, search.mode.frame)
        with choice.applied():
            if choice.double:
                search.finish()
            centered = recentered(job, blocks, search.mode.theta, nodes)
        return state.after(
            self,
            passes=search.passes,
            precision=choice,
            mode=search.mode,
            blocks=centered,
            shards=centered,
            nodes=nodes,
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


def _with_rule(blocks: GroupedBlocks, size: int, nodes: Nodes) -> GroupedBlocks:
    return replace(blocks, rule=product_rule(nodes.few, size), finer=product_rule(nodes.finer, size))


def _blank(model: Model, blocks: GroupedBlocks, nodes: Nodes) -> GroupedBlocks:
    """The blocks before anything is known about their groups."""
    local = _likelihood(model).local
    if local is None:
        return blocks
    groups, length = len(blocks.layout.order), blocks.layout.length
    if isinstance(local, LinearEffects):
        points = points_for(min(length, local.size), _POINTS)
        return replace(blocks.with_effects(blank_sites(groups, length)), finer=points)
    count = sum(int(np.prod(p.shape)) for p in model.parameters.values())
    centers = blank_centers(groups, local.size, count)
    return _with_rule(replace(blocks.with_effects(centers), first=local.first), local.size, nodes)


def recentered(job: Job, blocks: GroupedBlocks, theta: np.ndarray, nodes: Nodes) -> GroupedBlocks:
    """The blocks with all groups centred at theta. The result depends on nothing else, so that a run can resume."""
    local = _likelihood(job.model).local
    if local is None:
        return blocks
    found, _ = center_groups(job.model, local, _blank(job.model, blocks, nodes), theta, job.engine)
    if nodes.few == nodes.enough:
        return found
    return corrected(job.model, _likelihood(job.model), found, theta, job.engine)[0]


class _Search:
    """A search for the mode in which the centres of the groups follow the parameters."""

    def __init__(self, job: Job, blocks: GroupedBlocks) -> None:
        self.model, self.engine = job.model, job.engine
        self.likelihood = _likelihood(job.model)
        self.nodes = Nodes.at(job.model, _FIRST, _FIRST)
        self.blocks = _blank(job.model, blocks, self.nodes)
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

    def _correct(self) -> None:
        if self.nodes.few < self.nodes.enough:
            self.blocks, passes = corrected(
                self.model, self.likelihood, self.blocks, self.frame.center, self.engine
            )
            self.passes += passes

    def start(self) -> None:
        """Approach the mode, with the rows of some shards if these are enough.

        If effects are parameters, the density has no bound where they and their sd are zero. So the sd is held fixed
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
        if not (isinstance(self.likelihood.local, LinearEffects) and self._follow_scores(few, 1.0)):
            self._approach(some)

    def _follow_scores(self, some: Sequence[int] | None, close: float) -> bool:
        """Approach the mode with products of scores as the curvature. Second derivatives take much longer.

        Returns whether the last step was shorter than `close`, in posterior standard deviations.
        """
        start = self.frame
        for _ in range(_SCORE_STEPS):
            self._center(some)
            evaluate = Evaluator(self.model, self.blocks, self.engine)
            terms = evaluate.from_scores(self.frame, some)
            self.passes += evaluate.passes
            if not terms.finite:
                break
            local = Quadratic.of(terms, _FLATTEST, whitened=False)
            frame = local.frame(self.frame)
            length = float(np.abs(frame.basis @ local.slope).max())
            self.frame = frame.moved(local.slope * min(1.0, _LONGEST / max(length, 1e-300)))
            if local.decrement < close:
                return True
        self.frame = start
        return False

    def _approach(self, some: Sequence[int] | None, added: Expansion | None = None) -> None:
        for _ in range(_ROUNDS):
            self._center(some)
            ascent = Ascent(Evaluator(self.model, self.blocks, self.engine, added), some, self.frame)
            if not ascent.finite:
                raise ModelError(
                    "The log posterior is not finite at the starting point. Scale the columns or, for a "
                    "shardmc.Model, give another starting point (initial=)."
                )
            ascent.climb(_NEAR)
            self.passes += ascent.evaluate.passes
            end = ascent.local.frame(ascent.frame).moved(ascent.local.step(1.0).u)
            moved = np.linalg.norm(np.linalg.solve(end.basis, end.center - self.frame.center))
            self.frame = end
            if moved < _STAYED or self.likelihood.local is None:
                return

    def finish(self) -> None:
        """Find the mode of all rows, with the centres that belong to it."""
        linear = isinstance(self.likelihood.local, LinearEffects)
        near = linear and self._follow_scores(None, _CLOSE)
        several = linear and self.blocks.num_shards > 1
        for _ in range(_ROUNDS):
            self._center(None)
            self._correct()
            evaluate = Evaluator(self.model, self.blocks, self.engine)
            ascent = Ascent(evaluate, None, self.frame, near, whitened=self._whitened)
            start = Start(self.frame, True, 0.0, ascent)
            self.mode = locate(self.model, self.blocks, self.engine, start=start, shard_curvatures=several)
            self.passes += self.mode.passes
            step = np.linalg.solve(self.mode.frame.basis, self.mode.theta - self.frame.center)
            self.frame = self.mode.frame
            if np.linalg.norm(step) < 0.5 or self.likelihood.local is None:
                return

    @property
    def _whitened(self) -> bool:
        """Whether the frame has the coordinates of a curvature, as after the search with quadrature."""
        return isinstance(self.likelihood.local, LocalEffects)

    def choose_nodes(self) -> Nodes:
        """The fewest nodes whose score agrees with that of the next larger rule, and the fewest to be corrected by it.

        A corrected rule has the right score at the mode, and must have it at some draws too. The scores are those of
        some shards, scaled to all rows, near the mode that these shards have.
        """
        if not isinstance(self.likelihood.local, LocalEffects):
            return self.nodes
        self._center(self._some())
        last = len(LADDER[self.likelihood.local.size]) - 1
        scores = [self._scores(0), self._scores(1)]
        while self._moved((scores[-1] - scores[-2])[:1]) >= _SCORE_ERROR and len(scores) <= last:
            scores.append(self._scores(len(scores)))
        enough = len(scores) - 2
        for few in range(enough):
            error = scores[few] - scores[-1]
            if self._moved(error[1:] - error[0]) < _CURVATURE_ERROR:
                return Nodes.at(self.model, few, enough)
        return Nodes.at(self.model, enough, enough)

    def _scores(self, place: int) -> np.ndarray:
        """Scores (point, dim) by a rule of the ladder: at the mode, and at some draws of a normal approximation."""
        assert self.likelihood.local is not None
        size, some = self.likelihood.local.size, self._some()
        ladder = LADDER[size]
        # Padded, so that one compiled program serves the usual rules.
        longest = ladder[_USUAL if place <= _USUAL < len(ladder) else -1] ** size
        rule = np.zeros((longest, size + 1))
        rule[:, -1] = -1e30
        rule[: ladder[place] ** size] = product_rule(ladder[place], size)
        draws = np.random.default_rng(0).normal(size=(_DRAWS, self.model.dim))
        points = np.concatenate([np.zeros((1, self.model.dim)), draws])
        self.passes += len(points) * float(self.blocks.shares[list(some)].sum())
        blocks = replace(self.blocks, rule=rule)
        return sampled_scores(self.model, blocks, self.frame, self.engine, some, points)

    def _moved(self, scores: np.ndarray) -> float:
        """The largest shift of the mode by such changes of the score (point, dim), in posterior sds; their rms."""
        basis = self.frame.basis  # in whitened coordinates the shift is the change of the score
        shifts = scores @ basis.T / np.linalg.norm(basis, axis=1)
        return float(np.sqrt(np.mean(shifts**2, axis=0)).max())

    def use_nodes(self, nodes: Nodes) -> None:
        """Use these nodes in the rest of the search."""
        if isinstance(self.likelihood.local, LocalEffects):
            self.nodes = nodes
            self.blocks = _with_rule(self.blocks, self.likelihood.local.size, nodes)

    def _some(self) -> range:
        """A few shards with enough groups to learn from."""
        sizes = np.cumsum(self.blocks.sizes)
        return range(min(int(np.searchsorted(sizes, _FIRST_GROUPS)) + 1, len(sizes)))
