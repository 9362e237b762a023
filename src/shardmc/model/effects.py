"""Effects that every group of rows has for itself, as a model declares them: names, covariance, column of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import ModelError, OptionError, unknown
from shardmc.model.parameter import Parameter
from shardmc.model.precision import cholesky
from shardmc.model.user_functions import calling
from shardmc.types import Params

if TYPE_CHECKING:
    from shardmc.model.model import Model

MOST_EFFECTS = 3
"""Effects of a group that can be integrated out."""

_SHAPE = 'local={"intercept": "tau"} or local={("intercept", "slope"): covariance}'

"""Named parameters on the natural scale."""

Spread = Callable[[Params], jax.Array]
"""params -> a lower triangular L (k, k) with L L^T the covariance of k effects."""


@final
@dataclass(frozen=True)
class GroupEffects:
    """Normal effects of groups that are independent of each other given the parameters.

    Examples
    --------
    >>> effects = GroupEffects.of({"intercept": "tau"}, "clinic", {"tau": Parameter((), "positive")})
    >>> effects.names, effects.column, effects.root({"tau": jnp.array(2.0)}).tolist()
    (('intercept',), 'clinic', [[2.0]])
    """

    names: tuple[str, ...]
    column: str
    """The column whose values name the groups."""
    spreads: tuple[tuple[int, Spread], ...]
    """The number of effects, and their spread, of each set of effects that may be correlated."""
    mean: Callable[[Params], jax.Array] | None = None
    """params -> (size,); None if all means are 0."""
    most: int | None = None
    """The number of groups that the model was written for, if it says one."""

    @classmethod
    def of(cls, local: object, column: object, parameters: Mapping[str, Parameter]) -> GroupEffects:
        """The effects from what a user gave as `local` and `groups`."""
        if local is None or column is None:
            given, other = ("groups", _SHAPE) if local is None else ("local", 'groups="g"')
            raise ModelError(f"{given}= was given without its counterpart: add {other}.")
        if not isinstance(column, str):
            raise ModelError(f"groups must be the name of a column, not {column!r}.")
        if not isinstance(local, Mapping) or not local:
            raise ModelError(
                f"local must name effects and their spread, as in {_SHAPE}; {local!r} was given."
            )
        names: list[str] = []
        spreads = []
        for key, given in local.items():
            if isinstance(key, tuple):
                names += key
                spreads.append((len(key), _covariance(key, given, parameters)))
            else:
                names.append(key)
                spreads.append((1, _sd(key, given, parameters)))
        _refuse_names(names)
        return cls(tuple(names), column, tuple(spreads))

    @property
    def size(self) -> int:
        """The number of effects of a group."""
        return len(self.names)

    def root(self, params: Params) -> jax.Array:
        """L, lower triangular (size, size), with L L^T the covariance of a group's effects."""
        if len(self.spreads) == 1:
            return self.spreads[0][1](params)
        return jax.scipy.linalg.block_diag(*(spread(params) for _, spread in self.spreads))

    def means(self, params: Params) -> jax.Array:
        """The means of the effects, (size,)."""
        return jnp.zeros(self.size) if self.mean is None else self.mean(params)

    def named(self, effects: jax.Array) -> dict[str, jax.Array]:
        """Effects (..., size) by name."""
        return {name: effects[..., k] for k, name in enumerate(self.names)}

    def typical(self, params: Params, count: int) -> dict[str, jax.Array]:
        """Effects of a typical size, the same for `count` rows: to try a log-likelihood on."""
        size = self.means(params) + self.root(params) @ jnp.linspace(0.4, 0.6, self.size)
        return self.named(jnp.broadcast_to(size, (count, self.size)))

    def check(self, model: Model) -> None:
        """Refuse spreads that are not positive, or not of the right shape."""
        with calling("local"):
            params = jax.tree.map(jnp.asarray, dict(model.constrain(model.initial)))
            diagonal = np.asarray(jnp.diagonal(self.root(params)))
        if not (np.isfinite(diagonal).all() and (diagonal > 0).all()):
            name = self.names[int(np.argmin(np.isfinite(diagonal) & (diagonal > 0)))]
            raise ModelError(
                f"The sd of effect {name!r} must be positive, but it is {float(np.min(diagonal)):.3g} at the starting "
                "point. Make it a parameter with support 'positive', or give another starting point (initial=)."
            )


def refuse_effects(model: Model) -> None:
    """Refuse a model with effects of groups where rows must be independent."""
    if model.effects is not None:
        raise OptionError(
            f"The model has effects of the groups of {model.effects.column!r}, so its rows depend on each other. Only "
            "shardmc.fit takes it, with all rows."
        )


def _refuse_names(names: list[str]) -> None:
    for name in names:
        if not isinstance(name, str) or not name:
            raise ModelError(f"Names of effects must be text that is not empty; {name!r} was given.")
        if names.count(name) > 1:
            raise ModelError(f"local names the effect {name!r} twice.")
    if len(names) > MOST_EFFECTS:
        raise ModelError(
            f"local declares {len(names)} effects of each group ({', '.join(names[:4])}, ...); at most {MOST_EFFECTS} "
            "can be integrated out. Leave out those that vary least."
        )


def _sd(name: str, given: object, parameters: Mapping[str, Parameter]) -> Spread:
    """The spread of one effect from a parameter, a number or a function of the parameters."""
    if isinstance(given, str):
        parameter = _parameter(name, given, parameters)
        if parameter.shape != () or parameter.is_real:
            raise ModelError(
                f"local names {given!r} as the sd of effect {name!r}; it must be one positive number, as in "
                f'parameters={{"{given}": "positive"}}.'
            )
        return lambda params: jnp.reshape(params[given], (1, 1))
    if callable(given):
        return lambda params: _shaped(name, given(params), ()).reshape(1, 1)
    if isinstance(given, int | float) and not isinstance(given, bool) and given > 0:
        return lambda params: jnp.full((1, 1), float(given))
    raise ModelError(
        f"The sd of effect {name!r} must be the name of a parameter, a positive number, or a function of the "
        f"parameters; {given!r} was given."
    )


def _covariance(names: tuple[object, ...], given: object, parameters: Mapping[str, Parameter]) -> Spread:
    """The spread of correlated effects from a parameter or a function of the parameters."""
    shape = (len(names), len(names))
    listed = ", ".join(map(str, names))
    if isinstance(given, str):
        parameter = _parameter(listed, given, parameters)
        if parameter.shape != shape or parameter.support not in ("positive_definite", "lower_cholesky"):
            raise ModelError(
                f"local names {given!r} as the covariance of effects {listed}; it must be "
                f'Parameter({shape}, "positive_definite"), or "lower_cholesky" for its Cholesky factor.'
            )
        if parameter.support == "lower_cholesky":
            return lambda params: params[given]
        return lambda params: cholesky(params[given])
    if callable(given):
        return lambda params: cholesky(_shaped(listed, given(params), shape))
    raise ModelError(
        f"The covariance of effects {listed} must be the name of a parameter or a function of the parameters; "
        f"{given!r} was given."
    )


def _parameter(effect: str, name: str, parameters: Mapping[str, Parameter]) -> Parameter:
    if name not in parameters:
        raise ModelError(str(unknown(f"parameter of effect {effect} in local", name, parameters)))
    return parameters[name]


def _shaped(name: str, value: object, shape: tuple[int, ...]) -> jax.Array:
    value = jnp.asarray(value)
    if value.shape != shape:
        what = "one number, the sd" if shape == () else f"a matrix of shape {shape}, the covariance"
        raise ModelError(
            f"The function in local for {name} returns shape {value.shape}; it must return {what}."
        )
    return value
