"""What a posterior records: the plan of its run, the formula, a table of the shards, and the effects of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Self

import numpy as np

from shardmc.posterior.tree import axes, columns


@dataclass(frozen=True)
class _Record:
    """A dataclass of plain values that a file can hold."""

    def to_dict(self) -> dict[str, object]:
        """The values that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, stored: Mapping[str, object]) -> Self:
        """What `to_dict` wrote."""
        names = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in names})


@dataclass(frozen=True)
class Plan(_Record):
    """What a run computed. Fields that do not apply to a run are None.

    Examples
    --------
    >>> plan = Plan(rows=1_000, shards=10, seed=0, combiner="Recenter()")
    >>> plan.rows, Plan.from_dict(plan.to_dict()) == plan
    (1000, True)
    """

    rows: int
    shards: int
    seed: int
    combiner: str = "none"
    method: str | None = None
    """The subsampling method, or expectation propagation, where no sampler of shards and combiner were used."""
    draws: int | None = None
    """Draws asked for."""
    draws_per_shard: int | None = None
    shuffle: bool | None = None
    stratified: bool | None = None
    weighted: bool | None = None
    keep: float | None = None
    """A row is kept in every shard if its leverage exceeds this times the largest share; None keeps none."""
    kept_rows: int | None = None
    sampler: str | None = None
    scaling: str | None = None
    """Which subposteriors were sampled: "rescaled" or "fractional"."""
    polish: bool | None = None
    precision: str | None = None
    """The precision of the computation: "single" or "double"; "double, single" if sites differ."""
    precision_reason: str | None = None
    noise_log_density: float | None = None
    """Noise of a shard's log density in single precision, where it was measured."""
    noise_gradient: float | None = None
    """The shift of the mode, in posterior sd, that rounding in single precision causes, where it was measured."""
    nodes: int | None = None
    """Nodes in the direction of each effect, where effects of groups are integrated out by quadrature."""
    nodes_of_correction: int | None = None
    """Nodes of the finer rule that corrects this one at the mode; None if there is no correction."""
    content: str | None = None
    """A fingerprint of what the other fields do not show: weights, strata, functions of the sampler."""
    appended_rows: int | None = None
    fitted_rows: int | None = None
    """Rows of the last fit from scratch, for a posterior to which rows were appended."""


@dataclass(frozen=True)
class Regression(_Record):
    """The formula of a posterior, and what is needed to predict from it."""

    formula: str
    family: str
    priors: Mapping[str, str]
    """Every coefficient's prior, defaults included."""
    dropped_rows: int
    """Rows left out because of missing values."""
    design: Mapping[str, Any]
    """How columns become predictors, in JSON. `shardmc.formulas.design.Design` writes and reads it; other modules
    use only the properties below."""
    fixes_variance: bool = False
    """Whether the mean fixes the variance, so that responses can vary more than the family allows."""

    @property
    def family_in_words(self) -> str:
        """The family as `glm` takes it, such as "bernoulli(link=probit)"."""
        stored = dict(self.design["family"])
        name = stored.pop("name")
        # Other values, such as the levels of an ordered response, come from the rows.
        options = ", ".join(f"{k}={v}" for k, v in stored.items() if isinstance(v, str | int | float))
        return f"{name}({options})" if options else name

    @property
    def has_group_terms(self) -> bool:
        return bool(self.design.get("factors"))

    @property
    def leaves_columns_out(self) -> bool:
        """Whether columns that follow from others were left out."""
        return bool(self.design["encoder"].get("left_out"))

    @property
    def response(self) -> str:
        """The response as the formula has it."""
        return self.formula.partition("~")[0].strip()

    @property
    def roles(self) -> dict[str, str | int]:
        """Options of `glm` that name a column (or, for trials, a number), as far as they were given."""
        stored = self.design["roles"]
        return {
            role: stored[role] for role in ("offset", "exposure", "trials", "censored") if stored.get(role)
        }


@dataclass(frozen=True)
class PredictiveCheck(_Record):
    """Statistics of a sample of the rows, and of simulated responses of the same rows."""

    rows: int
    draws: int
    statistics: Mapping[str, Mapping[str, float]]
    """Name -> the observed value, mean and ends of the central 95 % of the simulated values, and p."""


@dataclass(frozen=True)
class Adjusted(_Record):
    """How the draws of a posterior were adjusted by a sandwich, after they were certified."""

    clusters: str | None = None
    """The column of clusters; None if rows are the units."""
    survey: bool = False
    """Whether rows have the weights of a survey."""
    units: int = 0
    """Clusters or rows whose scores were compared."""
    effective_rows: float | None = None
    """The effective sample size of a survey, to which its weights were normalised."""
    sds: Mapping[str, float] = field(default_factory=dict)
    """Parameter -> the sd of its draws before."""

    @property
    def sentence(self) -> str:
        """What was done, and what the certificate says nothing about."""
        units = (
            f"{self.units:,} rows"
            if self.clusters is None
            else f"{self.units:,} clusters of {self.clusters!r}"
        )
        sample = (
            "" if self.effective_rows is None else f" (effective sample: {self.effective_rows:,.0f} rows)"
        )
        kind = "design-based errors of a survey, drawn with replacement" if self.survey else "a sandwich"
        return (
            f"The draws are adjusted: their spread comes from {kind} (scores of {units}{sample}), not from the model. "
            "The certificate is about the draws before this adjustment."
        )


@dataclass(frozen=True)
class ShardTable:
    """One row per shard: what it holds, where it lies, how its chains went, and its own draws."""

    share: np.ndarray = field(metadata=axes("shard"))
    size: np.ndarray = field(metadata=axes("shard"))
    acceptance: np.ndarray = field(metadata=axes("shard"))
    divergences: np.ndarray = field(metadata=axes("shard"))
    ess: np.ndarray = field(metadata=axes("shard", "coordinate"))
    r_hat: np.ndarray = field(metadata=axes("shard", "coordinate"))
    sampler: tuple[str, ...] = field(metadata=axes("shard"))
    draws: np.ndarray = field(metadata=axes("shard", "shard_draw", "coordinate"))
    """Unconstrained, before combining; NaN where a shard has fewer."""
    mode: np.ndarray | None = field(default=None, metadata=axes("shard", "coordinate"))
    disagreement: np.ndarray | None = field(default=None, metadata=axes("shard"))
    """Q of the check of agreement."""
    chains: np.ndarray | None = field(default=None, metadata=axes("shard"))
    """How many chains each shard ran; its draws are theirs, one after the other."""
    more: Mapping[str, np.ndarray] = field(default_factory=dict, metadata=columns("shard", "coordinate"))
    """Columns of checks that have no field here: (shard,) or (shard, coordinate)."""

    @property
    def num_shards(self) -> int:
        return len(self.share)


@dataclass(frozen=True)
class GroupMoments:
    """Moments of every group's effects at one point of the parameters, and how their means change with these.

    Given the parameters theta, the effects of group g have mean m_g + S_g (theta - theta_0), and a covariance and a
    skewness that change little over the posterior. So effects need neither the rows nor memory per draw.
    """

    labels: tuple[str, ...] = field(metadata=axes("group"))
    point: np.ndarray = field(metadata=axes("coordinate"))  # theta_0
    mean: np.ndarray = field(metadata=axes("group", "effect"))
    covariance: np.ndarray = field(metadata=axes("group", "effect", "other_effect"))
    third: np.ndarray = field(metadata=axes("group", "effect"))
    """Third central moments."""
    slope: np.ndarray = field(metadata=axes("group", "effect", "coordinate"))
    columns: tuple[str, ...] = field(default=(), metadata=axes("group_column"))
    """The columns whose values name the groups."""
    effects: tuple[str, ...] = field(default=(), metadata=axes("effect"))
    """Names of the effects."""

    @property
    def name(self) -> str:
        """The name of the grouping factor."""
        return ":".join(self.columns)

    @cached_property
    def place(self) -> dict[str, int]:
        """Label -> number of the group."""
        return {label: number for number, label in enumerate(self.labels)}

    def summary(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean, sd and skewness (group, effect) of the effects over these draws of the parameters, (draw, dim)."""
        mean = self.mean + self.slope @ (theta.mean(axis=0) - self.point)
        spread = np.atleast_2d(np.cov(theta.T))
        moved = np.einsum("gqi,ij,gqj->gq", self.slope, spread, self.slope, optimize=True)
        sd = np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2) + moved)
        return mean, sd, self.third / sd**3

    def draw(self, theta: np.ndarray, groups: Sequence[int], rng: np.random.Generator) -> np.ndarray:
        """Draws (draw, group, effect) of the effects of some groups, one for each draw of the parameters."""
        chosen = np.asarray(groups, int)
        mean = self.mean[chosen] + np.einsum("gqi,di->dgq", self.slope[chosen], theta - self.point)
        size = self.mean.shape[1]
        z = rng.normal(size=(len(theta), len(chosen), size))
        covariance = self.covariance[chosen].astype(np.float64)
        root = np.linalg.cholesky(covariance + 1e-12 * np.eye(size))
        variance = np.diagonal(covariance, axis1=1, axis2=2)
        correlated = np.einsum("gij,dgj->dgi", root, z) / np.sqrt(variance)
        return mean + skewed(correlated, self.third[chosen] / variance**1.5) * np.sqrt(variance)


def skewed(z: np.ndarray, skewness: np.ndarray) -> np.ndarray:
    """Quantiles or draws of a standardised, slightly skewed distribution from those of a normal one.

    The first term of Cornish and Fisher's expansion.
    """
    return z + (z**2 - 1) * np.clip(skewness, -1.0, 1.0) / 6
