"""Combiners on exact normal subposteriors: those that are exact recover mean and covariance, the others their bias.

False-alarm rate: the bounds hold with probability 1 - 1e-6 for the file as a whole. There are fewer than 2,000 bounds,
each set at LEVEL = 5e-10. Standard errors are derived from the true moments (`Errors`) where a combiner's are known,
and estimated from independent repetitions (`repeated`) where they are not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats

from shardmc.combiners import MPosterior, Product, Recenter, Wasserstein, Weierstrass, named_combiner
from shardmc.types import Located, Mode, Scaling, ShardDraws

LEVEL = 5e-10
NUM_DRAWS = 2000
CASES = [(1, 2), (1, 100), (2, 10), (10, 2), (10, 100), (50, 10)]
"""Every dimension and every number of shards, few and many of both together."""


@dataclass(frozen=True)
class Gaussian:
    """Normal subposteriors of shards with equal shares, and the normal posterior that they make together."""

    mean: np.ndarray  # (dim,)
    precision: np.ndarray  # (dim, dim)
    shard_means: np.ndarray  # (shard, dim)
    shard_precisions: np.ndarray  # (shard, dim, dim), of the rescaled subposteriors

    @property
    def num_shards(self) -> int:
        return len(self.shard_means)

    @property
    def dim(self) -> int:
        return len(self.mean)

    def whiten(self, values: np.ndarray) -> np.ndarray:
        """Coordinates in which the posterior is standard normal."""
        return (values - self.mean) @ np.linalg.cholesky(self.precision)

    @property
    def whitened_precisions(self) -> np.ndarray:
        """Precisions of the shards in those coordinates; their average is the identity."""
        inverse = np.linalg.inv(np.linalg.cholesky(self.precision))
        return inverse @ self.shard_precisions @ inverse.T

    def draws(self, scaling: Scaling, num_draws: int, seed: int) -> ShardDraws:
        rng = np.random.default_rng([seed, self.dim, self.num_shards])
        widening = self.num_shards if scaling == "fractional" else 1
        values = [
            m + rng.normal(size=(num_draws, self.dim)) @ np.linalg.cholesky(np.linalg.inv(p) * widening).T
            for m, p in zip(self.shard_means, self.shard_precisions, strict=True)
        ]
        return ShardDraws.of(values, scaling=scaling)

    @property
    def located(self) -> Located:
        mode = Mode(self.mean, self.precision, 0.0, 1.0)
        found = np.ones(self.num_shards, bool)
        return Located(mode, self.shard_means, self.shard_precisions, found)


def gaussian(dim: int, num_shards: int, spread: float = 0.5) -> Gaussian:
    """A random problem; the shards' precisions differ by factors of about exp(+-spread)."""
    rng = np.random.default_rng([dim, num_shards])
    root = rng.normal(size=(dim, dim)) / np.sqrt(dim) + np.eye(dim)
    rotations = [np.linalg.qr(rng.normal(size=(dim, dim)))[0] for _ in range(num_shards)]
    inner = np.stack([(q * np.exp(spread * rng.normal(size=dim))) @ q.T for q in rotations])
    precisions = root @ inner @ root.T
    precision = precisions.mean(axis=0)
    mean = 10 * rng.normal(size=dim)
    # Means scatter as those of random shards do, by sqrt(K - 1) posterior sds; then the product's mean is made exact.
    scatter = np.linalg.cholesky(np.linalg.inv(precision)) * np.sqrt(num_shards - 1)
    means = mean + rng.normal(size=(num_shards, dim)) @ scatter.T
    off = np.linalg.solve(precision, np.einsum("ijk,ik->j", precisions, means - mean) / num_shards)
    return Gaussian(mean, precision, means - off, precisions)


def directions(dim: int) -> np.ndarray:
    """A few unit vectors, (direction, dim)."""
    vectors = np.random.default_rng(dim).normal(size=(min(dim, 4), dim))
    return np.ones((1, 1)) if dim == 1 else vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@dataclass(frozen=True)
class Errors:
    """Monte Carlo errors in whitened coordinates: variance of the mean, and degrees of freedom of the variance.

    `output`: the number of independent draws that come out, given the weights (none: as exact as the weights).
    `weights`: whether weights are estimated from T draws a shard. A precision of T draws has, to first order,
    the error of a Wishart matrix with n = T - dim - 4 degrees of freedom, so that the precision-weighted mean has, in
    direction w, the variance  sum_i a_i^2 [(w P_i w)(x_i P_i x_i) + (w P_i x_i)^2] / n,  x_i = m_i - mean, besides
    that of the shards' means, sum_i a_i^2 w P_i w / T; and (sum_i a_i P_i)^-1 the relative variance
    sum_i a_i^2 2 (w P_i w)^2 / n.
    """

    problem: Gaussian
    output: float
    weights: bool

    def of_mean(self, w: np.ndarray) -> float:
        if not self.weights:
            return 1 / self.output
        p, x = self.problem.whitened_precisions, self.problem.whiten(self.problem.shard_means)
        share, degrees = 1 / self.problem.num_shards, NUM_DRAWS - self.problem.dim - 4
        wpw, xpx, wpx = (
            np.einsum("j,ijk,k->i", w, p, w),
            np.einsum("ij,ijk,ik->i", x, p, x),
            np.einsum("j,ijk,ik->i", w, p, x),
        )
        estimated = share**2 * ((wpw * xpx + wpx**2) / degrees + wpw / NUM_DRAWS).sum()
        return estimated + (1 / self.output if np.isfinite(self.output) else 0)

    def degrees(self, w: np.ndarray) -> float:
        relative = 0.0
        if self.weights:
            wpw = np.einsum("j,ijk,k->i", w, self.problem.whitened_precisions, w)
            relative += (2 * wpw**2).sum() / self.problem.num_shards**2 / (NUM_DRAWS - self.problem.dim - 4)
        if np.isfinite(self.output):
            relative += 2 / (self.output - self.problem.dim - 1)
        return 2 / relative


def failures(values: np.ndarray, errors: Errors) -> list[str]:
    """What of the mean and variance, in a few directions and on average, is not within its Monte Carlo error."""
    z = errors.problem.whiten(values)
    dim = z.shape[1]
    covariance = np.atleast_2d(np.cov(z.T))
    found = []
    bound = stats.norm.isf(LEVEL / 2)
    for w in directions(dim):
        score = z.mean(axis=0) @ w / np.sqrt(errors.of_mean(w))
        if abs(score) > bound:
            found.append(f"mean off by {score:.1f} standard errors")
        found += outside(w @ covariance @ w, errors.degrees(w), "variance")
    average = np.mean([errors.degrees(w) for w in directions(dim)]) * dim
    found += outside(np.trace(covariance) / dim, average, "average variance")
    return found


def outside(ratio: float, degrees: float, what: str) -> list[str]:
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], degrees) / degrees
    return [] if low < ratio < high else [f"{what} {ratio:.4f} outside {low:.4f}..{high:.4f}"]


@pytest.mark.parametrize(("dim", "num_shards"), CASES)
def test_recenter_and_laplace_are_exact(dim, num_shards):
    problem = gaussian(dim, num_shards)
    draws, rng = problem.draws("rescaled", NUM_DRAWS, 1), np.random.default_rng(1)
    errors = Errors(problem, NUM_DRAWS * num_shards, weights=False)
    assert failures(named_combiner("recenter")(draws, problem.located, rng).values, errors) == []
    assert failures(named_combiner("laplace")(draws, problem.located, rng).values, errors) == []
    errors = Errors(problem, np.inf, weights=True)
    assert failures(named_combiner("swiss")(draws, None, rng).values, errors) == []


def variance_weights(draws: ShardDraws) -> np.ndarray:
    """Consensus with the weights upside down: the negative control."""
    total = draws.covariances.sum(axis=0)
    return sum(
        (v @ np.linalg.solve(total, s).T for v, s in zip(draws.values, draws.covariances, strict=True)),
        start=np.zeros(draws.values[0].shape),
    )


@pytest.mark.parametrize(("dim", "num_shards"), CASES)
def test_consensus_and_parametric_product_are_exact_and_variance_weights_are_not(dim, num_shards):
    problem = gaussian(dim, num_shards)
    draws, rng = problem.draws("fractional", NUM_DRAWS, 2), np.random.default_rng(2)
    # The shards' means are part of the draws that come out of Consensus: counted twice, this only widens the bound.
    errors = Errors(problem, NUM_DRAWS, weights=True)
    assert failures(named_combiner("consensus")(draws, None, rng).values, errors) == []
    assert failures(named_combiner("product")(draws, None, rng).values, errors) == []
    assert failures(variance_weights(draws), errors) != []


@pytest.mark.parametrize(("dim", "num_shards"), CASES)
def test_methods_that_average_the_shards_are_exact_where_these_differ_only_by_location(dim, num_shards):
    problem = gaussian(dim, num_shards, spread=0.0)
    draws, rng = problem.draws("rescaled", NUM_DRAWS, 3), np.random.default_rng(3)
    errors = Errors(problem, NUM_DRAWS * num_shards, weights=False)
    for name in ("algorithm-1", "wasserstein"):
        made = Recenter("mean", "none") if name == "algorithm-1" else named_combiner(name)
        assert failures(made(draws, None, rng).values, errors) == [], name
    # PIE is about marginals: standardise each coordinate by the truth.
    covariance = np.linalg.inv(problem.precision)
    marginal = replace(problem, precision=np.diag(1 / np.diag(covariance)))
    values = named_combiner("pie")(draws, None, rng).values
    bound = stats.norm.isf(LEVEL / 2)
    z = marginal.whiten(values)
    assert np.abs(z.mean(axis=0)).max() * np.sqrt(NUM_DRAWS * num_shards) < bound
    for variance in z.var(axis=0)[:4]:
        assert outside(variance, NUM_DRAWS * num_shards - 1, "variance") == []


@pytest.mark.parametrize(("dim", "num_shards"), [(1, 10), (2, 10), (10, 100), (50, 10)])
def test_known_biases(dim, num_shards):
    problem = gaussian(dim, num_shards)
    draws, rng = problem.draws("rescaled", NUM_DRAWS, 4), np.random.default_rng(4)
    covariances = np.linalg.inv(problem.shard_precisions)
    # Algorithm 1: the average mean and covariance of the shards.
    average = replace(
        problem, mean=problem.shard_means.mean(axis=0), precision=np.linalg.inv(covariances.mean(axis=0))
    )
    values = Recenter("mean", "none")(draws, None, rng).values
    w = directions(dim)[0]
    z = average.whiten(values)
    error = (
        np.einsum("j,ijk,k->", w, np.linalg.inv(average.whitened_precisions), w) / num_shards**2 / NUM_DRAWS
    )
    assert abs(z.mean(axis=0) @ w) < stats.norm.isf(LEVEL / 2) * np.sqrt(error)
    # Shards of other widths make the tails of the mixture heavier than normal, hence half the degrees of freedom.
    assert outside(w @ np.atleast_2d(np.cov(z.T)) @ w, NUM_DRAWS * num_shards / 2, "variance") == []
    # PIE: the marginal sd is the average of the shards' sds.
    pie = named_combiner("pie")(draws, None, rng).values.std(axis=0)
    expected = np.sqrt(np.einsum("ijj->ij", covariances)).mean(axis=0)
    for ratio in (pie / expected)[:4] ** 2:
        assert outside(ratio, NUM_DRAWS * num_shards / 2, "variance") == []
    # M-posterior: as wide as the shards lie apart.
    wide = problem.whiten(MPosterior()(draws, None, rng).values).var(axis=0).mean()
    assert wide > 1.5
    assert (
        failures(MPosterior()(draws, None, rng).values, Errors(problem, NUM_DRAWS * num_shards, False)) != []
    )


def repeated(problem: Gaussian, run, num_draws: int, repetitions: int) -> np.ndarray:
    """Mean, variance and average variance in whitened coordinates, (repetition, 3)."""
    w = directions(problem.dim)[0]
    found = []
    for seed in range(repetitions):
        draws = problem.draws("fractional", num_draws, 100 + seed)
        z = problem.whiten(run(draws, np.random.default_rng(seed)))
        found.append([z.mean(axis=0) @ w, (z @ w).var(ddof=1), z.var(axis=0, ddof=1).mean()])
    return np.array(found)


def off(found: np.ndarray, variance: float = 1.0) -> list[str]:
    """Which of them differ from the truth by more than independent repetitions explain."""
    gap = found.mean(axis=0) - [0, variance, variance]
    scores = gap / np.std(found, axis=0, ddof=1) * np.sqrt(len(found))
    bound = stats.t.isf(LEVEL / 2, len(found) - 1)
    names = ("mean", "variance", "average variance")
    return [f"{name} off by {s:.1f}" for name, s in zip(names, scores, strict=True) if abs(s) > bound]


@pytest.mark.parametrize(
    ("dim", "num_shards"),
    [
        (1, 2),
        (2, 10),
        (10, 2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(10, 100), (50, 10)]),
    ],
)
def test_weierstrass_is_exact(dim, num_shards):
    run = lambda draws, rng: Weierstrass()(draws, None, rng).values  # noqa: E731
    assert off(repeated(gaussian(dim, num_shards), run, 1000, 20)) == []


@pytest.mark.parametrize(
    ("dim", "num_shards"),
    [(2, 10), (10, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, 100), (50, 10)])],
)
def test_weierstrass_with_a_gaussian_kernel_is_exact(dim, num_shards):
    method = Weierstrass(kernel="gaussian", accept=0.5)
    run = lambda draws, rng: method(draws, None, rng).values  # noqa: E731
    assert off(repeated(gaussian(dim, num_shards), run, 1000, 20)) == []


@pytest.mark.slow
def test_weierstrass_uses_few_draws_in_few_dimensions_and_says_so():
    """Its draws depend on each other: they lie too close together, but around a mean that is off by as much.

    E (x - truth)^2 is the posterior variance, 1, whatever the dependence is, besides the error of estimated weights.
    The variance around the draws' own mean falls short of it by the variance of this mean.
    """
    problem = gaussian(1, 100)
    w = directions(1)[0]
    weights = Errors(problem, np.inf, weights=True).of_mean(w)
    squares, own = [], []
    for seed in range(40):
        draws = problem.draws("fractional", NUM_DRAWS, 100 + seed)
        combined = Weierstrass(small_sample=False)(draws, None, np.random.default_rng(seed))
        z = problem.whiten(combined.values) @ w
        squares.append(np.mean(z**2) - 1 - weights)
        own.append(z.var())
        assert any("independent ones" in note for note in combined.notes)
    bound = stats.t.isf(LEVEL / 2, len(squares) - 1)
    score = lambda x: np.mean(x) / np.std(x, ddof=1) * np.sqrt(len(x))  # noqa: E731
    assert abs(score(squares)) < bound
    assert np.mean(own) < 1


def test_the_repeated_test_rejects_variance_weights():
    assert off(repeated(gaussian(10, 10), lambda draws, rng: variance_weights(draws), 1000, 20)) != []


@pytest.mark.parametrize(
    ("dim", "num_shards"),
    [(2, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, 2), (2, 10)])],
)
def test_kernel_products_in_few_dimensions(dim, num_shards):
    problem = gaussian(dim, num_shards)
    semi = Product(kind="semiparametric")
    assert off(repeated(problem, lambda draws, rng: semi(draws, None, rng).values, 1000, 40)) == []
    # Smoothing a shard by h times its sd makes the product wider by 1 + h^2.
    smooth = Product(kind="nonparametric")
    bandwidth = 1000 ** (-1 / (4 + dim))
    found = repeated(problem, lambda draws, rng: smooth(draws, None, rng).values, 1000, 40)
    assert off(found, variance=1 + bandwidth**2) == []
    assert off(found, variance=1.5) != []


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "kind"), [(1, "semiparametric"), (2, "nonparametric")])
def test_kernel_products_of_many_shards_whose_draws_reach_the_posterior(dim, kind):
    """A kernel density knows nothing beyond its draws, so the shards lie half as far apart as random ones.

    Their product stays the same: the mean of all precision-weighted means does not change.
    """
    problem = gaussian(dim, 20)
    near = replace(problem, shard_means=(problem.shard_means + problem.mean) / 2)
    widened = 1 + 1000 ** (-2 / (4 + dim)) if kind == "nonparametric" else 1.0
    run = lambda draws, rng: Product(kind=kind)(draws, None, rng).values  # noqa: E731
    assert off(repeated(near, run, 1000, 20), variance=widened) == []


@pytest.mark.parametrize(("dim", "num_shards"), [(10, 100), (50, 10)])
@pytest.mark.parametrize("kind", ["semiparametric", "nonparametric"])
def test_kernel_products_say_that_they_know_little_in_many_dimensions(dim, num_shards, kind):
    draws = gaussian(dim, num_shards).draws("fractional", 1000, 6)
    notes = Product(kind=kind)(draws, None, np.random.default_rng(6)).notes
    assert any("overlap too little" in note for note in notes)


def test_the_empirical_barycentre_is_exact_in_one_dimension_and_says_that_it_shrinks_in_many():
    problem = gaussian(1, 10, spread=0.0)
    draws = problem.draws("rescaled", NUM_DRAWS, 5)
    method = Wasserstein("empirical", points=NUM_DRAWS)
    values = method(draws, None, np.random.default_rng(5)).values
    assert failures(values, Errors(problem, NUM_DRAWS * 10, weights=False)) == []
    many = gaussian(10, 5, spread=0.0)
    combined = Wasserstein("empirical", points=50)(
        many.draws("rescaled", 100, 5), None, np.random.default_rng(5)
    )
    assert many.whiten(combined.values).var(axis=0).mean() < 0.8
    assert any("of the variance" in note for note in combined.notes)
