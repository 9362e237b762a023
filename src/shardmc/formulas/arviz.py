"""A formula's posterior for ArviZ, with observations, log-likelihoods and simulated responses of a sample of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardmc.data.table import rows_at
from shardmc.formulas.design import design_of
from shardmc.formulas.linear_model import build_model
from shardmc.formulas.loo import complete_rows
from shardmc.formulas.predict import Predictor
from shardmc.model.precision import double_precision
from shardmc.posterior import Posterior
from shardmc.posterior.arviz import Sample, assembled
from shardmc.posterior.loo import over_draws, refuse_other_model, row_weights
from shardmc.seeds import Purpose, checked_seed, generator
from shardmc.types import Data

if TYPE_CHECKING:
    import xarray as xr


def with_rows_of_formula(
    posterior: Posterior, data: Data, *, weights: Any, rows: int, draws: int, seed: int
) -> xr.DataTree:
    """`Posterior.to_arviz` for a formula.

    Without log_likelihood for group terms and adjusted draws, see `loo`, and without posterior_predictive for censored
    times: simulated times are whole, so a comparison with the observed ones would mislead.
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
        rng = generator(checked_seed(seed), Purpose.PREDICTIVE_CHECK)
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
