"""Draws that do not depend on the draw before: independent proposals or exact draws, also in warped coordinates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import final

import jax
import jax.numpy as jnp
from jax import lax

from shardmc.errors import OptionError
from shardmc.sample.sampler import Chains, DensitySampler, Sampler, Tuning, student_t, student_t_log_density
from shardmc.seeds import normals
from shardmc.target import GRID, LogDensity, Target, Warp, normal_map, unevenness
from shardmc.types import Rows

_MULTIPLE = 32
_DF = 100
_DF_PER_PARAMETER = 5


@final
@dataclass(frozen=True)
class Independence(DensitySampler):
    """Independence sampler: Student t proposals at the shard's mode, scaled by its curvature.

    The log densities of all proposals of a shard are one matrix computation. The accept step is a scan over scalars.
    With w(u) = pi(u) / q(u), a proposal v is accepted from u with probability min(1, w(v) / w(u)). If more than half
    are accepted, it is the cheapest exact sampler.

    Parameters
    ----------
    df
        Degrees of freedom of the proposal. By default 100, or five per parameter if that is more: the length of a t
        variable varies with its degrees of freedom, and with few of them even a normal target rejects proposals.
    warmup
        The least number of proposals before the first draw is kept. The total is rounded up to a multiple of 32, for
        which matrix products are faster.

    Examples
    --------
    >>> Independence(df=5).df
    5
    """

    df: int | None = None
    warmup: int = 24

    def sample(self, target: LogDensity, key: jax.Array, num_draws: int, tuning: Tuning) -> Chains:
        count = -(-(self.warmup + num_draws) // _MULTIPLE) * _MULTIPLE
        # All random numbers from one call: each further call takes time to compile.
        df = max(_DF, _DF_PER_PARAMETER * target.dim) if self.df is None else self.df
        noise = normals(key, (count, 2 + df + target.dim))
        log_uniforms = -0.5 * jnp.sum(noise[:, :2] ** 2, axis=1)  # minus a standard exponential
        proposals = student_t(noise[:, 2:], df)
        log_weights = target.log_densities(proposals) - student_t_log_density(proposals, df)
        log_weights = jnp.where(jnp.isnan(log_weights), -jnp.inf, log_weights)

        def step(state: tuple[jax.Array, jax.Array], proposal: tuple[jax.Array, jax.Array, jax.Array]):
            index, log_weight = state
            new, new_log_weight, log_uniform = proposal
            # Written so that the chain leaves a start of weight zero at once.
            accepted = ~(log_uniform + log_weight > new_log_weight)
            index = jnp.where(accepted, new, index)
            log_weight = jnp.where(accepted, new_log_weight, log_weight)
            return (index, log_weight), (index, accepted)

        start = (jnp.int32(0), log_weights[0])
        proposed = (jnp.arange(count, dtype=jnp.int32), log_weights, log_uniforms)
        # Unrolled, an accelerator does not launch a kernel for every scalar. On a CPU it only compiles longer.
        unroll = 1 if jax.default_backend() == "cpu" else 16
        _, (chosen, accepted) = lax.scan(step, start, proposed, unroll=unroll)
        kept = slice(count - num_draws, None)
        # Of all proposals except the first: with a single draw it would be 0 or 1.
        acceptance = jnp.mean((accepted & (log_weights > -jnp.inf))[1:].astype(float))
        return Chains(proposals[chosen[kept]][None], acceptance, jnp.int32(0), jnp.int32(count))


@final
@dataclass(frozen=True)
class Exact(Sampler):
    """Independent draws by the user's own function of the weighted rows.

    Parameters
    ----------
    draw
        `draw(key, rows, weights, power) -> params`: one draw of the parameters, on their natural scale, from
        (prior * prod_j likelihood_j ** weights_j) ** power; `power` is 1 for rescaled subposteriors.

    Examples
    --------
    The mean of rows with unit variance has a normal posterior:

    >>> def draw(key, y, weights, power):
    ...     sd = 1 / jnp.sqrt(power * weights.sum())
    ...     return {"mu": weights @ y / weights.sum() + sd * jax.random.normal(key)}
    >>> params = Exact(draw).draw(jax.random.key(0), jnp.zeros(10_000), jnp.ones(10_000), 1.0)
    >>> bool(abs(params["mu"]) < 0.06)
    True
    """

    draw: Callable[[jax.Array, Rows, jax.Array, jax.Array], dict[str, jax.Array]]
    needs_mode = False
    uses_rows = True

    def sample(self, target: Target, key: jax.Array, num_draws: int, tuning: Tuning) -> Chains:
        power = jnp.asarray(target.power)

        def one(key: jax.Array) -> jax.Array:
            params = self.draw(key, target.rows, target.weights, power)
            return target.model.unconstrain(params)

        theta = jax.vmap(one)(jax.random.split(key, num_draws))
        u = jnp.linalg.solve(target.frame.basis, (theta - target.frame.center).T).T
        return Chains(u[None], jnp.ones(()), jnp.int32(0), jnp.int32(1))


_PROBE = 2.0
_MOST = 32
"""Parameters with a map of their own: profiles of hundreds would take longer than sampling."""
_MATTERS = 0.1
"""The sum over parameters of the variance of the log slope. For a skewness g it is g^2 / 9, while proposals without a
warp have log weights with a variance of 5 g^2 / 12. Much below 0.1 the skewness is not what makes acceptance low."""


@final
@dataclass(frozen=True)
class Warped(Sampler):
    """Another sampler in warped coordinates, for parameters with skewed densities.

    If a level has only one outcome, the density of its coefficient has a long tail on one side and ends abruptly on
    the other. For each parameter a monotone map takes a normal variable to its density: theta_k = c_k + s_k g_k(z_k),
    with z normal with the correlations of the shard's curvature. The density along a parameter is its profile: the
    others follow on the line of their conditional means. Profiles are evaluated on pilot shards and their maps
    averaged, so all shards share the g_k, in units of their own s_k. The target includes the maps' slopes, so the draws
    are exact for any maps; better maps are accepted more often.

    Parameters
    ----------
    sampler
        What draws in the warped coordinates; by default independence sampling.

    Examples
    --------
    >>> from shardmc.sample import HMC
    >>> Warped(HMC(chains=8)).sampler.chains
    8
    """

    sampler: DensitySampler = field(default_factory=Independence)

    def __post_init__(self) -> None:
        if not isinstance(self.sampler, DensitySampler):
            raise OptionError(f"{self.sampler.name} does not sample in warped coordinates: leave out Warped.")

    @property
    def name(self) -> str:
        return f"Warped({self.sampler.name})"

    @property
    def takes_power(self) -> bool:
        return self.sampler.takes_power

    @property
    def tunes(self) -> bool:
        return True

    @property
    def tuning_steps(self) -> int:
        return self.sampler.tuning_steps + 1

    def steps(self, num_draws: int) -> int:
        return self.sampler.steps(num_draws)

    def tune(self, target: Target, key: jax.Array) -> Tuning:
        """The maps of this shard, and the sampler's own numbers on the warped target."""
        log_slopes, medians = maps(target)
        warped = replace(target, warp=Warp.of(log_slopes, medians))
        return log_slopes, medians, self.sampler.tune(warped, key) if self.sampler.tunes else ()

    def matters(self, tuning: Tuning) -> bool:
        """Whether parameters are skewed enough for the warp to change the acceptance much."""
        return unevenness(tuning[0]) > _MATTERS

    def sample(self, target: Target, key: jax.Array, num_draws: int, tuning: Tuning) -> Chains:
        log_slopes, medians, own = tuning
        warp = Warp.of(log_slopes, medians)
        # Other random numbers than those of an attempt without the warp.
        key = jax.random.fold_in(key, 1)
        chains = self.sampler.sample(replace(target, warp=warp), key, num_draws, own)
        shift = jax.vmap(jax.vmap(lambda u: target.shift(warp, u)[0]))(chains.u)
        return replace(chains, shift=shift)


def maps(target: Target) -> tuple[jax.Array, jax.Array]:
    """Log slopes (dim, knot) and medians (dim,) of the maps of the most skewed parameters, the identity of others."""
    frame = target.frame
    directions = frame.basis / frame.scales[:, None]
    both = jnp.concatenate([_PROBE * directions, -_PROBE * directions])
    # What the profile has beyond a normal density at two points. All of it is large where the density ends.
    excess = jnp.nan_to_num(target.log_densities(both) + 0.5 * _PROBE**2, nan=-jnp.inf, posinf=jnp.inf)
    _, most = lax.top_k(jnp.max(jnp.abs(excess).reshape(2, -1), axis=0), min(_MOST, target.dim))
    grid = jnp.asarray(GRID, directions.dtype)
    profiles = lax.map(lambda k: target.log_densities(grid[:, None] * directions[k]), most)
    log_slopes, medians = jax.vmap(normal_map)(profiles)
    flat = jnp.zeros((target.dim, log_slopes.shape[1]), log_slopes.dtype)
    return flat.at[most].set(log_slopes), flat[:, 0].at[most].set(medians)
