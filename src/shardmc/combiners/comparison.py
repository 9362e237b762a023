"""Run several combiners on the same shards and measure how far each lies from a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from shardmc.combiners.combining import COMBINERS, named_combiner
from shardmc.combiners.distance import Distribution, Side, distances, noise_floor
from shardmc.combiners.read import GivenDraws, GivenShards, Layout, read_draws, read_shards
from shardmc.errors import OptionError, ShardmcError, unknown
from shardmc.seeds import Purpose, checked_seed, generator
from shardmc.types import Combiner, Located, Scaling, ShardDraws

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """A table of methods and their distances from a reference, and the methods' notes."""

    table: pd.DataFrame  # one row per method, then the noise floors
    notes: Mapping[str, tuple[str, ...]]

    def __str__(self) -> str:
        return aligned([["method", *self.table.columns], *self._cells()])

    def markdown(self) -> str:
        """The table in Markdown."""
        head = ["method", *self.table.columns]
        rule = ["---"] + ["---:"] * len(self.table.columns)
        return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *self._cells()))

    def _cells(self) -> list[list[str]]:
        return [
            [str(name), *(_cell(column, value) for column, value in row.items())]
            for name, row in self.table.iterrows()
        ]


def compare(
    draws: GivenShards | Mapping[str, GivenShards],
    reference: GivenDraws | Side,
    combiners: Sequence[str | Combiner] | None = None,
    *,
    scaling: Scaling = "rescaled",
    shares: Sequence[float] | np.ndarray | None = None,
    located: Located | None = None,
    names: Sequence[str] | None = None,
    distance_names: Sequence[str] | None = None,
    others: Mapping[str, GivenDraws] | None = None,
    seed: int = 0,
) -> Comparison:
    """Combine the same shards by several methods and measure the distance of each from a reference.

    Parameters
    ----------
    draws
        Draws of the shards, in any form that `combine` takes; or a mapping {"rescaled": ..., "fractional":
        ...} with both kinds of subposteriors; each method gets the kind that it combines.
    reference
        Draws of the full posterior, in any form that one shard may have; or exact distributions, one per
        coordinate (`shardmc.combiners.distance`).
    combiners
        Names or combiners. By default every one for which there are draws.
    scaling
        Which subposteriors `draws` come from, if it is not a mapping. A method that combines the other kind is
        refused.
    shares, located, names
        As in `combine`.
    distance_names
        Keys of `shardmc.combiners.distance.DISTANCES`. By default all that the reference allows.
    others
        Draws of other methods, by the name of their row: in any form that one shard may have, such as a file that
        `Posterior.save` wrote. `shardmc.compare_methods` runs other methods by name.
    seed
        The seed of the random numbers of the methods and of the noise floor.

    Returns
    -------
    Comparison
        Prints as a table: distances, number of draws, seconds. The last rows are noise floors: the same
        distances for as many independent draws of the reference. A method that refused has no numbers, and
        its note says why.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> result = compare(rng.normal(size=(5, 1000, 1)), rng.normal(size=(1000, 1)), ["recenter", "pie"])
    >>> list(result.table.index)
    ['recenter', 'pie', 'noise floor, 5000 draws']
    """
    shards, layout = _both_scalings(draws, scaling, shares, names)
    target = _reference(reference, layout, names)
    seed = checked_seed(seed)
    results: dict[str, MethodResult] = {}
    for label, method in _chosen(combiners, shards, located).items():
        try:
            begin = perf_counter()
            combined = method(shards[method.scaling], located, generator(seed, Purpose.COMBINE))
            results[label] = MethodResult(
                combined.values, {"seconds": perf_counter() - begin}, combined.notes
            )
        except ShardmcError as error:
            results[label] = MethodResult(None, notes=(str(error),))
    for label, given in (others or {}).items():
        results[label] = MethodResult(_flat(given, layout, names, label))
    return tabulated(results, target, distance_names, seed)


@dataclass(frozen=True)
class MethodResult:
    """What one method gave: draws (draw, dim), or None if it refused; more columns of the table; notes."""

    values: np.ndarray | None
    columns: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def tabulated(
    results: Mapping[str, MethodResult], target: Side, distance_names: Sequence[str] | None, seed: int
) -> Comparison:
    """The distances of several methods' draws from the target, and the noise floors, as a table."""
    import pandas as pd

    rows: dict[str, dict[str, float]] = {}
    for label, result in results.items():
        rows[label] = {}
        if result.values is not None:
            found = distances(result.values, target, distance_names)
            rows[label] = {**found, "draws": len(result.values), **result.columns}
    for count in sorted({int(row["draws"]) for row in rows.values() if row}):
        floor = noise_floor(target, count, distance_names, seed=seed)
        rows[f"noise floor, {count} draws"] = {**floor, "draws": count}
    notes = {label: result.notes for label, result in results.items()}
    return Comparison(pd.DataFrame(list(rows.values()), index=list(rows)), notes)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as text, the first column to the left and the others to the right.

    >>> print(aligned([["method", "l2"], ["pie", "0.25"]]))
    method    l2
    pie     0.25
    """
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if j else cell.ljust(width)
            for j, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _cell(column: object, value: float) -> str:
    if not np.isfinite(value):
        return "" if np.isnan(value) else "inf"
    return f"{value:.0f}" if column in ("draws", "ess") else f"{value:.3g}"


def _both_scalings(
    draws: GivenShards | Mapping[str, GivenShards],
    scaling: Scaling,
    shares: Sequence[float] | np.ndarray | None,
    names: Sequence[str] | None,
) -> tuple[dict[Scaling, ShardDraws], Layout]:
    kinds: tuple[Scaling, Scaling] = ("rescaled", "fractional")
    given = draws if isinstance(draws, Mapping) else {scaling: draws}
    share = None if shares is None else np.asarray(shares, dtype=np.float64)
    shards: dict[Scaling, ShardDraws] = {}
    layouts = []
    for name in given:
        if name not in kinds:
            raise unknown("scaling", name, kinds)
    for kind in kinds:
        if kind not in given:
            continue
        arrays, layout = read_shards(given[kind], names)
        shards[kind] = ShardDraws.of(arrays, share, kind)
        layouts.append(layout)
    if not layouts:
        raise OptionError("There are no draws: give {'rescaled': ..., 'fractional': ...}, or one of the two.")
    if any(layout != layouts[0] for layout in layouts):
        raise OptionError("The rescaled and the fractional draws have different parameters.")
    return shards, layouts[0]


def _reference(reference: GivenDraws | Side, layout: Layout, names: Sequence[str] | None) -> Side:
    if isinstance(reference, Distribution):
        return [reference]
    given = reference if isinstance(reference, (list, tuple)) else ()
    exact = [each for each in given if isinstance(each, Distribution)]
    if exact and len(exact) == len(given):
        return exact
    return _flat(reference, layout, names, "The reference")


def _flat(draws: object, layout: Layout, names: Sequence[str] | None, whose: str) -> np.ndarray:
    """Draws (draw, dim) of the parameters that the shards have."""
    named = read_draws(draws, names)
    given = Layout.of(named)
    if dict(given.shapes) != dict(layout.shapes):
        raise OptionError(
            f"{whose} has parameters {', '.join(given.names[:8])}; the shards have "
            f"{', '.join(layout.names[:8])}."
        )
    return layout.flatten(named)


def _chosen(
    combiners: Sequence[str | Combiner] | None, shards: Mapping[Scaling, ShardDraws], located: Located | None
) -> dict[str, Combiner]:
    """The combiners to run, by the label of their row."""
    if combiners is None:
        made = {name: named_combiner(name) for name in COMBINERS if name != "laplace" or located is not None}
        return {name: one for name, one in made.items() if one.scaling in shards}
    if isinstance(combiners, (str, Combiner)):
        combiners = [combiners]
    chosen: dict[str, Combiner] = {}
    for method in combiners:
        made = named_combiner(method)
        label = method if isinstance(method, str) else repr(method)
        if made.scaling not in shards:
            raise OptionError(
                f"{label} combines draws of {made.scaling} subposteriors, and others were given. Give "
                "{'rescaled': ..., 'fractional': ...}, or say "
                f"scaling={made.scaling!r} if that is what they are."
            )
        chosen[label] = made
    return chosen
