"""Steps of a model for which a CPU has a faster way than XLA's: products with parameters, and log(1 + x)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal
from jax.typing import ArrayLike

from shardmc.model.steps import Atom, RunStep, form, run_program, run_step
from shardmc.model.traced import RULE, is_of_jax
from shardmc.types import Tree


def products(program: Jaxpr) -> Mapping[int, RunStep]:
    """The steps of a function of theta (and rows) that multiply a matrix of rows by a vector of parameters.

    At many points, results are then stored point by point, in the order in which they are summed over rows. In the
    other order a CPU takes longer for values, but less for derivatives.
    """
    of_theta, found = set(program.invars[:1]), {}
    for place, step in enumerate(program.eqns):
        depends = [not isinstance(atom, Literal) and atom in of_theta for atom in step.invars]
        if any(depends):
            of_theta.update(step.outvars)
        if step.primitive.name == "dot_general" and depends == [False, True]:
            (_, summed), batched = step.params["dimension_numbers"]
            dims = len(form(step.invars[1]).shape)
            if not batched[0] and len(summed) == dims:
                found[place] = _parameters_first
    return found


def _parameters_first(step: JaxprEqn, values: Sequence[ArrayLike]) -> list[jax.Array]:
    """The same product with its factors exchanged, where no derivative is taken."""
    (of_rows, of_theta), batched = step.params["dimension_numbers"]
    precision = step.params["precision"]
    precision = precision[::-1] if isinstance(precision, tuple) else precision
    params = {**step.params, "dimension_numbers": ((of_theta, of_rows), batched), "precision": precision}

    @jax.custom_jvp
    def product(rows: ArrayLike, theta: ArrayLike) -> jax.Array:
        return step.primitive.bind(theta, rows, **params)

    @product.defjvp
    def _(primals: tuple[ArrayLike, ...], tangents: tuple[ArrayLike, ...]) -> tuple[jax.Array, jax.Array]:
        rows, theta = primals  # rows have no derivative
        return jax.jvp(lambda theta: run_step(step, [rows, theta])[0], (theta,), (tangents[1],))

    return [product(*values)]


def logarithms(program: Jaxpr) -> Mapping[int, RunStep]:
    """The steps of a program that compute log(1 + x) of many numbers in single precision, as `log1p` or as a sum.

    Without its library of fused kernels, XLA evaluates a quotient of two polynomials and a logarithm for every number,
    and then chooses. Here there is one polynomial, without powers of two if x is exp(-|a|), as in log(1 + exp(a)).
    Errors are smaller than XLA's.
    """
    found: dict[int, RunStep] = {}
    made_by = {id(variable): step for step in program.eqns for variable in step.outvars}
    for place, step in enumerate(program.eqns):
        name = step.primitive.name
        if name == "log1p" and _are_many(step.invars[0]):
            found[place] = partial(
                _computed_by, log1p_of_part if _is_part(step.invars[0], made_by) else log1p
            )
        elif name == "log" and _is_part(_less_one(step.invars[0], made_by), made_by):
            found[place] = partial(_computed_by, lambda x: log1p_of_part(x - 1))
        elif name == "custom_jvp_call" and is_of_jax(step.params[RULE]):
            inner = step.params["call_jaxpr"].jaxpr
            if any(
                way.args[0] is log1p_of_part for way in logarithms(inner).values() if isinstance(way, partial)
            ):
                found[place] = _with_its_derivative  # JAX's `logaddexp`
    return found


def _are_many(atom: Atom) -> bool:
    return form(atom).shape != () and form(atom).dtype == np.float32


def _is_part(atom: Atom | None, made_by: Mapping[int, JaxprEqn]) -> bool:
    """Whether numbers are exp(-|a|)."""
    for name in ("exp", "neg", "abs"):
        step = made_by.get(id(atom))
        if step is None or step.primitive.name != name:
            return False
        atom = step.invars[0]
    return _are_many(atom)


def _less_one(atom: Atom, made_by: Mapping[int, JaxprEqn]) -> Atom | None:
    """The x of 1 + x; None if the atom is something else."""
    step = made_by.get(id(atom))
    if step is None or step.primitive.name != "add":
        return None
    ones = [isinstance(each, Literal) and np.all(each.val == 1) for each in step.invars]
    return step.invars[ones.index(False)] if sum(ones) == 1 else None


def _computed_by(
    function: Callable[[ArrayLike], jax.Array], step: JaxprEqn, values: Sequence[ArrayLike]
) -> list[jax.Array]:
    return [function(*values)]


def _with_its_derivative(step: JaxprEqn, values: Sequence[ArrayLike]) -> list[ArrayLike]:
    """A function that has a derivative of its own: faster where no derivative is taken."""
    program = step.params["call_jaxpr"].jaxpr

    @jax.custom_jvp
    def function(*values: ArrayLike) -> list[ArrayLike]:
        return run_program(program, values, logarithms)

    @function.defjvp
    def _(primals: tuple[ArrayLike, ...], tangents: tuple[ArrayLike, ...]) -> tuple[Tree, Tree]:
        return jax.jvp(lambda *values: list(run_step(step, values)), primals, tangents)

    return function(*values)


# Polynomials of log(1 + x) / x, lowest power first: Chebyshev interpolation on [0, 1] and on [-1/4, 1/2].
_OF_PART = (
    *(1.0, -0.4999998, 0.33332497, -0.24986497, 0.1988582, -0.16087623),
    *(0.12377996, -0.081880406, 0.041006573, -0.013187827, 0.0019866966),
)
_NEAR_ZERO = (
    *(1.0, -0.49999997, 0.3333335, -0.25000307, 0.19999298, -0.16651577),
    *(0.14277673, -0.12765884, 0.117287934, -0.09004595, 0.036287867),
)
_FOUR, _THREE_QUARTERS, _EXPONENT = np.array([4, 0.75, -np.inf], np.float32).view(np.int32)
"""Bits of 4 and of 3/4, and a mask of sign and exponent."""


@jax.custom_jvp
def log1p_of_part(x: jax.Array) -> jax.Array:
    """log(1 + x) for 0 <= x <= 1, in single precision.

    >>> float(log1p_of_part(jnp.float32(1e-9))), round(float(log1p_of_part(jnp.float32(1))), 6)
    (9.999999717180685e-10, 0.693147)
    """
    return x * _polynomial(_OF_PART, x)


@jax.custom_jvp
def log1p(x: jax.Array) -> jax.Array:
    """log(1 + x) in single precision.

    With 2^k next to 1 + x, it is k log 2 + log(1 + r), where r = (1 + x) / 2^k - 1 is between -1/4 and 1/2. Computed as
    x / 2^k + (1 / 2^k - 1), r has the digits of x that 1 + x has not.

    >>> log1p(jnp.float32([-1, 1e-9, 1, jnp.inf])).tolist()
    [-inf, 9.999999717180685e-10, 0.6931471824645996, inf]
    """
    exponent = (_bits(1 + x) - _THREE_QUARTERS) & _EXPONENT
    rest = _number(_bits(x) - exponent) + (
        0.25 * _number(_FOUR - exponent) - 1
    )  # 1 / 2^k may be too small a number
    value = exponent.astype(jnp.float32) * np.float32(np.log(2) / 2**23) + rest * _polynomial(
        _NEAR_ZERO, rest
    )
    value = jnp.where(x < np.inf, value, x)
    return jnp.where(x > -1, value, jnp.where(x == -1, -np.float32(np.inf), np.float32(np.nan)))


for function in (log1p_of_part, log1p):

    @function.defjvp
    def _(
        primals: tuple[jax.Array], tangents: tuple[jax.Array], function: Callable = function
    ) -> tuple[jax.Array, jax.Array]:
        (x,), (change,) = primals, tangents
        return function(x), change / (1 + x)


def _bits(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, jnp.int32)


def _number(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits, jnp.float32)


def _polynomial(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + np.float32(coefficient)
    return value
