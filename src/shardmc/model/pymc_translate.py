"""PyTensor graphs as JAX functions, without what importing PyTensor's translations does to JAX's precision."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import ModelError


@final
class Translated:
    """A PyTensor graph as a function of JAX arrays, known by its content and not by its place in memory.

    Shared variables that are no inputs are taken at the values that they have now, or at those in `fixed`.
    """

    def __init__(
        self, inputs: Sequence[Any], outputs: Sequence[Any], fixed: Mapping[Any, np.ndarray] | None = None
    ) -> None:
        self._graph = (list(inputs), _frozen(inputs, outputs, fixed or {}))
        self.fingerprint = _content(*self._graph)
        self._function = _as_jax(*self._graph)

    def __call__(self, *arrays: Any) -> list[jax.Array]:
        with _quiet():
            return list(self._function(*map(jnp.asarray, arrays)))

    def __getstate__(self) -> dict[str, Any]:
        import cloudpickle  # PyMC brings it, and its graphs need it

        return {"graph": cloudpickle.dumps(self._graph), "fingerprint": self.fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        import cloudpickle

        self._graph = cloudpickle.loads(state["graph"])
        self.fingerprint = state["fingerprint"]
        self._function = _as_jax(*self._graph)


def roots(*graphs: Any) -> list[Any]:
    """The variables that graphs begin with, each once: data, values of random variables, constants."""
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


def _frozen(inputs: Sequence[Any], outputs: Sequence[Any], fixed: Mapping[Any, np.ndarray]) -> list[Any]:
    """The graphs with constants in the place of all shared variables but the inputs."""
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.replace import clone_replace
    from pytensor.tensor.basic import constant

    if not outputs:
        return []
    shared = [v for v in roots(*outputs) if isinstance(v, SharedVariable) and v not in inputs]
    values: dict[Any, Any] = {v: constant(fixed[v] if v in fixed else v.get_value()) for v in shared}
    return clone_replace(list(outputs), replace=values)


def _as_jax(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., Any]:
    if not outputs:
        return lambda *arrays: ()
    with _precision_kept(), _quiet():
        from pytensor.compile.mode import get_mode
        from pytensor.graph.fg import FunctionGraph
        from pytensor.link.jax.dispatch.basic import jax_funcify

        graph = FunctionGraph(inputs=list(inputs), outputs=list(outputs), clone=True)
        # As PyMC compiles a log density: -inf outside a distribution's parameters, where JAX cannot raise.
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


def _drop_zero_sum_checks(graph: Any) -> None:
    """ZeroSumNormal asks for a mean within 1e-9 of zero, which float32 cannot keep; the transform sees to it anyway."""
    from pymc.logprob.utils import CheckParameterValue

    for node in graph.toposort():
        if isinstance(node.op, CheckParameterValue) and node.op.msg.startswith("mean(value"):
            graph.replace(node.outputs[0], node.inputs[0])


@contextmanager
def _precision_kept() -> Iterator[None]:
    """Importing PyTensor's translations sets JAX's precision for the whole process; it is set back."""
    before = jax.config.read("jax_enable_x64")
    try:
        yield
    finally:
        if jax.config.read("jax_enable_x64") != before:
            jax.config.update("jax_enable_x64", before)


@contextmanager
def _quiet() -> Iterator[None]:
    """PyTensor asks for float64 also where JAX computes in float32, and says which assertions JAX cannot make."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Explicitly requested dtype", category=UserWarning)
        warnings.filterwarnings("ignore", message="Skipping", category=UserWarning)
        yield


def _content(inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
    """A hash of a graph's operations and constants, the same in every session."""
    from pytensor.graph.basic import Constant
    from pytensor.printing import debugprint

    digest = hashlib.sha256(" ".join(str(v.name) for v in inputs).encode())
    if outputs:
        digest.update(str(debugprint(list(outputs), file="str", print_type=True)).encode())
    # What is printed of a large constant is only its ends.
    for variable in roots(*outputs):
        if isinstance(variable, Constant) and isinstance(variable.data, np.ndarray):
            digest.update(np.ascontiguousarray(variable.data).tobytes())
    return digest.hexdigest()[:32]
