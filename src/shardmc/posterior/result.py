"""What a run stores: draws, their accuracy and how they were made; their intervals, as a table, tree and file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from shardmc.check.certificate import Certificate
from shardmc.check.certification import Polished
from shardmc.check.mixing import split_r_hat
from shardmc.errors import OptionError, unknown
from shardmc.model.variables import Variable
from shardmc.names import shown, shown_text
from shardmc.posterior.records import Adjusted, GroupMoments, Plan, PredictiveCheck, Regression, ShardTable
from shardmc.posterior.tree import axes, read_by, to_tree
from shardmc.types import Finding

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


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
    # The shortest interval between two of the sorted draws that are `within` places apart.
    ordered, within = np.sort(draws, axis=0), int(interval * len(draws))
    first = (ordered[within:] - ordered[: len(draws) - within]).argmin(axis=0)[None]
    lower, upper = (np.take_along_axis(ordered, first + step, axis=0)[0] for step in (0, within))
    return lower, upper


def _ends_of_known(draws: np.ndarray, interval: float, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The same, column by column, because columns miss different draws; NaN for a column that misses all."""
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


def _findings(stored: list[dict[str, Any]]) -> tuple[Finding, ...]:
    return tuple(Finding(**each) for each in stored)


def _variables(stored: list[dict[str, object]]) -> tuple[Variable, ...]:
    return tuple(map(Variable.from_dict, stored))


@dataclass(frozen=True)
class Result:
    """The fields of a `Posterior`, and the forms in which they can be seen and stored."""

    draws: Mapping[str, np.ndarray]  # name -> (draw, ...), natural scale
    theta: np.ndarray  # (draw, dim), unconstrained
    names: tuple[str, ...]  # of the unconstrained coordinates
    shard: np.ndarray | None  # (draw,) the shard each draw came from
    shards: ShardTable
    plan: Plan = field(metadata=read_by(Plan.from_dict))
    mode: np.ndarray | None = field(default=None, metadata=axes("coordinate"))
    """Of all rows."""
    curvature: np.ndarray | None = field(default=None, metadata=axes("coordinate", "other_coordinate"))
    """Minus the Hessian of the log posterior at the mode."""
    certificate: Certificate | None = field(default=None, metadata=read_by(Certificate.from_dict))
    polished: Polished | None = field(default=None, metadata=read_by(Polished.from_dict))
    """What polishing did, where it was asked for."""
    adjusted: Adjusted | None = field(default=None, metadata=read_by(Adjusted.from_dict))
    """How the draws were adjusted after they were certified, with `robust` or `survey_weights`."""
    findings: tuple[Finding, ...] = field(default=(), metadata=read_by(_findings))
    notes: tuple[str, ...] = field(default=(), metadata=read_by(tuple))
    regression: Regression | None = field(default=None, metadata=read_by(Regression.from_dict))
    """The formula, for a posterior that `glm` made."""
    predictive: PredictiveCheck | None = field(default=None, metadata=read_by(PredictiveCheck.from_dict))
    """What `predictive_check` says of a sample of the rows, for a posterior that `glm` made."""
    groups: GroupMoments | None = None
    """The effects of the groups of a mixed model; `effects` shows them."""
    variables: tuple[Variable, ...] = field(default=(), metadata=read_by(_variables))
    """Names and labels of the axes of `tree`, where there are any."""
    seconds: Mapping[str, float] = field(default_factory=dict, metadata=read_by(dict))
    """Stage -> how long it took."""
    passes: Mapping[str, float] = field(default_factory=dict, metadata=read_by(dict))
    """Stage -> how often it evaluated the likelihood of all rows: the cost, whatever the machine."""
    versions: Mapping[str, str] = field(default_factory=dict, metadata=read_by(dict))
    origin: Mapping[str, str] = field(default_factory=dict, metadata=read_by(dict))
    """The `date` of the run, and the name of the file of its rows, `data`, if there is one."""

    @property
    def num_draws(self) -> int:
        return len(self.theta)

    @property
    def model(self) -> str:
        """The model in one line: formula, family, offset and the like, and data; or the names of the parameters.

        Examples
        --------
        >>> import shardmc
        >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000)
        >>> shardmc.glm("y ~ 1", {"y": y}, shards=4, draws=200, check=False).model
        'y ~ 1, family gaussian'
        """
        of = f" of {self.origin['data']}" if "data" in self.origin else ""
        if self.regression is None:
            names = list(map(shown, self.draws))
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            return f"a model of {', '.join(names[:6])}{more}" + (f", rows{of}" if of else "")
        options = "".join(f", {role} {shown(str(column))}" for role, column in self.regression.roles.items())
        family = self.regression.family_in_words
        return f"{self.regression.formula}, family {family}{options}" + (f", rows{of}" if of else "")

    @property
    def not_examined(self) -> str:
        """One sentence on what the certificate says nothing about, and the options that cover some of it.

        Examples
        --------
        >>> import shardmc
        >>> table = {"x": np.random.default_rng(0).normal(size=500), "y": np.arange(500) % 3}
        >>> options = {"shards": 1, "draws": 100, "check": False, "predictive": False}
        >>> print(shardmc.glm("y ~ x", table, "poisson", **options).not_examined)
        Not examined: fit of the model, dependence of rows, overdispersion (robust= allows for the last two).
        """
        missing = ["fit of the model" + (" beyond the predictive check" if self.predictive else "")]
        if self.adjusted is None or self.adjusted.clusters is None:
            missing.append("dependence of rows")
        regression = self.regression
        fixed = regression is not None and regression.fixes_variance
        if fixed and self.adjusted is None:
            missing.append("overdispersion")
        option = ""
        if regression is not None and self.adjusted is None and self.groups is None:
            option = f" (robust= allows for the last{' two' if fixed else ''})"
        return f"Not examined: {', '.join(missing)}{option}."

    @property
    def chains(self) -> tuple[int, int]:
        """(chain, draw) in which the draws are laid out: the chains of the shards where all gave equally many."""
        if self.shard is None:
            return 1, self.num_draws
        shards, counts = np.unique(self.shard, return_counts=True)
        if (np.diff(self.shard) < 0).any() or len(set(counts)) > 1:
            return 1, self.num_draws
        ran = {1} if self.shards.chains is None else set(self.shards.chains[shards].tolist())
        each, length = int(max(ran)), int(counts[0])
        # Pooling thins the draws of a shard evenly, so that its chains keep equally many.
        return (
            (len(shards) * each, length // each)
            if len(ran) == 1 and length % each == 0
            else (len(shards), length)
        )

    def flat(self) -> dict[str, np.ndarray]:
        """Every scalar parameter by its own name: `beta[0]` -> (draw,).

        Examples
        --------
        >>> import shardmc
        >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000)
        >>> model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"][0]) ** 2, None, {"mu": 1})
        >>> list(shardmc.fit(model, y, shards=4, draws=200, check=False).flat())
        ['mu[0]']
        """
        columns = {}
        for name, values in self.draws.items():
            for index in np.ndindex(values.shape[1:]):
                label = name if not index else f"{name}[{','.join(map(str, index))}]"
                columns[label] = values[(slice(None), *index)]
        return columns

    def to_pandas(self) -> pd.DataFrame:
        """The draws as a table: one column per scalar parameter, indexed by chain and draw as in ArviZ.

        Examples
        --------
        >>> import shardmc
        >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000)
        >>> model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"][0]) ** 2, None, {"mu": 1})
        >>> table = shardmc.fit(model, y, shards=4, draws=200, check=False).to_pandas()
        >>> list(table.columns), table.index.names, table.shape
        (['mu[0]'], FrozenList(['chain', 'draw']), (200, 1))
        """
        import pandas as pd

        index = pd.MultiIndex.from_product([range(count) for count in self.chains], names=["chain", "draw"])
        return pd.DataFrame(self.flat(), index=index)

    def summary(self, interval: float = INTERVAL, interval_kind: IntervalKind = "eti") -> pd.DataFrame:
        """Mean, sd, interval, effective size, R-hat and measured errors of every parameter.

        The interval is central (`interval_kind="eti"`), or the shortest one: that of highest density ("hdi").

        `mean_error` is the certificate's estimate of the error of the mean, in posterior standard deviations.
        `sd_ratio` is its estimate of the draws' standard deviation divided by that of the posterior. Both refer to the
        unconstrained coordinate, and are missing if a parameter has no coordinate of its own. If the draws were
        adjusted (`robust`, `survey_weights`), both are about the draws before, whose sd is `sd_before`. Control
        characters in names are written as escapes.

        Examples
        --------
        >>> import shardmc
        >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000)
        >>> model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
        >>> posterior = shardmc.fit(model, y, shards=4, draws=200)
        >>> posterior.summary(0.9).loc["mu", ["mean", "5%", "95%"]].round(1).tolist()
        [3.0, 2.9, 3.0]
        """
        return summary_by_name(self, interval, interval_kind).rename(index=shown)

    @cached_property
    def tree(self) -> xr.DataTree:
        """The result as an xarray.DataTree in ArviZ's layout: posterior, unconstrained, sample_stats, shards.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, check=False)
        >>> posterior.tree["posterior"]["x"].sizes
        Frozen({'chain': 1, 'draw': 200})
        """
        return to_tree(self)

    def save(self, path: str | Path) -> Path:
        """Write the result to one netCDF file (or a Zarr folder, by the suffix `.zarr`).

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, check=False)
        >>> posterior.save("posterior.nc").name
        'posterior.nc'
        """
        from shardmc.store.files import save_tree

        save_tree(self.tree, path)
        return Path(path)

    def __repr__(self) -> str:
        verdict = "not certified" if self.certificate is None else self.certificate.sentence
        verdict += "" if self.adjusted is None else f" {self.adjusted.sentence}"
        names, count = ", ".join(map(shown, self.draws)), self.shards.num_shards
        shards = "1 shard" if count == 1 else f"{count} shards"
        source = f"{shards} of {self.plan.rows:,} rows"
        return f"Posterior({self.num_draws} draws of {names} from {source}; {shown_text(verdict)})"
