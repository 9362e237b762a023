"""fit with polish=True: a wrong combination becomes right, as a reference shows, and the result says what was done."""

import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc import Recenter
from shardmc.errors import OptionError

ROWS, SHARDS = 12_000, 40


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(2)
    x = np.column_stack([np.ones(ROWS), rng.normal(size=(ROWS, 2))]).astype(np.float32)
    y = rng.random(ROWS) < 1 / (1 + np.exp(-x @ [-2.0, 1.0, 0.5]))
    return x, y.astype(np.float32)


@pytest.fixture(scope="module")
def model():
    def log_likelihood(params, rows):
        x, y = rows
        eta = x @ params["beta"]
        return y * eta - jnp.logaddexp(0.0, eta)

    return shardmc.Model(log_likelihood, lambda p: -0.5 * jnp.sum((p["beta"] / 10) ** 2), {"beta": 3})


@pytest.fixture(scope="module")
def polished(model, rows):
    """Plain Algorithm 1 at many shards, which is off, polished."""
    return shardmc.fit(
        model,
        rows,
        shards=SHARDS,
        draws=6_000,
        keep=None,
        combiner=Recenter.algorithm_1(),
        polish=True,
        seed=1,
    )


@pytest.fixture(scope="module")
def reference(model, rows):
    return shardmc.fit(model, rows, shards=1, draws=8_000, seed=9, check=False, precision="single")


def true_errors(theta, reference):
    sd = reference.theta.std(axis=0)
    return (theta.mean(axis=0) - reference.theta.mean(axis=0)) / sd, theta.std(axis=0) / sd


@pytest.mark.slow
def test_a_wrong_combination_becomes_right(polished, reference):
    before, after = polished.polished.before, polished.certificate
    assert before.verdict == "off"
    assert np.abs(before.mean_error).max() > 1
    assert polished.polished.rounds >= 1
    assert after.verdict == "within"
    mean, sd = true_errors(polished.theta, reference)
    # The reference is worth at least 4,000 independent draws; 6 standard errors are passed with probability 2e-9.
    noise_mean = np.hypot(after.mean_error_se, 0.016)
    noise_sd = np.hypot(after.sd_ratio_se, 0.0112)
    assert (np.abs(mean - after.mean_error) < 6 * noise_mean).all()
    assert (np.abs(sd - after.sd_ratio) < 6 * noise_sd).all()


@pytest.mark.slow
def test_the_same_bound_rejects_the_draws_as_they_were(model, rows, polished, reference):
    plain = shardmc.fit(
        model, rows, shards=SHARDS, draws=6_000, keep=None, combiner=Recenter.algorithm_1(), seed=1
    )
    mean, _ = true_errors(plain.theta, reference)
    assert np.abs(mean).max() > 6 * np.hypot(plain.certificate.mean_error_se, 0.016).max() + 0.1
    # Without polishing, the certificate is the one that polishing started from.
    assert plain.certificate.sentence == polished.polished.before.sentence
    assert plain.polished is None
    assert plain.plan.polish is False


@pytest.mark.slow
def test_both_scales_hold_the_polished_draws(model, polished):
    np.testing.assert_allclose(polished.draws["beta"], polished.theta, rtol=1e-5)
    assert polished.shard is not None
    assert len(polished.shard) == polished.num_draws


@pytest.mark.slow
def test_the_result_says_what_was_done(polished, tmp_path):
    assert polished.plan.polish is True
    assert polished.seconds["polish"] > 0
    # 100 gradients of a fifth of the shards. The curvatures of all shards are known from the search for the mode.
    assert polished.passes["polish"] == 20 * polished.polished.rounds
    assert not [f for f in polished.findings if f.check == "certificate"]
    again = shardmc.load(polished.save(tmp_path / "posterior.nc"))
    assert again.polished.sentence == polished.polished.sentence
    assert again.polished.rounds == polished.polished.rounds
    np.testing.assert_array_equal(again.polished.before.mean_error, polished.polished.before.mean_error)
    page = polished.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert polished.polished.sentence in page
    assert "polish=True" in page
    assert "moved by the combiner, and polished" in page


@pytest.mark.slow
def test_a_good_combination_stays_good(model, rows, reference):
    fitted = shardmc.fit(model, rows, shards=8, draws=6_000, polish=True, seed=1)
    assert fitted.polished.before.verdict == "within"
    assert fitted.certificate.verdict == "within"
    mean, sd = true_errors(fitted.theta, reference)
    assert (np.abs(mean) < 0.1).all()
    assert (np.abs(sd - 1) < 0.1).all()


@pytest.mark.slow
def test_positive_parameters_and_lost_draws():
    """On the natural scale Algorithm 1 moves draws out of the support; those stay missing, the others are polished."""
    rng = np.random.default_rng(3)
    waits = rng.exponential(size=24).astype(np.float32)
    model = shardmc.Model(
        lambda params, t: jnp.log(params["rate"]) - params["rate"] * t,
        lambda params: -params["rate"],
        {"rate": "positive"},
    )
    fitted = shardmc.fit(
        model,
        waits,
        shards=12,
        draws=3_000,
        keep=None,
        combiner=Recenter.algorithm_1("natural"),
        polish=True,
    )
    lost = np.isnan(fitted.theta[:, 0])
    assert lost.any()
    assert fitted.polished.rounds >= 1
    inside = fitted.draws["rate"][~lost]
    np.testing.assert_allclose(np.log(inside), fitted.theta[~lost, 0], atol=1e-4)


@pytest.mark.slow
def test_with_as_few_draws_as_gradients_it_says_so(model, rows):
    fitted = shardmc.fit(model, rows, shards=4, draws=100, polish=True)
    assert fitted.polished.rounds == 0
    assert "too few draws" in fitted.polished.sentence


def test_polish_needs_the_certificate(model, rows):
    with pytest.raises(OptionError, match="leave out check=False and certify=False"):
        shardmc.fit(model, rows, shards=4, draws=100, check=False, polish=True)
