"""Leave-one-out cross-validation of a formula's posterior."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardmc.data import Source, as_source
from shardmc.errors import OptionError
from shardmc.formulas.chunk import refuse_unknown
from shardmc.formulas.design import Design, design_of
from shardmc.formulas.linear_model import build_model
from shardmc.formulas.loo_groups import loo_of_groups
from shardmc.posterior import Posterior
from shardmc.posterior.elpd import Loo
from shardmc.posterior.loo import leave_one_out, row_weights
from shardmc.types import Data, Rows


def loo_of_formula(
    posterior: Posterior, data: Data, *, weights: Any, by: str | None, sample: int, draws: int, seed: int
) -> Loo:
    """`Posterior.loo` for a formula: the log density of the response in its own units; missing rows are left out."""
    if posterior.adjusted is not None:
        raise OptionError(
            "loo needs draws of the model's posterior, and these were adjusted (robust or survey_weights): compare "
            "models that were fitted without."
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
