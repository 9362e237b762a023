"""What fit returns: draws of the posterior, what they are worth, and everything needed to repeat them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmc.check.certificate import Certificate
from shardmc.check.mixing import split_r_hat
from shardmc.check.polishing import Polished
from shardmc.errors import RunError
from shardmc.names import shown, shown_text, stored
from shardmc.types import Finding

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure

_LAYOUT = 1
_FEWEST_DRAWS = 4  # of a chain, for R-hat
_ATTRIBUTE = "shardmc"


@dataclass(frozen=True)
class ShardTable:
    """One row per shard: what it holds, where it lies, how its chains went, and its own draws."""

    share: np.ndarray  # (shard,)
    size: np.ndarray  # (shard,)
    acceptance: np.ndarray  # (shard,)
    divergences: np.ndarray  # (shard,)
    ess: np.ndarray  # (shard, dim)
    r_hat: np.ndarray  # (shard, dim)
    sampler: tuple[str, ...]
    draws: np.ndarray  # (shard, draw, dim) unconstrained, before combining; NaN where a shard has fewer
    mode: np.ndarray | None = None  # (shard, dim)
    disagreement: np.ndarray | None = None  # (shard,) Q

    @property
    def num_shards(self) -> int:
        return len(self.share)


@dataclass(frozen=True)
class Posterior:
    """Draws of the full posterior, with their certificate and the record of how they were made.

    Examples
    --------
    >>> import shardmc
    >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000)
    >>> model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    >>> posterior = shardmc.fit(model, y, shards=4, draws=200)
    >>> posterior.draws["mu"].shape
    (200,)
    >>> list(posterior.summary().columns)
    ['mean', 'sd', '2.5%', '97.5%', 'ess', 'r_hat', 'mean_error', 'sd_ratio']
    """

    draws: Mapping[str, np.ndarray]  # name -> (draw, ...), natural scale
    theta: np.ndarray  # (draw, dim), unconstrained
    names: tuple[str, ...]  # of the unconstrained coordinates
    shard: np.ndarray | None  # (draw,) the shard each draw came from
    shards: ShardTable
    mode: np.ndarray | None  # (dim,) of all rows
    curvature: np.ndarray | None = None  # (dim, dim) minus the Hessian of the log posterior there
    certificate: Certificate | None = None
    polished: Polished | None = None
    """What polishing did, where it was asked for."""
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    plan: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    passes: Mapping[str, float] = field(default_factory=dict)
    """How often each stage read all rows, the machine-independent cost."""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_draws(self) -> int:
        return len(self.theta)

    @property
    def chains(self) -> tuple[int, int]:
        """(chain, draw) in which the draws are laid out: a chain per shard where all gave equally many."""
        if self.shard is None:
            return 1, self.num_draws
        shards, counts = np.unique(self.shard, return_counts=True)
        in_order = (np.diff(self.shard) >= 0).all()
        return (len(shards), int(counts[0])) if in_order and len(set(counts)) == 1 else (1, self.num_draws)

    def flat(self) -> dict[str, np.ndarray]:
        """Every scalar parameter by its own name: `beta[0]` -> (draw,)."""
        columns = {}
        for name, values in self.draws.items():
            for index in np.ndindex(values.shape[1:]):
                label = name if not index else f"{name}[{','.join(map(str, index))}]"
                columns[label] = values[(slice(None), *index)]
        return columns

    def summary(self, interval: float = 0.95) -> pd.DataFrame:
        """Mean, sd, central interval, effective size and R-hat of every parameter, and how far off each may be.

        `mean_error` is the certificate's estimate of the error of the mean in posterior standard deviations,
        `sd_ratio` the ratio of the draws' standard deviation to the posterior's; both belong to the unconstrained
        coordinate and are missing where a parameter has no coordinate of its own.
        """
        import pandas as pd
        from arviz_stats.base.array import array_stats

        columns = self.flat()
        values = np.stack(list(columns.values()), axis=-1)
        chained = values.reshape(*self.chains, values.shape[-1])
        tail = (1 - interval) / 2
        low, high = np.nanquantile(values, [tail, 1 - tail], axis=0)
        table = pd.DataFrame(
            {
                "mean": np.nanmean(values, axis=0),
                "sd": np.nanstd(values, axis=0, ddof=1),
                f"{100 * tail:g}%": low,
                f"{100 * (1 - tail):g}%": high,
                "ess": array_stats.ess(chained, chain_axis=0, draw_axis=1),
                "r_hat": _r_hat(chained),
            },
            index=pd.Index(list(columns), name="parameter"),
        )
        if self.certificate is not None:
            own = dict(zip(self.certificate.names, range(len(self.names)), strict=False))
            pick = [own.get(name) for name in columns]
            table["mean_error"] = [np.nan if k is None else self.certificate.mean_error[k] for k in pick]
            table["sd_ratio"] = [np.nan if k is None else self.certificate.sd_ratio[k] for k in pick]
        return table

    @cached_property
    def tree(self) -> xr.DataTree:
        """The result as an xarray.DataTree in ArviZ's layout: posterior, unconstrained, sample_stats, shards."""
        import xarray as xr

        layout = self.chains
        theta = self.theta.reshape(*layout, -1)
        stats = {} if self.shard is None else {"shard": (("chain", "draw"), self.shard.reshape(layout))}
        shards = self.shards
        per_shard: dict[str, Any] = {
            "share": ("shard", shards.share),
            "size": ("shard", shards.size),
            "acceptance": ("shard", shards.acceptance),
            "divergences": ("shard", shards.divergences),
            "sampler": ("shard", np.array(shards.sampler, dtype=object)),
            "ess": (("shard", "coordinate"), shards.ess),
            "r_hat": (("shard", "coordinate"), shards.r_hat),
            "draws": (("shard", "shard_draw", "coordinate"), shards.draws),
        }
        if shards.mode is not None:
            per_shard["mode"] = (("shard", "coordinate"), shards.mode)
        if shards.disagreement is not None:
            per_shard["disagreement"] = ("shard", shards.disagreement)
        # Names as they were given are in the record: an array of text loses a NUL at its end.
        coordinate = {"coordinate": [shown(name) for name in self.names]}
        unconstrained: dict[str, Any] = {"theta": (("chain", "draw", "coordinate"), theta)}
        if self.mode is not None:
            unconstrained["mode"] = ("coordinate", self.mode)
        if self.curvature is not None:
            unconstrained["curvature"] = (("coordinate", "other_coordinate"), self.curvature)
        tree = xr.DataTree.from_dict(
            {
                "posterior": _natural(self.draws, layout),
                "unconstrained": xr.Dataset(unconstrained, coords=coordinate),
                "sample_stats": xr.Dataset(stats),
                "shards": xr.Dataset(per_shard, coords=coordinate),
            }
        )
        tree.attrs[_ATTRIBUTE] = json.dumps(self._record())
        return tree

    def _record(self) -> dict[str, Any]:
        return {
            "layout": _LAYOUT,
            "names": list(self.names),
            "renamed": {stored(name): name for name in self.draws if stored(name) != name},
            "certificate": None if self.certificate is None else self.certificate.to_dict(),
            "polished": None if self.polished is None else self.polished.to_dict(),
            "findings": [
                {
                    **{k: getattr(f, k) for k in ("level", "check", "message", "advice")},
                    "values": dict(f.values),
                }
                for f in self.findings
            ],
            "notes": list(self.notes),
            "plan": dict(self.plan),
            "seconds": dict(self.seconds),
            "passes": dict(self.passes),
            "versions": dict(self.versions),
        }

    def save(self, path: str | Path) -> Path:
        """Write the result to one netCDF file (or a Zarr folder, by the suffix `.zarr`)."""
        from shardmc.store.tree import save_tree

        save_tree(self.tree, path)
        return Path(path)

    def report(self, path: str | Path) -> Path:
        """Write one self-contained HTML page about the result."""
        # Pages and figures belong to a later layer, which is found by name so that imports go one way.
        return import_module("shardmc.report").write_report(self, path)

    def predict(
        self,
        rows: Any,
        kind: str = "interval",
        *,
        function: Callable[[Any, Any], Any] | None = None,
        interval: float = 0.9,
        draws: int = 1000,
        seed: int = 0,
    ) -> pd.DataFrame | np.ndarray:
        """Predict new rows: `shardmc.predict` for a posterior that a formula made, also after it was loaded.

        Parameters
        ----------
        rows
            Arrays, a table, or the path of Parquet or CSV files; read piece by piece.
        kind
            "mean", "interval" (of the expected response), "response" (a new one) or "draws", (draw, row).
        function
            For a model without a formula: (params, rows) -> one number per row, in JAX, with named parameters on
            the natural scale. It is evaluated for every draw.
        interval, draws, seed
            The interval's probability; how many of the draws to use; for kind "response".
        """
        # Formulas belong to a later layer, which is found by name so that imports go one way.
        if function is None:
            predict = import_module("shardmc.glm").predict
            return predict(self, rows, kind, interval=interval, draws=draws, seed=seed)
        expected = import_module("shardmc.expected").expected
        return expected(self, rows, function, kind, interval=interval, draws=draws)

    def predictive_check(self, rows: Any, **options: Any) -> pd.DataFrame:
        """Observed responses of a sample of rows beside simulated ones; for posteriors of a formula."""
        return import_module("shardmc.glm").posterior_predictive_check(self, rows, **options)

    def plot_marginals(self, **options: Any) -> Figure:
        """Marginal densities of the combined draws over the shards' own, before and after recentring."""
        return import_module("shardmc.report").plot_marginals(self, **options)

    def plot_forest(self, **options: Any) -> Figure:
        """Means and intervals of all parameters."""
        return import_module("shardmc.report").plot_forest(self, **options)

    def plot_pair(self, **options: Any) -> Figure:
        """The joint draws of two parameters, the worst pair unless named."""
        return import_module("shardmc.report").plot_pair(self, **options)

    def plot_shards(self, **options: Any) -> Figure:
        """How far each shard disagrees with all rows."""
        return import_module("shardmc.report").plot_shards(self, **options)

    def plot_chains(self, **options: Any) -> Figure:
        """Acceptance, effective size and R-hat of every shard."""
        return import_module("shardmc.report").plot_chains(self, **options)

    def plot_certificate(self, **options: Any) -> Figure:
        """Errors of mean and standard deviation of the parameters, as the certificate measured them."""
        return import_module("shardmc.report").plot_certificate(self, **options)

    def plot_ridges(self, **options: Any) -> Figure:
        """Marginal densities of many parameters below each other."""
        return import_module("shardmc.report").plot_ridges(self, **options)

    def _repr_html_(self) -> str:
        return import_module("shardmc.report").repr_html(self)

    @staticmethod
    def from_tree(tree: xr.DataTree) -> Posterior:
        """A posterior from the tree that `tree` gave or a file held."""
        if _ATTRIBUTE not in tree.attrs:
            raise RunError("The file holds no posterior of shardmc: its attribute 'shardmc' is missing.")
        record = json.loads(tree.attrs[_ATTRIBUTE])
        if record["layout"] != _LAYOUT:
            raise RunError(
                f"The file's layout is version {record['layout']}; this shardmc reads version {_LAYOUT}."
            )
        groups = ("posterior", "unconstrained", "sample_stats", "shards")
        posterior, unconstrained, stats, shards = (tree[group].to_dataset() for group in groups)
        theta = unconstrained["theta"]
        renamed = record.get("renamed", {})
        return Posterior(
            draws={
                renamed.get(str(name), str(name)): _flat(values.values)
                for name, values in posterior.data_vars.items()
            },
            theta=_flat(theta.values),
            names=tuple(record.get("names", map(str, theta.coords["coordinate"].values))),
            shard=_flat(stats["shard"].values) if "shard" in stats else None,
            mode=unconstrained["mode"].values if "mode" in unconstrained else None,
            curvature=unconstrained["curvature"].values if "curvature" in unconstrained else None,
            shards=ShardTable(
                share=shards["share"].values,
                size=shards["size"].values,
                acceptance=shards["acceptance"].values,
                divergences=shards["divergences"].values,
                ess=shards["ess"].values,
                r_hat=shards["r_hat"].values,
                sampler=tuple(map(str, shards["sampler"].values)),
                draws=shards["draws"].values,
                mode=shards["mode"].values if "mode" in shards else None,
                disagreement=shards["disagreement"].values if "disagreement" in shards else None,
            ),
            certificate=None
            if record["certificate"] is None
            else Certificate.from_dict(record["certificate"]),
            polished=None if record.get("polished") is None else Polished.from_dict(record["polished"]),
            findings=tuple(Finding(**f) for f in record["findings"]),
            notes=tuple(record["notes"]),
            plan=record["plan"],
            seconds=record["seconds"],
            passes=record["passes"],
            versions=record["versions"],
        )

    def __repr__(self) -> str:
        verdict = "not certified" if self.certificate is None else self.certificate.sentence
        names, shards = ", ".join(map(shown, self.draws)), self.shards.num_shards
        return f"Posterior({self.num_draws} draws of {names} from {shards} shards; {shown_text(verdict)})"


def load(path: str | Path) -> Posterior:
    """Read a posterior that `Posterior.save` wrote; a run folder stands for its posterior.nc.

    Examples
    --------
    >>> import shardmc
    >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000)
    >>> model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    >>> posterior = shardmc.fit(model, y, shards=4, draws=200)
    >>> path = posterior.save("posterior.nc")
    >>> bool((load(path).draws["mu"] == posterior.draws["mu"]).all())
    True
    """
    from shardmc.store.tree import load_tree

    path = Path(path)
    if path.is_dir() and path.suffix != ".zarr":
        if not (path / "posterior.nc").exists():
            raise RunError(
                f"{str(path)!r} holds no posterior.nc: it is no run folder, or its run is not finished. "
                "Repeat the call that made it to go on with it."
            )
        path = path / "posterior.nc"
    return Posterior.from_tree(load_tree(path))


def _r_hat(chained: np.ndarray) -> np.ndarray:
    """Split R-hat (parameter,) of draws (chain, draw, parameter); the halves of one chain are compared as well."""
    if chained.shape[1] < _FEWEST_DRAWS:
        return np.full(chained.shape[-1], np.nan)
    return split_r_hat(np.moveaxis(chained, -1, 0))


def _natural(draws: Mapping[str, np.ndarray], layout: tuple[int, int]) -> xr.Dataset:
    import xarray as xr

    variables = {
        stored(name): (
            ("chain", "draw", *(f"{stored(name)}_dim_{k}" for k in range(v.ndim - 1))),
            v.reshape(*layout, *v.shape[1:]),
        )
        for name, v in draws.items()
    }
    return xr.Dataset(variables, coords={"chain": np.arange(layout[0]), "draw": np.arange(layout[1])})


def _flat(values: np.ndarray) -> np.ndarray:
    """(chain, draw, ...) -> (draw, ...)."""
    return values.reshape(-1, *values.shape[2:])
