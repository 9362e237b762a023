"""A posterior for ArviZ, with groups that need the rows: observations, log-likelihoods and simulated responses.

These groups have one number for each draw and row. So they hold a sample of the rows, and no more numbers than fit in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import OptionError
from shardmc.model.model import Recipe
from shardmc.model.precision import double_precision
from shardmc.model.user_functions import calling, num_rows, take
from shardmc.names import axis_names, stored, stored_axis
from shardmc.posterior.loo import (
    chosen_rows,
    over_draws,
    refuse_below,
    refuse_other_model,
    row_weights,
    rows_of_model,
    thinned,
)
from shardmc.programs.compiled import jit
from shardmc.seeds import Purpose
from shardmc.types import Data, Rows, RowValues

if TYPE_CHECKING:
    import xarray as xr

    from shardmc.posterior.posterior import Posterior

MOST = 1 << 26
"""The most numbers in an array of draws by rows."""
_LIKELIHOOD = "likelihood"

Simulate: TypeAlias = Callable[[dict[str, jax.Array], Rows, jax.Array], jax.Array]
"""(params, rows, key) -> simulated responses (row, ...)."""


@final
@dataclass(frozen=True)
class Sample:
    """The draws and rows that groups are made of."""

    index: np.ndarray  # (draw,)
    chains: tuple[int, int]
    positions: np.ndarray  # (row,)
    count: int  # of all rows
    weights: np.ndarray | None  # (all rows,)

    @staticmethod
    def of(
        posterior: Posterior, count: int, rows: int, draws: int, seed: int, weights: np.ndarray | None
    ) -> Sample:
        """A random sample of the rows, and draws spread evenly over each chain."""
        refuse_below(1, rows=rows, draws=draws)
        index, chains = thinned(posterior, draws)
        needed = min(rows, count) * len(index)
        if needed > MOST:
            raise OptionError(
                f"{min(rows, count):,} rows and {len(index):,} draws are {needed:,} numbers in each group, more than "
                f"{MOST:,}: ask for fewer rows (rows=) or fewer draws (draws=)."
            )
        return Sample(index, chains, chosen_rows(count, rows, seed), count, weights)

    @property
    def row_weight(self) -> np.ndarray:
        """How many rows each row of the sample stands for: sums with these weights estimate those over all rows."""
        each = np.full(len(self.positions), self.count / len(self.positions))
        return each if self.weights is None else each * self.weights[self.positions]


def with_rows_of_model(
    posterior: Posterior,
    data: Data,
    model: Recipe,
    simulate: Simulate | None,
    *,
    weights: RowValues,
    rows: int,
    draws: int,
    seed: int,
) -> xr.DataTree:
    """`Posterior.to_arviz` for a model without a formula."""
    source, bound, pieces = rows_of_model(data, model)
    refuse_other_model(posterior, bound)
    sample = Sample.of(posterior, source.num_rows, rows, draws, seed, row_weights(posterior, source, weights))
    parts, start = [], 0
    for piece, _ in pieces:
        inside = (sample.positions >= start) & (sample.positions < start + num_rows(piece))
        parts.append(take(piece, sample.positions[inside] - start))
        start += num_rows(piece)
    chosen = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    with double_precision():
        values = np.concatenate(
            list(over_draws(bound, posterior.theta[sample.index], [(chosen, 0.0)])), axis=1
        )
    simulated = None if simulate is None else _simulated(posterior, simulate, chosen, sample.index, seed)
    return assembled(posterior, sample, _leaves(chosen), {_LIKELIHOOD: values}, simulated)


def _simulated(
    posterior: Posterior, simulate: Simulate, rows: Rows, index: np.ndarray, seed: int
) -> dict[str, np.ndarray]:
    params = {name: jnp.asarray(v[index], jnp.result_type(float)) for name, v in posterior.draws.items()}
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), Purpose.SIMULATE), len(index))
    with calling("The function given to to_arviz"):
        values = np.asarray(jit(jax.vmap(simulate, in_axes=(0, None, 0)))(params, rows, keys))
    if values.ndim < 2 or values.shape[1] != num_rows(rows):
        raise OptionError(
            f"simulate returns shape {values.shape[1:]} for {num_rows(rows)} rows; it must return one response per row."
        )
    return {_LIKELIHOOD: values}


def _leaves(rows: Rows) -> dict[str, np.ndarray]:
    """Arrays of rows by name."""
    if isinstance(rows, Mapping):
        return {str(name): np.asarray(leaf) for name, leaf in rows.items()}
    leaves = jax.tree.leaves(rows)
    return {f"rows_{k}" if len(leaves) > 1 else "rows": leaf for k, leaf in enumerate(leaves)}


def assembled(
    posterior: Posterior,
    sample: Sample,
    observed: Mapping[str, np.ndarray],
    log_likelihood: Mapping[str, np.ndarray] | None,
    simulated: Mapping[str, np.ndarray] | None,
) -> xr.DataTree:
    """The tree: draws of the sample, and groups of arrays (row, ...) and (draw, row, ...)."""
    import xarray as xr

    chains, each = sample.chains
    own = {"chain": np.arange(chains), "draw": np.arange(each)}
    groups: dict[str, xr.Dataset] = {}
    for name in ("posterior", "sample_stats"):
        found = posterior.tree[name].to_dataset()
        variables = {
            key: (
                v.dims,
                v.values.reshape(-1, *v.shape[2:])[sample.index].reshape(chains, each, *v.shape[2:]),
            )
            for key, v in found.data_vars.items()
        }
        groups[name] = xr.Dataset(variables, coords={**found.drop_vars(["chain", "draw"]).coords, **own})
    row = {"row": sample.positions}
    said = {"rows": sample.count, "sampled_rows": len(sample.positions)}
    per_row = {_variable(name): (_axes(name, v, 1), v) for name, v in observed.items()}
    groups["observed_data"] = xr.Dataset(per_row, coords=row, attrs=said)
    groups["constant_data"] = xr.Dataset({"row_weight": ("row", sample.row_weight)}, coords=row, attrs=said)
    for group, values in (("log_likelihood", log_likelihood), ("posterior_predictive", simulated)):
        if values is not None:
            chained = {
                _variable(name): (
                    ("chain", "draw", *_axes(name, v, 2)),
                    v.reshape(chains, each, *v.shape[1:]),
                )
                for name, v in values.items()
            }
            groups[group] = xr.Dataset(chained, coords={**own, **row}, attrs=said)
    return xr.DataTree.from_dict(groups)


def _variable(name: str) -> str:
    """The name of an array, which must not be that of the axis of rows."""
    return "%72ow" if name == "row" else stored(name)


def _axes(name: str, values: np.ndarray, leading: int) -> tuple[str, ...]:
    """Names of the axes of an array, from that of the rows on."""
    return ("row", *map(stored_axis, axis_names(name, values.ndim - leading)))
