"""Leave-one-out cross-validation of a formula's posterior."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shardmc.data import as_source
from shardmc.errors import OptionError
from shardmc.formulas.chunk import refuse_unknown
from shardmc.formulas.design import build_model, design_of
from shardmc.posterior import Posterior
from shardmc.posterior.elpd import Loo
from shardmc.posterior.loo import leave_one_out
from shardmc.types import Data, Rows


def loo_of_formula(posterior: Posterior, data: Data, *, sample: int, draws: int, seed: int) -> Loo:
    """`Posterior.loo` for a formula: the log density of the response in its own units; missing rows are left out."""
    design = design_of(posterior)
    if design.factors:
        raise OptionError(
            "loo leaves out one row at a time, and rows of a group depend on each other through its effects: it is not "
            "available for formulas with group terms."
        )
    if posterior.adjusted is not None:
        raise OptionError(
            "loo needs draws of the model's posterior, and these were adjusted (robust or survey_weights): compare "
            "models that were fitted without."
        )
    source = as_source(data)
    refuse_unknown(design.columns, source)
    source = source.drop_missing(design.columns)

    def pieces() -> Iterator[tuple[Rows, np.ndarray]]:
        for table in source.tables(design.columns):
            rows = design.rows(table)
            yield rows, design.log_base(rows)

    model = build_model(design, {})
    return leave_one_out(posterior, model, pieces(), source.num_rows, sample=sample, draws=draws, seed=seed)
