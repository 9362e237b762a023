"""A formula worked out over all rows: how they are encoded, scaled and modelled, kept as plain JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa

from shardmc.data.columns import float_type
from shardmc.errors import RunError
from shardmc.glm.encoder import Encoder
from shardmc.glm.families import Family, Ordinal, family_from_dict
from shardmc.glm.prior import Prior
from shardmc.glm.raw import Frame, Kind, as_frame
from shardmc.glm.roles import Roles
from shardmc.names import quoted_where_taken

LAYOUT = 1
KEY = "glm"
"""Where the design is in a posterior's plan."""
COEFFICIENTS = "coefficients"
"""The parameter that holds all coefficients, and the key under which one prior is given for all."""
CENTERED = "_centered"
"""Ending of the location's name where it is that of a row with shifted columns at zero."""


@final
@dataclass(frozen=True)
class Scaling:
    """What is taken off and divided out of columns before they become float32; it changes no result.

    A column far from zero compared to its spread (a year, a time stamp) would lose its digits in float32, and make
    the intercept a difference of large numbers: its mean is taken off.
    """

    means: np.ndarray  # (column,)
    sds: np.ndarray
    shifts: np.ndarray
    response_shift: float = 0.0
    response_scale: float = 1.0

    @property
    def is_shifted(self) -> bool:
        return bool(self.shifts.any()) or self.response_shift != 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "means": self.means.tolist(),
            "sds": self.sds.tolist(),
            "shifts": self.shifts.tolist(),
            "response_shift": self.response_shift,
            "response_scale": self.response_scale,
        }

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Scaling:
        arrays = {name: np.asarray(stored[name], dtype=np.float64) for name in ("means", "sds", "shifts")}
        return Scaling(
            **arrays, response_shift=stored["response_shift"], response_scale=stored["response_scale"]
        )


@final
@dataclass(frozen=True)
class Design:
    """Everything about a generalised linear model except its rows."""

    encoder: Encoder
    roles: Roles
    family: Family
    kinds: Mapping[str, Kind]
    """What each column of response, offset, exposure and trials holds, and those of the predictors."""
    scaling: Scaling
    priors: Mapping[str, Prior]
    num_rows: int

    @property
    def has_location(self) -> bool:
        """Whether there is an intercept, or the cutpoints that stand for it."""
        return self.encoder.formula.has_intercept or isinstance(self.family, Ordinal)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Coefficients, named after the columns of the design matrix; in backticks where the model has that name."""
        return quoted_where_taken(self.encoder.names, self._own_names())

    def _own_names(self) -> set[str]:
        """Names that the model's other parameters and their entries have, whether or not they are there."""
        location = self.family.location
        sampled = (location, location + CENTERED)
        entries = range(len(self.response_levels or ()))
        cutpoints = {f"{name}[{k}]" for name in sampled for k in entries}
        return {*sampled, *self.family.auxiliaries, COEFFICIENTS, *cutpoints}

    @property
    def response_levels(self) -> tuple[Any, ...] | None:
        return self.family.levels if isinstance(self.family, Ordinal) else None

    @property
    def columns(self) -> list[str]:
        return list(self.kinds)

    def frame(self, table: pa.Table, kinds: Mapping[str, Kind] | None = None) -> Frame:
        """Some rows of a table, as expressions and formulas take them."""
        return as_frame(table, self.kinds if kinds is None else kinds, self.encoder.levels)

    def rows(self, table: pa.Table) -> dict[str, np.ndarray]:
        """Some rows of a table as the log-likelihood reads them."""
        frame = self.frame(table)
        real = float_type()
        response = self.family.encode(self.roles.explained(frame, self.response_levels, self.family))
        if self.family.location_scale:
            response = (response - self.scaling.response_shift) / self.scaling.response_scale
        rows = {"response": response if response.dtype.kind == "i" else response.astype(real)}
        if self.names:
            scaled = (self.encoder.matrix(frame) - self.scaling.shifts) / self.scaling.sds
            rows["design"] = scaled.astype(real)
        offset = self.roles.offset_values(frame)
        if offset is not None and not self.family.location_scale:
            rows["offset"] = offset.astype(real)
        trials = self.roles.trial_values(frame, len(response))
        if trials is not None:
            rows["trials"] = trials.astype(real)
        return rows

    @cached_property
    def label(self) -> str:
        """A text that differs where the rows would be encoded differently."""
        return json.dumps(self.to_dict(), sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and texts, as JSON can hold them."""
        return {
            "layout": LAYOUT,
            "encoder": self.encoder.to_dict(),
            "roles": self.roles.to_dict(),
            "family": self.family.to_dict(),
            "kinds": dict(self.kinds),
            "scaling": self.scaling.to_dict(),
            "priors": {name: str(prior) for name, prior in self.priors.items()},
            "num_rows": self.num_rows,
        }

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Design:
        """The design that `to_dict` wrote; nothing in it is executed."""
        if stored.get("layout") != LAYOUT:
            raise RunError(
                f"The model in the file has layout {stored.get('layout')!r}; this shardmc reads version {LAYOUT}."
            )
        return Design(
            Encoder.from_dict(stored["encoder"]),
            Roles.from_dict(stored["roles"]),
            family_from_dict(stored["family"]),
            stored["kinds"],
            Scaling.from_dict(stored["scaling"]),
            {name: Prior.parse(text) for name, text in stored["priors"].items()},
            stored["num_rows"],
        )


def design_of(posterior: Any) -> Design:
    """The design of a posterior that `glm` made, also of one that was saved and loaded."""
    stored = posterior.plan.get(KEY)
    if stored is None:
        raise RunError(
            "The posterior is of a model without a formula, so that new rows cannot be predicted from columns: give "
            "what to predict, posterior.predict(rows, function=lambda params, rows: ...), or work it out from "
            "posterior.draws."
        )
    return Design.from_dict(stored)
