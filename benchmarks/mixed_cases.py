"""Rows for the benchmark of mixed models: one case for each aim."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import special

SD, SLOPE_SD, CORRELATION, CROSSED_SD = 0.8, 0.4, 0.3, 0.5
COEFFICIENTS = (0.5, -0.4, 0.3, 0.2)


@dataclass(frozen=True)
class Case:
    """Groups of one size, a family, and what varies by group."""

    name: str
    family: str
    groups: int
    size: int
    slope: bool = False
    crossed: int = 0
    """Levels of a second factor; 0 for none."""
    aims: tuple[tuple[str, str, float], ...] = (("compiled", "lme4", 1.0), ("cold", "lme4", 1.0))
    """(which of our times, peer, the largest ratio of our time to the peer's)."""

    @property
    def terms(self) -> list[str]:
        """Group terms, as lme4, glmmTMB and shardmc read them."""
        first = "(1 + x1 | g)" if self.slope else "(1 | g)"
        return [first, *["(1 | h)"] * bool(self.crossed)]

    @property
    def covariates(self) -> list[str]:
        return [f"x{k + 1}" for k in range(len(COEFFICIENTS))]

    @property
    def formula(self) -> str:
        return " + ".join(["y ~ x1", *self.covariates[1:], *self.terms])

    @property
    def exposed(self) -> bool:
        return self.family == "poisson"

    @property
    def of_interest(self) -> list[str]:
        """The parameters whose errors are aims: sds and correlations of groups."""
        found = ["sd_g__Intercept"]
        found += ["sd_g__x1", "cor_g__Intercept__x1"] * self.slope
        return found + ["sd_h__Intercept"] * bool(self.crossed)

    def scaled(self, part: float) -> Case:
        """The same with a part of the rows: fewer groups where there are many, smaller groups otherwise."""
        if self.groups >= 10_000:
            return replace(self, groups=round(self.groups * part))
        return replace(self, size=max(round(self.size * part), 2))

    def table(self) -> pd.DataFrame:
        """The rows, in random order."""
        rng = np.random.default_rng([self.groups, self.size, self.slope, self.crossed])
        count = self.groups * self.size
        g = rng.permutation(np.repeat(np.arange(self.groups), self.size))
        x = rng.normal(size=(count, len(COEFFICIENTS)))
        eta = -0.5 + x @ COEFFICIENTS
        intercepts, slopes = rng.normal(size=(2, self.groups))
        eta += SD * intercepts[g]
        data = pd.DataFrame(x, columns=self.covariates)
        data["g"] = g
        if self.slope:
            mixed = CORRELATION * intercepts + np.sqrt(1 - CORRELATION**2) * slopes
            eta += SLOPE_SD * mixed[g] * x[:, 0]
        if self.crossed:
            data["h"] = rng.integers(0, self.crossed, count)
            eta += CROSSED_SD * rng.normal(size=self.crossed)[data["h"]]
        if self.exposed:
            data["exposure"] = rng.uniform(0.1, 2, count)
        data["y"] = self._response(eta, data, rng)
        return data

    def _response(self, eta: np.ndarray, data: pd.DataFrame, rng: np.random.Generator) -> np.ndarray:
        if self.family == "bernoulli":
            return (rng.random(len(eta)) < special.expit(eta)).astype(np.int64)
        if self.family == "poisson":
            return rng.poisson(np.exp(eta) * data["exposure"])
        return eta + rng.normal(size=len(eta))


FULL = {
    case.name: case
    for case in (
        Case(
            "binary, 100,000 groups of 10",
            "bernoulli",
            100_000,
            10,
            aims=(("compiled", "GPBoost", 1.0), ("compiled", "lme4", 0.2), ("cold", "lme4", 0.5)),
        ),
        Case("binary, 1,000 groups of 1,000", "bernoulli", 1_000, 1_000),
        Case("Poisson with exposure, 100,000 groups of 10", "poisson", 100_000, 10),
        Case("binary, intercept and slope, 100,000 groups of 10", "bernoulli", 100_000, 10, slope=True),
        Case("Gaussian, 1,000 and 100 levels crossed", "gaussian", 1_000, 1_000, crossed=100),
    )
}
QUICK = {case.name: case for case in (Case("binary, 200 groups of 10", "bernoulli", 200, 10),)}
