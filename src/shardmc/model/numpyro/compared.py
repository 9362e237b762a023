"""What a NumPyro model computes in the same way whatever its rows are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from shardmc.model.precision import type_of
from shardmc.model.traced import hash_program
from shardmc.model.user_functions import TwoSamples, calling
from shardmc.programs.compiled import run_once
from shardmc.types import Rows

Computed = tuple[Mapping[str, Any], Mapping[str, list[Any]], Mapping[str, Any]]
"""Log densities of sites, bounds of the supports of latent sites, and values of deterministic sites."""


@dataclass(frozen=True)
class Compared:
    """What stayed the same in two runs with different rows, or with different parameters."""

    bounds: dict[str, list[Any] | None]
    """Latent site -> the bounds of its support as numbers; None where these differ."""
    prior_constant: dict[str, bool]
    """Latent, observed and factor sites without an axis of rows."""
    constant: dict[str, bool]
    """Deterministic sites."""


def compare(run: Callable[[Any, Rows], Computed], here: Any, there: Any, samples: TwoSamples) -> Compared:
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

        def program(here: list[Any], there: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
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


def _plain_bounds(closed: ClosedJaxpr, shape: Computed) -> dict[str, list[Any] | None] | None:
    """The bounds of supports, if they are numbers that no step computes."""
    known = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    atoms = jax.tree.unflatten(jax.tree.structure(shape), closed.jaxpr.outvars)[1]
    if not all(isinstance(atom, Literal) or atom in known for atom in jax.tree.leaves(atoms)):
        return None

    def number(atom: Any) -> Any:
        value = atom.val if isinstance(atom, Literal) else known[atom]
        return _as_number(np.asarray(value, type_of(atom)))

    return {name: list(map(number, found)) for name, found in atoms.items()}


def _as_number(bound: Any) -> Any:
    """A bound as a Python number, which is the same in both precisions."""
    return float(bound) if np.ndim(bound) == 0 else bound


def _same(first: Any, second: Any) -> bool:
    """Whether two runs gave the same numbers, up to the order of float32 sums."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(
        np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
        for a, b in pairs
    )
