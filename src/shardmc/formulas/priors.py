"""Priors: named densities that can be read from and written as text, and the defaults for a family."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import OptionError, unknown

if TYPE_CHECKING:
    from shardmc.formulas.families import Family, ResponseSummary

COEFFICIENTS = "coefficients"
"""The parameter that holds all coefficients, and the key of one prior for all of them."""

Number = jax.Array | float
PriorDensity = Callable[..., jax.Array]


def _normal(x: Number, loc: Number, scale: Number) -> jax.Array:
    return -0.5 * ((x - loc) / scale) ** 2 - jnp.log(scale)


def _student_t(x: Number, df: Number, loc: Number, scale: Number) -> jax.Array:
    return -0.5 * (df + 1) * jnp.log1p(((x - loc) / scale) ** 2 / df) - jnp.log(scale)


def _gamma(x: Number, shape: Number, rate: Number) -> jax.Array:
    return (shape - 1) * jnp.log(x) - rate * x + shape * jnp.log(rate)


_DENSITIES: dict[str, tuple[tuple[str, ...], PriorDensity]] = {
    "normal": (("loc", "scale"), _normal),
    "student_t": (("df", "loc", "scale"), _student_t),
    "cauchy": (("loc", "scale"), lambda x, loc, scale: _student_t(x, 1.0, loc, scale)),
    "laplace": (("loc", "scale"), lambda x, loc, scale: -jnp.abs(x - loc) / scale - jnp.log(scale)),
    "logistic": (
        ("loc", "scale"),
        lambda x, loc, scale: -jnp.abs(x - loc) / scale - 2 * jnp.log1p(jnp.exp(-jnp.abs(x - loc) / scale)),
    ),
    "half_normal": (("scale",), lambda x, scale: _normal(x, 0.0, scale)),
    "half_cauchy": (("scale",), lambda x, scale: _student_t(x, 1.0, 0.0, scale)),
    "half_student_t": (("df", "scale"), lambda x, df, scale: _student_t(x, df, 0.0, scale)),
    "exponential": (("rate",), lambda x, rate: jnp.log(rate) - rate * x),
    "gamma": (("shape", "rate"), _gamma),
    "inverse_gamma": (("shape", "scale"), lambda x, shape, scale: -(shape + 1) * jnp.log(x) - scale / x),
    "lognormal": (("loc", "scale"), lambda x, loc, scale: _normal(jnp.log(x), loc, scale) - jnp.log(x)),
    "beta": (("a", "b"), lambda x, a, b: (a - 1) * jnp.log(x) + (b - 1) * jnp.log1p(-x)),
    # Of one correlation; of several, NumPyro's density of their matrix.
    "lkj": (("concentration",), lambda x, concentration: (concentration - 1) * jnp.log1p(-(x**2))),
    "flat": ((), lambda x: jnp.zeros_like(x)),
}
_POSITIVE = {
    "half_normal",
    "half_cauchy",
    "half_student_t",
    "exponential",
    "gamma",
    "inverse_gamma",
    "lognormal",
}
_ONLY = {
    "beta": "probabilities take beta(a, b)",
    "lkj": "correlations take lkj(concentration)",
}
"""Priors for which there is one kind of parameter, which takes no other."""
_ANY_SIGN = {"loc"}  # arguments that need not be positive
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
"""A number as a text of priors or options of a family may have it."""


@final
@dataclass(frozen=True)
class Prior:
    """A prior density by name, such as normal(0, 2.5).

    Parameters
    ----------
    name : str
        normal(loc, scale), student_t(df, loc, scale), cauchy(loc, scale), laplace(loc, scale), logistic(loc, scale),
        flat(); for positive parameters also half_normal(scale), half_cauchy(scale), half_student_t(df, scale),
        exponential(rate), gamma(shape, rate), inverse_gamma(shape, scale), lognormal(loc, scale); for
        probabilities beta(a, b); for correlations lkj(concentration).
    arguments : tuple of float

    Examples
    --------
    >>> prior = Prior.parse("student_t(3, 0, 2.5)")
    >>> prior.name, prior.arguments
    ('student_t', (3.0, 0.0, 2.5))
    >>> print(prior)
    student_t(3, 0, 2.5)
    """

    name: str
    arguments: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in _DENSITIES:
            raise unknown("prior", self.name, _DENSITIES)
        wanted = _DENSITIES[self.name][0]
        if len(self.arguments) != len(wanted):
            raise OptionError(
                f"Prior {self.name!r} takes {len(wanted)} numbers, {_signature(self.name)}; "
                f"{len(self.arguments)} were given."
            )
        for argument, value in zip(wanted, self.arguments, strict=True):
            if not (value > 0 or argument in _ANY_SIGN) or not abs(value) < float("inf"):
                raise OptionError(
                    f"In prior {self}, {argument} must be {'finite' if argument in _ANY_SIGN else 'positive'}; "
                    f"{value:g} was given."
                )

    @staticmethod
    def parse(text: str | Prior) -> Prior:
        """The prior that a text such as "normal(0, 1)" names; nothing in it is executed."""
        if isinstance(text, Prior):
            return text
        if not isinstance(text, str):
            raise OptionError(
                f"A prior must be text such as 'normal(0, 1)', not {type(text).__name__} ({text!r})."
            )
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*(?:\(([^()]*)\))?\s*", text)
        parts = [p.strip() for p in (match[2] or "").split(",")] if match else []
        parts = [] if parts == [""] else parts
        if match is None or not all(re.fullmatch(NUMBER, p) for p in parts):
            raise OptionError(
                f"Prior {text!r} is not understood: write a name and numbers, as in 'normal(0, 2.5)' or "
                f"'exponential(1)'. Valid: {', '.join(_signature(n) for n in sorted(_DENSITIES))}."
            )
        return Prior(match[1].lower(), tuple(float(p) for p in parts))

    @property
    def is_positive(self) -> bool:
        """Whether the density is on positive numbers only."""
        return self.name in _POSITIVE

    @property
    def middle(self) -> float:
        """A point inside the support, where the search for the mode can start."""
        arguments = dict(zip(_DENSITIES[self.name][0], self.arguments, strict=True))
        if self.name == "lognormal":
            return float(jnp.exp(arguments["loc"]))
        if self.name == "beta":
            return arguments["a"] / (arguments["a"] + arguments["b"])
        if self.name == "gamma":
            return arguments["shape"] / arguments["rate"]
        if self.is_positive:
            return arguments["scale"] if "scale" in arguments else 1 / arguments["rate"]
        return arguments.get("loc", 0.0)

    def log_density(self, x: jax.Array) -> jax.Array:
        """Log density at x, up to a constant."""
        return _DENSITIES[self.name][1](x, *self.arguments)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{a:.10g}' for a in self.arguments)})"


def _signature(name: str) -> str:
    return f"{name}({', '.join(_DENSITIES[name][0])})"


def log_density(priors: list[Prior], values: jax.Array) -> jax.Array:
    """Sum of the log densities of several parameters (parameter,). Those with the same kind of prior go together.

    Examples
    --------
    >>> priors = [Prior("normal", (0.0, 1.0)), Prior("normal", (1.0, 1.0))]
    >>> float(log_density(priors, jnp.array([0.0, 3.0])))
    -2.0
    """
    total = jnp.zeros((), values.dtype)
    for name in dict.fromkeys(prior.name for prior in priors):
        members = [k for k, prior in enumerate(priors) if prior.name == name]
        arguments = [
            jnp.asarray(column) for column in zip(*(priors[k].arguments for k in members), strict=True)
        ]
        chosen = values if len(members) == len(priors) else values[jnp.asarray(members)]
        total = total + jnp.sum(_DENSITIES[name][1](chosen, *arguments))
    return total


def to_four_digits(value: float) -> float:
    """A number rounded to four digits, so that a default prior is printed exactly as it is used.

    >>> to_four_digits(2.718281828)
    2.718
    """
    return float(f"{value:.4g}")


def choose_priors(
    given: Mapping[str, str | Prior] | None,
    family: Family,
    response: ResponseSummary,
    names: Sequence[str],
    terms: Mapping[str, Sequence[str]],
    sds: np.ndarray,
    location: Sequence[str],
    of_groups: Mapping[str, Prior] | None = None,
) -> dict[str, Prior]:
    """Priors of all parameters by name.

    The defaults are those of rstanarm. A coefficient is Normal(0, 2.5 s / sd(x)), where s is sd(y) for families whose
    response is on the scale of the linear predictor, and 1 for others. The intercept, with all predictors at their
    means, is Normal(m, 2.5 s), where m is the mean response on the scale of the linear predictor. sigma is
    Exponential(1 / sd(y)).

    Parameters
    ----------
    given
        The user's priors: name of a coefficient, of a term (all its columns), "coefficients" (all), "Intercept",
        "Intercept[level]", "cutpoint", "sigma", "shape" or "nu" -> text such as "normal(0, 1)" or a `Prior`.
    response
        The response over all rows.
    names
        Coefficients.
    terms
        Names of terms with several columns -> their coefficients.
    sds
        Standard deviations of the columns, (coefficient,).
    location
        Names of the intercept or cutpoints: one name, one for each of several linear predictors, or none.
    of_groups
        Default priors of the standard deviations and correlations of effects of groups.
    """
    own = family.default_priors(response)
    scale = family.coefficient_scale(response)
    priors = {name: own[family.location] for name in location}
    priors |= {
        name: Prior("normal", (0.0, to_four_digits(scale / sd))) for name, sd in zip(names, sds, strict=True)
    }
    priors |= {name: prior for name, prior in own.items() if name != family.location}
    of_groups = of_groups or {}
    priors |= of_groups
    if given is not None and not isinstance(given, Mapping):
        raise OptionError(
            f"priors must be a dict such as {{'x1': 'normal(0, 1)'}}, not {type(given).__name__}."
        )
    # Wider keys are applied first, so that a name wins over its term, and a term over all coefficients.
    groups: dict[str, Sequence[str]] = {COEFFICIENTS: names, **terms}
    if len(location) > 1:
        groups[family.location] = location
    for key, text in sorted((given or {}).items(), key=lambda pair: _specificity(pair[0], groups)):
        chosen = Prior.parse(text)
        members = groups[key] if key in groups and key not in priors else [key]
        for name in members:
            if name not in priors:
                raise unknown("parameter in priors", key, [*priors, *groups])
            kinds = {priors[name].name, chosen.name} & set(_ONLY)
            if kinds and priors[name].name != chosen.name:
                raise OptionError(
                    f"Prior {chosen} of {name!r} is not possible: {_ONLY[kinds.pop()]}, and only they do."
                )
            if chosen.is_positive and name not in family.auxiliaries and name not in of_groups:
                raise OptionError(
                    f"Prior {chosen} of {name!r} is for positive numbers, but the parameter may have any sign; take "
                    "normal, student_t, cauchy, laplace, logistic or flat."
                )
            priors[name] = chosen
    return priors


def _specificity(key: str, groups: Mapping[str, Sequence[str]]) -> int:
    return 0 if key == COEFFICIENTS else 1 if key in groups else 2
