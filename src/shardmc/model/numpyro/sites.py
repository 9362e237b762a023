"""The roles of a NumPyro model's sites: parameters, likelihood of the rows, prior, or derived quantities."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import ModelError
from shardmc.model.numpyro.tracing import Compared, Computed, compare
from shardmc.model.parameter import Parameter
from shardmc.model.user_functions import TwoSamples, calling, num_rows, row_axis
from shardmc.model.variables import partly_named
from shardmc.types import Params, Rows

if TYPE_CHECKING:
    from numpyro.distributions.constraints import Constraint

RunModel: TypeAlias = Callable[[Rows], object]
"""The model function, called on some rows."""
SampleSite: TypeAlias = Mapping[str, Any]
"""What NumPyro records of a site."""

_TRACING = threading.RLock()
"""NumPyro has one stack of handlers for all threads, and engines run models in several threads."""

MARGINALISE = (
    "Marginalise it (labels of a mixture: numpyro.distributions.MixtureSameFamily), or write a Gibbs sampler"
)


@dataclass(frozen=True)
class SampleSites:
    """The roles of a model's sites."""

    parameters: dict[str, Parameter]
    row_axes: dict[str, int]
    """Observed sites and factors with one value per row -> the axis of their log density that stands for the rows."""
    prior: tuple[str, ...]
    """Latent sites, and the observed sites and factors that do not depend on the rows."""
    derived: tuple[str, ...]
    dims: dict[str, tuple[str, ...]]
    """Parameters and derived quantities under plates, or with event_dims -> names of their axes."""

    def without(self, integrated: Sequence[str], derived: Sequence[str]) -> SampleSites:
        """The roles without latent sites that are integrated out, and with these derived quantities only."""
        parameters = {name: p for name, p in self.parameters.items() if name not in integrated}
        if not parameters:
            raise ModelError("All latent sites are effects of groups, so there is nothing to infer.")
        kept = tuple(name for name in self.derived if name in derived)
        dims = {name: axes for name, axes in self.dims.items() if name in parameters or name in kept}
        prior = tuple(name for name in self.prior if name not in integrated)
        return SampleSites(parameters, self.row_axes, prior, kept, dims)


def log_densities(run: RunModel, params: Params, rows: Rows, names: Iterable[str]) -> dict[str, jax.Array]:
    """Log density of the named sites at given values of the latent ones, scaled and masked as the model says.

    A row outside the support of its distribution has log density -inf. Latent values are always inside.
    """
    trace = trace_at(run, params, rows)
    return {name: log_density(trace[name]) for name in names}


def deterministic_values(
    run: RunModel, params: Params, rows: Rows, names: Iterable[str]
) -> dict[str, jax.Array]:
    """Values of the named deterministic sites at given values of the latent ones."""
    trace = trace_at(run, params, rows)
    return {name: jnp.asarray(trace[name]["value"]) for name in names}


def trace_at(run: RunModel, params: Params, rows: Rows) -> Mapping[str, SampleSite]:
    """Sites of the model with the latent ones at given natural values."""
    from numpyro import handlers

    with _TRACING:
        return handlers.trace(handlers.substitute(run, data=dict(params))).get_trace(rows)


def discover(run: RunModel, samples: TwoSamples, hint: str) -> SampleSites:
    """Find the role of every site by running the model on two samples of rows of different length.

    A site whose shape changes with the number of rows has an axis of rows. A site whose value changes, while the
    parameters stay the same, depends on the rows.

    Parameters
    ----------
    run : function of rows
    samples : TwoSamples
    hint : str
        Text to add to the error if no response seems to be given.
    """
    first, second = (_structure(run, rows) for rows in (samples.first, samples.second))
    _refuse_unsupported(first, second, num_rows(samples.first), hint)
    lengths = (num_rows(samples.first), num_rows(samples.second))
    row_axes = {}
    for name, site in first.observed.items():
        axis = row_axis(
            f"observed site {name!r}", site.density_shape, second.observed[name].density_shape, lengths
        )
        if axis is not None:
            row_axes[name] = axis
    compared = _compared(run, samples, first, [name for name in first.observed if name not in row_axes])
    _refuse_dependent(compared, first)
    if not row_axes:
        raise ModelError(
            f"The NumPyro model has no observed site with one value per row: give one obs=.{hint}"
        )
    parameters = {
        name: _parameter(name, site, jax.tree.unflatten(site.support, compared.bounds[name] or []))
        for name, site in first.latent.items()
    }
    if not parameters:
        raise ModelError("The NumPyro model has no latent site, so there is nothing to infer.")
    prior = (*first.latent, *(name for name in first.observed if name not in row_axes))
    derived = tuple(name for name in first.deterministic if compared.constant[name])
    dims = {name: first.dims[name] for name in (*parameters, *derived) if name in first.dims}
    return SampleSites(parameters, row_axes, prior, derived, dims)


@dataclass
class _Site:
    """A sample site as one run of the model shows it."""

    shape: tuple[int, ...]  # of its value
    unconstrained_shape: tuple[int, ...]
    density_shape: tuple[int, ...]
    support: Hashable
    """Tree structure of the NumPyro constraint; its bounds are known only once numbers are computed."""
    is_discrete: bool
    is_factor: bool


@dataclass
class _Structure:
    """All sites as one run of the model shows them."""

    latent: dict[str, _Site] = field(default_factory=dict)
    observed: dict[str, _Site] = field(default_factory=dict)
    deterministic: dict[str, tuple[int, ...]] = field(default_factory=dict)
    plates: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    optimised: list[str] = field(default_factory=list)  # sites of numpyro.param
    dims: dict[str, tuple[str, ...]] = field(default_factory=dict)  # names of the axes of sites


def _structure(run: RunModel, rows: Rows) -> _Structure:
    """Shapes and supports of all sites, without computing a number."""
    from shardmc.model.numpyro.adapter import is_factor

    structure = _Structure()

    def record(rows: Rows) -> None:
        for name, site in traced(run, rows).items():
            dims = _dims(site) if site["type"] in ("sample", "deterministic") else []
            if any(dims):
                structure.dims[name] = partly_named(name, dims)
            match site["type"]:
                case "sample":
                    group = structure.observed if site["is_observed"] else structure.latent
                    support = site["fn"].support
                    group[name] = _Site(
                        shape=jnp.shape(site["value"]),
                        unconstrained_shape=_unconstrained_shape(site),
                        density_shape=jnp.shape(log_density(site)),
                        support=jax.tree.structure(support),
                        is_discrete=support.is_discrete,
                        is_factor=is_factor(site["fn"]),
                    )
                case "deterministic":
                    structure.deterministic[name] = jnp.shape(site["value"])
                case "plate":
                    structure.plates[name] = site["args"]
                case "param":
                    structure.optimised.append(name)

    with calling("The NumPyro model"):
        jax.eval_shape(record, rows)
    return structure


def _dims(site: SampleSite) -> list[str | None]:
    """Names of the axes of a site's value: those of its plates, and `infer={"event_dims": [...]}` as in ArviZ."""
    num_axes = len(jnp.shape(site["value"]))
    dims: list[str | None] = [None] * num_axes
    event = (site.get("infer") or {}).get("event_dims", ())
    num_event = len(site["fn"].event_shape) if site["type"] == "sample" else len(event)
    for frame in site.get("cond_indep_stack") or ():
        axis = num_axes - num_event + frame.dim
        if 0 <= axis < num_axes:
            dims[axis] = frame.name
    for k, name in enumerate(event[:num_event]):
        dims[num_axes - num_event + k] = name
    return dims


def traced(run: RunModel, rows: Rows, unconstrained: Params | None = None) -> Mapping[str, SampleSite]:
    """Sites of the model with the latent ones at given unconstrained values, or at 0."""
    from numpyro import handlers
    from numpyro.distributions import biject_to

    def value_of(site: SampleSite) -> jax.Array | None:
        if site["type"] != "sample" or site["is_observed"]:
            return None
        support = site["fn"].support
        if support.is_discrete:
            return jnp.zeros(_value_shape(site), int)
        try:
            bijection = biject_to(support)
        except NotImplementedError:
            raise ModelError(
                f"Latent site {site['name']!r} has support {support!r}, which has no bijection to the real numbers in "
                "NumPyro: write it as a function of other sites."
            ) from None
        if unconstrained is None:
            return bijection(jnp.zeros(bijection.inverse_shape(_value_shape(site))))
        return bijection(unconstrained[site["name"]])

    # The seed serves random numbers that a model draws outside its sites. It is made here so that no tracer leaks.
    return handlers.trace(
        handlers.substitute(handlers.seed(run, rng_seed=0), substitute_fn=value_of)
    ).get_trace(rows)


def _value_shape(site: SampleSite) -> tuple[int, ...]:
    return tuple(site["kwargs"].get("sample_shape", ())) + tuple(site["fn"].shape())


def _unconstrained_shape(site: SampleSite) -> tuple[int, ...]:
    """Shape of a latent site on the unconstrained scale; the shape of its value where it has no such scale."""
    from numpyro.distributions import biject_to

    if site["is_observed"] or site["fn"].support.is_discrete:
        return jnp.shape(site["value"])
    return tuple(biject_to(site["fn"].support).inverse_shape(_value_shape(site)))


def log_density(site: SampleSite) -> jax.Array:
    """Log density of a site, one number per element of its batch."""
    from shardmc.model.numpyro.adapter import with_checks

    # Latent values are always inside their support, and checking may cost a matrix decomposition.
    density = with_checks(site["fn"], enabled=site["is_observed"]).log_prob(site["value"])
    scale = site.get("scale")
    return jnp.asarray(density) if scale is None else scale * density


def _refuse_unsupported(first: _Structure, second: _Structure, length: int, hint: str) -> None:
    for name, (size, subsample_size) in first.plates.items():
        if subsample_size is not None and subsample_size != size:
            raise ModelError(
                f"Plate {name!r} takes a subsample of {subsample_size} of {size}: leave subsample_size out, shardmc "
                "splits the rows itself."
            )
    for name in first.optimised:
        raise ModelError(f"Site {name!r} is a numpyro.param, which has no prior: make it a numpyro.sample.")
    changed = set(first.latent).symmetric_difference(second.latent) | set(
        first.observed
    ).symmetric_difference(second.observed)
    if changed:
        raise ModelError(
            f"Site {sorted(changed)[0]!r} is only there for some numbers of rows: make it unconditional."
        )
    for name, site in first.latent.items():
        if site.shape != second.latent[name].shape:
            raise ModelError(
                f"Latent site {name!r} has one value per row (shape {site.shape} for {length} rows), but shardmc "
                f"samples a fixed number of parameters. {MARGINALISE}.{hint}"
            )
        if site.is_discrete:
            raise ModelError(f"Latent site {name!r} is discrete. {MARGINALISE}.")


def _compared(run: RunModel, samples: TwoSamples, structure: _Structure, rowless: list[str]) -> Compared:
    """Run the model at the same parameters with different rows, and at different parameters."""
    rng = np.random.default_rng(0)
    here, there = (
        {name: 0.5 * rng.standard_normal(site.unconstrained_shape) for name, site in structure.latent.items()}
        for _ in range(2)
    )

    def one(unconstrained: Params, rows: Rows) -> Computed:
        trace = traced(run, rows, unconstrained)
        densities = {name: log_density(trace[name]) for name in (*structure.latent, *rowless)}
        supports = {name: jax.tree.leaves(trace[name]["fn"].support) for name in structure.latent}
        return densities, supports, {name: trace[name]["value"] for name in structure.deterministic}

    return compare(one, here, there, samples)


def _refuse_dependent(compared: Compared, structure: _Structure) -> None:
    for name, bounds in compared.bounds.items():
        if bounds is None:
            raise ModelError(
                f"The support of latent site {name!r} depends on another site or on the rows: sample it on a fixed "
                "support, such as Uniform(0, 1), and make what you need of it a numpyro.deterministic."
            )
    for name, constant in compared.prior_constant.items():
        if constant:
            continue
        if name in structure.latent:
            raise ModelError(
                f"The prior of latent site {name!r} depends on the rows or on how many there are, so every shard would "
                "have another one: work that number out from all rows beforehand and give it to from_numpyro as an "
                "extra argument."
            )
        if structure.observed[name].is_factor:
            raise ModelError(
                f"Factor {name!r} is one number for all rows: give numpyro.factor one value per row, without the sum."
            )
        raise ModelError(
            f"Observed site {name!r} has one log density for all rows together: leave out .to_event over the rows, or "
            "put it under numpyro.plate('rows', x.shape[0])."
        )


def _parameter(name: str, site: _Site, support: Constraint) -> Parameter:
    from shardmc.model.numpyro.adapter import is_real

    if is_real(support):
        return Parameter(site.shape)
    try:
        return Parameter(site.shape, support)
    except ModelError as error:
        raise ModelError(f"Latent site {name!r}: {error}") from None
