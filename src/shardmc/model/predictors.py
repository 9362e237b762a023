"""Derivatives of a likelihood by its linear predictors: few of every row, whatever the number of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shardmc.model.faster import products
from shardmc.model.shared import Numbers, SharedDensity, fill
from shardmc.model.steps import RunStep, form, needed, primitives, run_step
from shardmc.types import Rows, Tree

_MOST = 4
"""Predictors and single parameters with derivatives of their own."""

_SELECT = ("slice", "reshape", "squeeze", "transpose")
_LINEAR = (
    *_SELECT,
    "broadcast_in_dim",
    "convert_element_type",
    "concatenate",
    "neg",
    "add",
    "sub",
    "reduce_sum",
)
_BILINEAR = ("mul", "dot_general")
_ROW_BY_ROW = """
    abs add add_any and atan2 cbrt ceil clamp convert_element_type copy copy_p acos acosh asin asinh atan atanh
    cos cosh sin sinh tan tanh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac
    integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not or polygamma pow
    bessel_i0e bessel_i1e regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sqrt square sub stop_gradient xor zeta
    broadcast_in_dim concatenate expand_dims reshape squeeze
    reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum
    jit pjit closed_call checkpoint custom_jvp_call custom_vjp_call
"""
"""Steps that leave rows in their order. For a call, the steps that it calls must do so too."""


@dataclass(frozen=True)
class RowDerivatives:
    """Log-likelihoods of rows, with first and second derivatives along linear predictors and single parameters.

    Row j's log-likelihood is a function of the predictors x_j^T beta and perhaps of a few parameters themselves, such
    as log sigma. `along[a]` is the derivative of the a-th of these along the coordinates of a frame.
    """

    values: jax.Array  # (row,)
    slopes: list[jax.Array]  # (row,) each
    bends: dict[tuple[int, int], jax.Array]  # a <= b: (row,) each
    along: list[jax.Array]  # (row, dim), or (1, dim) for a single parameter
    moved: Callable[[Sequence[jax.Array]], jax.Array]
    """moved(steps): log-likelihoods (row,) where predictors and single parameters are moved by these steps."""

    def gradient(self, weights: jax.Array) -> jax.Array:
        """Of the weighted sum, (dim,)."""
        each = zip(self.along, self.slopes, strict=True)
        return sum((_summed(weights * slope, along) for along, slope in each), start=jnp.zeros(()))

    def hessian(self, weights: jax.Array) -> jax.Array:
        """Of the weighted sum, (dim, dim)."""
        total = jnp.zeros(())
        for (a, b), bend in self.bends.items():
            one, two = self.along[a], self.along[b]
            if len(one) == 1:
                part = one.T * _summed(weights * bend, two)
            elif len(two) == 1:
                part = _summed(weights * bend, one)[:, None] * two
            else:
                part = lax.dot_general((weights * bend)[:, None] * one, two, (((0,), (0,)), ((), ())))
            total = total + (part if a == b else part + part.T)
        return total

    def by_row(self) -> tuple[jax.Array, jax.Array]:
        """First and second derivatives of every row along each coordinate, (row, dim) both."""
        slopes = sum(
            (slope[:, None] * along for slope, along in zip(self.slopes, self.along, strict=True)),
            start=jnp.zeros(()),
        )
        bends = sum(
            (
                (1 if a == b else 2) * bend[:, None] * self.along[a] * self.along[b]
                for (a, b), bend in self.bends.items()
            ),
            start=jnp.zeros(()),
        )
        return slopes, bends

    def towards(self, step: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """First and second derivatives (row,) along a step (dim,) of the frame, and the values ahead and behind."""
        steps = [step @ along.T for along in self.along]
        first = sum(
            (slope * part for slope, part in zip(self.slopes, steps, strict=True)), start=jnp.zeros(())
        )
        second = sum(
            ((1 if a == b else 2) * bend * steps[a] * steps[b] for (a, b), bend in self.bends.items()),
            start=jnp.zeros(()),
        )
        parts = [part[0] if len(part) == 1 else part for part in steps]
        return first, second, self.moved(parts), self.moved([-part for part in parts])


def _summed(weights: jax.Array, along: jax.Array) -> jax.Array:
    return jnp.sum(weights) * along[0] if len(along) == 1 else weights @ along


def row_derivatives(model: object, theta: jax.Array, basis: jax.Array, rows: Rows) -> RowDerivatives | None:
    """Derivatives at theta along the columns of a basis, (dim, dim).

    None if the model is not known as steps, or if it has no linear predictor, too many, or too many other parameters.
    """
    if not isinstance(model, SharedDensity) or model.likelihood is None or model.numbers is None:
        return None
    numbers = model.numbers[1]
    assert numbers is not None
    closed = model.likelihood.program(theta, rows)
    found = _predictors(closed.jaxpr, len(theta))
    if found is None:
        return None
    return _ByPredictors(closed, numbers, *found).at(theta, basis, rows)


@dataclass(frozen=True)
class _ByPredictors:
    """A likelihood as a function of its predictors and of the parameters that count by themselves."""

    closed: ClosedJaxpr
    numbers: Numbers
    places: Sequence[int]
    """Of the steps that compute linear predictors."""
    others: Sequence[int]
    """Parameters that count by themselves, too."""

    def at(self, theta: jax.Array, basis: jax.Array, rows: Rows) -> RowDerivatives:
        leaves = jax.tree.leaves(rows)
        factors = {place: self._factors(place, theta, leaves) for place in self.places}
        predictors = [run_step(self._step(place), factors[place])[0] for place in self.places]
        shift = jnp.zeros((), theta.dtype)
        point = [*predictors, *[shift] * len(self.others)]

        def values(point: Sequence[jax.Array]) -> jax.Array:
            count = len(predictors)
            given = {place: _constant(value) for place, value in zip(self.places, point[:count], strict=True)}
            moved = theta
            for k, other in enumerate(self.others):
                moved = moved + point[count + k] * np.eye(len(theta), dtype=theta.dtype)[other]
            (result,) = fill(self.closed, self.numbers, [moved, *leaves], given)
            return result

        def along(of: Callable[[Sequence[jax.Array]], Tree], k: int) -> Callable[[Sequence[jax.Array]], Tree]:
            """A function with its derivative along the k-th of these."""

            def both(point: Sequence[jax.Array]) -> Tree:
                return jax.jvp(
                    lambda value: of([*point[:k], value, *point[k + 1 :]]),
                    (point[k],),
                    (jnp.ones_like(point[k]),),
                )

            return both

        slopes, bends, found = [], {}, None
        for a in range(len(point)):
            for b in range(a, len(point)):
                (found, slope), (_, bend) = along(along(values, a), b)(point)
                bends[a, b] = bend
                if a == b:
                    slopes.append(slope)
        assert found is not None
        directions = [self._along(place, factors[place][0], theta, basis, leaves) for place in self.places]
        lines = [*directions, *(basis[k][None] for k in self.others)]

        def moved(steps: Sequence[jax.Array]) -> jax.Array:
            return values([here + step for here, step in zip(point, steps, strict=True)])

        return RowDerivatives(found, slopes, bends, lines, moved)

    def _step(self, place: int) -> JaxprEqn:
        return self.closed.jaxpr.eqns[place]

    def _factors(self, place: int, theta: jax.Array, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        """The factors of a product: the matrix of rows, and the coefficients, which are linear in theta."""
        return fill(self.closed, self.numbers, [theta, *leaves], until=place)

    def _along(
        self, place: int, matrix: jax.Array, theta: jax.Array, basis: jax.Array, leaves: Sequence[jax.Array]
    ) -> jax.Array:
        """The derivative (row, dim) of a predictor along the columns of the basis."""

        def coefficients(direction: jax.Array) -> jax.Array:
            return jax.jvp(lambda t: self._factors(place, t, leaves)[1], (theta,), (direction,))[1]

        each = jax.vmap(coefficients, in_axes=1, out_axes=1)(basis)
        params = self._step(place).params
        how = {name: params[name] for name in ("precision", "preferred_element_type")}
        return lax.dot_general(matrix, each, params["dimension_numbers"], **how)


def _constant(value: jax.Array) -> RunStep:
    return lambda step, values: [value]


def _predictors(program: Jaxpr, dim: int) -> tuple[list[int], list[int]] | None:
    """Places of the linear predictors, and the other parameters of the result; None if using them does not pay.

    A linear predictor multiplies a matrix with one row for each row of the data by coefficients linear in theta.
    """
    linear, of_rows = _linear(program), _depending(program.invars[1:], program)
    used = set(map(id, needed(program)))
    places = [
        place
        for place in products(program)
        if _is_predictor(step := program.eqns[place], program)
        and id(step) in used
        and step.invars[0] in of_rows
        and step.invars[1] in linear
        and _stays_in_order(step, program)
    ]
    others = _parameters_of_result(program, dim, places)
    count = len(places) + len(others)
    pays = places and count <= _MOST and count * (count + 1) // 2 <= dim
    return (places, others) if pays else None


def _is_predictor(step: JaxprEqn, program: Jaxpr) -> bool:
    """Whether this is the product of a matrix and a vector, with one entry for each result."""
    shapes = [form(atom).shape for atom in (*step.invars, *step.outvars, *program.outvars)]
    matrix, vector, product, result = shapes
    return (len(matrix), len(vector)) == (2, 1) and product == result


def _depending(variables: Sequence[Var], program: Jaxpr) -> set[Var]:
    """The variables of a program that depend on some of them."""
    found = set(variables)
    for step in program.eqns:
        if any(atom in found for atom in step.invars if not isinstance(atom, Literal)):
            found.update(step.outvars)
    return found


def _stays_in_order(product: JaxprEqn, program: Jaxpr) -> bool:
    """Whether entry j of the result depends on no other entry than j of a product."""
    after = _depending(product.outvars, program)
    steps = [s for s in program.eqns if any(a in after for a in s.invars if not isinstance(a, Literal))]
    names = frozenset(_ROW_BY_ROW.split())
    return all(name in names for step in steps for name in primitives(step))


def _linear(program: Jaxpr) -> set[Var]:
    """The variables that are linear functions of theta, if rows are given."""
    linear, of_theta = set(program.invars[:1]), _depending(program.invars[:1], program)
    for step in program.eqns:
        depending = [atom for atom in step.invars if not isinstance(atom, Literal) and atom in of_theta]
        if not depending or not all(map(_is_real, step.outvars)):
            continue
        name = step.primitive.name
        alone = len(depending) == 1 and (
            name in _BILINEAR or (name == "div" and depending[0] is step.invars[0])
        )
        if (name in _LINEAR or alone) and all(atom in linear for atom in depending):
            linear.update(step.outvars)
    return linear


def _is_real(variable: Var) -> bool:
    return jnp.issubdtype(form(variable).dtype, jnp.floating)


def _parameters_of_result(program: Jaxpr, dim: int, given: Sequence[int]) -> list[int]:
    """The parameters of which the result is a function if some steps are given. It may be fewer than these."""
    selected: dict[Var, np.ndarray] = {program.invars[0]: np.arange(dim)}  # entries of theta
    mixed: dict[Var, frozenset[int]] = {}
    for place, step in enumerate(program.eqns):
        inputs = [atom for atom in step.invars if not isinstance(atom, Literal)]
        if place in given:
            continue
        if step.primitive.name in _SELECT and inputs and inputs[0] in selected and len(inputs) == 1:
            selected[step.outvars[0]] = _selected(step, selected[inputs[0]])
            continue
        found = _entries(inputs, selected, mixed)
        if found:
            mixed.update(dict.fromkeys(step.outvars, found))
    results = [atom for atom in program.outvars if not isinstance(atom, Literal)]
    return sorted(_entries(results, selected, mixed))


def _entries(
    atoms: Sequence[Var], selected: Mapping[Var, np.ndarray], mixed: Mapping[Var, frozenset[int]]
) -> frozenset[int]:
    found: set[int] = set()
    for atom in atoms:
        found.update(selected[atom].ravel().tolist() if atom in selected else mixed.get(atom, ()))
    return frozenset(found)


def _selected(step: JaxprEqn, entries: np.ndarray) -> np.ndarray:
    """The entries of theta that a step selects from others."""
    params = step.params
    if step.primitive.name == "slice":
        strides = params["strides"] or (1,) * entries.ndim
        ranges = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        return entries[tuple(slice(*each) for each in ranges)]
    if step.primitive.name == "transpose":
        return entries.transpose(params["permutation"])
    if step.primitive.name == "reshape" and params["dimensions"] is not None:  # order="F"
        entries = entries.transpose(params["dimensions"])
    return entries.reshape(form(step.outvars[0]).shape)
