"""Parts of log densities written so that they stay exact in float32, whatever the size of their argument."""

from __future__ import annotations

import jax
import jax.numpy as jnp

_SERIES_FROM = 4.0  # from here on the asymptotic series is exact to about 1e-8


def stirling_remainder(z: jax.Array) -> jax.Array:
    r"""What Stirling's formula leaves of log Gamma, for z > 0.

    S(z) = log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2, about 1 / (12 z). Differences of log Gamma lose all
    digits in float32 where z is large; differences of S do not.

    Examples
    --------
    >>> round(float(stirling_remainder(jnp.array(1.0))), 6)  # 1 - log(2 pi) / 2
    0.081061
    """
    small = jnp.minimum(z, _SERIES_FROM)
    steps = sum((small + k + 0.5) * jnp.log1p(1 / (small + k)) - 1 for k in range(3))
    large = jnp.maximum(z, _SERIES_FROM)
    return jnp.where(z > _SERIES_FROM, _series(large), steps + _series(small + 3))


def _series(z: jax.Array) -> jax.Array:
    inverse = 1 / z
    square = inverse * inverse
    return inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))


def log_gamma_half_step(z: jax.Array) -> jax.Array:
    """log Gamma(z + 1/2) - log Gamma(z) - log(z) / 2, for z > 0: what normalises Student's t.

    Examples
    --------
    >>> round(float(log_gamma_half_step(jnp.array(0.5))), 6)  # log(sqrt(2 / pi))
    -0.225791
    """
    small = jnp.minimum(z, _SERIES_FROM)
    steps = sum(0.5 * jnp.log1p(1 / (small + k)) - jnp.log1p(0.5 / (small + k)) for k in range(4))
    large = jnp.maximum(z, _SERIES_FROM)
    return jnp.where(z > _SERIES_FROM, _half_series(large), steps + _half_series(small + 4))


def _half_series(z: jax.Array) -> jax.Array:
    inverse = 1 / z
    square = inverse * inverse
    return -inverse * (1 / 8 - square * (1 / 192 - square * (1 / 640 - square * (17 / 14336))))
