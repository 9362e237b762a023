"""A model: log prior, log-likelihood per row, and named parameters as one unconstrained vector theta."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import ModelError, unknown
from shardmc.model.fingerprint import fingerprint
from shardmc.model.lookup import Lookup
from shardmc.model.parameter import Parameter, as_parameters
from shardmc.model.precision import double_precision
from shardmc.model.recipe import Recipe
from shardmc.model.rewrite import Rewritten

Params = dict[str, Any]
"""Named parameters on the natural scale."""

BLOCK = 8192
"""Draws that are transformed at once, so that memory does not grow with their number."""

_models: weakref.WeakValueDictionary[str, Model] = weakref.WeakValueDictionary()


@final
class Model(Recipe):
    """A posterior for rows that are independent given a few parameters.

    log posterior(theta) = log prior(theta) + sum_j log_likelihood_j(theta), where theta stacks the parameters
    on the unconstrained scale and the log prior includes log |d natural / d theta|.

    Parameters
    ----------
    log_likelihood : function
        (params, rows) -> one number per row, in JAX. `params` is a dict of arrays on the natural scale, `rows`
        the data (tuple, dict or array, first axis: rows) or any subset of it.
    log_prior : function or None
        params -> one number: the log density on the natural scale, up to a constant. None: flat on that scale.
    parameters : dict
        Name -> shape (int or tuple; real numbers), or support (text; a single number), or `Parameter`, or a
        constraint of NumPyro.
    derived : function, optional
        params -> dict of further quantities to report.
    initial : dict, optional
        Where to start looking for the mode, on the natural scale; parameters left out start at the image of 0.

    Notes
    -----
    Models are compared and hashed by identity, and copies that were pickled in the same process are the same
    object: compiled programs are kept per model.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> model = Model(
    ...     lambda params, rows: -0.5 * ((rows - params["mu"]) / params["sigma"]) ** 2 - jnp.log(params["sigma"]),
    ...     lambda params: -params["sigma"],
    ...     {"mu": (), "sigma": "positive"},
    ... )
    >>> model.dim, model.names
    (2, ['mu', 'sigma'])
    >>> model.log_likelihood(model.initial, jnp.zeros(3)).shape
    (3,)
    """

    def __init__(
        self,
        log_likelihood: Callable[[Params, Any], jax.Array],
        log_prior: Callable[[Params], jax.Array] | None,
        parameters: Mapping[str, Any],
        *,
        derived: Callable[[Params], Mapping[str, jax.Array]] | None = None,
        initial: Mapping[str, Any] | None = None,
    ) -> None:
        for role, function in (
            ("log_likelihood", log_likelihood),
            ("log_prior", log_prior),
            ("derived", derived),
        ):
            if not callable(function) and (role == "log_likelihood" or function is not None):
                raise ModelError(f"{role} must be a function; {type(function).__name__} was given.")
        self.parameters: dict[str, Parameter] = as_parameters(parameters)
        self.log_likelihood_function = log_likelihood
        self.log_prior_function = log_prior
        self.derived_function = derived
        sizes = [p.size for p in self.parameters.values()]
        ends = np.cumsum(sizes).tolist()
        self._slices = {
            name: slice(end - n, end) for name, end, n in zip(self.parameters, ends, sizes, strict=True)
        }
        self.dim: int = ends[-1]
        if self.dim == 0:
            raise ModelError("The model has no free parameter: a simplex of one entry is always 1.")
        self.initial: np.ndarray = self._initial(initial or {})
        self._token = uuid.uuid4().hex
        _models[self._token] = self

    def bind(self, rows: Any) -> Model:
        """The model for rows of this structure: itself. (A NumPyro model finds its parameters here.)"""
        del rows
        return self

    def columns_used(self, rows: Mapping[str, Any]) -> list[str]:
        """The columns that the log-likelihood reads; all of them where that cannot be seen."""
        read: set[str] = set()
        params = jax.eval_shape(self.constrain, jax.ShapeDtypeStruct((self.dim,), jnp.result_type(float)))

        def watched(params: Params, columns: Params) -> Any:
            return self.log_likelihood_function(params, Lookup.of(columns, "column", read.add))

        try:
            jax.eval_shape(watched, params, dict(rows))
        except Exception:
            return list(rows)  # a function that fails says so when it is validated
        return [name for name in rows if name in read]

    # The densities, traceable by JAX.

    def log_likelihood(self, theta: jax.Array | np.ndarray, rows: Any) -> jax.Array:
        """Log-likelihood of each row, (n,), at theta (dim,)."""
        return self._log_likelihood(self.constrain(theta), rows)

    def log_prior(self, theta: jax.Array | np.ndarray) -> jax.Array:
        """Log prior density of theta (dim,): that of the natural parameters plus the bijections' log Jacobian."""
        theta = jnp.asarray(theta)
        params: Params = {}
        total = jnp.zeros((), theta.dtype)
        for name, parameter in self.parameters.items():
            x = theta[self._slices[name]].reshape(parameter.unconstrained_shape)
            if parameter.is_real:
                params[name] = x
                continue
            params[name], intermediates = parameter.bijection.call_with_intermediates(x)
            log_jacobian = parameter.bijection.log_abs_det_jacobian(x, params[name], intermediates)
            total = total + jnp.sum(log_jacobian)
        if self.log_prior_function is None:
            return total
        return total + self._log_prior(params)

    # One theta between the unconstrained and the natural scale, traceable by JAX.

    def constrain(self, theta: jax.Array | np.ndarray) -> Params:
        """Named parameters on the natural scale at theta (dim,)."""
        return self._constrain(jnp.asarray(theta), list(self.parameters))

    def unconstrain(self, params: Mapping[str, Any]) -> jax.Array:
        """The theta (dim,) of named parameters on the natural scale."""
        self._check_names(params, complete=True)
        parts = []
        for name, parameter in self.parameters.items():
            value = jnp.asarray(params[name], dtype=jnp.result_type(float))
            if value.shape != parameter.shape:
                raise ModelError(f"Parameter {name!r} has shape {parameter.shape}; {value.shape} was given.")
            parts.append((value if parameter.is_real else parameter.bijection._inverse(value)).ravel())
        return jnp.concatenate(parts)

    # Many draws, in float64 on the host.

    def constrain_draws(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Natural parameters and derived quantities of draws.

        Parameters
        ----------
        theta : array, (draw, dim)

        Returns
        -------
        dict of float64 arrays (draw, *shape)
            Real parameters are exact copies of their columns; the others are computed in float64, derived
            quantities in JAX's own precision.
        """
        theta = self._check_draws(theta, self.dim)
        natural = self.natural(theta)
        if self.derived_function is None or len(theta) == 0:
            return natural
        derived = _blockwise(self._derived_program, theta, nullcontext())
        return natural | {name: derived[name] for name in self.derived_names}

    def natural_vector(self, theta: np.ndarray) -> np.ndarray:
        """Draws on the natural scale as one matrix (draw, natural_dim), columns as in `natural_names`.

        Only the free entries of a parameter are there (a simplex without its last entry, the lower triangle of a
        matrix), so that affine maps keep what the support fixes and covariances can be inverted.
        """
        natural = self.natural(self._check_draws(theta, self.dim))
        return np.concatenate([p.free.take(natural[name]) for name, p in self.parameters.items()], axis=1)

    def unconstrained_vector(self, natural: np.ndarray) -> np.ndarray:
        """The inverse of `natural_vector`; a draw outside the support becomes a row of NaN."""
        natural = self._check_draws(natural, self.natural_dim)
        ends = np.cumsum([p.free.size for p in self.parameters.values()])
        parts = np.split(natural, ends[:-1], axis=1)
        pairs = zip(self.parameters.items(), parts, strict=True)
        values = {name: p.free.complete(part) for (name, p), part in pairs}
        theta = np.empty((len(natural), self.dim))
        for name in self._names_of(real=True):
            theta[:, self._slices[name]] = values[name].reshape(len(theta), -1)
        transformed = self._names_of(real=False)
        if transformed and len(theta):
            natural_values = {name: values[name] for name in transformed}
            unconstrained = _blockwise(self._unconstrain_program, natural_values, double_precision())
            for name, columns in unconstrained.items():
                theta[:, self._slices[name]] = columns
        theta[~np.isfinite(theta).all(axis=1)] = np.nan
        return theta

    # What the model consists of.

    @cached_property
    def names(self) -> list[str]:
        """One name per coordinate of theta; where a support has fewer coordinates than entries, its free entries."""
        names = []
        for name, parameter in self.parameters.items():
            opaque = parameter.free.kind == "opaque"
            names += [f"{name}~{i}" for i in range(parameter.size)] if opaque else parameter.free.labels(name)
        return names

    @cached_property
    def natural_names(self) -> list[str]:
        """One name per column of `natural_vector`."""
        return [label for name, parameter in self.parameters.items() for label in parameter.free.labels(name)]

    @cached_property
    def derived_names(self) -> list[str]:
        """Names of the derived quantities, in the order of the function that returns them."""
        names: list[str] = []
        if self.derived_function is not None:
            derived = self.derived_function
            # Read inside, because a dict that leaves a JAX program is sorted.
            jax.eval_shape(lambda theta: names.extend(derived(self.constrain(theta))), self.initial)
        return names

    @property
    def holds_arrays(self) -> bool:
        """Whether its densities hold NumPy arrays, as far as is known: see `Rewritten`."""
        parts = [self._log_likelihood] + ([] if self.log_prior_function is None else [self._log_prior])
        return any(part.holds_arrays is not False for part in parts)

    @property
    def natural_dim(self) -> int:
        """Columns of `natural_vector`; equal to `dim` for every support that has a name."""
        return len(self.natural_names)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of parameters and functions by content, the same in every session."""
        described = [(name, parameter.describe()) for name, parameter in self.parameters.items()]
        functions = (self.log_likelihood_function, self.log_prior_function, self.derived_function)
        return fingerprint(described, *functions)

    def __repr__(self) -> str:
        described = ", ".join(
            f"{name}: {parameter.describe()}" for name, parameter in self.parameters.items()
        )
        return f"Model({described})"

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (
            self.log_likelihood_function,
            self.log_prior_function,
            self.parameters,
            self.derived_function,
        )
        return _restore, (self._token, *arguments, self.initial)

    # Internals.

    @cached_property
    def _log_likelihood(self) -> Rewritten:
        return Rewritten(self.log_likelihood_function)

    @cached_property
    def _log_prior(self) -> Rewritten:
        assert self.log_prior_function is not None
        return Rewritten(self.log_prior_function)

    @cached_property
    def _derived(self) -> Rewritten:
        assert self.derived_function is not None
        return Rewritten(self.derived_function)

    def _constrain(self, theta: jax.Array, names: list[str]) -> Params:
        params = {}
        for name in names:
            parameter = self.parameters[name]
            x = theta[self._slices[name]].reshape(parameter.unconstrained_shape)
            params[name] = x if parameter.is_real else parameter.bijection(x)
        return params

    def natural(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Natural parameters of draws (draw, dim), those with real support without any arithmetic."""
        transformed = self._names_of(real=False)
        values = (
            _blockwise(self._constrain_program, theta, double_precision())
            if transformed and len(theta)
            else {}
        )
        for name, parameter in self.parameters.items():
            if name not in values:
                values[name] = theta[:, self._slices[name]].reshape(len(theta), *parameter.shape)
        return {name: values[name] for name in self.parameters}

    @cached_property
    def _constrain_program(self) -> Callable[[Any], Any]:
        names = self._names_of(real=False)
        return jax.jit(jax.vmap(lambda theta: self._constrain(theta, names)))

    @cached_property
    def _derived_program(self) -> Callable[[Any], Any]:
        return jax.jit(jax.vmap(lambda theta: dict(self._derived(self.constrain(theta)))))

    @cached_property
    def _unconstrain_program(self) -> Callable[[Any], Any]:
        def one(values: Params) -> Params:
            theta = {}
            for name, value in values.items():
                parameter = self.parameters[name]
                inside = jnp.all(parameter.constraint(value))
                theta[name] = jnp.where(inside, parameter.bijection._inverse(value), jnp.nan).ravel()
            return theta

        return jax.jit(jax.vmap(one))

    def _names_of(self, *, real: bool) -> list[str]:
        return [name for name, parameter in self.parameters.items() if parameter.is_real == real]

    def _check_draws(self, draws: np.ndarray, columns: int) -> np.ndarray:
        draws = np.asarray(draws, dtype=np.float64)
        if draws.ndim != 2 or draws.shape[1] != columns:
            raise ModelError(f"Draws must have shape (draw, {columns}); {draws.shape} was given.")
        return draws

    def _check_names(self, given: Mapping[str, Any], *, complete: bool) -> None:
        for name in given:
            if name not in self.parameters:
                raise ModelError(str(unknown("parameter", name, self.parameters)))
        missing = [name for name in self.parameters if name not in given]
        if complete and missing:
            raise ModelError(f"Values of {', '.join(missing)} are missing: give one for every parameter.")

    def _initial(self, given: Mapping[str, Any]) -> np.ndarray:
        self._check_names(given, complete=False)
        if not given:
            return np.zeros(self.dim)
        with double_precision():
            start = self.constrain(np.zeros(self.dim)) | dict(given)
            theta = np.asarray(self.unconstrain(start), dtype=np.float64)
        for name, part in self._slices.items():
            if not np.isfinite(theta[part]).all():
                raise ModelError(
                    f"initial[{name!r}] is not inside the support ({self.parameters[name].describe()}); "
                    f"{np.asarray(given[name]).tolist()} was given."
                )
        return theta


def _restore(
    token: str, log_likelihood: Any, log_prior: Any, parameters: Any, derived: Any, initial: Any
) -> Model:
    """The model that was pickled: the very same object if it still lives in this process."""
    model = _models.get(token)
    if model is None:
        model = Model(log_likelihood, log_prior, parameters, derived=derived)
        model.initial, model._token = initial, token
        _models[token] = model
    return model


def _blockwise(
    program: Callable[[Any], dict[str, Any]], draws: Any, precision: AbstractContextManager[Any]
) -> dict[str, np.ndarray]:
    """A program over draws, block by block; the last block is padded so that it is compiled once."""
    total = len(jax.tree.leaves(draws)[0])
    block = min(total, BLOCK)
    with precision:
        parts = [
            jax.tree.map(lambda a: np.asarray(a, dtype=np.float64), program(chunk))
            for chunk in _chunks(draws, total, block)
        ]
    return {name: np.concatenate([part[name] for part in parts])[:total] for name in parts[0]}


def _chunks(draws: Any, total: int, block: int) -> Iterator[Any]:
    for start in range(0, total, block):
        index = np.minimum(np.arange(start, start + block), total - 1)
        yield jax.tree.map(lambda a, index=index: a[index], draws)
