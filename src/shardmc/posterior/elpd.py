"""How well models predict rows that they have not seen: the estimate of one model, and the comparison of several."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shardmc.errors import OptionError

if TYPE_CHECKING:
    import pandas as pd
    from arviz_stats.utils import ELPDData


@dataclass(frozen=True)
class Loo:
    """The expected log predictive density of new rows (elpd), by leave-one-out cross-validation.

    Arrays have one entry for each row of the sample: all rows, or a simple random sample of them.
    """

    elpd: float
    """Sum over all rows of the log density of each row given all others: larger is better."""
    se: float
    """Standard error of elpd: rows are a sample of what they stand for, and only some of them were computed."""
    subsampling_se: float
    """The part of `se` that is due to the sample of rows; 0 if all rows were computed."""
    p: float
    """Effective number of parameters."""
    rows: int
    draws: int
    good_k: float
    """Importance sampling is reliable for a row if its Pareto k is below this."""
    pareto_k: np.ndarray = field(repr=False)
    positions: np.ndarray = field(repr=False)
    """Row numbers of the sample."""
    elpd_i: np.ndarray = field(repr=False)
    cheap_i: np.ndarray = field(repr=False)
    """Log densities at the mean of the draws."""
    cheap: float = field(repr=False)
    """Their sum over all rows, with weights."""
    weights_i: np.ndarray = field(repr=False)
    """How often each row of the sample counts."""
    total_weight: float = field(repr=False)
    """How many rows all rows count for: their number, or the sum of their weights."""
    unit: str = "row"
    """What is left out at a time: "row", or the factor whose groups are left out, such as "school"."""

    @staticmethod
    def estimated(
        elpd_i: np.ndarray,
        cheap_i: np.ndarray,
        p_i: np.ndarray,
        pareto_k: np.ndarray,
        *,
        total: float,
        squares: float,
        rows: int,
        positions: np.ndarray,
        draws: int,
        weights_i: np.ndarray | None = None,
        total_weight: float | None = None,
        unit: str = "row",
    ) -> Loo:
        """The difference estimator, from a sample's values and the sums of all rows' cheap values and their squares.

        elpd = sum of all cheap values + N * mean difference. The sum of squares of all values is estimated likewise,
        and gives their variance. With weights, a row counts as that many rows, each of which is left out alone.
        """
        w = np.ones(len(elpd_i)) if weights_i is None else weights_i
        count = float(rows) if total_weight is None else total_weight
        elpd, of_sample = _difference_estimate(w * (elpd_i - cheap_i), total, rows)
        sum_of_squares = squares + rows * float(np.mean(w * (elpd_i**2 - cheap_i**2)))
        of_rows = max(0.0, sum_of_squares - (elpd**2 - of_sample) / count)
        return Loo(
            elpd=elpd,
            se=math.sqrt(of_rows + of_sample),
            subsampling_se=math.sqrt(of_sample),
            p=rows * float(np.mean(w * p_i)),
            rows=rows,
            draws=draws,
            good_k=min(1 - 1 / math.log10(draws), 0.7),
            pareto_k=pareto_k,
            positions=positions,
            elpd_i=elpd_i,
            cheap_i=cheap_i,
            cheap=total,
            weights_i=w,
            total_weight=count,
            unit=unit,
        )

    @property
    def warning(self) -> bool:
        """Whether importance sampling is unreliable for some rows: their Pareto k is too large."""
        return self._num_bad > 0

    @property
    def _num_bad(self) -> int:
        """Rows that count whose Pareto k is too large, or has no value because the importance weights have none."""
        return int((~(self.pareto_k <= self.good_k) & (self.weights_i > 0)).sum())

    @property
    def sentence(self) -> str:
        """The result in words."""
        sampled = len(self.positions)
        of_rows = f"{self.rows:,} rows" if self.unit == "row" else f"{self.rows:,} groups of {self.unit!r}"
        if self.total_weight != self.rows:
            of_rows += f" that count as {self.total_weight:,.6g}"
        if sampled < self.rows:
            of_rows += (
                f" (a sample of {sampled:,}, which adds {self.subsampling_se:.1f} to the standard error)"
            )
        bad = self._num_bad
        k = (
            f"Pareto k exceeds {self.good_k:.2f} for {bad:,} of {sampled:,}"
            if bad
            else "all Pareto k are good"
        )
        return f"elpd {self.elpd:,.1f}, standard error {self.se:,.1f}, p {self.p:,.1f}, from {of_rows}; {k}."

    def __repr__(self) -> str:
        return f"Loo({self.sentence})"

    def to_arviz(self) -> ELPDData:
        """An `arviz_stats.ELPDData`, for ArviZ's functions.

        It has pointwise values if all rows were computed and each counts once.
        """
        import xarray as xr
        from arviz_stats.utils import ELPDData

        # ArviZ states the two parts of the standard error one by one.
        se = math.sqrt(max(0.0, self.se**2 - self.subsampling_se**2))
        counts = self.draws, round(self.total_weight)
        shared = "loo", self.elpd, se, self.p, *counts, "log", self.warning, self.good_k
        if len(self.positions) < self.rows:
            return ELPDData(
                *shared,
                subsampling_se=self.subsampling_se,
                subsample_size=len(self.positions),
                loo_subsample_observations=self.positions,
            )
        if (self.weights_i != 1).any():
            return ELPDData(*shared)
        elpd_i, pareto_k = (xr.DataArray(values, dims="row") for values in (self.elpd_i, self.pareto_k))
        return ELPDData(*shared, elpd_i=elpd_i, pareto_k=pareto_k)


def compare_models(models: Mapping[str, Loo]) -> pd.DataFrame:
    """Compare models by how well they predict rows that they have not seen.

    Parameters
    ----------
    models
        Name -> what `posterior.loo(data)` returned, for the same rows and, with a sample of them, the same `sample` and
        `seed`.

    Returns
    -------
    pandas.DataFrame
        Models from best to worst. `elpd_diff` is how far a model's elpd lies below that of the best, and `dse` the
        standard error of this difference, which is smaller than those of the two if models predict the same rows
        well. `subsampling_dse` is its part that is due to the sample of rows. `warning` marks models with rows for
        which importance sampling is unreliable.

    Examples
    --------
    >>> import shardmc
    >>> rng = np.random.default_rng(0)
    >>> table = {"x": rng.normal(size=500)}
    >>> table["y"] = 2 * table["x"] + rng.normal(size=500)
    >>> options = {"shards": 1, "draws": 500, "check": False}
    >>> fits = {formula: shardmc.glm(formula, table, **options) for formula in ("y ~ x", "y ~ 1")}
    >>> compare_models({name: fit.loo(table) for name, fit in fits.items()}).index.tolist()
    ['y ~ x', 'y ~ 1']
    """
    import pandas as pd

    if not models:
        raise OptionError("There are no models to compare.")
    for name, each in models.items():
        if not isinstance(each, Loo):
            raise OptionError(
                f"compare_models takes what posterior.loo(data) returns; {name!r} is {type(each).__name__}."
            )
    names = sorted(models, key=lambda name: -models[name].elpd)
    best = models[names[0]]
    rows = []
    for rank, name in enumerate(names):
        model = models[name]
        if model.unit != best.unit:
            raise OptionError(
                f"{names[0]!r} leaves out one {_left_out(best)} at a time, and {name!r} one {_left_out(model)}: give "
                "loo the same by=."
            )
        same = np.array_equal(model.positions, best.positions) and np.array_equal(
            model.weights_i, best.weights_i
        )
        if model.rows != best.rows or not same:
            raise OptionError(
                f"{names[0]!r} and {name!r} were computed on different rows ({len(best.positions):,} of {best.rows:,}, "
                f"and {len(model.positions):,} of {model.rows:,}): give loo the same rows, weights, sample "
                "and seed."
            )
        below, dse, of_sample = _difference(best, model)
        rows.append((rank, model.elpd, model.p, below, model.se, dse, of_sample, model.warning))
    columns = ["rank", "elpd", "p", "elpd_diff", "se", "dse", "subsampling_dse", "warning"]
    return pd.DataFrame(rows, index=pd.Index(names, name="model"), columns=pd.Index(columns))


def _left_out(loo: Loo) -> str:
    return "row" if loo.unit == "row" else f"group of {loo.unit!r}"


def _difference(first: Loo, second: Loo) -> tuple[float, float, float]:
    """The difference of two elpd, its standard error, and the part of that which is due to the sample of rows."""
    w = first.weights_i
    exact, cheap = first.elpd_i - second.elpd_i, first.cheap_i - second.cheap_i
    difference, of_sample = _difference_estimate(w * (exact - cheap), first.cheap - second.cheap, first.rows)
    spread = float(w @ (exact - np.average(exact, weights=w)) ** 2)
    of_rows = (first.rows - 1) / (len(exact) - 1) * spread
    return difference, math.sqrt(of_rows + of_sample), math.sqrt(of_sample)


def _difference_estimate(corrections: np.ndarray, total: float, rows: int) -> tuple[float, float]:
    """A sum over all rows from the sum of cheap values and a sample's corrections, and its variance."""
    size = len(corrections)
    variance = rows**2 * (1 - size / rows) * float(np.var(corrections, ddof=1)) / size
    return total + rows * float(np.mean(corrections)), variance
