"""A model: log prior, log-likelihood per row, and named parameters as one unconstrained vector theta."""

from __future__ import annotations

import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Protocol, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import ModelError
from shardmc.model.coordinates import Coordinates, blockwise
from shardmc.model.effects import GroupEffects
from shardmc.model.fingerprint import fingerprint
from shardmc.model.parameter import Parameter, ParameterLike
from shardmc.model.precision import Rewritten
from shardmc.model.traced import few_rows, traced_fingerprint
from shardmc.model.user_functions import WatchedDict, num_rows
from shardmc.model.variables import Variable, named_axes
from shardmc.programs.compiled import jit
from shardmc.types import Params, Rows, Tree


class Density(Protocol):
    """A log prior and a log-likelihood of rows, over one unconstrained vector."""

    @property
    def dim(self) -> int:
        """The length of the vector."""
        ...

    @property
    def names(self) -> list[str]:
        """One name per coordinate."""
        ...

    @property
    def initial(self) -> np.ndarray:
        """Where to look for the mode first, (dim,)."""
        ...

    def log_likelihood(self, theta: jax.Array, rows: Rows) -> jax.Array:
        """Log-likelihood of every row, (row,)."""
        ...

    def log_prior(self, theta: jax.Array) -> jax.Array:
        """Log prior, a number."""
        ...


_models: weakref.WeakValueDictionary[str, Model] = weakref.WeakValueDictionary()


class Recipe(ABC):
    """What `fit` takes as a model: its parameters may be unknown until there are rows to look at."""

    @abstractmethod
    def bind(self, rows: Rows) -> Model:
        """The model for rows of this structure (a small sample is enough): the same object for the same structure."""

    @abstractmethod
    def columns_used(self, rows: Mapping[str, Rows]) -> list[str]:
        """The columns of a table that the model reads, given a small sample of it; in the table's order."""


@final
class Model(Coordinates, Recipe):
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
        Where the search for the mode starts, on the natural scale. Parameters left out start at the image of 0.
    dims, coords : dict, optional
        Name of a parameter or derived quantity -> names of its axes, and name of an axis -> labels along it, as in
        PyMC and ArviZ: `dims={"beta": ["predictor"]}, coords={"predictor": ["age", "income"]}`. `posterior.tree` has
        them.
    local : dict, optional
        Effects that every group of rows has for itself, one to three, normal with mean 0: name -> its sd, as the name
        of a positive parameter, a number, or a function of the parameters. For correlated effects a tuple of names ->
        their covariance, as the name of a parameter (support "positive_definite", or "lower_cholesky" for its factor)
        or a function of the parameters. `log_likelihood` then takes a third argument, a dict of the effects of each
        row's group, one number per row. `shardmc.fit` integrates the effects out.
    groups : str, optional
        With `local`: the column whose values, whole numbers or text, name the group of each row.

    Notes
    -----
    Models are compared and hashed by identity. Unpickling a model in the process that pickled it returns the same
    object, because compiled programs are kept per model.

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

    Every clinic has an effect of its own:

    >>> clinics = Model(
    ...     lambda params, rows, effects: -0.5 * (rows["y"] - params["mu"] - effects["clinic"]) ** 2,
    ...     lambda params: -params["tau"],
    ...     {"mu": (), "tau": "positive"},
    ...     local={"clinic": "tau"},
    ...     groups="clinic_id",
    ... )
    >>> clinics.effects.names, clinics.effects.column
    (('clinic',), 'clinic_id')
    """

    def __init__(
        self,
        log_likelihood: Callable[..., jax.Array],
        log_prior: Callable[[dict[str, jax.Array]], jax.Array] | None,
        parameters: Mapping[str, ParameterLike],
        *,
        derived: Callable[[dict[str, jax.Array]], Mapping[str, jax.Array]] | None = None,
        initial: Params | None = None,
        dims: Mapping[str, Sequence[str] | str] | None = None,
        coords: Mapping[str, Sequence[object]] | None = None,
        local: Mapping[str | tuple[str, ...], object] | None = None,
        groups: str | None = None,
    ) -> None:
        for role, function in (
            ("log_likelihood", log_likelihood),
            ("log_prior", log_prior),
            ("derived", derived),
        ):
            if not callable(function) and (role == "log_likelihood" or function is not None):
                raise ModelError(f"{role} must be a function; {type(function).__name__} was given.")
        super().__init__(parameters)
        self.log_likelihood_function = log_likelihood
        self.log_prior_function = log_prior
        self.derived_function = derived
        self.initial: np.ndarray = self._initial(initial or {})
        shapes = {name: parameter.shape for name, parameter in self.parameters.items()}
        self.variables = named_axes(dims, coords, shapes, others=derived is not None)
        """Names and labels of the axes of its parameters, where there are any."""
        declared = local is not None or groups is not None
        self.effects = GroupEffects.of(local, groups, self.parameters) if declared else None
        """The effects of groups that are integrated out, if there are any."""
        self.shared_forms: dict[Hashable, tuple[Any, Tree]] = {}  # see `model.shared`
        self.numbers_are_fixed = False
        self._token = uuid.uuid4().hex
        _models[self._token] = self

    def bind(self, rows: Rows) -> Model:
        """The model for rows of this structure: itself. (A NumPyro model finds its parameters here.)"""
        del rows
        return self

    def columns_used(self, rows: Mapping[str, Rows]) -> list[str]:
        """The columns that the log-likelihood reads; all of them if that cannot be seen."""
        read: set[str] = set()
        params = jax.eval_shape(self.constrain, jax.ShapeDtypeStruct((self.dim,), jnp.result_type(float)))

        count = num_rows(rows)

        def watched(params: dict[str, jax.Array], columns: dict[str, Rows]) -> Tree:
            effects = () if self.effects is None else (self.effects.typical(params, count),)
            return self.log_likelihood_function(params, WatchedDict.of(columns, "column", read.add), *effects)

        try:
            jax.eval_shape(watched, params, dict(rows))
        except Exception:
            return list(rows)  # `validate` reports what is wrong with the function
        return [name for name in rows if name in read]

    # Effects of groups.

    def with_likelihood(self, log_likelihood: Callable[[dict[str, jax.Array], Rows], jax.Array]) -> Model:
        """A model without effects that has this likelihood; all else is the same."""
        model = Model(log_likelihood, self.log_prior_function, self.parameters, derived=self.derived_function)
        model.initial, model.variables = self.initial, self.variables
        return model

    def at_typical_effects(self, on_read: Callable[[str], None] | None = None) -> Model:
        """The model with all effects at a typical size, to try its functions on rows; itself if it has none."""
        effects, function = self.effects, self.log_likelihood_function
        if effects is None:
            return self

        def at_typical(params: Params, rows: Rows) -> jax.Array:
            typical = effects.typical(params, num_rows(rows))
            return function(params, rows, WatchedDict.of(typical, "effect", on_read) if on_read else typical)

        return self.with_likelihood(at_typical)

    # The densities, traceable by JAX.

    def log_likelihood(self, theta: jax.Array | np.ndarray, rows: Rows) -> jax.Array:
        """Log-likelihood of each row, (n,), at theta (dim,)."""
        return self._log_likelihood(self.constrain(theta), rows)

    def log_prior(self, theta: jax.Array | np.ndarray) -> jax.Array:
        """Log prior density of theta (dim,): that of the natural parameters plus the bijections' log Jacobian."""
        params, log_jacobian = self.constrain_with_jacobian(jnp.asarray(theta))
        return log_jacobian if self._log_prior is None else log_jacobian + self._log_prior(params)

    # Reported quantities.

    def constrain_draws(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Natural parameters and derived quantities of draws.

        Parameters
        ----------
        theta : array, (draw, dim)

        Returns
        -------
        dict of float64 arrays (draw, *shape)
            Real parameters are exact copies of their columns. The others are computed in float64, derived
            quantities in JAX's own precision.
        """
        theta = self._check_draws(theta, self.dim)
        natural = self.natural(theta)
        if self.derived_function is None or len(theta) == 0:
            return natural
        derived = blockwise(self._derived_program, theta, nullcontext())
        return natural | {name: derived[name] for name in self.derived_names}

    @cached_property
    def derived_names(self) -> list[str]:
        """Names of the derived quantities, in the order of the function that returns them."""
        names: list[str] = []
        if self.derived_function is not None:
            derived = self.derived_function
            # Read inside, because JAX sorts a dict that leaves a program.
            jax.eval_shape(lambda theta: names.extend(derived(self.constrain(theta))), self.initial)
        return names

    @cached_property
    def _derived_program(self) -> Callable[[jax.Array], dict[str, jax.Array]]:
        assert self.derived_function is not None
        derived = Rewritten(self.derived_function)
        return jit(jax.vmap(lambda theta: dict(derived(self.constrain(theta)))))

    # Identity.

    def fingerprint(self, rows: Rows) -> str:
        """A hash of what the model computes for rows of this structure, the same in every session.

        It covers the parameters, and the traced programs of prior, likelihood and derived quantities with all their
        constants, wherever these come from. Another version of JAX may trace the same functions differently.

        Parameters
        ----------
        rows
            Arrays, or shapes and types of arrays; only the structure of a row counts.

        Examples
        --------
        >>> def model(scale):
        ...     return Model(lambda params, y: -((y - params["mu"]) ** 2) / scale, None, {"mu": ()})
        >>> model(2.0).fingerprint(np.zeros(5)) == model(2.0).fingerprint(np.ones(9))
        True
        >>> model(2.0).fingerprint(np.zeros(5)) == model(3.0).fingerprint(np.zeros(5))
        False
        """
        described = [(name, parameter.describe()) for name, parameter in self.parameters.items()]
        theta = jax.ShapeDtypeStruct((self.dim,), np.float32)
        likelihood, prior, derived = (
            self.log_likelihood_function,
            self.log_prior_function,
            self.derived_function,
        )
        # What a formula does with the columns before the model sees them is in a text.
        parts = [getattr(likelihood, "fingerprint_text", "")]
        # The likelihood of groups is that of their rows, integrated over effects.
        of_rows = getattr(likelihood, "fingerprint_function", likelihood)
        parts.append(
            traced_fingerprint(
                lambda theta, rows: of_rows(self.constrain(theta), rows), theta, few_rows(rows)
            )
        )
        parts.append(traced_fingerprint(self.constrain_with_jacobian, theta))
        for function in (prior, derived):
            if function is not None:
                parts.append(traced_fingerprint(lambda theta, f=function: f(self.constrain(theta)), theta))
        return fingerprint(described, parts)

    def __repr__(self) -> str:
        described = ", ".join(
            f"{name}: {parameter.describe()}" for name, parameter in self.parameters.items()
        )
        return f"Model({described})"

    def __reduce__(self) -> tuple[object, ...]:
        arguments = (
            self.log_likelihood_function,
            self.log_prior_function,
            self.parameters,
            self.derived_function,
        )
        return _restore, (self._token, *arguments, self.initial, self.variables, self.effects)

    @cached_property
    def _log_likelihood(self) -> Rewritten:
        return Rewritten(self.log_likelihood_function)

    @cached_property
    def _log_prior(self) -> Rewritten | None:
        return None if self.log_prior_function is None else Rewritten(self.log_prior_function)


def _restore(
    token: str,
    log_likelihood: Callable[..., jax.Array],
    log_prior: Callable[[dict[str, jax.Array]], jax.Array] | None,
    parameters: Mapping[str, Parameter],
    derived: Callable[[dict[str, jax.Array]], Mapping[str, jax.Array]] | None,
    initial: np.ndarray,
    variables: tuple[Variable, ...],
    effects: GroupEffects | None,
) -> Model:
    """The model that was pickled: the same object if it still exists in this process."""
    model = _models.get(token)
    if model is None:
        model = Model(log_likelihood, log_prior, parameters, derived=derived)
        model.initial, model.variables, model.effects, model._token = initial, variables, effects, token
        _models[token] = model
    return model
