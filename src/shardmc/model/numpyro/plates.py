"""Plates of groups in a NumPyro model, whose effects rows look up as in b[g]: which plate, its sites, its effects."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from shardmc.errors import ModelError, unknown
from shardmc.model.effects import MOST_EFFECTS, GroupEffects
from shardmc.model.numpyro.sites import RunModel, SampleSite, SampleSites, log_densities, trace_at, traced
from shardmc.model.numpyro.tracing import Lookups, without_lookups
from shardmc.model.user_functions import calling, num_rows, sum_to_rows
from shardmc.programs.compiled import jit
from shardmc.types import Params, Rows, Tree

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
    run: RunModel, rows: Rows, observed: Mapping[str, int], params: Params, asked: Asked
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


def _plates(run: RunModel, rows: Rows) -> dict[str, Plate]:
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


def row_densities(run: RunModel, observed: Mapping[str, int]) -> Callable[[Params, Rows, Params], jax.Array]:
    """(params, rows, groups) -> the log densities of rows, (row,)."""

    def densities(params: Params, rows: Rows, groups: Params) -> jax.Array:
        found = log_densities(run, {**params, **groups}, rows, observed)
        per_row = [sum_to_rows(found[name], axis) for name, axis in observed.items()]
        return sum(per_row[1:], start=per_row[0])

    return densities


def looked_up(
    run: RunModel, rows: Mapping[str, Rows], observed: Mapping[str, int], params: Params, plate: Plate
) -> Lookups:
    """How rows look up the sites of a plate. Nothing is computed."""
    found: list[Lookups] = []
    others = {name: value for name, value in params.items() if name not in plate.sites}

    def record(params: Params, rows: Rows) -> None:
        blank = plate.blank(plate.size)
        found.append(without_lookups(row_densities(run, observed), params, rows, blank)[1])

    with calling("The NumPyro model"):
        jax.eval_shape(record, others, dict(rows))
    return found[0]


_PARAMETERS = "Or make these effects parameters, if they are few: from_numpyro(model, groups=False)."


@final
@dataclass(frozen=True, eq=False)
class PlateOfGroups:
    """A plate whose sites are integrated out."""

    run: RunModel
    sites: SampleSites
    """Those of the whole model."""
    plate: Plate
    column: str
    few: Rows
    """Two rows, which the function needs to run."""

    @property
    def effects(self) -> GroupEffects:
        """The effects as a model declares them."""
        sizes = [math.prod(shape) for shape in self.plate.sites.values()]
        spreads = tuple((size, _Root(self, name)) for size, name in zip(sizes, self.plate.sites, strict=True))
        return GroupEffects(self.names, self.column, spreads, self._means, self.plate.size)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """One name per effect: that of its site, with an index if the site has several."""
        found = []
        for name, shape in self.plate.sites.items():
            indices = [",".join(map(str, index)) for index in np.ndindex(*shape)]
            found += [f"{name}[{index}]" for index in indices] if shape else [name]
        return tuple(found)

    def log_likelihood(self, params: Params, rows: Rows, effects: Params) -> jax.Array:
        """The log-likelihoods of rows, given the effects of each row's group."""
        groups, names = {}, iter(self.names)
        for site, shape in self.plate.sites.items():
            columns = [effects[next(names)] for _ in range(math.prod(shape))]
            groups[site] = jnp.stack(columns, axis=-1).reshape(-1, *shape) if shape else columns[0]
        return without_lookups(row_densities(self.run, self.sites.row_axes), dict(params), rows, groups)[0]

    def normal(self, params: Params, site: str, groups: Params) -> tuple[jax.Array, jax.Array]:
        """Mean (group, k) and lower triangular root (group, k, k) of a site's k effects."""
        return _normal(trace_at(self.run, {**params, **groups}, self.few)[site], self.plate)

    def _means(self, params: Params) -> jax.Array:
        return jnp.concatenate([self.normal(params, name, self.blank)[0][0] for name in self.plate.sites])

    @property
    def blank(self) -> dict[str, jax.Array]:
        """Values of the sites, all 0."""
        return self.plate.blank(self.plate.size)

    def check(self, rows: Mapping[str, Rows]) -> tuple[str, ...]:
        """Refuse what cannot be integrated out. Returns the deterministic sites that do not depend on the effects."""
        count = sum(math.prod(shape) for shape in self.plate.sites.values())
        if count > MOST_EFFECTS:
            raise ModelError(
                f"Each group of plate {self.plate.name!r} has {count} effects ({', '.join(self.names[:4])}, ...); at "
                f"most {MOST_EFFECTS} can be integrated out. {_PARAMETERS}"
            )
        groups = {name: (self.plate.size, *shape) for name, shape in self.plate.sites.items()}
        rng = np.random.default_rng(0)
        others = self.sites.without(tuple(groups), ()).parameters
        here = {name: 0.5 * rng.standard_normal(p.unconstrained_shape) for name, p in others.items()}
        params = {name: x if others[name].is_real else others[name].bijection(x) for name, x in here.items()}
        first, second = (
            {name: rng.standard_normal(shape) for name, shape in groups.items()} for _ in range(2)
        )
        with calling("The NumPyro model"):
            normal, prior, derived = jax.tree.map(np.asarray, self._at_both(params, first, second))
        self._check_distributions(*normal)
        for name, change in prior.items():
            if _changes(change):
                raise ModelError(
                    f"Site {name!r} depends on the effects of plate {self.plate.name!r}, so these cannot be integrated "
                    f"out group by group. {_PARAMETERS}"
                )
        self._check_reading(params, first, {name: np.asarray(column) for name, column in rows.items()})
        return tuple(name for name, values in derived.items() if _same(*values))

    def _at_both(self, params: Params, first: Params, second: Params) -> Tree:
        """Distributions of effects and derived quantities at two values of the effects, and how the prior changes."""
        plate, sites = self.plate, self.sites

        @jit
        def program(params: Params, first: Params, second: Params) -> Tree:
            traces = [trace_at(self.run, {**params, **groups}, self.few) for groups in (first, second)]
            others = [name for name in sites.prior if name not in plate.sites]

            def prior(groups: Params) -> dict[str, jax.Array]:
                return log_densities(self.run, {**params, **groups}, self.few, others)

            return (
                [{name: _normal(trace[name], plate) for name in plate.sites} for trace in traces],
                jax.jvp(prior, (first,), (second,))[1],
                {name: [trace[name]["value"] for trace in traces] for name in sites.derived},
            )

        return program(params, first, second)

    def _check_distributions(self, first: Mapping[str, Tree], second: Mapping[str, Tree]) -> None:
        for name, (mean, root) in first.items():
            if not _same((mean, root), second[name]):
                raise ModelError(
                    f"The distribution of site {name!r} depends on other effects of plate {self.plate.name!r}. Sample "
                    "them together from a MultivariateNormal, or independently."
                )
            if not _same(mean, np.broadcast_to(mean[:1], mean.shape)) or not _same(
                root, np.broadcast_to(root[:1], root.shape)
            ):
                raise ModelError(
                    f"The distribution of site {name!r} differs between the groups of plate {self.plate.name!r}. Give "
                    f"it mean 0 and add what differs where rows look it up, as in z[g] + {name}[g]."
                )

    def _check_reading(self, params: Params, groups: Params, rows: dict[str, np.ndarray]) -> None:
        """Compare the log-likelihoods of rows that look up effects with those of rows that are given theirs."""
        rows[self.column] = codes_of(rows[self.column])
        densities = row_densities(self.run, self.sites.row_axes)

        @jit
        def program(params: Params, groups: Params, rows: Rows) -> Tree:
            own = self.plate.blank(num_rows(rows))
            _, lookups = without_lookups(densities, params, rows, own)
            if lookups.places:
                own = {name: value[lookups.places[0]] for name, value in groups.items()}

            def given(own: Params) -> jax.Array:
                return without_lookups(densities, params, rows, own)[0]

            # If every second row has other effects, the other rows stay as they are.
            moves = [jax.tree.map(lambda a, k=k: jnp.zeros_like(a).at[k::2].set(1), own) for k in (0, 1)]
            even, odd = (jax.jvp(given, (own,), (move,))[1] for move in moves)
            return lookups.places, given(own), densities(params, rows, groups), (even[1::2], odd[0::2])

        sites = ", ".join(map(repr, self.plate.sites))
        try:
            places, read, wanted, others = jax.tree.map(np.asarray, program(params, groups, rows))
        except Exception as error:
            raise ModelError(
                f"The sites {sites} of plate {self.plate.name!r} are combined with arrays of one entry per group "
                f"before rows look them up. Look up each by itself, as in b[{self.column}] + z[{self.column}]."
            ) from error
        codes = rows[self.column]
        equal = codes[:, None] == codes
        other_groups = any(((place[:, None] == place) != equal).any() for place in places)
        finite = np.isfinite(read) & np.isfinite(wanted)
        gap = np.abs(read - wanted)[finite] > 1e-3 * (1 + np.abs(wanted[finite]))
        if other_groups or gap.any() or any(map(_changes, others)):
            raise ModelError(
                f"The log-likelihood of a row does not use the sites {sites} of plate {self.plate.name!r} only at the "
                f"row's own group, as in {next(iter(self.plate.sites))}[{self.column}]. Leave out means over groups, "
                f"neighbours and coarser groups. {_PARAMETERS}"
            )


@final
@dataclass(frozen=True, eq=False)
class _Root:
    """The spread of one site's effects, as `GroupEffects` takes it."""

    groups: PlateOfGroups
    site: str

    def __call__(self, params: Params) -> jax.Array:
        return self.groups.normal(params, self.site, self.groups.blank)[1][0]


def codes_of(column: ArrayLike) -> np.ndarray:
    """Groups to try a model on: half of them neighbours, the others as the rows have them.

    >>> codes_of(np.array([7, 3, 90, 30, 50, 7]))
    array([ 3,  4,  5, 30, 50,  7])
    """
    given = np.asarray(column)
    half = len(given) // 2
    near = np.minimum(given.min() + np.arange(half), given.max()).astype(given.dtype)
    return np.concatenate([near, given[half:]])


def _normal(site: SampleSite, plate: Plate) -> tuple[jax.Array, jax.Array]:
    """Mean (group, k) and root (group, k, k) of a normal site; other distributions are refused."""
    from numpyro.distributions import MultivariateNormal, Normal
    from numpyro.distributions.distribution import ExpandedDistribution, Independent

    fn = site["fn"]
    shape = fn.batch_shape + fn.event_shape
    size = math.prod(shape[1:])
    while type(fn) in (ExpandedDistribution, Independent):
        fn = fn.base_dist
    kind, plain = type(fn), site.get("scale") is None
    if kind is Normal and plain:
        mean, sd = (jnp.broadcast_to(x, shape).reshape(-1, size) for x in (fn.loc, fn.scale))
        return mean, sd[:, :, None] * jnp.eye(size)
    if kind is MultivariateNormal and plain and len(shape) == 2:
        root = jnp.broadcast_to(fn.scale_tril, (*shape, size))
        return jnp.broadcast_to(fn.loc, shape), root
    what = kind.__name__ + ("" if plain else " under handlers.scale")
    raise ModelError(
        f"Site {site['name']!r} of plate {plate.name!r} is {what}; effects of groups that are integrated out must be "
        f"Normal or MultivariateNormal. {_PARAMETERS}"
    )


def _changes(derivative: np.ndarray) -> bool:
    """Whether a quantity depends on what it was differentiated by. Its own size, which may be large, hides nothing."""
    return bool((np.isfinite(derivative) & (derivative != 0)).any())


def _same(first: Tree, second: Tree) -> bool:
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in pairs)
