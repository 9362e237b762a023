"""Families of generalised linear models, by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Literal

from shardmc.errors import OptionError, RunError, unknown
from shardmc.formulas.families.continuous import (
    Beta,
    Gamma,
    Gaussian,
    InverseGaussian,
    Lognormal,
    StudentT,
    Weibull,
)
from shardmc.formulas.families.counts import (
    NegativeBinomial,
    Poisson,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from shardmc.formulas.families.family import Family, Moments, ResponseSummary, Statistic
from shardmc.formulas.families.levels import Categorical, Multinomial, Ordinal
from shardmc.formulas.families.successes import Bernoulli, Binomial
from shardmc.formulas.priors import NUMBER

__all__ = [
    "FAMILIES",
    "Bernoulli",
    "Beta",
    "Binomial",
    "Categorical",
    "Family",
    "Gamma",
    "Gaussian",
    "InverseGaussian",
    "Lognormal",
    "Moments",
    "Multinomial",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "ResponseSummary",
    "Statistic",
    "StudentT",
    "Weibull",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedPoisson",
    "families_with",
    "family_from_dict",
    "named_family",
]

_ALL: tuple[type[Family], ...] = (
    Gaussian,
    Bernoulli,
    Binomial,
    Poisson,
    NegativeBinomial,
    ZeroInflatedPoisson,
    ZeroInflatedNegativeBinomial,
    Gamma,
    Lognormal,
    InverseGaussian,
    Weibull,
    Beta,
    StudentT,
    Ordinal,
    Categorical,
    Multinomial,
)
_KINDS: dict[str, type[Family]] = {kind.name: kind for kind in _ALL}

FAMILIES: tuple[str, ...] = tuple(_KINDS)
"""The families' names."""


_OTHER_NAMES = {
    "normal": "gaussian",
    "logistic": "bernoulli",
    "negbinomial": "negative_binomial",
    "neg_binomial": "negative_binomial",
    "nb": "negative_binomial",
    "student": "student_t",
    "t": "student_t",
    "cumulative": "ordinal",
    "zip": "zero_inflated_poisson",
    "zinb": "zero_inflated_negative_binomial",
    "zero_inflated_negbinomial": "zero_inflated_negative_binomial",
    "inverse.gaussian": "inverse_gaussian",
    "inversegaussian": "inverse_gaussian",
    "gaussian_inverse": "inverse_gaussian",
    "wald": "inverse_gaussian",
    "log_normal": "lognormal",
    "multinomial_logit": "categorical",
    "mnlogit": "categorical",
}
"""What other programs call these families."""


def families_with(
    feature: Literal["takes_exposure", "takes_trials", "takes_levels", "takes_censoring", "takes_counts"],
) -> str:
    """Names of the families that have a feature, for messages.

    >>> families_with("takes_trials")
    "'binomial'"
    """
    return ", ".join(repr(name) for name, kind in _KINDS.items() if getattr(kind, feature))


def named_family(given: str | Family) -> Family:
    """A family by its name, with options in brackets; an instance is returned unchanged.

    Examples
    --------
    >>> named_family("bernoulli(link=probit)")
    Bernoulli(link='probit')
    >>> named_family("student-t(df=4)")
    StudentT(df=4.0)
    >>> named_family("normal")  # as brms, bambi and others call it
    Gaussian()
    """
    if isinstance(given, Family):
        return given
    match = re.fullmatch(r"\s*([\w.-]+)\s*(?:\(([^()]*)\))?\s*", given) if isinstance(given, str) else None
    if match is None:
        raise unknown("family", given, FAMILIES)
    name = match[1].lower().replace("-", "_")
    name = _OTHER_NAMES.get(name, name)
    if name not in _KINDS:
        raise unknown("family", match[1], FAMILIES)
    pairs = [part.split("=") for part in (match[2] or "").split(",") if part.strip()]
    if any(len(pair) != 2 for pair in pairs):
        raise OptionError(
            f"Options of a family are written name=value, as in 'student_t(df=4)', not {given!r}."
        )
    return _make(_KINDS[name], {key.strip(): _value(text) for key, text in pairs})


def family_from_dict(stored: Mapping[str, object]) -> Family:
    """The family that `Family.to_dict` wrote. A user's own family must be defined when it is read."""
    options = dict(stored)
    name = str(options.pop("name"))
    # The last definition counts: a notebook may define a family several times.
    kinds = {getattr(kind, "name", ""): kind for kind in _subclasses(Family)} | _KINDS
    if name not in kinds:
        raise RunError(
            f"The posterior was fitted with family {name!r}, which is not part of shardmc. Import the module that "
            "defines it and try again."
        )
    return _make(kinds[name], options)


def _subclasses(kind: type[Family]) -> Iterator[type[Family]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _make(kind: type[Family], options: Mapping[str, object]) -> Family:
    valid = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in options:
        if name not in valid:
            if not valid:
                raise OptionError(f"Family {kind.name!r} has no options; {name!r} was given.")
            raise unknown(f"option of family {kind.name!r}", name, valid)
    return kind(**options)


def _value(text: str) -> str | float:
    text = text.strip().strip("'\"")
    return float(text) if re.fullmatch(NUMBER, text) else text
