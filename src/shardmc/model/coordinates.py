"""Named parameters as one unconstrained vector theta: between the two scales, for one theta or for many draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import ModelError, unknown
from shardmc.model.parameter import Parameter, ParameterLike, as_parameters
from shardmc.model.precision import double_precision
from shardmc.programs.compiled import jit
from shardmc.types import Params, Tree

BLOCK = 8192
"""Number of draws transformed at once, so that memory does not grow with the number of draws."""


class Coordinates:
    """The parameters of a model, and theta (dim,), which stacks them on the unconstrained scale.

    Examples
    --------
    >>> coordinates = Coordinates({"mu": (), "sigma": "positive"})
    >>> coordinates.names
    ['mu', 'sigma']
    >>> coordinates.natural_vector(np.zeros((1, 2))).tolist()
    [[0.0, 1.0]]
    """

    def __init__(self, parameters: Mapping[str, ParameterLike]) -> None:
        self.parameters: dict[str, Parameter] = as_parameters(parameters)
        sizes = [p.size for p in self.parameters.values()]
        ends = np.cumsum(sizes).tolist()
        self._slices = {
            name: slice(end - n, end) for name, end, n in zip(self.parameters, ends, sizes, strict=True)
        }
        self.dim: int = ends[-1]
        if self.dim == 0:
            raise ModelError("The model has no free parameter: a simplex of one entry is always 1.")
        self.names: list[str] = []
        """One name per coordinate of theta. Where a support has fewer coordinates than entries: its free entries."""
        for name, parameter in self.parameters.items():
            opaque = parameter.free.kind == "opaque"
            labels = [f"{name}~{i}" for i in range(parameter.size)] if opaque else parameter.free.labels(name)
            self.names += labels

    # Names.

    @cached_property
    def natural_names(self) -> list[str]:
        """One name per column of `natural_vector`."""
        return [label for name, parameter in self.parameters.items() for label in parameter.free.labels(name)]

    @property
    def natural_dim(self) -> int:
        """Number of columns of `natural_vector`; equal to `dim` for every support that has a name."""
        return len(self.natural_names)

    # One theta between the unconstrained and the natural scale, traceable by JAX.

    def constrain(self, theta: jax.Array | np.ndarray) -> dict[str, jax.Array]:
        """Named parameters on the natural scale at theta (dim,)."""
        return self._constrain(jnp.asarray(theta), list(self.parameters))

    def unconstrain(self, params: Params) -> jax.Array:
        """The theta (dim,) of named parameters on the natural scale."""
        self._check_names(params)
        missing = [name for name in self.parameters if name not in params]
        if missing:
            raise ModelError(f"Values of {', '.join(missing)} are missing: give one for every parameter.")
        parts = []
        for name, parameter in self.parameters.items():
            value = jnp.asarray(params[name], dtype=jnp.result_type(float))
            if value.shape != parameter.shape:
                raise ModelError(f"Parameter {name!r} has shape {parameter.shape}; {value.shape} was given.")
            parts.append(jnp.ravel(value if parameter.is_real else parameter.bijection.inv(value)))
        return jnp.concatenate(parts)

    def constrain_with_jacobian(self, theta: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        """Named parameters on the natural scale, and log |d natural / d theta|."""
        params: dict[str, jax.Array] = {}
        total = jnp.zeros((), theta.dtype)
        for name, parameter in self.parameters.items():
            x = theta[self._slices[name]].reshape(parameter.unconstrained_shape)
            if parameter.is_real:
                params[name] = x
                continue
            value, intermediates = parameter.bijection.call_with_intermediates(x)
            log_jacobian = parameter.bijection.log_abs_det_jacobian(x, value, intermediates)
            params[name] = jnp.asarray(value)
            total = total + jnp.sum(log_jacobian)
        return params, total

    # Many draws, in float64 on the host.

    def natural(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Natural parameters of draws (draw, dim). Those with real support are exact copies."""
        transformed = self._names_of(real=False)
        values = (
            blockwise(self._constrain_program, theta, double_precision())
            if transformed and len(theta)
            else {}
        )
        for name, parameter in self.parameters.items():
            if name not in values:
                values[name] = theta[:, self._slices[name]].reshape(len(theta), *parameter.shape)
        return {name: values[name] for name in self.parameters}

    def natural_vector(self, theta: np.ndarray) -> np.ndarray:
        """Draws on the natural scale as one matrix (draw, natural_dim), columns as in `natural_names`.

        It holds only the free entries of a parameter (a simplex without its last entry, the lower triangle of a
        matrix). So affine maps keep what the support fixes, and covariances can be inverted.
        """
        natural = self.natural(self._check_draws(theta, self.dim))
        return np.concatenate([p.free.take(natural[name]) for name, p in self.parameters.items()], axis=1)

    def unconstrained_vector(self, natural: np.ndarray) -> np.ndarray:
        """The inverse of `natural_vector`. A draw outside the support becomes a row of NaN."""
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
            unconstrained = blockwise(self._unconstrain_program, natural_values, double_precision())
            for name, columns in unconstrained.items():
                theta[:, self._slices[name]] = columns
        theta[~np.isfinite(theta).all(axis=1)] = np.nan
        return theta

    # Internals.

    def _constrain(self, theta: jax.Array, names: list[str]) -> dict[str, jax.Array]:
        params = {}
        for name in names:
            parameter = self.parameters[name]
            x = theta[self._slices[name]].reshape(parameter.unconstrained_shape)
            params[name] = x if parameter.is_real else parameter.bijection(x)
        return params

    @cached_property
    def _constrain_program(self) -> Callable[[Tree], Tree]:
        names = self._names_of(real=False)
        return jit(jax.vmap(lambda theta: self._constrain(theta, names)))

    @cached_property
    def _unconstrain_program(self) -> Callable[[Tree], Tree]:
        def one(values: Params) -> dict[str, jax.Array]:
            theta = {}
            for name, value in values.items():
                parameter = self.parameters[name]
                inside = jnp.all(parameter.constraint(value))
                theta[name] = jnp.where(inside, parameter.bijection.inv(value), jnp.nan).ravel()
            return theta

        return jit(jax.vmap(one))

    def _names_of(self, *, real: bool) -> list[str]:
        return [name for name, parameter in self.parameters.items() if parameter.is_real == real]

    def _check_draws(self, draws: np.ndarray, columns: int) -> np.ndarray:
        draws = np.asarray(draws, dtype=np.float64)
        if draws.ndim != 2 or draws.shape[1] != columns:
            raise ModelError(f"Draws must have shape (draw, {columns}); {draws.shape} was given.")
        return draws

    def _check_names(self, given: Params) -> None:
        for name in given:
            if name not in self.parameters:
                raise ModelError(str(unknown("parameter", name, self.parameters)))

    def _initial(self, given: Params) -> np.ndarray:
        """The theta of a starting point on the natural scale; parameters left out start at the image of 0."""
        self._check_names(given)
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


def blockwise(
    program: Callable[[Tree], dict[str, jax.Array]], draws: Tree, precision: AbstractContextManager[None]
) -> dict[str, np.ndarray]:
    """Run a program over draws, block by block. The last block is padded, so that one program serves all."""
    total = len(jax.tree.leaves(draws)[0])
    block = min(total, BLOCK)
    with precision:
        parts = [
            jax.tree.map(lambda a: np.asarray(a, dtype=np.float64), program(chunk))
            for chunk in _chunks(draws, total, block)
        ]
    return {name: np.concatenate([part[name] for part in parts])[:total] for name in parts[0]}


def _chunks(draws: Tree, total: int, block: int) -> Iterator[Tree]:
    for start in range(0, total, block):
        index = np.minimum(np.arange(start, start + block), total - 1)
        yield jax.tree.map(lambda a, index=index: a[index], draws)
