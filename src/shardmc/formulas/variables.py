"""The variables of a formula's posterior: a term with several columns is one variable, as in bambi."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from shardmc.formulas.design import Design, location_name
from shardmc.formulas.formula import is_intercept
from shardmc.formulas.groups import SEPARATOR, Factor
from shardmc.formulas.mixed import effect_parameter
from shardmc.model.variables import Label, Variable
from shardmc.names import quoted_where_taken


def variables_of(design: Design, draws: Mapping[str, np.ndarray]) -> tuple[Variable, ...]:
    """The variables of a formula's draws: terms with several columns, cutpoints, and effects of groups.

    A category is one variable with the axis `<name>_dim` of its levels, without the reference level. Splines and
    other terms of several columns have numbers from 1 on, and products have labels such as "south, 1".
    """
    terms = [term for term in design.encoder.formula.predictors if not is_intercept(term)]
    factors = {str(term): [factor.expr for factor in term.factors] for term in terms}
    columns: dict[str, dict[str, str]] = {term: {} for term in factors}
    for name, column in zip(design.names, design.encoder.names, strict=True):
        term, label = _place(column, factors)
        if label and name in draws:
            columns[term][name] = label
    columns = {term: each for term, each in columns.items() if each}
    stacked = {name for each in columns.values() for name in each}
    shown = quoted_where_taken(columns, [name for name in draws if name not in stacked])
    found = [_stacked(name, each) for name, each in zip(shown, columns.values(), strict=True)]
    found += _cutpoints(design, draws)
    for factor in design.factors:
        if effect_parameter(factor) in draws:
            found.append(_effects(factor))
    return tuple(found)


def _place(column: str, factors: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """The term of a column of the design, and the column's label in it; empty if it is the term's only column."""
    matches = []
    for term, expressions in factors.items():
        labels = labels_in(column, expressions)
        if labels is not None:
            used, found = labels
            matches.append((used == len(expressions), used, term, ", ".join(found)))
    if not matches:
        return column, ""
    _, _, term, label = max(matches, key=lambda match: match[:2])
    return term, label


def labels_in(column: str, expressions: Sequence[str]) -> tuple[int, list[str]] | None:
    """How many of a term's factors a column of the design is made of, and their levels; None if it is of another term.

    >>> labels_in("region[T.south]:bs(x, df=4)[2]", ["region", "bs(x, df=4)"])
    (2, ['south', '2'])
    >>> labels_in("age:region[T.south]", ["region"])
    """
    rest, used, found = column, 0, []
    for number, expression in enumerate(expressions):
        after = rest.removeprefix(expression)
        if not rest.startswith(expression) or after[:1] not in ("", ":", "["):
            continue  # formulaic leaves out factors that other columns cover
        used += 1
        if after[:1] == "[":
            # Levels of products hold no "]:", see the encoder.
            product = number < len(expressions) - 1 and "]:" in after
            inside, rest = after[1:].split("]:", 1) if product else (after[1:-1], "")
            found.append(inside.removeprefix("T."))
        else:
            rest = after[1:]
    return (used, found) if used and not rest else None


def _stacked(name: str, columns: Mapping[str, str]) -> Variable:
    labels: tuple[Label, ...] = tuple(columns.values())
    if len(set(labels)) < len(labels):  # a level that looks like another coding
        labels = tuple(columns)
    dim = f"{name}_dim"
    return Variable(name, (dim,), {dim: labels}, tuple(columns))


def _cutpoints(design: Design, draws: Mapping[str, Any]) -> list[Variable]:
    """Cutpoints lie between two levels of the response."""
    levels = design.family.levels_of_response
    if not design.family.location_is_auxiliary or levels is None:
        return []
    names = dict.fromkeys([design.family.location, location_name(design)])
    labels = tuple(f"{low} | {high}" for low, high in pairwise(levels))
    dim = f"{design.family.location}_dim"
    return [
        Variable(name, (dim,), {dim: labels})
        for name in names
        if name in draws and np.shape(draws[name])[1:] == (len(labels),)
    ]


def _effects(factor: Factor) -> Variable:
    """The effects of a factor that is not integrated out, with bambi's names of axes."""
    levels, effects = f"{factor.name}__factor_dim", f"{factor.name}__expr_dim"
    coords: dict[str, tuple[Label, ...]] = {
        levels: tuple(label.replace(SEPARATOR, ":") for label in factor.labels)
    }
    name = effect_parameter(factor)
    if len(factor.effects) == 1:
        return Variable(name, (levels,), coords)
    return Variable(name, (levels, effects), coords | {effects: factor.effects})
