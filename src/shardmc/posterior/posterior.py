"""What `fit` returns, with its methods: predictions, cross-validation, effects, plots and the report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardmc._methods import provided
from shardmc.errors import OptionError, RunError
from shardmc.guards.limits import memory_explained
from shardmc.model.model import Recipe
from shardmc.posterior.elpd import Loo
from shardmc.posterior.result import INTERVAL, IntervalKind, Result
from shardmc.posterior.tree import from_tree
from shardmc.types import Data, RowValues

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure

    from shardmc.posterior.arviz import Simulate
    from shardmc.posterior.prediction import Predict, RowCount


class Posterior(Result):
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

    def report(self, path: str | Path) -> Path:
        """Write one self-contained HTML page about the result.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, check=False)
        >>> posterior.report("posterior.html").name
        'posterior.html'
        """
        return provided("write_report")(self, path)

    def predict(
        self,
        rows: Data,
        kind: str = "interval",
        *,
        function: Predict | None = None,
        interval: float = INTERVAL,
        interval_kind: IntervalKind = "eti",
        draws: int = 1000,
        seed: int = 0,
        groups: str = "known",
    ) -> pd.DataFrame | np.ndarray:
        """Predict new rows: `shardmc.predict` for a posterior that a formula made, also after it was loaded.

        Parameters
        ----------
        rows
            Arrays, a table, or the path of Parquet or CSV files; read piece by piece. The result has the index of a
            pandas table. For a formula, rows with missing values get missing predictions, with a warning.
        kind
            "mean", "interval" (of the expected response), "link" (of the linear predictor), "response" (a new one) or
            "draws", (draw, row).
        function
            For a model without a formula: (params, rows) -> one number or array per row, in JAX, with named parameters
            on the natural scale. It is evaluated for every draw. Of an array per row, columns are "mean[0]", "sd[0]",
            ..., and draws are (draw, row, ...).
        interval, interval_kind
            The interval's probability; "eti" (central) or "hdi" (of highest density).
        draws
            How many of the posterior's draws to use.
        seed
            The seed of the simulation for kind "response".
        groups
            For a formula with group terms: "known" uses the effects of groups that the fit had, and integrates over
            those of new groups; "new" draws effects for all groups; "population" leaves effects out.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, check=False)
        >>> posterior.predict({"x": [-1.0, 0.0, 1.0]}).shape
        (3, 4)
        """
        if function is None:
            return provided("predict")(
                self,
                rows,
                kind,
                interval=interval,
                interval_kind=interval_kind,
                draws=draws,
                seed=seed,
                groups=groups,
            )
        from shardmc.posterior.prediction import predict_by

        return predict_by(
            self, rows, function, kind, interval=interval, interval_kind=interval_kind, draws=draws
        )

    def predict_file(
        self, rows: Data, out: str | os.PathLike[str], kind: str = "interval", **options: object
    ) -> RowCount:
        """Predict any number of rows and write the predictions to a Parquet or CSV file, with a `key` column.

        See `shardmc.formulas.predict_file` for the options.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, check=False)
        >>> posterior.predict_file({"x": [-1.0, 0.0, 1.0]}, "predictions.csv").rows
        3
        """
        return provided("predict_file")(self, rows, out, kind, **options)

    def loo(
        self,
        data: Data,
        model: Recipe | None = None,
        *,
        weights: RowValues = None,
        by: str | None = None,
        sample: int = 4_000,
        draws: int = 2_000,
        seed: int = 0,
    ) -> Loo:
        """Leave-one-out cross-validation: how well the model predicts rows that it has not seen (PSIS-LOO).

        For a formula with group terms, whole groups are left out: how well it predicts the rows of a new group.

        Parameters
        ----------
        data
            The rows that were fitted: arrays, a table or files, read piece by piece. Of a formula's rows, those with
            missing values are left out.
        model
            The model that was fitted, if it was not a formula. Its log-likelihood should include all terms that do not
            depend on parameters, if it is compared with other models.
        weights
            The weights that the posterior was fitted with. A row of weight w counts as w rows, each of which is left
            out alone.
        by
            A column of groups: leave out one group at a time, not one row, for a posterior of a formula. With group
            terms, it is the factor whose effects are integrated out: the one with the most groups. To compare a
            model without group terms with one that has them, give this column for the former.
        sample
            The number of rows (or groups) that are left out in turn. With more rows, a random sample of that size
            gives the sum over all rows (Magnusson et al., 2019), and the standard error includes the sampling.
        draws
            How many of the draws to use, spread evenly over the chains.
        seed
            For the sample of rows. Models that are compared need the same one.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=500, check=False)
        >>> result = posterior.loo(table)
        >>> round(result.elpd / 500, 1), round(result.p)  # 3 parameters
        (-1.4, 3)
        """
        if model is None and self.regression is None:
            raise OptionError(
                "This is the posterior of a model without a formula: give the model too, as in "
                "posterior.loo(data, model)."
            )
        options = {"weights": weights, "sample": sample, "draws": draws, "seed": seed}
        if model is None:
            return provided("loo_of_formula")(self, data, by=by, **options)
        if by is not None:
            raise OptionError("by= is for the posterior of a formula; leave it out.")
        from shardmc.posterior.loo import loo_of_model

        return loo_of_model(self, data, model, **options)

    def to_arviz(
        self,
        data: Data,
        model: Recipe | None = None,
        *,
        simulate: Simulate | None = None,
        weights: RowValues = None,
        rows: int = 1_000,
        draws: int = 1_000,
        seed: int = 0,
    ) -> xr.DataTree:
        """The tree for ArviZ's functions that need the rows, on a random sample of them.

        Groups: `posterior` and `sample_stats` of some draws, `observed_data`, `log_likelihood`,
        `posterior_predictive`, and `constant_data` with `row_weight`. Their rows are a random sample, with the row
        numbers as coordinates. Sums over its rows, with these weights, estimate sums over all rows. (For all rows,
        `loo` has the right sum and standard error.) With `censored=` there is no `posterior_predictive`, because
        simulated times are not censored and cannot be compared with the observed ones.

        Parameters
        ----------
        data
            The rows that were fitted: arrays, a table or files, read piece by piece. Of a formula's rows, those with
            missing values are left out.
        model
            The model that was fitted, if it was not a formula.
        simulate
            For the group `posterior_predictive` of a model without a formula: (params, rows, key) -> a simulated
            response for every row, in JAX, with named parameters on the natural scale.
        weights
            The weights that the posterior was fitted with.
        rows, draws
            How many to take, at most. There may be no more than 67 million numbers, rows times draws, in a group.
        seed
            For the sample of rows and the simulation.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=5_000), "y": rng.normal(size=5_000)}
        >>> tree = shardmc.glm("y ~ x", table, shards=1, draws=500, check=False).to_arviz(table)
        >>> tree["log_likelihood"]["y"].sizes
        Frozen({'chain': 1, 'draw': 500, 'row': 1000})
        >>> float(tree["constant_data"]["row_weight"][0])
        5.0
        """
        options = {"weights": weights, "rows": rows, "draws": draws, "seed": seed}
        if model is not None:
            from shardmc.posterior.arviz import with_rows_of_model

            return with_rows_of_model(self, data, model, simulate, **options)
        if self.regression is None:
            raise OptionError(
                "This is the posterior of a model without a formula: give the model too, as in "
                "posterior.to_arviz(data, model)."
            )
        if simulate is not None:
            raise OptionError("A formula simulates its responses itself: leave simulate= out.")
        return provided("with_rows_of_formula")(self, data, **options)

    def contrast(
        self, variable: str, values: Sequence[object] | None = None, **options: object
    ) -> pd.DataFrame:
        """Differences, ratios or odds ratios of predictions between values of a predictor, averaged over rows.

        See `shardmc.formulas.contrast` for the options.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, check=False)
        >>> list(posterior.contrast("x", [0, 1], data=table).columns)
        ['mean', 'sd', 'lower', 'upper']
        """
        return provided("contrast")(self, variable, values, **options)

    def marginal_effects(self, variable: str, **options: object) -> pd.DataFrame:
        """The average slope of predictions in a predictor, or their differences between its levels.

        See `shardmc.formulas.marginal_effects` for the options.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, check=False)
        >>> list(posterior.marginal_effects("x", data=table).columns)
        ['mean', 'sd', 'lower', 'upper']
        """
        return provided("marginal_effects")(self, variable, **options)

    def plot_contrast(
        self, variable: str, values: Sequence[object] | None = None, **options: object
    ) -> Figure:
        """Means and intervals of contrasts, with the options of `contrast`.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, check=False)
        >>> posterior.plot_contrast("x", [0, 1], data=table).savefig("contrast.png")
        """
        return provided("plot_contrast")(self, variable, values, **options)

    def plot_marginal_effects(self, variable: str, **options: object) -> Figure:
        """Means and intervals of marginal effects, with the options of `marginal_effects`.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, check=False)
        >>> posterior.plot_marginal_effects("x", data=table).savefig("effects.png")
        """
        return provided("plot_marginal_effects")(self, variable, **options)

    def effects(
        self,
        factor: str | None = None,
        *,
        interval: float = INTERVAL,
        interval_kind: IntervalKind = "eti",
    ) -> pd.DataFrame:
        """Mean, sd and interval of the effects of every group, of a formula or model with groups.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"shop": np.arange(400) % 20, "y": rng.normal(size=400)}
        >>> posterior = shardmc.glm("y ~ 1 + (1 | shop)", table, shards=1, draws=200, check=False)
        >>> posterior.effects().shape
        (20, 4)
        """
        return provided("effects")(self, factor, interval=interval, interval_kind=interval_kind)

    def effect_draws(self, factor: str | None = None, **options: object) -> dict[str, np.ndarray]:
        """Draws of the effects of the groups named by `groups`: name of the effect -> (draw, group).

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"shop": np.arange(400) % 20, "y": rng.normal(size=400)}
        >>> posterior = shardmc.glm("y ~ 1 + (1 | shop)", table, shards=1, draws=200, check=False)
        >>> {name: draws.shape for name, draws in posterior.effect_draws(groups=[3, 7]).items()}
        {'Intercept': (200, 2)}
        """
        return provided("effect_draws")(self, factor, **options)

    def plot_effects(self, factor: str | None = None, **options: object) -> Figure:
        """Means and intervals of the effects of groups, in their order of size.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"shop": np.arange(400) % 20, "y": rng.normal(size=400)}
        >>> posterior = shardmc.glm("y ~ 1 + (1 | shop)", table, shards=1, draws=200, check=False)
        >>> posterior.plot_effects().savefig("shops.png")
        """
        return provided("plot_effects")(self, factor, **options)

    def predictive_check(self, rows: Data, **options: object) -> pd.DataFrame:
        """Compare observed responses of a sample of rows with simulated ones, for a posterior of a formula.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, check=False)
        >>> list(posterior.predictive_check(table).columns)
        ['observed', 'mean', 'lower', 'upper', 'p']
        """
        return provided("posterior_predictive_check")(self, rows, **options)

    def plot_marginals(self, **options: object) -> Figure:
        """Marginal densities of the combined draws and of the shards, before and after recentring.

        Examples
        --------
        >>> import shardmc
        >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000)
        >>> model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
        >>> posterior = shardmc.fit(model, y, shards=4, draws=200)
        >>> posterior.plot_marginals().savefig("marginals.png")
        """
        return provided("plot_marginals")(self, **options)

    def plot_forest(self, **options: object) -> Figure:
        """Means and intervals of all parameters.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, check=False)
        >>> posterior.plot_forest().savefig("forest.png")
        """
        return provided("plot_forest")(self, **options)

    def plot_pair(self, **options: object) -> Figure:
        """The joint draws of two parameters, by default the worst pair.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, check=False)
        >>> posterior.plot_pair().savefig("pair.png")
        """
        return provided("plot_pair")(self, **options)

    def plot_shards(self, **options: object) -> Figure:
        """How far each shard disagrees with all rows.

        Examples
        --------
        >>> import shardmc
        >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000)
        >>> model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
        >>> posterior = shardmc.fit(model, y, shards=4, draws=200)
        >>> posterior.plot_shards().savefig("shards.png")
        """
        return provided("plot_shards")(self, **options)

    def plot_chains(self, **options: object) -> Figure:
        """Acceptance, effective size and R-hat of every shard.

        Examples
        --------
        >>> import shardmc
        >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000)
        >>> model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
        >>> posterior = shardmc.fit(model, y, shards=4, draws=200)
        >>> posterior.plot_chains().savefig("chains.png")
        """
        return provided("plot_chains")(self, **options)

    def plot_certificate(self, **options: object) -> Figure:
        """Errors of mean and standard deviation of the parameters, as the certificate measured them.

        Examples
        --------
        >>> import shardmc
        >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000)
        >>> model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
        >>> posterior = shardmc.fit(model, y, shards=4, draws=200)
        >>> posterior.plot_certificate().savefig("certificate.png")
        """
        return provided("plot_certificate")(self, **options)

    def plot_ridges(self, **options: object) -> Figure:
        """Marginal densities of many parameters below each other.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, check=False)
        >>> posterior.plot_ridges().savefig("ridges.png")
        """
        return provided("plot_ridges")(self, **options)

    def _repr_html_(self) -> str:
        return provided("repr_html")(self)

    @staticmethod
    def from_tree(tree: xr.DataTree) -> Posterior:
        """The posterior of a tree: what `tree` gave, or what was read from a file.

        Examples
        --------
        >>> import shardmc
        >>> rng = np.random.default_rng(0)
        >>> table = {"x": rng.normal(size=500), "y": rng.normal(size=500)}
        >>> posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, check=False)
        >>> again = shardmc.Posterior.from_tree(posterior.tree)
        >>> bool((again.theta == posterior.theta).all())
        True
        """
        return from_tree(tree, Posterior)


@memory_explained(
    "Reading the result", "Read it on a machine with more memory, or open it with xarray in pieces."
)
def load(path: str | Path) -> Posterior:
    """Read a posterior from a file that `Posterior.save` wrote, or from a run folder.

    A netCDF file whose content does not fit its checksum is refused.

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
    from shardmc.store.files import load_tree

    path = Path(path)
    if path.is_dir() and path.suffix != ".zarr":
        if not (path / "posterior.nc").exists():
            raise RunError(
                f"{str(path)!r} has no posterior.nc: it is not a run folder, or its run is not finished. "
                "Repeat the call that made it to continue the run."
            )
        path = path / "posterior.nc"
    tree = load_tree(path, checksum=True)
    try:
        return Posterior.from_tree(tree)
    except RunError as error:
        raise RunError(f"{path} cannot be used. {error}") from error
