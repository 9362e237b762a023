"""PyTensor graphs as JAX functions, and PyMC's transforms as NumPyro constraints."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import Transform

from shardmc.errors import ModelError

if TYPE_CHECKING:
    from pytensor.graph.fg import FunctionGraph

Variable: TypeAlias = Any
"""A variable of a PyTensor graph. PyTensor is imported only when there is a PyMC model."""


@final
class Translated:
    """A PyTensor graph as a function of JAX arrays.

    Shared variables that are not inputs keep their present values, or those in `fixed`.
    """

    def __init__(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        fixed: Mapping[Variable, np.ndarray] | None = None,
    ) -> None:
        self._graph = (list(inputs), _frozen(inputs, outputs, fixed or {}))
        self._function = _as_jax(*self._graph)

    def __call__(self, *arrays: ArrayLike) -> list[jax.Array]:
        with _quiet():
            return list(self._function(*map(jnp.asarray, arrays)))

    def __getstate__(self) -> dict[str, bytes]:
        import cloudpickle  # PyMC depends on it; plain pickle cannot handle its graphs

        return {"graph": cloudpickle.dumps(self._graph)}

    def __setstate__(self, state: dict[str, bytes]) -> None:
        import cloudpickle

        self._graph = cloudpickle.loads(state["graph"])
        self._function = _as_jax(*self._graph)


def roots(*graphs: Variable) -> list[Variable]:
    """The variables that graphs start from, each once: data, values of random variables, constants."""
    found, seen, waiting = [], set(), list(graphs)
    while waiting:
        variable = waiting.pop()
        if variable in seen:
            continue
        seen.add(variable)
        if variable.owner is None:
            found.append(variable)
        else:
            waiting += reversed(variable.owner.inputs)
    return found


def _frozen(
    inputs: Sequence[Variable], outputs: Sequence[Variable], fixed: Mapping[Variable, np.ndarray]
) -> list[Variable]:
    """The graphs with all shared variables except the inputs replaced by constants."""
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.replace import clone_replace
    from pytensor.tensor.basic import constant

    if not outputs:
        return []
    shared = [v for v in roots(*outputs) if isinstance(v, SharedVariable) and v not in inputs]
    values: dict[Variable, Variable] = {
        v: constant(fixed[v] if v in fixed else v.get_value()) for v in shared
    }
    return clone_replace(list(outputs), replace=values)


def _as_jax(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Callable[..., Sequence[jax.Array]]:
    if not outputs:
        return lambda *arrays: ()
    with _precision_kept(), _quiet():
        from pytensor.compile.mode import get_mode
        from pytensor.graph.fg import FunctionGraph
        from pytensor.link.jax.dispatch.basic import jax_funcify

        graph = FunctionGraph(inputs=list(inputs), outputs=list(outputs), clone=True)
        # As PyMC does for a log density: -inf for invalid parameters, because JAX cannot raise there.
        mode: Any = get_mode("JAX")
        _drop_zero_sum_checks(graph)
        mode.including("local_check_parameter_to_ninf_switch").optimizer.rewrite(graph)
        try:
            return jax_funcify(graph)
        except NotImplementedError as error:
            raise ModelError(
                f"The PyMC model cannot be computed by JAX ({str(error).splitlines()[0]}): write that part with "
                "operations of pytensor.tensor, or the model as functions for shardmc.Model."
            ) from None


def _drop_zero_sum_checks(graph: FunctionGraph) -> None:
    """Drop ZeroSumNormal's check that the mean is within 1e-9 of 0: float32 is not that exact, the transform is."""
    from pymc.logprob.utils import CheckParameterValue

    for node in graph.toposort():
        if isinstance(node.op, CheckParameterValue) and node.op.msg.startswith("mean(value"):
            graph.replace(node.outputs[0], node.inputs[0])


@contextmanager
def _precision_kept() -> Iterator[None]:
    """Undo what importing PyTensor's JAX functions does: it sets JAX's precision for the whole process."""
    before = jax.config.read("jax_enable_x64")
    try:
        yield
    finally:
        if jax.config.read("jax_enable_x64") != before:
            jax.config.update("jax_enable_x64", before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings that PyTensor asks for float64 where JAX uses float32, and that JAX skips assertions."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Explicitly requested dtype", category=UserWarning)
        warnings.filterwarnings("ignore", message="Skipping", category=UserWarning)
        yield


# Supports.


@final
class PyMCBijection(Transform):
    """PyMC's transform of a variable, from the unconstrained to the natural scale."""

    def __init__(
        self, backward: Translated, forward: Translated, unconstrained_shape: tuple[int, ...]
    ) -> None:
        self._backward = backward  # unconstrained -> natural, log Jacobian
        self._forward = forward  # natural -> unconstrained
        self._unconstrained_shape = unconstrained_shape

    def __call__(self, x: ArrayLike) -> jax.Array:
        return self._backward(x)[0]

    def call_with_intermediates(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        natural, log_jacobian = self._backward(x)
        return natural, log_jacobian

    def log_abs_det_jacobian(
        self, x: ArrayLike, y: ArrayLike, intermediates: jax.Array | None = None
    ) -> jax.Array:
        return self._backward(x)[1] if intermediates is None else intermediates

    def _inverse(self, y: ArrayLike) -> jax.Array:
        # NumPyro documents no other way to define the inverse of a transform: `Transform.inv` calls this one.
        return self._forward(y)[0]

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self._unconstrained_shape

    def tree_flatten(self) -> tuple[tuple[()], tuple[tuple[()], dict[str, object]]]:  # NumPyro requires it
        return (), ((), vars(self))


@final
class PyMCSupport(constraints.Constraint):
    """The image of a PyMC transform. Its free entries are those of NumPyro's constraint `like`, if given."""

    def __init__(self, bijection: PyMCBijection, like: constraints.Constraint | None = None) -> None:
        self._bijection = bijection
        if like is not None:
            self.base_constraint = like

    def __call__(self, x: ArrayLike) -> jax.Array:
        inside = jnp.all(jnp.isfinite(self._bijection.inv(x)))
        like = getattr(self, "base_constraint", None)
        return inside if like is None else inside & jnp.all(like(x))

    def tree_flatten(self) -> tuple[tuple[()], tuple[tuple[()], dict[str, object]]]:  # NumPyro requires it
        return (), ((), vars(self))


@biject_to.register(PyMCSupport)
def _bijection_of(support: PyMCSupport) -> PyMCBijection:
    return support._bijection


def similar_constraint(transform: object) -> constraints.Constraint | None:
    """NumPyro's constraint with the same free entries as the values of a PyMC transform; None if all are free.

    Draws are exact also for a transform that is not known here. If it has fewer unconstrained coordinates than
    entries, its coordinates have numbers instead of names.
    """
    from pymc.distributions.transforms import SimplexTransform, ZeroSumTransform

    if isinstance(transform, SimplexTransform):
        return constraints.simplex
    if isinstance(transform, ZeroSumTransform):
        axes = sorted(transform.zerosum_axes)
        return constraints.zero_sum(len(axes)) if axes == list(range(-len(axes), 0)) else None
    return None
