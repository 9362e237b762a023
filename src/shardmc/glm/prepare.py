"""From a formula and a table to a design: two readings of all rows, with every mistake told before a model runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from shardmc.data import Source
from shardmc.errors import DataError, ModelError, unknown
from shardmc.glm.columns import Columns, look_at_columns, refuse_constant, refuse_dependent
from shardmc.glm.defaults import choose_priors
from shardmc.glm.design import Design, Scaling
from shardmc.glm.encoder import Encoder
from shardmc.glm.families import Family, Ordinal, Seen
from shardmc.glm.formula import Formula
from shardmc.glm.raw import Kind, as_frame, look
from shardmc.glm.roles import Roles, declared_levels
from shardmc.glm.survey import Survey, survey

_FAR = 10.0
"""A column whose mean is so many standard deviations from zero is shifted."""


@final
@dataclass(frozen=True)
class Prepared:
    """A design, the rows for it, and what the readings found besides."""

    design: Design
    source: Source
    seen: Seen
    separating: tuple[str, ...]
    dropped: int


def prepare(
    text: str,
    source: Source,
    family: Family,
    priors: Mapping[str, Any] | None,
    *,
    offset: Any,
    exposure: Any,
    trials: Any,
    drop_missing: bool,
    taken: Sequence[str] = (),
) -> Prepared:
    """Work a formula out over all rows of a table.

    Exact over all rows, however large the table: levels of categories, means and scales of center, scale and
    standardize, bounds of splines, and the means and standard deviations that priors use. Knots of splines at
    quantiles, centring constraints of splines and orthogonal polynomials are learned from 200,000 random rows where
    there are more.
    """
    columns = source.column_names
    named = [name for name in (offset, exposure, trials, *taken) if isinstance(name, str) and name in columns]
    formula = Formula.parse(text, columns, named)
    roles = Roles.of(formula.response, family, columns, offset, exposure, trials)
    used = list(dict.fromkeys([*roles.columns, *formula.columns]))
    for name in used:
        if name not in columns:
            raise unknown("column", name, columns)
    formula.refuse_functions(used)
    before = source.num_rows
    source = source.drop_missing(used) if drop_missing else source
    kinds, ordered = look(source, used)
    formula.check_columns(kinds)
    roles.check_columns(kinds)
    levels = declared_levels(family, formula.response, kinds, ordered)
    found = survey(source, formula, roles, kinds, family=family, ordered=ordered, response_levels=levels)
    family, seen = _with_levels(family, found.seen, levels)
    family.refuse(seen)
    encoder = _encoder(formula, kinds, found, source.num_rows)
    if 2 * len(encoder.names) > source.num_rows:
        raise ModelError(
            f"The formula makes {len(encoder.names)} columns for {source.num_rows} rows; there must be far more rows. "
            "Group the levels of a category, or leave terms out."
        )
    shown = family.levels if isinstance(family, Ordinal) else None
    looked = look_at_columns(source, encoder, roles, kinds, shown, family)
    has_location = formula.has_intercept or isinstance(family, Ordinal)
    if encoder.names:
        refuse_constant(looked, encoder.names, has_location)
        refuse_dependent(looked, encoder.names, has_location)
    design = Design(
        encoder, roles, family, kinds, _scaling(looked, seen, family, has_location), {}, source.num_rows
    )
    _refuse_repeated(design)
    design = replace(
        design,
        priors=choose_priors(
            priors, family, seen, design.names, _terms(design), design.scaling.sds, has_location
        ),
    )
    rows = source.transform(design.rows, design.columns, design.label)
    return Prepared(
        design, rows, seen, tuple(looked.separating(design.names, family)), before - source.num_rows
    )


def _with_levels(family: Family, seen: Seen, levels: Sequence[Any] | None) -> tuple[Family, Seen]:
    """An ordinal family that knows its levels, and its response as their numbers."""
    if not isinstance(family, Ordinal):
        return family, seen
    if levels is not None:
        return Ordinal(tuple(levels)), seen
    found = sorted(seen.values or ())
    if seen.values is None or seen.fractions:
        raise DataError(
            f"The response {seen.name!r} of family 'ordinal' must have few levels, whole numbers or ordered "
            "categories; for numbers take family 'gaussian'."
        )
    counts = {float(number): seen.values[value] for number, value in enumerate(found)}
    return Ordinal(tuple(int(value) for value in found)), replace(seen, values=counts)


def _encoder(formula: Formula, kinds: Mapping[str, Kind], found: Survey, num_rows: int) -> Encoder:
    inside: dict[str, Kind] = {name: kinds[name] for name in formula.columns}
    levels = {name: found.levels[name] for name, kind in kinds.items() if kind == "text"}
    assert found.sample is not None
    sample = as_frame(found.sample, kinds, levels)
    predictors = {name: sample[name] for name in inside} or sample
    return Encoder.learn(
        formula, inside, levels, found.categories, found.states(formula), predictors, num_rows
    )


def _scaling(looked: Columns, seen: Seen, family: Family, has_location: bool) -> Scaling:
    moments = looked.moments
    means, sds = np.atleast_1d(moments.mean), np.atleast_1d(moments.sd)
    if moments.mean.ndim == 0:  # no columns
        means = sds = np.empty(0)
    size = np.where(sds > 0, sds, np.abs(means))  # a constant column without an intercept
    far = (np.abs(means) > _FAR * size) & has_location
    shifts = np.where(far, means, 0.0)
    if not family.location_scale:
        return Scaling(means, size, shifts)
    shift = seen.mean if has_location and abs(seen.mean) > _FAR * seen.sd else 0.0
    return Scaling(means, size, shifts, shift, seen.sd)


def _terms(design: Design) -> dict[str, list[str]]:
    """Coefficients of each term that has more than one, or another name than its column."""
    terms: dict[str, list[str]] = {}
    for name in design.names:
        if name in design.encoder.formula.columns:
            continue  # the name of a column may look like anything
        # 'C(region)[T.b]' belongs to the term 'C(region)', 'C(a)[T.b]:x' to 'C(a):x'.
        term = ":".join(part.rpartition("[")[0] or part for part in name.split(":"))
        terms.setdefault(term, []).append(name)
    return {term: names for term, names in terms.items() if names != [term]}


def _refuse_repeated(design: Design) -> None:
    """Names that quoting did not make different."""
    for name in design.names:
        if design.names.count(name) > 1:
            raise DataError(
                f"Two columns of the formula would both be called {name!r}; rename one of them in the table."
            )
