"""The variables of a formula's posterior: a term with several columns is one variable, as in bambi."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from shardmc.data.arrow import SEPARATOR
from shardmc.formulas.design import Design
from shardmc.formulas.formula import is_intercept
from shardmc.formulas.groups import Factor
from shardmc.formulas.linear_model import location_name
from shardmc.formulas.mixed import effect_parameter
from shardmc.model.variables import Label, Variable
from shardmc.names import quoted_where_taken


def variables_of(design: Design, draws: Mapping[str, np.ndarray]) -> tuple[Variable, ...]:
    """The variables of a formula's draws: terms with several columns, cutpoints, and effects of groups.

    A category is one variable with the axis `<name>_dim` of its levels, without the reference level. Splines and
    other terms of several columns have numbers from 1 on, and products have labels such as "south, 1". With several
    linear predictors, all have the axis `<response>_dim` of the response's levels.
    """
    terms = [term for term in design.encoder.formula.predictors if not is_intercept(term)]
    factors = {str(term): [factor.expr for factor in term.factors] for term in terms}
    equations = _equations(design)
    response = f"{design.roles.response.text}_dim"
    entries: dict[str, dict[str | None, Sequence[str]]] = {}  # term -> label of a column -> its coefficients
    for place, column in enumerate(design.encoder.names):
        names = design.names[place * len(equations) : (place + 1) * len(equations)]
        term, label = _place(column, factors)
        if (label is not None or len(names) > 1) and set(names) <= set(draws):
            columns = entries.setdefault(term, {})
            columns[column if label in columns else label] = names  # a level may look like another coding
    location = [f"{design.family.location}[{equation}]" for equation in equations]
    if len(location) > 1 and set(location) <= set(draws):
        entries[design.family.location] = {None: location}
    stacked = {name for columns in entries.values() for names in columns.values() for name in names}
    titles = quoted_where_taken(entries, [name for name in draws if name not in stacked])
    found = []
    for title, columns in zip(titles, entries.values(), strict=True):
        coords: dict[str, tuple[Label, ...]] = {}
        labels = tuple(label for label in columns if label is not None)
        if labels:
            coords[f"{title}_dim"] = labels
        if len(equations) > 1:
            coords[response] = equations
        found.append(
            Variable(title, tuple(coords), coords, tuple(n for names in columns.values() for n in names))
        )
    found += _cutpoints(design, draws)
    found += [_effects(factor) for factor in design.factors if effect_parameter(factor) in draws]
    return tuple(found)


def _equations(design: Design) -> tuple[str, ...]:
    """Levels of the response that have a linear predictor of their own; one empty text for a single predictor.

    Coefficients of a column `x` are then called `x[level]`.
    """
    columns = design.encoder.names
    if len(design.names) == len(columns):
        return ("",)
    names = design.names[: len(design.names) // len(columns)]
    quotes = 0 if names[0].startswith(f"{columns[0]}[") else 2
    return tuple(name[len(columns[0]) + quotes + 1 : -1] for name in names)


def _place(column: str, factors: Mapping[str, Sequence[str]]) -> tuple[str, str | None]:
    """The term of a column of the design, and the column's label in it; None if the term has just one column."""
    matches = []
    for term, expressions in factors.items():
        labels = labels_in(column, expressions)
        if labels is not None:
            used, found = labels
            matches.append((used == len(expressions), used, term, ", ".join(found) if found else None))
    if not matches:
        return column, None
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
