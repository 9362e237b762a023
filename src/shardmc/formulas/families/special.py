"""Parts of log densities written so that they stay exact in float32, whatever the size of their argument."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)
FARTHEST = 80.0
"""exp of more overflows float32."""
_SERIES_FROM = 4.0  # from here on the asymptotic series is exact to about 1e-8


def bounded_exp(x: np.ndarray) -> np.ndarray:
    """e^x on the host, at most e^700, so that it does not overflow float64.

    >>> bool(np.isfinite(bounded_exp(np.array(1e6))))
    True
    """
    return np.exp(np.minimum(x, 700.0))


def softplus(x: jax.Array) -> jax.Array:
    """log(1 + e^x), exact to the last digits however small it is, without branches that cannot be vectorised.

    It uses half of x + |x| instead of max(x, 0), so that the derivatives are right at zero too.

    Examples
    --------
    >>> softplus(jnp.array([-100.0, 0.0, 100.0])).round(4).tolist()
    [0.0, 0.6930999755859375, 100.0]
    """
    size = jnp.abs(x)
    return 0.5 * (x + size) + jnp.log1p(jnp.exp(-size))


def stirling_remainder(z: jax.Array) -> jax.Array:
    r"""The error of Stirling's formula for log Gamma, for z > 0.

    S(z) = log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2, about 1 / (12 z). Differences of log Gamma lose all
    digits in float32 where z is large; differences of S do not.

    Examples
    --------
    >>> round(float(stirling_remainder(jnp.array(1.0))), 6)  # 1 - log(2 pi) / 2
    0.081061
    """
    small, large = jnp.minimum(z, _SERIES_FROM), jnp.maximum(z, _SERIES_FROM)
    return jnp.where(z > _SERIES_FROM, _series(large), stirling_remainder_by_steps(small))


def stirling_remainder_by_steps(z: jax.Array) -> jax.Array:
    """S(z) by three steps of the recursion of Gamma and the series at z + 3, exact to about 3e-7.

    It does not choose between formulas, so that a CPU computes many rows at once with vector instructions.

    Examples
    --------
    >>> round(float(stirling_remainder_by_steps(jnp.array(0.5))), 6)  # (1 - log 2) / 2
    0.153426
    """
    steps = (z + 0.5) * jnp.log1p(3 / z) - 3 + jnp.log((z + 3) * (z + 3) / ((z + 1) * (z + 2)))
    return steps + _series(z + 3)


def stirling_slope_by_steps(z: jax.Array) -> jax.Array:
    """The derivative of S: digamma(z) - log z + 1 / (2 z)."""
    steps = jnp.log1p(3 / z) - 3 * (z + 0.5) / (z * (z + 3)) + 2 / (z + 3) - 1 / (z + 1) - 1 / (z + 2)
    square = 1 / ((z + 3) * (z + 3))
    return steps - square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))


def _series(z: jax.Array) -> jax.Array:
    inverse = 1 / z
    square = inverse * inverse
    return inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))


def log_gamma_half_step(z: jax.Array) -> jax.Array:
    """log Gamma(z + 1/2) - log Gamma(z) - log(z) / 2, for z > 0: the constant of Student's t.

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
