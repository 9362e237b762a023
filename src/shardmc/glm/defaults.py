"""Weakly informative priors where the user gives none, and the user's where there are some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardmc.errors import OptionError, unknown
from shardmc.glm.design import COEFFICIENTS
from shardmc.glm.families import Family, Seen
from shardmc.glm.prior import Prior, rounded


def choose_priors(
    given: Mapping[str, Any] | None,
    family: Family,
    seen: Seen,
    names: Sequence[str],
    terms: Mapping[str, Sequence[str]],
    sds: np.ndarray,
    has_location: bool,
) -> dict[str, Prior]:
    """Priors of all parameters by name.

    By default, as in rstanarm: a coefficient is Normal(0, 2.5 s / sd(x)), with s = sd(y) for families whose response
    is on the scale of the linear predictor and 1 for others; the intercept, with all predictors at their means, is
    Normal(m, 2.5 s) with m the mean response on the scale of the linear predictor; sigma is Exponential(1 / sd(y)).

    Parameters
    ----------
    given
        The user's: name of a coefficient, of a term (all its columns), "coefficients" (all), "Intercept", "cutpoint",
        "sigma", "shape" or "nu" -> text such as "normal(0, 1)" or a `Prior`.
    family
        The family.
    seen
        The response.
    names
        Coefficients.
    terms
        Names of terms with several columns -> their coefficients.
    sds
        Standard deviations of the columns, (coefficient,).
    has_location
        Whether there is an intercept or cutpoints.
    """
    own = family.default_priors(seen)
    if not has_location:
        own.pop(family.location, None)
    scale = family.coefficient_scale(seen)
    priors = {family.location: own[family.location]} if has_location else {}
    priors |= {name: Prior("normal", (0.0, rounded(scale / sd))) for name, sd in zip(names, sds, strict=True)}
    priors |= {name: prior for name, prior in own.items() if name != family.location}
    if given is not None and not isinstance(given, Mapping):
        raise OptionError(
            f"priors must be a dict such as {{'x1': 'normal(0, 1)'}}, not {type(given).__name__}."
        )
    positive = set(family.auxiliaries)
    # The wider a key reaches the earlier it is applied, so that a name wins over its term and that over all.
    groups: dict[str, Sequence[str]] = {COEFFICIENTS: names, **terms}
    for key, text in sorted((given or {}).items(), key=lambda pair: _reach(pair[0], groups)):
        chosen = Prior.parse(text)
        members = groups[key] if key in groups and key not in priors else [key]
        for name in members:
            if name not in priors:
                raise unknown("parameter in priors", key, [*priors, *groups])
            _refuse_support(name, chosen, name in positive)
            priors[name] = chosen
    return priors


def _reach(key: str, groups: Mapping[str, Sequence[str]]) -> int:
    return 0 if key == COEFFICIENTS else 1 if key in groups else 2


def _refuse_support(name: str, prior: Prior, positive: bool) -> None:
    if prior.is_positive and not positive:
        raise OptionError(
            f"Prior {prior} of {name!r} is for positive numbers, but the parameter may have any sign; take normal, "
            "student_t, cauchy, laplace, logistic or flat."
        )
