"""Polishing on exact posteriors: wrong draws become right, right ones do not become worse, and it says when it cannot.

The unpolished draws, and draws polished the wrong way round, are the negative controls.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy import special

from shardmc.check import Certificate, certify, choose, polish, polish_draws
from shardmc.types import Mode

DRAWS = 8_000
SHAPES = np.array([20.0, 40.0, 80.0])
"""Logarithms of Gamma variables, the posterior of Poisson means; their moments are known."""
MODE = Mode(np.zeros(3), np.diag(SHAPES), 0.0, 0.0)
MEAN = special.digamma(SHAPES) - np.log(SHAPES)
SD = np.sqrt(special.polygamma(1, SHAPES))


def score(theta: np.ndarray) -> np.ndarray:
    return SHAPES * (1 - np.exp(theta))


def exact(rng: np.random.Generator) -> np.ndarray:
    return np.log(rng.gamma(SHAPES, size=(DRAWS, 3)) / SHAPES)


class Checker:
    """Certifies draws at points that it has not used before."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.used = rng, np.empty(0, np.int64)

    def __call__(self, values: np.ndarray) -> Certificate:
        chosen = choose(values, None, 100, self.rng, exclude=self.used)
        assert not np.isin(chosen, self.used).any()
        self.used = np.concatenate([self.used, chosen])
        return certify(values, chosen, score(values[chosen]), MODE, ["a", "b", "c"], rng=self.rng)


def errors(values: np.ndarray) -> np.ndarray:
    """True errors of the means in sds, and of the sds, (6,)."""
    return np.concatenate([(values.mean(axis=0) - MEAN) / SD, values.std(axis=0) / SD - 1])


@pytest.mark.parametrize(
    ("shift", "ratio"),
    [
        (1.0, 0.5),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(-4.0, 1.2), (3.0, 1.0), (0.0, 2.0)]),
    ],
)
def test_wrong_draws_become_right(shift, ratio):
    for seed in range(5):
        rng = np.random.default_rng([1, seed])
        theta = exact(rng)
        wrong = MEAN + ratio * (theta - MEAN) + shift * SD
        check = Checker(rng)
        values, certificate, polished = polish_draws(wrong, check(wrong), check)
        assert polished.before.verdict == "off"
        assert polished.rounds >= 1
        assert certificate.verdict == "within"
        # What the new certificate says of them is true: 6 of its standard errors are passed with probability 2e-9,
        # and its own bounds for a posterior of this skewness (0.23 at most) are good to a tenth.
        se = np.concatenate([certificate.mean_error_se, certificate.sd_ratio_se])
        said = np.concatenate([certificate.mean_error, certificate.sd_ratio - 1])
        assert (np.abs(errors(values) - said) < 0.02 + 6 * se).all()
        assert (np.abs(errors(values)) < 0.12).all()
        assert (np.abs(errors(wrong)) > 0.12).any()


def test_polishing_the_wrong_way_round_is_taken_back():
    rng = np.random.default_rng(2)
    wrong = exact(rng) + SD
    check = Checker(rng)
    certificate = check(wrong)
    turned = replace(certificate.correction, shift=-certificate.correction.shift)
    values, _, polished = polish_draws(wrong, replace(certificate, correction=turned), check)
    assert polished.rounds == 0
    assert "not better" in polished.sentence
    np.testing.assert_array_equal(values, wrong)


def squared_errors(polisher, seeds: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Mean squares of true errors of exact draws, before and after."""
    before, after = [], []
    for seed in range(seeds):
        rng = np.random.default_rng([3, seed])
        theta = exact(rng)
        before.append(errors(theta) ** 2)
        after.append(errors(polisher(theta, Checker(rng))) ** 2)
    return np.mean(before, axis=0), np.mean(after, axis=0)


@pytest.mark.slow
def test_right_draws_are_not_made_worse():
    before, after = squared_errors(lambda theta, check: polish_draws(theta, check(theta), check)[0])
    # Errors of the means over all parameters; the ratio of two mean squares of 180 normal variables is beyond 2.2
    # with probability 1e-7, were they independent.
    assert after[:3].sum() < 2.2 * before[:3].sum()
    assert after[3:].sum() < 2.2 * before[3:].sum()


def test_noise_taken_for_an_error_makes_right_draws_worse():
    """The control: moving the draws by the raw mean of a hundred gradients, which is mostly noise."""

    def careless(theta, check):
        chosen = choose(theta, None, 100, check.rng)
        return theta + score(theta[chosen]).mean(axis=0) / SHAPES

    before, after = squared_errors(careless)
    assert after[:3].sum() > 2.2 * before[:3].sum()


def test_where_the_certificate_cannot_tell_nothing_is_changed():
    # A Gaussian that obeys E[z s] = -1 under Student's t with three degrees of freedom.
    rng = np.random.default_rng(4)
    theta = np.sqrt(1.5) * rng.normal(size=(DRAWS, 1))
    chosen = choose(theta, None, 100, rng)
    mode = Mode(np.zeros(1), np.array([[4 / 3]]), 0.0, 0.0)
    scores = -4 * theta[chosen] / (3 + theta[chosen] ** 2)
    certificate = certify(theta, chosen, scores, mode, ["t"], rng=rng)
    assert certificate.verdict != "within"
    certificate = replace(certificate, correctable=False)
    values, after, polished = polish_draws(theta, certificate, lambda _: pytest.fail("nothing to certify"))
    assert polished.rounds == 0
    assert polished.sentence == (
        "Polishing cannot help: the certificate cannot tell what is wrong with the draws. The draws are unchanged."
    )
    assert after is certificate
    np.testing.assert_array_equal(values, theta)


def test_without_other_draws_nothing_is_changed():
    rng = np.random.default_rng(5)
    wrong = exact(rng) + SD
    values, _, polished = polish_draws(wrong, Checker(rng)(wrong), lambda _: None)
    assert polished.rounds == 0
    assert "too few draws" in polished.sentence
    np.testing.assert_array_equal(values, wrong)


def test_draws_far_away_are_moved_before_they_are_scaled():
    """There C is made by the curvature where the draws are; scaling by it would make things worse."""
    rng = np.random.default_rng(6)
    wrong = exact(rng) + 6 * SD
    certificate = Checker(rng)(wrong)
    assert certificate.sd_ratio.max() > 1.5  # though the sds are right
    moved = polish(wrong, certificate)
    np.testing.assert_allclose(np.cov(moved.T), np.cov(wrong.T))
    assert np.abs(errors(moved)[:3]).max() < 2
