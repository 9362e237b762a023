"""The design of a model from a formula: how rows are encoded, scaled and modelled. It can be stored as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NotRequired, TypedDict, TypeVar, cast, final

import jax
import numpy as np
import pyarrow as pa

from shardmc.data.columns import float_type
from shardmc.errors import RunError
from shardmc.formulas.chunk import Chunk, Kind, as_chunk
from shardmc.formulas.encoder import Encoder, StoredEncoder
from shardmc.formulas.families import Family, family_from_dict
from shardmc.formulas.groups import Factor, StoredFactor
from shardmc.formulas.priors import COEFFICIENTS, Prior
from shardmc.formulas.roles import Roles, StoredRoles
from shardmc.names import quoted_where_taken
from shardmc.posterior import Posterior

ArrayT = TypeVar("ArrayT", jax.Array, np.ndarray)
VERSION = 1
"""Version of the stored form."""
UNIT = "unit"
"""The column of rows with the code of the group whose effects are integrated out."""
CENTERED = "_centered"
"""Suffix of the location's name if it belongs to a row with shifted columns at zero."""


class StoredScaling(TypedDict):
    """A `ColumnScaling` as JSON can hold it."""

    means: list[float]
    sds: list[float]
    shifts: list[float]
    response_shift: float
    response_scale: float


class StoredDesign(TypedDict):
    """A `Design` as JSON can hold it."""

    version: int
    encoder: StoredEncoder
    roles: StoredRoles
    family: dict[str, object]
    kinds: dict[str, Kind]
    scaling: StoredScaling
    priors: dict[str, str]
    num_rows: int
    factors: NotRequired[list[StoredFactor]]


@final
@dataclass(frozen=True)
class ColumnScaling:
    """The shifts and scales that columns lose before they become float32; they do not change the result.

    A column far from zero compared to its spread (a year, a time stamp) would lose its digits in float32, and the
    intercept would be a difference of large numbers. So the mean of such a column is subtracted.
    """

    means: np.ndarray  # (column,)
    sds: np.ndarray
    shifts: np.ndarray
    response_shift: float = 0.0
    response_scale: float = 1.0

    @property
    def is_shifted(self) -> bool:
        return bool(self.shifts.any()) or self.response_shift != 0

    def to_dict(self) -> StoredScaling:
        return {
            "means": self.means.tolist(),
            "sds": self.sds.tolist(),
            "shifts": self.shifts.tolist(),
            "response_shift": self.response_shift,
            "response_scale": self.response_scale,
        }

    @staticmethod
    def from_dict(stored: StoredScaling) -> ColumnScaling:
        means, sds, shifts = (np.asarray(stored[name], np.float64) for name in ("means", "sds", "shifts"))
        return ColumnScaling(means, sds, shifts, stored["response_shift"], stored["response_scale"])


@final
@dataclass(frozen=True)
class Design:
    """Everything about a generalised linear model except its rows."""

    encoder: Encoder
    roles: Roles
    family: Family
    kinds: Mapping[str, Kind]
    """What each column holds: those of response, offset, exposure, trials and censored, and those of the predictors."""
    scaling: ColumnScaling
    priors: Mapping[str, Prior]
    num_rows: int
    factors: tuple[Factor, ...] = ()
    """Grouping factors; the effects of at most one are integrated out, and its groups are what shards are made of."""

    @property
    def unit(self) -> Factor | None:
        """The factor whose effects are integrated out."""
        return next((factor for factor in self.factors if factor.integrated), None)

    @property
    def has_location(self) -> bool:
        """Whether there is an intercept, or a family's own location such as cutpoints."""
        return self.encoder.formula.has_intercept or self.family.location_is_auxiliary

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """Columns of the design matrix; in backticks if the model uses that name."""
        return quoted_where_taken(self.encoder.names, self._own_names())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Coefficients: the names of the columns, or `x[level]` if there are several linear predictors."""
        return self.entries_of(*self.column_names)

    def entries_of(self, *names: str) -> tuple[str, ...]:
        """Names of parameters, or of their part in each linear predictor if there are several."""
        equations = self.family.equations
        return tuple(f"{name}[{equation}]" for name in names for equation in equations) or names

    def per_equation(self, coefficients: ArrayT) -> ArrayT:
        """Coefficients (..., coefficient) as (..., column, equation), if there are several linear predictors."""
        equations = self.family.equations
        if not equations:
            return coefficients
        return coefficients.reshape(*coefficients.shape[:-1], len(self.column_names), len(equations))

    def _own_names(self) -> set[str]:
        """Names of all other parameters that the model could have, and of their entries."""
        location = self.family.location
        sampled = (location, location + CENTERED)
        entries = range(len(self.family.levels_of_response or ()))
        cutpoints = {f"{name}[{k}]" for name in sampled for k in entries}
        own = {name for factor in self.factors for name in (*factor.sd_names, *factor.correlation_names)}
        return {
            *sampled,
            *self.entries_of(*sampled),
            *self.family.auxiliaries,
            COEFFICIENTS,
            *cutpoints,
            *own,
        }

    @property
    def formula_text(self) -> str:
        """The formula, with all columns of the response."""
        text = self.encoder.formula.text
        return f"{self.roles.response_text} ~{text.partition('~')[2]}" if self.roles.counts else text

    @property
    def columns(self) -> list[str]:
        return list(self.kinds)

    @property
    def predictor_columns(self) -> list[str]:
        """The columns that predictions can depend on: all but those of the response, with those that name groups."""
        beside = [name for each in self.roles.besides_response.values() for name in each.columns]
        varying = [each for factor in self.factors for each in factor.varying]
        of_effects = [name for each in varying if each.encoder for name in each.encoder.kinds]
        of_groups = [name for factor in self.factors for name in factor.columns]
        return list(dict.fromkeys([*self.encoder.formula.columns, *beside, *of_effects, *of_groups]))

    def chunk(self, table: pa.Table, kinds: Mapping[str, Kind] | None = None) -> Chunk:
        """Some rows of a table as expressions and formulas take them."""
        return as_chunk(table, self.kinds if kinds is None else kinds, self.encoder.levels)

    def rows(self, table: pa.Table) -> dict[str, np.ndarray]:
        """Some rows of a table as the log-likelihood reads them."""
        chunk = self.chunk(table)
        real = float_type()
        response = self.family.encode(
            self.roles.explained(chunk, self.family.levels_of_response, self.family)
        )
        if self.family.location_scale:
            response = (response - self.scaling.response_shift) / self.scaling.response_scale
        if self.family.takes_censoring:
            seen = 1 - self.roles.censored_values(chunk, len(response))
            response = np.stack([response, seen], axis=1)
        rows = {"response": response if response.dtype.kind == "i" else response.astype(real)}
        if self.column_names:
            scaled = (self.encoder.matrix(chunk) - self.scaling.shifts) / self.scaling.sds
            rows["design"] = scaled.astype(real)
        offset = self.roles.offset_values(chunk)
        if offset is not None and not self.family.location_scale:
            rows["offset"] = offset.astype(real)
        trials = self.roles.trial_values(chunk, len(response))
        if trials is not None:
            rows["trials"] = trials.astype(real)
        return rows | self._group_rows(table, chunk, len(response))

    def log_base(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """What to add to the log-likelihood of rows to get the log density of the response in its own units, (row,)."""
        base = self.family.log_base(rows["response"], rows.get("trials"))
        return base - np.log(self.scaling.response_scale)

    def _group_rows(self, table: pa.Table, chunk: Chunk, count: int) -> dict[str, np.ndarray]:
        """Codes of the groups, and the columns whose coefficients vary."""
        rows: dict[str, np.ndarray] = {}
        number = 0
        for factor in self.factors:
            ending = "" if factor.integrated else str(number)
            number += not factor.integrated
            rows[UNIT if factor.integrated else f"level{ending}"] = factor.codes(table)
            if not factor.only_intercept:
                rows[f"columns{ending}"] = factor.matrix(chunk, count).astype(float_type())
        return rows

    @cached_property
    def label(self) -> str:
        """A text that identifies the design: if it differs, so do the encoded rows or the model."""
        return json.dumps(self.to_dict(), sort_keys=True)

    def to_dict(self) -> StoredDesign:
        """Plain lists, numbers and texts, as JSON can hold them."""
        stored: StoredDesign = {
            "version": VERSION,
            "encoder": self.encoder.to_dict(),
            "roles": self.roles.to_dict(),
            "family": self.family.to_dict(),
            "kinds": dict(self.kinds),
            "scaling": self.scaling.to_dict(),
            "priors": {name: str(prior) for name, prior in self.priors.items()},
            "num_rows": self.num_rows,
        }
        if self.factors:
            stored["factors"] = [factor.to_dict() for factor in self.factors]
        return stored

    @staticmethod
    def from_dict(stored: Mapping[str, object]) -> Design:
        """The design that `to_dict` wrote; nothing in it is executed. Factors come without their levels."""
        if stored.get("version") != VERSION:
            raise RunError(
                f"The formula's design in the file has version {stored.get('version')!r}; this shardmc reads version "
                f"{VERSION}."
            )
        known = cast(StoredDesign, stored)
        return Design(
            Encoder.from_dict(known["encoder"]),
            Roles.from_dict(known["roles"]),
            family_from_dict(known["family"]),
            known["kinds"],
            ColumnScaling.from_dict(known["scaling"]),
            {name: Prior.parse(text) for name, text in known["priors"].items()},
            known["num_rows"],
            tuple(Factor.from_dict(each) for each in known.get("factors", ())),
        )


def design_of(posterior: Posterior) -> Design:
    """The design of a posterior that `glm` made, also after it was saved and loaded."""
    if posterior.regression is None:
        raise RunError(
            "This is the posterior of a model without a formula, so shardmc does not know which columns to use. Give a "
            "function, as in posterior.predict(rows, function=lambda params, rows: ...), or use posterior.draws."
        )
    return Design.from_dict(posterior.regression.design)
