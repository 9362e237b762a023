"""Plates of groups in a NumPyro model, whose effects rows look up as in b[g]: which plate, its sites, the column g."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import jax
import jax.numpy as jnp

from shardmc.errors import ModelError, unknown
from shardmc.model.numpyro.lookups import Lookups, without_lookups
from shardmc.model.numpyro.sites import Run, log_densities, traced
from shardmc.model.user_functions import calling, sum_to_rows
from shardmc.types import Rows

FEW = 100
"""Effects of a plate with at most so many groups are parameters, unless the user names the column of groups."""

Asked = str | Mapping[str, str] | bool | None
"""The column of groups, or plate -> column; None to find out; False to make all sites parameters."""

HOW = (
    "Sample the effects inside one, as in `with numpyro.plate('groups', num_groups): b = numpyro.sample('b', "
    "dist.Normal(0, tau))`, and let rows look them up as b[g]"
)


@final
@dataclass(frozen=True)
class Plate:
    """A plate of groups."""

    name: str
    size: int
    sites: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Its latent sites, and their shapes for one group."""

    def blank(self, count: int) -> dict[str, jax.Array]:
        """Values of its sites for so many groups, all 0."""
        return {name: jnp.zeros((count, *shape)) for name, shape in self.sites.items()}


def find_plate(
    run: Run, rows: Rows, observed: Mapping[str, int], params: Mapping[str, Any], asked: Asked
) -> tuple[Plate, str] | None:
    """The plate of groups whose effects are integrated out and the column that names them; None if there is none.

    Parameters
    ----------
    run
        The model.
    rows
        A few rows.
    observed
        Observed sites with one value per row, and the axis of rows.
    params
        All latent sites, with their shapes.
    asked
        What the user said about it.
    """
    if asked is False:
        return None
    if not isinstance(rows, Mapping):
        if asked:
            raise ModelError(
                f"groups={asked!r} names a column, so the rows need names: give a table, a file or a dict of arrays."
            )
        return None
    plates = _plates(run, rows)
    if asked is None:
        plates = {name: plate for name, plate in plates.items() if plate.size > FEW}
    elif isinstance(asked, Mapping):
        ((name, column),) = asked.items() if len(asked) == 1 else [("", "")]
        if name not in plates:
            raise ModelError(str(unknown("plate with latent sites in groups", name, plates)))
        return plates[name], _one_column(
            plates[name], looked_up(run, rows, observed, params, plates[name]), column
        )
    found = {}
    for name, plate in plates.items():
        lookups = looked_up(run, rows, observed, params, plate)
        if lookups.columns and (asked is None or asked in lookups.columns):
            found[name] = plate, lookups
    if len(found) > 1:
        first, second = list(found)[:2]
        raise ModelError(
            f"Rows look up sites of the plates {first!r} and {second!r}, but effects of one plate can be integrated "
            f'out. Say which, as in from_numpyro(model, groups={{"{first}": "g"}}); sites of the other are then '
            "parameters. Large crossed factors need another method, such as lme4 or INLA."
        )
    if not found:
        if isinstance(asked, str):
            raise ModelError(
                f"groups={asked!r} was given, but no plate has latent sites that rows look up by it. {HOW}."
            )
        return None
    ((plate, lookups),) = found.values()
    return plate, _one_column(plate, lookups, asked)


def _one_column(plate: Plate, lookups: Lookups, asked: str | bool | None) -> str:
    sites = ", ".join(map(repr, plate.sites))
    columns = sorted(lookups.columns)
    if not columns:
        raise ModelError(f"Rows do not look up the sites {sites} of plate {plate.name!r} by a column. {HOW}.")
    if len(columns) > 1:
        raise ModelError(
            f"The sites {sites} of plate {plate.name!r} are looked up by the columns "
            f"{' and '.join(map(repr, columns))}: make one column that names the groups, and use it alone."
        )
    if asked and columns[0] != asked:
        raise ModelError(
            f"The sites {sites} of plate {plate.name!r} are looked up by column {columns[0]!r}, not {asked!r}."
        )
    return columns[0]


def _plates(run: Run, rows: Rows) -> dict[str, Plate]:
    """Plates with latent sites, as the first axis of all of these."""
    found: dict[str, Plate] = {}

    def record(rows: Rows) -> None:
        for name, site in traced(run, rows).items():
            if site["type"] != "sample" or site["is_observed"]:
                continue
            shape = jnp.shape(site["value"])
            for frame in site["cond_indep_stack"]:
                plate = found.setdefault(frame.name, Plate(frame.name, frame.size))
                if len(site["fn"].batch_shape) == -frame.dim and shape[0] == frame.size:
                    plate.sites[name] = shape[1:]

    with calling("The NumPyro model"):
        jax.eval_shape(record, rows)
    return {name: plate for name, plate in found.items() if plate.sites}


def row_densities(run: Run, observed: Mapping[str, int]) -> Callable[[Any, Any, Any], jax.Array]:
    """(params, rows, groups) -> the log densities of rows, (row,)."""

    def densities(params: Mapping[str, Any], rows: Rows, groups: Mapping[str, Any]) -> jax.Array:
        found = log_densities(run, {**params, **groups}, rows, observed)
        per_row = [sum_to_rows(found[name], axis) for name, axis in observed.items()]
        return sum(per_row[1:], start=per_row[0])

    return densities


def looked_up(
    run: Run, rows: Mapping[str, Any], observed: Mapping[str, int], params: Mapping[str, Any], plate: Plate
) -> Lookups:
    """How rows look up the sites of a plate. Nothing is computed."""
    found: list[Lookups] = []
    others = {name: value for name, value in params.items() if name not in plate.sites}

    def record(params: Any, rows: Any) -> None:
        blank = plate.blank(plate.size)
        found.append(without_lookups(row_densities(run, observed), params, rows, blank)[1])

    with calling("The NumPyro model"):
        jax.eval_shape(record, others, dict(rows))
    return found[0]
