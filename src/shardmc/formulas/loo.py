"""Log-likelihoods of rows of a formula's posterior: leave-one-out cross-validation, also of groups, and ArviZ.

The effects of the group that is left out are integrated over their distribution, as in the fit. So groups are
independent given the parameters, and PSIS-LOO holds for groups as it does for rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa

from shardmc.combiners import Recenter
from shardmc.data import Partition, Source, as_source
from shardmc.data.arrow import find_levels
from shardmc.data.grouped import GroupedBlocks, GroupedSource, cells_of
from shardmc.data.table import rows_at
from shardmc.engine import Local
from shardmc.errors import DataError, OptionError
from shardmc.formulas.chunk import refuse_unknown
from shardmc.formulas.design import UNIT, Design, design_of
from shardmc.formulas.groups import DROP_MISSING, Factor
from shardmc.formulas.linear_model import build_model
from shardmc.formulas.mixed import needs_whole_groups
from shardmc.formulas.predicting import Predictor
from shardmc.model import Model
from shardmc.model.precision import double_precision
from shardmc.pipeline.counts import Nodes
from shardmc.pipeline.grouping import recentered
from shardmc.pipeline.stage import Job
from shardmc.posterior import Posterior
from shardmc.posterior.arviz import Sample, assembled
from shardmc.posterior.elpd import Loo
from shardmc.posterior.loo import (
    chosen_rows,
    importance,
    leave_one_out,
    over_draws,
    refuse_below,
    refuse_other_model,
    relative_efficiency,
    row_weights,
    thinned,
)
from shardmc.posterior.prediction import AT_ONCE
from shardmc.programs.compiled import jit
from shardmc.sample import Auto
from shardmc.seeds import Purpose, checked_seed, generator
from shardmc.types import Data, Rows, RowValues

if TYPE_CHECKING:
    import xarray as xr


def loo_of_formula(
    posterior: Posterior,
    data: Data,
    *,
    weights: RowValues,
    by: str | None,
    sample: int,
    draws: int,
    seed: int,
) -> Loo:
    """`Posterior.loo` for a formula: the log density of the response in its own units; missing rows are left out."""
    if posterior.adjusted is not None:
        raise OptionError(
            "loo needs draws of the model's posterior, and these were adjusted (robust or survey_weights): compare "
            "models that were fitted without either."
        )
    design = design_of(posterior)
    if design.factors or by is not None:
        return loo_of_groups(
            posterior, design, data, by, weights=weights, sample=sample, draws=draws, seed=seed
        )
    source = complete_rows(design, data, [weights] if isinstance(weights, str) else [])
    counted = row_weights(posterior, source, weights)
    pieces = pieces_of_formula(design, source)
    model = build_model(design, {})
    return leave_one_out(
        posterior, model, pieces, source.num_rows, weights=counted, sample=sample, draws=draws, seed=seed
    )


def complete_rows(design: Design, data: Data, also: Sequence[str] = ()) -> Source:
    """The rows of a table or file without missing values in the columns of a formula, and in these."""
    source = as_source(data)
    columns = list(dict.fromkeys([*design.columns, *also]))
    refuse_unknown(columns, source)
    return source.drop_missing(columns)


def pieces_of_formula(design: Design, source: Source) -> Iterator[tuple[Rows, np.ndarray]]:
    """Rows as the model takes them, and what to add to their log-likelihoods."""
    for table in source.tables(design.columns):
        rows = design.rows(table)
        yield rows, design.log_base(rows)


_PLACE = 4  # in the ladder of rules: 13 nodes for one effect
_AT_ONCE = 1 << 18  # rows of a shard, where all groups are evaluated once


def loo_of_groups(
    posterior: Posterior,
    design: Design,
    data: Data,
    by: str | None,
    *,
    weights: RowValues,
    sample: int,
    draws: int,
    seed: int,
) -> Loo:
    """PSIS-LOO of whole groups, with importance sampling for `sample` of them."""
    refuse_below(2, sample=sample, draws=draws)
    if weights is not None or posterior.plan.weighted:
        raise OptionError("loo leaves out whole groups only for a posterior that was fitted without weights.")
    left_out = _left_out(design, by)
    source = as_source(data)
    columns = list(
        dict.fromkeys([*design.columns, *left_out, *(n for f in design.factors for n in f.columns)])
    )
    refuse_unknown(columns, source)
    source = source.drop_missing(columns)
    levels, counts = find_levels(source, left_out, DROP_MISSING)
    if len(levels) < 2:
        raise DataError(f"All rows are in one group of {':'.join(left_out)!r}, so none can be left out.")
    groups = _Groups(_with_levels(design, source), columns, left_out, levels, counts)
    refuse_other_model(posterior, groups.model)
    index, layout = thinned(posterior, draws)
    theta = posterior.theta[index]
    chosen = chosen_rows(len(levels), sample, seed)
    with double_precision():
        cheap = groups.log_likelihoods(source, theta.mean(axis=0)[None])[0]
        some, rows = groups.only(source, chosen)
        values = some.log_likelihoods(rows, theta)
        elpd, pareto_k, p = importance(values, layout, relative_efficiency(posterior, index, layout))
    return Loo.estimated(
        elpd,
        cheap[chosen],
        p,
        pareto_k,
        total=float(cheap.sum()),
        squares=float((cheap**2).sum()),
        rows=len(levels),
        positions=chosen,
        draws=len(index),
        unit=":".join(left_out),
    )


def _left_out(design: Design, by: str | None) -> tuple[str, ...]:
    """The columns that name the groups."""
    if by is not None and not isinstance(by, str):
        raise OptionError(f"by must be the name of a column, or of several as in 'a:b', not {by!r}.")
    if design.unit is None:
        assert by is not None
        return tuple(by.split(":"))
    if by is not None and by != design.unit.name:
        raise OptionError(
            f"by= must be {design.unit.name!r}, the factor whose effects are integrated out; groups of {by!r} depend "
            "on each other through them."
        )
    return design.unit.columns


def _with_levels(design: Design, source: Source) -> Design:
    """The design with the levels of its factors, which a stored one lacks."""

    def known(factor: Factor) -> Factor:
        levels, counts = find_levels(source, factor.columns, DROP_MISSING)
        found = replace(factor, levels=levels, counts=counts)
        if not factor.integrated and found.labels != factor.labels:
            raise DataError(
                f"The groups of {factor.name!r} are not those of the fit: give the rows that were fitted."
            )
        return found

    return replace(design, factors=tuple(map(known, design.factors)))


@final
@dataclass(frozen=True)
class _Groups:
    """Groups of rows, and the log-likelihood of each as a whole."""

    design: Design
    read: list[str]
    columns: tuple[str, ...]
    levels: pd.Index
    counts: np.ndarray  # (group,) rows

    @property
    def model(self) -> Model:
        return build_model(self.design, {})

    @property
    def factor(self) -> Factor:
        """The groups as a factor of the design, or one without effects."""
        return self.design.unit or Factor(self.columns, (), True, self.levels, self.counts)

    def only(self, source: Source, chosen: np.ndarray) -> tuple[_Groups, Source]:
        """Some of the groups, and their rows."""
        number = np.full(len(self.levels), -1)
        number[chosen] = np.arange(len(chosen))
        tables = [t.filter(pa.array(number[self.factor.codes(t)] >= 0)) for t in source.tables(self.read)]
        levels, counts = self.levels[chosen], self.counts[chosen]
        factors = tuple(
            replace(each, levels=levels, counts=counts) if each.integrated else each
            for each in self.design.factors
        )
        design = replace(self.design, factors=factors)
        return _Groups(design, self.read, self.columns, levels, counts), as_source(pa.concat_tables(tables))

    def log_likelihoods(self, source: Source, theta: np.ndarray) -> np.ndarray:
        """Log density of the responses of every group, (draw, group), at draws (draw, dim)."""
        found = np.zeros((len(theta), len(self.levels)))
        program = jit(jax.vmap(self.model.log_likelihood, in_axes=(0, None)))
        for table in source.tables(self.read):
            rows, codes = self.design.rows(table), self.factor.codes(table)
            found += np.bincount(codes, self.design.log_base(rows), minlength=len(self.levels))
            if self.design.unit is None:
                values = _over(program, theta, rows, len(codes))
                found += np.stack([np.bincount(codes, each, minlength=len(self.levels)) for each in values])
        if self.design.unit is None:
            return found
        blocks = self._blocks(source, theta.mean(axis=0))
        for (shard,), batch in blocks.batches(range(blocks.num_shards), 1):
            rows, weights = batch.take(0)
            first, size = blocks.layout.starts[shard], blocks.sizes[shard]
            codes = blocks.layout.order[first : first + size]
            found[:, codes] += _over(program, theta, rows, cells_of(rows, weights))[:, :size]
        return found

    def _blocks(self, source: Source, theta: np.ndarray) -> GroupedBlocks:
        """The groups in shards that fit in memory, with quadrature around each group's own effects."""
        rows = source.transform(self.design.rows, self.read, self.design.label)
        shards = min(len(self.levels), 1 + source.num_rows // _AT_ONCE)
        whole = needs_whole_groups(self.design)
        blocks = GroupedSource(rows, UNIT, self.counts, whole=whole).split(Partition(shards), 0)
        job = Job(self.model, blocks, Local(), 0, Recenter(), Auto())
        return recentered(job, blocks, theta, Nodes.at(self.model, _PLACE, _PLACE))


def _over(
    program: Callable[[jax.Array, Rows], jax.Array], theta: np.ndarray, rows: Rows, cells: int
) -> np.ndarray:
    """Values (draw, ...) of a program, a few draws at a time."""
    at_once = max(1, math.ceil(AT_ONCE / cells))
    parts: Sequence[np.ndarray] = [
        np.asarray(program(jnp.asarray(theta[start : start + at_once]), rows), np.float64)
        for start in range(0, len(theta), at_once)
    ]
    return np.concatenate(parts)


def with_rows_of_formula(
    posterior: Posterior, data: Data, *, weights: RowValues, rows: int, draws: int, seed: int
) -> xr.DataTree:
    """`Posterior.to_arviz` for a formula.

    It has no log_likelihood for group terms and adjusted draws (see `loo`), and no posterior_predictive for censored
    times: simulated times are not censored, so a comparison with the observed ones would mislead.
    """
    design = design_of(posterior)
    groups = [name for factor in design.factors for name in factor.columns]
    also = [*groups, *([weights] if isinstance(weights, str) else [])]
    source = complete_rows(design, data, also)
    sample = Sample.of(posterior, source.num_rows, rows, draws, seed, row_weights(posterior, source, weights))
    table = rows_at(source, list(dict.fromkeys([*design.columns, *groups])), sample.positions)
    predictor = Predictor.of(posterior, draws, seed=seed, chosen=sample.index)
    chunk = predictor.with_groups(design.chunk(table), table)
    name = design.roles.response_text
    values = design.roles.response_values(chunk, design.family.levels_of_response)
    observed = {name: values}
    simulated = None
    if design.roles.censored is None:
        rng = generator(checked_seed(seed), Purpose.SIMULATE)
        totals = values.sum(axis=1) if design.family.takes_counts else None
        simulated = {name: predictor.simulated(chunk, len(table), rng, totals)}
    if design.factors or posterior.adjusted is not None:
        return assembled(posterior, sample, observed, None, simulated)
    model = build_model(design, {})
    refuse_other_model(posterior, model)
    with double_precision():
        encoded = design.rows(table)
        kept = [(encoded, design.log_base(encoded))]
        values = np.concatenate(list(over_draws(model, posterior.theta[sample.index], kept)), axis=1)
    return assembled(posterior, sample, observed, {name: values}, simulated)
