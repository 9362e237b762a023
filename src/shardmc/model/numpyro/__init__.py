"""A NumPyro model function as a shardmc model: `from_numpyro`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import ModelError, unknown
from shardmc.model.model import Model, Recipe
from shardmc.model.numpyro.plates import Asked, PlateOfGroups, find_plate, row_densities
from shardmc.model.numpyro.sites import SampleSites, deterministic_values, discover, log_densities
from shardmc.model.user_functions import missing, structure_key, take, two_samples
from shardmc.types import Params, Rows


def from_numpyro(
    model: Callable[..., object],
    *args: object,
    dims: Mapping[str, Sequence[str] | str] | None = None,
    coords: Mapping[str, Sequence[object]] | None = None,
    groups: Asked = None,
    **kwargs: object,
) -> NumPyroModel:
    """Use a NumPyro model function, unchanged, as a model for shardmc.

    Latent sites become the parameters. Observed sites and factors with one value per row become the log-likelihood.
    Everything else that has a density becomes the prior. Deterministic sites that do not depend on the rows are
    reported with the parameters; the others are left out.

    Parameters
    ----------
    model : function
        shardmc calls it with the rows: a dict of columns as keyword arguments (those in its signature), a tuple as
        the first positional arguments, an array as the first argument.
    *args, **kwargs
        Further arguments, such as the number of groups or the scale of a prior. Positional ones fill the arguments
        that the rows do not. (Arguments of the model called `dims`, `coords` or `groups`: functools.partial.)
    dims, coords
        Name of a site -> names of its axes, and name of an axis -> labels along it, as in ArviZ. Axes under a
        numpyro.plate have its name already. `posterior.tree` has them.
    groups
        The column g by which rows look up effects of groups, b[g]. The sites of the plate that holds b, Normal or
        MultivariateNormal, are then integrated out, up to three numbers per group; `posterior.effects` shows them.
        `{"plate": "g"}` also names the plate. By default this happens for a plate of more than 100 groups, and smaller
        ones are parameters. False makes all sites parameters.

    Examples
    --------
    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> def regression(x, y, scale):
    ...     beta = numpyro.sample("beta", dist.Normal(0, scale).expand([x.shape[1]]))
    ...     sigma = numpyro.sample("sigma", dist.Exponential(1))
    ...     numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)
    >>> model = from_numpyro(regression, scale=10.0).bind((np.eye(5)[:, :2], np.ones(5)))
    >>> model.names
    ['beta[0]', 'beta[1]', 'sigma']

    Effects of clinics, one for each:

    >>> def clinics(clinic, y, num_clinics):
    ...     tau = numpyro.sample("tau", dist.HalfNormal(1))
    ...     with numpyro.plate("clinics", num_clinics):
    ...         b = numpyro.sample("b", dist.Normal(0, tau))
    ...     numpyro.sample("y", dist.Normal(b[clinic], 1), obs=y)
    >>> rows = {"clinic": np.arange(10) % 5, "y": np.ones(10)}
    >>> model = from_numpyro(clinics, num_clinics=5, groups="clinic").bind(rows)
    >>> model.names, model.effects.names
    (['tau'], ('b',))
    """
    if not callable(model):
        raise ModelError(f"from_numpyro takes a NumPyro model function; {type(model).__name__} was given.")
    function = _Function(model, args, kwargs)
    names = function.argument_names()
    if not (groups is None or groups is False or isinstance(groups, str | Mapping)):
        raise ModelError(
            f"groups must be the name of a column, or plate and column as in {{'clinics': 'g'}}, or False; {groups!r} "
            "was given. (If the model itself has an argument called groups, set it with functools.partial.)"
        )
    for name in kwargs:
        if names is not None and name not in names:
            raise ModelError(str(unknown("argument of the NumPyro model given to from_numpyro", name, names)))
    return NumPyroModel(function, dims, coords, groups)


@final
class NumPyroModel(Recipe):
    """A NumPyro model function that becomes a Model once it sees rows; made by `from_numpyro`."""

    def __init__(
        self,
        function: _Function,
        dims: Mapping[str, Sequence[str] | str] | None = None,
        coords: Mapping[str, Sequence[object]] | None = None,
        groups: Asked = None,
    ) -> None:
        self._function, self._groups = function, groups
        self._dims, self._coords = dict(dims or {}), coords
        self._bound: dict[Hashable, Model] = {}

    def bind(self, rows: Rows) -> Model:
        """The model for rows of this structure. Running it on a sample of rows shows its parameters."""
        rows = self._function.select(rows)
        key = structure_key(rows)
        if key not in self._bound:
            self._bound[key] = self._discover(rows)
        return self._bound[key]

    def columns_used(self, rows: Mapping[str, Rows]) -> list[str]:
        """The columns that the function has arguments for."""
        return list(self._function.select(dict(rows)))

    def _discover(self, rows: Rows) -> Model:
        samples = two_samples(rows)
        sites = discover(self._function, samples, self._function.unfilled_hint(rows))
        few = take(samples.first, np.arange(2))
        groups = self._plate(sites, samples.first, few)
        if groups is not None:
            sites = sites.without(tuple(groups.plate.sites), groups.check(samples.first))
        functions = _SiteFunctions(self._function, sites, few, {} if groups is None else groups.blank)
        model = Model(
            functions.log_likelihood if groups is None else groups.log_likelihood,
            functions.log_prior,
            sites.parameters,
            derived=functions.derived if sites.derived else None,
            dims=sites.dims | self._dims,
            coords=self._coords,
        )
        model.effects = None if groups is None else groups.effects
        return model

    def _plate(self, sites: SampleSites, rows: Rows, few: Rows) -> PlateOfGroups | None:
        """The plate of groups whose effects are integrated out, if there is one."""
        shapes = {
            name: jax.ShapeDtypeStruct(p.shape, jnp.result_type(float))
            for name, p in sites.parameters.items()
        }
        found = find_plate(self._function, rows, sites.row_axes, shapes, self._groups)
        return None if found is None else PlateOfGroups(self._function, sites, *found, few)


@dataclass(frozen=True, eq=False)
class _Function:
    """A model function with its constant arguments, called on rows alone."""

    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]

    def __call__(self, rows: Rows) -> object:
        rows = jax.tree.map(jnp.asarray, self.select(rows))
        if isinstance(rows, dict):
            open_names = [name for name in self._positional() if name not in rows and name not in self.kwargs]
            constants = dict(zip(open_names, self.args, strict=False))
            return self.function(**rows, **constants, **self.kwargs)
        positional = tuple(rows) if isinstance(rows, tuple | list) else (rows,)
        return self.function(*positional, *self.args, **self.kwargs)

    def select(self, rows: Rows) -> Rows:
        """The columns of a dict that the function has an argument for; other rows unchanged."""
        if not isinstance(rows, Mapping):
            return rows
        names = self.argument_names()
        wanted = [name for name in rows if (names is None or name in names) and name not in self.kwargs]
        selected = {name: rows[name] for name in wanted}
        self._refuse_missing(selected, list(rows))
        return selected

    def unfilled_hint(self, rows: Rows) -> str:
        """The arguments that keep their default, such as y=None, for the error that this causes."""
        parameters = list(inspect.signature(self.function).parameters.values())
        if isinstance(rows, Mapping):
            filled = set(rows) | set(self.kwargs)
            parameters = [p for p in parameters if p.name not in filled][len(self.args) :]
        else:
            given = len(rows) if isinstance(rows, tuple | list) else 1
            parameters = [p for p in parameters[given + len(self.args) :] if p.name not in self.kwargs]
        names = [repr(p.name) for p in parameters if p.default is None]
        return f" (Nothing was given for its argument {' and '.join(names)}.)" if names else ""

    def _refuse_missing(self, selected: Mapping[str, Rows], columns: list[str]) -> None:
        parameters = inspect.signature(self.function).parameters.values()
        required = [
            p.name
            for p in parameters
            if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
            if p.name not in selected and p.name not in self.kwargs
        ]
        for name in required[len(self.args) :]:
            sentence = missing("The NumPyro model", "column", name, columns)
            if not selected:
                sentence += " (For a model of one dict of columns: from_numpyro(lambda **rows: model(rows)).)"
            raise ModelError(sentence)

    def _positional(self) -> list[str]:
        parameters = inspect.signature(self.function).parameters.values()
        return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

    def argument_names(self) -> set[str] | None:
        """Names of its arguments; None if it takes any (**kwargs)."""
        parameters = inspect.signature(self.function).parameters.values()
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return None
        return {p.name for p in parameters}


@dataclass(frozen=True, eq=False)
class _SiteFunctions:
    """The densities of a NumPyro model, from the roles of its sites."""

    run: _Function
    sites: SampleSites
    few: Rows
    """Two rows. The prior does not depend on them, but the function needs some to run."""
    blank: Params
    """Sites that are integrated out. The prior does not depend on them either."""

    def log_likelihood(self, params: Params, rows: Rows) -> jax.Array:
        return row_densities(self.run, self.sites.row_axes)(params, rows, {})

    def log_prior(self, params: Params) -> jax.Array:
        densities = log_densities(self.run, {**params, **self.blank}, self.few, self.sites.prior)
        return sum((jnp.sum(value) for value in densities.values()), start=jnp.zeros(()))

    def derived(self, params: Params) -> dict[str, jax.Array]:
        return deterministic_values(self.run, {**params, **self.blank}, self.few, self.sites.derived)
