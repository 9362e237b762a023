"""Means, spreads and intervals of draws, and the table that shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from shardmc.check.mixing import split_r_hat
from shardmc.errors import OptionError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from shardmc.posterior.result import Result

INTERVAL = 0.95
"""The probability of intervals, unless another one is asked for."""
IntervalKind = Literal["eti", "hdi"]
"""Central (equal tails), or highest density: ArviZ's words."""
INTERVAL_KINDS: tuple[str, ...] = ("eti", "hdi")


def check_interval(interval: float, kind: str = "eti") -> None:
    """Refuse a probability that is not between 0 and 1, and an unknown kind of interval."""
    if not 0 < interval < 1:
        raise OptionError(f"interval must lie between 0 and 1, such as 0.95; {interval!r} was given.")
    if kind not in INTERVAL_KINDS:
        raise unknown("kind of interval", kind, INTERVAL_KINDS)


def ends(draws: np.ndarray, interval: float = INTERVAL, kind: str = "eti") -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends (...) of the intervals of draws (draw, ...); draws that are missing are left out.

    A central interval leaves out the same probability on both sides. The interval of highest density is the shortest
    one.

    Examples
    --------
    >>> draws = np.random.default_rng(0).exponential(size=100_000)
    >>> np.round(ends(draws, 0.9), 1), np.round(ends(draws, 0.9, "hdi"), 1)
    (array([0.1, 3. ]), array([0. , 2.3]))
    """
    check_interval(interval, kind)
    draws = np.asarray(draws, np.float64)
    if np.isnan(draws).any():
        return _ends_of_known(draws, interval, kind)
    if kind == "eti":
        tail = (1 - interval) / 2
        lower, upper = np.quantile(draws, [tail, 1 - tail], axis=0)
        return lower, upper
    # The shortest of the intervals from one draw to the draw that is this many further up.
    ordered, within = np.sort(draws, axis=0), int(interval * len(draws))
    first = (ordered[within:] - ordered[: len(draws) - within]).argmin(axis=0)[None]
    lower, upper = (np.take_along_axis(ordered, first + step, axis=0)[0] for step in (0, within))
    return lower, upper


def _ends_of_known(draws: np.ndarray, interval: float, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The same, column by column, because each has other missing draws; NaN for a column with none but those."""
    columns = draws.reshape(len(draws), -1).T
    known = [column[~np.isnan(column)] for column in columns]
    both = np.array([ends(some, interval, kind) if len(some) else (np.nan, np.nan) for some in known])
    return both[:, 0].reshape(draws.shape[1:]), both[:, 1].reshape(draws.shape[1:])


def names_of_ends(interval: float = INTERVAL, kind: str = "eti") -> tuple[str, str]:
    """Columns of the two ends: quantiles for a central interval, and ArviZ's names for highest density.

    >>> names_of_ends(), names_of_ends(0.9, "hdi")
    (('2.5%', '97.5%'), ('hdi90_lb', 'hdi90_ub'))
    """
    if kind == "eti":
        tail = (1 - interval) / 2
        return f"{100 * tail:g}%", f"{100 * (1 - tail):g}%"
    return f"hdi{100 * interval:g}_lb", f"hdi{100 * interval:g}_ub"


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
