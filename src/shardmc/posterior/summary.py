"""The table of a posterior's parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardmc.check.mixing import split_r_hat
from shardmc.posterior.intervals import INTERVAL, check_interval, ends, names_of_ends

if TYPE_CHECKING:
    import pandas as pd

    from shardmc.posterior.result import Result

_FEWEST_DRAWS = 4  # of a chain, for R-hat


def summary_by_name(
    posterior: Result, interval: float = INTERVAL, interval_kind: str = "eti"
) -> pd.DataFrame:
    """What `Posterior.summary` shows, with the names of the parameters as they were given."""
    import pandas as pd
    from arviz_stats.base.array import array_stats

    check_interval(interval, interval_kind)
    columns = posterior.flat()
    values = np.stack(list(columns.values()), axis=-1)
    chained = values.reshape(*posterior.chains, values.shape[-1])
    table = pd.DataFrame(
        {
            "mean": np.nanmean(values, axis=0),
            "sd": np.nanstd(values, axis=0, ddof=1),
            **dict(
                zip(
                    names_of_ends(interval, interval_kind),
                    ends(values, interval, interval_kind),
                    strict=True,
                )
            ),
            "ess": array_stats.ess(chained, chain_axis=0, draw_axis=1),
            "r_hat": _r_hat(chained),
        },
        index=pd.Index(list(columns), name="parameter"),
    )
    if posterior.adjusted is not None:
        table["sd_before"] = [posterior.adjusted.sds.get(name, np.nan) for name in columns]
    certificate = posterior.certificate
    if certificate is not None:
        own = dict(zip(certificate.names, range(len(posterior.names)), strict=False))
        pick = [own.get(name) for name in columns]
        table["mean_error"] = [np.nan if k is None else certificate.mean_error[k] for k in pick]
        table["sd_ratio"] = [np.nan if k is None else certificate.sd_ratio[k] for k in pick]
    return table


def _r_hat(chained: np.ndarray) -> np.ndarray:
    """Split R-hat (parameter,) of draws (chain, draw, parameter); the halves of one chain are compared as well."""
    if chained.shape[1] < _FEWEST_DRAWS:
        return np.full(chained.shape[-1], np.nan)
    return split_r_hat(np.moveaxis(chained, -1, 0))
