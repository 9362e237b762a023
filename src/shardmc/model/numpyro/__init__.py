"""A NumPyro model function as a shardmc model: `from_numpyro`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import ModelError, unknown
from shardmc.model.model import Model, Recipe
from shardmc.model.numpyro.sites import Sites, deterministic_values, discover, log_densities
from shardmc.model.user_functions import missing, structure_key, sum_to_rows, take, two_samples
from shardmc.types import Rows


def from_numpyro(
    model: Callable[..., Any],
    *args: Any,
    dims: Mapping[str, Sequence[str] | str] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    **kwargs: Any,
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
        that the rows do not. (Arguments of the model called `dims` or `coords`: functools.partial.)
    dims, coords
        Name of a site -> names of its axes, and name of an axis -> labels along it, as in ArviZ. Axes under a
        numpyro.plate have its name already. `posterior.tree` has them.

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
    """
    if not callable(model):
        raise ModelError(f"from_numpyro takes a NumPyro model function; {type(model).__name__} was given.")
    function = _Function(model, args, kwargs)
    names = function.argument_names()
    for name in kwargs:
        if names is not None and name not in names:
            raise ModelError(str(unknown("argument of the NumPyro model given to from_numpyro", name, names)))
    return NumPyroModel(function, dims, coords)


@final
class NumPyroModel(Recipe):
    """A NumPyro model function that becomes a Model once it sees rows; made by `from_numpyro`."""

    def __init__(
        self,
        function: _Function,
        dims: Mapping[str, Sequence[str] | str] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self._function = function
        self._dims, self._coords = dict(dims or {}), coords
        self._bound: dict[Hashable, Model] = {}

    def bind(self, rows: Rows) -> Model:
        """The model for rows of this structure. Running it on a sample of rows shows its parameters."""
        rows = self._function.select(rows)
        key = structure_key(rows)
        if key not in self._bound:
            self._bound[key] = self._discover(rows)
        return self._bound[key]

    def columns_used(self, rows: Mapping[str, Any]) -> list[str]:
        """The columns that the function has arguments for."""
        return list(self._function.select(dict(rows)))

    def _discover(self, rows: Rows) -> Model:
        samples = two_samples(rows)
        sites = discover(self._function, samples, self._function.unfilled_hint(rows))
        few = take(samples.first, np.arange(2))
        functions = _SiteFunctions(self._function, sites, few)
        return Model(
            functions.log_likelihood,
            functions.log_prior,
            sites.parameters,
            derived=functions.derived if sites.derived else None,
            dims=sites.dims | self._dims,
            coords=self._coords,
        )


@dataclass(frozen=True, eq=False)
class _Function:
    """A model function with its constant arguments, called on rows alone."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, rows: Rows) -> Any:
        rows = jax.tree.map(jnp.asarray, self.select(rows))
        if isinstance(rows, dict):
            open_names = [name for name in self._positional() if name not in rows and name not in self.kwargs]
            constants = dict(zip(open_names, self.args, strict=False))
            return self.function(**rows, **constants, **self.kwargs)
        positional = tuple(rows) if isinstance(rows, tuple | list) else (rows,)
        return self.function(*positional, *self.args, **self.kwargs)

    def select(self, rows: Rows) -> Any:
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

    def _refuse_missing(self, selected: Mapping[str, Any], columns: list[str]) -> None:
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
    sites: Sites
    few: Any
    """Two rows. The prior does not depend on them, but the function needs some to run."""

    def log_likelihood(self, params: Mapping[str, Any], rows: Rows) -> jax.Array:
        densities = log_densities(self.run, params, rows, self.sites.row_axes)
        per_row = [sum_to_rows(densities[name], axis) for name, axis in self.sites.row_axes.items()]
        return sum(per_row[1:], start=per_row[0])

    def log_prior(self, params: Mapping[str, Any]) -> jax.Array:
        densities = log_densities(self.run, params, self.few, self.sites.prior)
        return sum((jnp.sum(value) for value in densities.values()), start=jnp.zeros(()))

    def derived(self, params: Mapping[str, Any]) -> dict[str, jax.Array]:
        return deterministic_values(self.run, params, self.few, self.sites.derived)
