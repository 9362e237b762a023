"""Traced functions of NumPyro models: what does not depend on rows, and the values of groups that rows look up.

With one value for each row in place of one for each group, b[g] is the value itself. So a function of (group,) values
becomes one of (row,) values that has no lookups, which are slow to differentiate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.typing import ArrayLike

from shardmc.model.precision import type_of
from shardmc.model.steps import Atom, run_step
from shardmc.model.traced import hash_program
from shardmc.model.user_functions import TwoSamples, calling
from shardmc.programs.compiled import run_once
from shardmc.types import Params, Rows, Tree

Computed: TypeAlias = tuple[Params, Mapping[str, list[ArrayLike]], Params]
"""Log densities of sites, bounds of the supports of latent sites, and values of deterministic sites."""


@dataclass(frozen=True)
class Compared:
    """What stayed the same in two runs with different rows, or with different parameters."""

    bounds: dict[str, list[ArrayLike] | None]
    """Latent site -> the bounds of its support as numbers; None where these differ."""
    prior_constant: dict[str, bool]
    """Latent, observed and factor sites without an axis of rows."""
    constant: dict[str, bool]
    """Deterministic sites."""


def compare(
    run: Callable[[Params, Rows], Computed], here: Params, there: Params, samples: TwoSamples
) -> Compared:
    """Compare runs of a model at the same parameters with different rows, and at different parameters.

    If the traced steps are the same for both samples of rows, and the bounds are plain numbers, nothing is computed.
    """
    with calling("The NumPyro model"):
        (first, shape), (second, other) = (
            # New functions, because JAX keeps what it traced for a function as long as the function lives.
            jax.make_jaxpr(lambda params, rows=rows: run(params, rows), return_shape=True)(here)
            for rows in (samples.first, samples.second)
        )
        densities, _, values = shape
        bounds = _plain_bounds(first, shape)
        if bounds is not None and hash_program(first) == hash_program(second):
            return Compared(bounds, dict.fromkeys(densities, True), dict.fromkeys(values, True))

        def program(here: list[ArrayLike], there: list[ArrayLike]) -> tuple[list[ArrayLike], ...]:
            of_first, of_second = jaxpr_as_fun(first), jaxpr_as_fun(second)
            return of_first(*here), of_second(*here), of_second(*there)

        results = run_once(program, jax.tree.leaves(here), jax.tree.leaves(there))
    trees = map(jax.tree.structure, (shape, other, other))
    return _compared(*(jax.tree.unflatten(tree, leaves) for tree, leaves in zip(trees, results, strict=True)))


def _compared(first: Computed, second: Computed, elsewhere: Computed) -> Compared:
    bounds = {
        name: list(map(_as_number, found)) if _same(found, elsewhere[1][name]) else None
        for name, found in first[1].items()
    }
    constant = (
        {name: _same(value, b[name]) for name, value in a.items()}
        for a, b in ((first[0], second[0]), (first[2], second[2]))
    )
    return Compared(bounds, *constant)


def _plain_bounds(closed: ClosedJaxpr, shape: Computed) -> dict[str, list[ArrayLike] | None] | None:
    """The bounds of supports, if they are numbers that no step computes."""
    known = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    atoms = jax.tree.unflatten(jax.tree.structure(shape), closed.jaxpr.outvars)[1]
    if not all(isinstance(atom, Literal) or atom in known for atom in jax.tree.leaves(atoms)):
        return None

    def number(atom: Atom) -> ArrayLike:
        value = atom.val if isinstance(atom, Literal) else known[atom]
        return _as_number(np.asarray(value, type_of(atom)))

    return {name: list(map(number, found)) for name, found in atoms.items()}


def _as_number(bound: ArrayLike) -> ArrayLike:
    """A bound as a Python number, which is the same in both precisions."""
    return float(np.asarray(bound)) if np.ndim(bound) == 0 else bound


def _same(first: Tree, second: Tree) -> bool:
    """Whether two runs gave the same numbers, up to the order of float32 sums."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(
        np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
        for a, b in pairs
    )


_CALLS = ("pjit", "jit", "closed_call", "core_call")
"""Steps that call a program."""


@final
@dataclass(frozen=True)
class Mark:
    """What a value depends on."""

    columns: frozenset[str] = frozenset()
    """Columns of the rows."""
    of_groups: bool = False
    """Whether it has values of groups that no row has looked up yet."""

    @staticmethod
    def union(marks: Iterable[Mark]) -> Mark:
        every = list(marks)
        columns = frozenset().union(*(mark.columns for mark in every))
        return Mark(columns, any(mark.of_groups for mark in every))


_NOTHING = Mark()


@final
@dataclass
class Lookups:
    """The lookups of a function, in the order in which they occur."""

    columns: set[str] = field(default_factory=set)
    """Columns that the places of all lookups depend on, replaced or not."""
    places: list[jax.Array] = field(default_factory=list)
    """(row,) where each lookup that was replaced looks."""


def without_lookups(
    function: Callable[..., ArrayLike], params: Tree, rows: Mapping[str, Rows], groups: Params
) -> tuple[jax.Array, Lookups]:
    """function(params, rows, groups), with each lookup of an array of groups replaced by the array itself.

    Parameters
    ----------
    function
        What JAX can trace, with one array as result.
    params, rows
        Its first arguments. Columns of `rows` have one entry per row.
    groups
        Arrays whose first axis is that of groups; here they have one entry per row.

    Examples
    --------
    >>> rows = {"g": jnp.array([2, 0, 2]), "x": jnp.ones(3)}
    >>> found, lookups = without_lookups(
    ...     lambda params, rows, groups: (params + groups["b"])[rows["g"]] * rows["x"],
    ...     1.0, rows, {"b": jnp.array([0.5, 1.0, 1.5])},
    ... )
    >>> found.tolist(), lookups.columns
    ([1.5, 2.0, 2.5], {'g'})
    """
    closed = jax.make_jaxpr(lambda *args: function(*args))(params, dict(rows), dict(groups))
    marks = [_NOTHING] * len(jax.tree.leaves(params))
    for name in sorted(rows):
        marks += [Mark(frozenset([name]))] * len(jax.tree.leaves(rows[name]))
    marks += [Mark(of_groups=True)] * len(jax.tree.leaves(groups))
    lookups = Lookups()
    values = jax.tree.leaves((params, dict(rows), dict(groups)))
    (result,) = _replay(closed, list(zip(values, marks, strict=True)), lookups)
    return result[0], lookups


Marked: TypeAlias = tuple[jax.Array, Mark]


def _replay(closed: ClosedJaxpr, args: Sequence[Marked], lookups: Lookups) -> list[Marked]:
    """Compute a traced program step by step, with the marks of all values."""
    program: Jaxpr = closed.jaxpr
    # NumPy arrays of 64 bits take the type that the program was traced with.
    known: dict[Var, Marked] = {
        variable: (jnp.asarray(value, type_of(variable)), _NOTHING)
        for variable, value in zip(program.constvars, closed.consts, strict=True)
    }
    known.update(zip(program.invars, args, strict=True))

    def read(atoms: Iterable[Atom]) -> list[Marked]:
        return [(atom.val, _NOTHING) if isinstance(atom, Literal) else known[atom] for atom in atoms]

    for step in program.eqns:
        known.update(zip(step.outvars, _results(step, read(step.invars), lookups), strict=True))
    return read(program.outvars)


def _results(step: JaxprEqn, inputs: Sequence[Marked], lookups: Lookups) -> list[Marked]:
    if step.primitive.name in _CALLS and isinstance(step.params.get("jaxpr"), ClosedJaxpr):
        return _replay(step.params["jaxpr"], inputs, lookups)
    values = [value for value, _ in inputs]
    if step.primitive.name == "gather" and inputs[0][1].of_groups and not inputs[1][1].of_groups:
        found = _looked_up(step, *values)
        lookups.columns |= inputs[1][1].columns
        if found is not None and inputs[1][1].columns:
            lookups.places.append(values[1][:, 0])
            return [(found, Mark(inputs[0][1].columns | inputs[1][1].columns))]
    mark = Mark.union(mark for _, mark in inputs)
    return [(value, mark) for value in run_step(step, values)]


def _looked_up(step: JaxprEqn, values: jax.Array, places: jax.Array) -> jax.Array | None:
    """What b[g], or b[g, k], is if b has one entry for each row; None for other lookups."""
    how, sizes = step.params["dimension_numbers"], step.params["slice_sizes"]
    if places.ndim != 2 or len(places) != len(values) or getattr(how, "operand_batching_dims", ()):
        return None
    if how.start_index_map == (0,) and tuple(sizes) == (1, *values.shape[1:]):
        inside_vmap = not how.collapsed_slice_dims  # then an axis of size 1 is left
        return values[:, None] if inside_vmap else values
    if how.start_index_map == how.collapsed_slice_dims == (0, 1) and values.ndim == 2:
        # Few columns, so that choosing one by comparison is faster than another lookup.
        chosen = places[:, 1:] == jnp.arange(values.shape[1], dtype=places.dtype)
        return jnp.sum(jnp.where(chosen, values, 0), axis=1)
    return None
