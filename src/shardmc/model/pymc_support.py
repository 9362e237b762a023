"""The supports of a PyMC model's variables, with PyMC's own transforms as their bijections."""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import Transform

from shardmc.model.pymc_translate import Translated


@final
class PyMCBijection(Transform):
    """From the unconstrained scale to the natural one, as PyMC transforms a variable."""

    def __init__(
        self, backward: Translated, forward: Translated, unconstrained_shape: tuple[int, ...]
    ) -> None:
        self._backward = backward  # unconstrained -> natural, log Jacobian
        self._forward = forward  # natural -> unconstrained
        self._unconstrained_shape = unconstrained_shape
        self.fingerprint = backward.fingerprint

    def __call__(self, x: Any) -> jax.Array:
        return self._backward(x)[0]

    def call_with_intermediates(self, x: Any) -> tuple[jax.Array, jax.Array]:
        natural, log_jacobian = self._backward(x)
        return natural, log_jacobian

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> jax.Array:
        return self._backward(x)[1] if intermediates is None else intermediates

    def _inverse(self, y: Any) -> jax.Array:
        return self._forward(y)[0]

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self._unconstrained_shape

    def tree_flatten(self) -> Any:
        return (), ((), vars(self))


@final
class PyMCSupport(constraints.Constraint):
    """The image of a PyMC transform; its structure is that of NumPyro's constraint `like` where there is one."""

    def __init__(self, bijection: PyMCBijection, like: Any = None) -> None:
        self._bijection = bijection
        self.fingerprint = bijection.fingerprint
        if like is not None:
            self.base_constraint = like

    def __call__(self, x: Any) -> jax.Array:
        inside = jnp.all(jnp.isfinite(self._bijection._inverse(x)))
        like = getattr(self, "base_constraint", None)
        return inside if like is None else inside & jnp.all(like(x))

    def tree_flatten(self) -> Any:
        return (), ((), vars(self))


@biject_to.register(PyMCSupport)
def _bijection_of(support: PyMCSupport) -> PyMCBijection:
    return support._bijection


def structure_of(transform: Any) -> Any:
    """NumPyro's constraint with the same free entries as what a PyMC transform makes; None if all are free.

    A transform with fewer unconstrained coordinates than entries that is not known here is still exact; its
    coordinates are numbered, not named.
    """
    match type(transform).__name__:
        case "SimplexTransform":
            return constraints.simplex
        case "ZeroSumTransform":
            axes = sorted(transform.zerosum_axes)
            return constraints.zero_sum(len(axes)) if axes == list(range(-len(axes), 0)) else None
        case _:
            return None
