"""The certificate's arrays: which draws are chosen, what is stored, what errors say, what polishing does."""

import json

import numpy as np
import pytest

from shardmc.check import Bounds, Certificate, Certify, certify, certify_options, choose, polish
from shardmc.check.measured import effective_number, halves_of
from shardmc.errors import OptionError
from shardmc.types import Mode

NAMES = ["a", "b", "c"]


def gaussian_mode(dim: int = 3, seed: int = 0) -> Mode:
    root = np.random.default_rng(seed).normal(size=(dim, dim)) + 2 * np.eye(dim)
    return Mode(np.arange(dim, dtype=float), root @ root.T, 0.0, 1.0)


def certified(values, mode, rng, count=100, **options) -> Certificate:
    chosen = choose(values, options.get("shard"), count, rng)
    scores = -(values[chosen] - mode.theta) @ mode.curvature
    return certify(values, chosen, scores, mode, NAMES[: values.shape[1]], rng=rng, **options)


def exact(mode: Mode, count: int, rng: np.random.Generator) -> np.ndarray:
    return mode.frame.to_theta(rng.normal(size=(count, len(mode.theta))))


def test_every_shard_gives_its_share():
    shard = np.repeat(np.arange(7), [10, 20, 30, 40, 50, 60, 90])
    chosen = choose(np.zeros((300, 1)), shard, 100, np.random.default_rng(0))
    assert len(np.unique(chosen)) == 100
    counts = np.bincount(shard[chosen], minlength=7)
    assert (np.abs(counts - np.array([10, 20, 30, 40, 50, 60, 90]) / 3) <= 1).all()


def test_more_shards_than_gradients():
    shard = np.repeat(np.arange(1000), 5)
    chosen = choose(np.zeros((5000, 1)), shard, 100, np.random.default_rng(0))
    assert len(np.unique(shard[chosen])) == 100


def test_every_draw_has_the_same_chance():
    rng = np.random.default_rng(0)
    shard = np.repeat(np.arange(3), [5, 10, 15])
    counts = np.zeros(30)
    for _ in range(6000):
        counts[choose(np.zeros((30, 1)), shard, 6, rng)] += 1
    # Binomial(6000, 0.2) has sd 31; the largest of 30 stays below 6 sd but with probability 6e-8.
    assert np.abs(counts - 1200).max() < 6 * 31


def test_excluded_draws_are_not_chosen():
    rng = np.random.default_rng(0)
    first = choose(np.zeros((250, 1)), None, 100, rng)
    second = choose(np.zeros((250, 1)), None, 100, rng, exclude=first)
    assert not np.intersect1d(first, second).size
    assert len(choose(np.zeros((250, 1)), None, 1000, rng)) == 250
    with pytest.raises(OptionError, match="0 were asked for"):
        choose(np.zeros((250, 1)), None, 0, rng)


def test_a_gaussian_shift_and_stretch_are_measured_exactly():
    rng = np.random.default_rng(1)
    mode = gaussian_mode()
    sds = np.sqrt(np.diag(np.linalg.inv(mode.curvature)))
    values = exact(mode, 20_000, rng)
    values = mode.theta + 1.5 * (values - mode.theta) + np.array([2.0, 0.0, -1.0]) * sds
    certificate = certified(values, mode, rng)
    truth = (values.mean(axis=0) - mode.theta) / sds
    assert np.allclose(certificate.mean_error, truth, atol=1e-8)
    assert np.allclose(certificate.sd_ratio, values.std(axis=0, ddof=1) / sds, atol=1e-8)
    assert certificate.verdict == "off"


def test_the_worst_combination_is_named_when_no_parameter_is_off():
    rng = np.random.default_rng(2)
    dim = 40
    mode = Mode(np.zeros(dim), np.eye(dim), 0.0, 1.0)
    direction = np.ones(dim) / np.sqrt(dim)
    values = rng.normal(size=(10_000, dim))
    chosen = choose(values, None, 100, rng)
    names = [f"x{k}" for k in range(dim)]
    for spoiled in (values + 0.4 * direction, values + 0.5 * np.outer(values @ direction, direction)):
        certificate = certify(spoiled, chosen, -spoiled[chosen], mode, names, rng=rng)
        assert certificate.verdict == "off"
        assert "off" not in certificate.verdicts
        assert "although no single parameter is" in certificate.sentence


def test_storing_as_json():
    rng = np.random.default_rng(3)
    mode = gaussian_mode()
    certificate = certified(3 * exact(mode, 2_000, rng), mode, rng)
    again = Certificate.from_dict(json.loads(json.dumps(certificate.to_dict())))
    assert repr(again) == repr(certificate)
    assert certificate.sentence in repr(certificate)
    assert again.to_dict() == certificate.to_dict()
    assert again.verdicts == certificate.verdicts
    values = exact(mode, 10, rng)
    assert np.allclose(polish(values, again), polish(values, certificate))


def test_polishing_takes_wrong_draws_to_the_posterior():
    rng = np.random.default_rng(4)
    mode = gaussian_mode()
    skew = np.array([[1.7, 0.3, 0.0], [0.0, 0.6, 0.2], [0.1, 0.0, 1.0]])
    values = mode.theta + (exact(mode, 20_000, rng) - mode.theta) @ skew.T + [0.5, -1.0, 0.2]
    chosen = choose(values, None, 100, rng)
    scores = -(values[chosen] - mode.theta) @ mode.curvature
    wrong = certify(values, chosen, scores, mode, NAMES, rng=rng)
    polished = polish(values, wrong)
    other = choose(polished, None, 100, rng, exclude=chosen)
    right = certify(polished, other, -(polished[other] - mode.theta) @ mode.curvature, mode, NAMES, rng=rng)
    assert (wrong.verdict, right.verdict) == ("off", "within")


def test_polishing_leaves_right_draws_alone():
    rng = np.random.default_rng(5)
    mode = gaussian_mode()
    values = exact(mode, 10_000, rng)
    polished = polish(values, certified(values, mode, rng))
    sds = np.sqrt(np.diag(np.linalg.inv(mode.curvature)))
    # The mean of 10,000 draws is off by 0.01 sd; polishing moves it by no more than that.
    assert (np.abs(polished - values) / sds).max() < 0.05


def test_one_wide_shard_of_a_hundred_is_seen():
    rng = np.random.default_rng(6)
    mode = Mode(np.zeros(2), np.eye(2), 0.0, 1.0)
    values = rng.normal(size=(10_000, 2))
    shard = np.repeat(np.arange(100), 100)
    values[shard == 31] *= [1, 20]
    certificate = certified(values, mode, rng, shard=shard)
    assert certificate.verdicts == ("within", "off")
    assert certificate.sentence.startswith("Off: the sd of b is 2.")


def test_gradients_that_are_not_finite():
    rng = np.random.default_rng(7)
    mode = gaussian_mode()
    values = exact(mode, 5_000, rng)
    chosen = choose(values, None, 100, rng)
    scores = -(values[chosen] - mode.theta) @ mode.curvature
    scores[:3] = np.nan
    certificate = certify(values, chosen, scores, mode, NAMES, rng=rng)
    assert certificate.verdict == "cannot tell"
    assert "not finite at 3 of 100 draws" in certificate.sentence
    scores[:95] = np.nan
    certificate = certify(values, chosen, scores, mode, NAMES, rng=rng)
    assert certificate.sentence == "Cannot tell: only 5 draws have finite gradients, and 10 are needed."
    assert np.isnan(certificate.mean_error).all()
    assert np.array_equal(polish(values, certificate), values)
    assert Certificate.from_dict(certificate.to_dict()).verdict == "cannot tell"


def test_shapes_that_do_not_fit():
    mode = gaussian_mode()
    values = np.zeros((50, 3))
    with pytest.raises(OptionError, match="3 parameters, but there are 2 names"):
        certify(values, np.arange(50), values, mode, ["a", "b"])
    with pytest.raises(OptionError, match=r"Gradients have shape \(50, 3\); the shape must be \(20, 3\)"):
        certify(values, np.arange(20), values, mode, NAMES)
    with pytest.raises(OptionError, match="bound mean is 0"):
        Bounds(mean=0)


def test_few_draws_that_happen_to_be_off_ask_for_more_draws():
    """Their own noise is 0.1 sd: what is wrong with them is known, but not whether more of them would be wrong."""
    rng = np.random.default_rng(8)
    mode = gaussian_mode()
    told = [certified(exact(mode, 100, rng), mode, rng) for _ in range(20)]
    assert all(certificate.verdict != "off" for certificate in told)  # 0.2 % of them would be
    unsure = [certificate for certificate in told if certificate.verdict == "cannot tell"]
    # One of three means, each with an sd of 0.1, is beyond 0.1 with probability 0.68: all 20 are not with 1e-10.
    assert unsure
    assert all("Take more draws: about" in c.advice and c.remedy == "draws" for c in unsure)


def test_few_draws_whose_own_mean_is_right_are_within():
    mode = gaussian_mode()
    values = exact(mode, 400, np.random.default_rng(8))
    values = mode.theta + (values - values.mean(axis=0))  # as if by luck
    certificate = certified(values, mode, np.random.default_rng(9))
    assert np.abs(certificate.mean_error).max() < 1e-9
    assert certificate.verdict == "within" or "sd of" in certificate.sentence


def test_certificates_of_earlier_versions_are_read():
    rng = np.random.default_rng(3)
    mode = gaussian_mode()
    stored = certified(exact(mode, 2_000, rng), mode, rng).to_dict()
    for name in ("mean_measured_se", "sd_measured_se", "remedy"):
        del stored[name]
    read = Certificate.from_dict(stored)
    assert np.array_equal(read.mean_measured_se, read.mean_error_se)
    assert read.remedy == ""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"draws": 5}, "draws must be at least 20"),
        ({"draws": 200, "max_draws": 100}, "must not be below draws"),
        ({"draws": 100.5}, "must be a whole number"),
        ({"mean": 0.0}, "between 0 and 0.5"),
        ({"sd": "small"}, "between 0 and 0.5"),
    ],
)
def test_options_that_are_refused(options, sentence):
    with pytest.raises(OptionError, match=sentence):
        Certify(**options)


def test_options_in_short():
    assert certify_options(True) == Certify()
    assert certify_options(Certify(mean=0.05)) == Certify(mean=0.05)
    assert Certify(mean=0.05).bounds == Bounds(0.05, 0.1, 0.2)
    assert certify_options(False) is None
    assert certify_options(True, check=False) is None
    with pytest.raises(OptionError, match="certify must be True, False"):
        certify_options(100)  # pyright: ignore[reportArgumentType]


def test_correlated_draws_are_worth_less():
    rng = np.random.default_rng(9)
    noise = rng.normal(size=(200, 50, 1))
    chains = noise.copy()
    for t in range(1, 50):
        chains[:, t] = 0.8 * chains[:, t - 1] + 0.6 * noise[:, t]
    shard = np.repeat(np.arange(200), 50)
    worth = effective_number(chains.reshape(-1, 1), shard) / 10_000
    assert 0.07 < worth[0] < 0.16  # (1 - 0.8) / (1 + 0.8) = 0.11
    assert effective_number(chains.reshape(-1, 1), None)[0] == 10_000


def test_both_halves_hold_draws_of_every_shard():
    shard = np.random.default_rng(0).permutation(np.repeat(np.arange(20), np.arange(2, 22)))
    rng = np.random.default_rng(1)
    halves = halves_of(len(shard), shard, np.arange(len(shard)), rng)
    first, second = np.bincount(shard[halves], minlength=20), np.bincount(shard[~halves], minlength=20)
    assert (np.abs(first - second) <= 1).all()


def test_both_halves_hold_chosen_draws():
    rng = np.random.default_rng(1)
    chosen = np.arange(0, 2000, 20)  # all of them in the same half of the blocks
    halves = halves_of(2000, None, chosen, rng)
    assert halves[chosen].sum() == 50
    assert abs(halves.mean() - 0.5) < 0.05
