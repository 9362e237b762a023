"""Rounding of single precision: measured against what it is, and the precision that is chosen for it."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.data import Partition, as_source
from shardmc.engine import Local
from shardmc.errors import OptionError
from shardmc.locate import DECREMENT, near_mode
from shardmc.locate.precision import GRADIENT, LOG_DENSITY, Choice, Noise, _rows, measure_noise
from shardmc.model import Model
from shardmc.model.precision import double_precision

ROWS = 2_000
MANY = 1_000.0
"""Weight of a row: the rows count as two million."""
FIT = {"shards": 4, "draws": 2_000, "weights": np.full(ROWS, MANY)}


def weibull_log_density(params, y):
    shape, log_scale = params["shape"], params["log_scale"]
    log_ratio = jnp.log(y) - log_scale
    return jnp.log(shape) - shape * log_scale + (shape - 1) * jnp.log(y) - jnp.exp(shape * log_ratio)


@pytest.fixture(scope="module")
def weibull():
    """Durations of about 100 with shape 20: shape * log_scale, about 90, is rounded alike for all rows."""
    y = 100.0 * np.random.default_rng(0).weibull(20.0, size=ROWS)
    parameters = {"shape": "positive", "log_scale": ()}
    start = {"shape": 15.0, "log_scale": 4.6}
    model = Model(weibull_log_density, lambda p: -p["shape"] / 10, parameters, initial=start)
    return model, y.astype(np.float32)


@pytest.fixture(scope="module")
def logistic():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, 2)).astype(np.float32)
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-x @ [0.5, -0.3]))).astype(np.float32)

    def log_likelihood(params, rows):
        eta = rows[0] @ params["beta"]
        return rows[1] * eta - jnp.logaddexp(0.0, eta)

    model = Model(log_likelihood, lambda p: -0.5 * jnp.sum(p["beta"] ** 2), {"beta": 2})
    return model, (x, y)


@pytest.fixture(scope="module")
def auto(weibull):
    return shardmc.fit(*weibull, **FIT)


def noise_of(model, data, weights):
    blocks = as_source(data).split(Partition(4, weights=weights), 0)
    frame = near_mode(model, blocks, Local()).frame
    assert frame is not None
    return frame, blocks, measure_noise(model, blocks, frame)


def test_measured_noise_is_that_of_the_log_density(weibull):
    """Against the sum over a shard's rows itself, at 200 other points.

    The measured noise is a root mean square over 8 points. As if they were independent and normal, its relative
    standard error is 1 / sqrt(16) = 0.25; they lie within a factor of 4 of it but for 10^-6 of the time.
    """
    model, y = weibull
    frame, blocks, noise = noise_of(model, y, FIT["weights"])
    _, batch = next(iter(blocks.batches([0], 1)))
    points = np.random.default_rng(7).normal(size=(200, 2)).astype(np.float32)

    def gains(double):
        with double_precision(double):
            rows, weights = batch.take(0)
            center, basis = jnp.asarray(frame.center), jnp.asarray(frame.basis)
            reference = model.log_likelihood(center, rows)
            gain = lambda u: jnp.sum(weights * (model.log_likelihood(center + basis @ u, rows) - reference))  # noqa: E731
            return np.asarray(jax.jit(jax.vmap(gain))(jnp.asarray(points)), np.float64)

    actual = np.sqrt(np.mean((gains(False) - gains(True)) ** 2))
    assert noise is not None
    assert actual / 4 < noise.log_density < 4 * actual


def test_noise_grows_with_the_rows_where_all_rows_share_it(weibull):
    few = noise_of(*weibull, None)[2]
    many = noise_of(*weibull, FIT["weights"])[2]
    assert few is not None
    assert many is not None
    # In proportion, up to where the search for the mode ends; a negative control would be the square root, 32.
    assert 100 < many.log_density / few.log_density < 10_000
    assert many.matters
    assert not few.matters


def test_logistic_regression_needs_no_double_precision(logistic):
    noise = noise_of(*logistic, FIT["weights"])[2]
    assert noise is not None
    assert noise.log_density < LOG_DENSITY / 5
    assert noise.gradient < GRADIENT / 5


def test_a_likelihood_that_overflows_in_single_precision_is_computed_in_double():
    model = Model(
        lambda p, y: -jnp.log(jnp.exp((y - p["mu"]) ** 2 / 2 + 100.0)), None, {"mu": ()}, initial={"mu": 0.0}
    )
    blocks = as_source(np.random.default_rng(0).normal(size=1_000)).split(Partition(1), 0)
    with double_precision():
        frame = near_mode(model, blocks, Local()).frame
    assert frame is not None
    noise = measure_noise(model, blocks, frame)
    assert noise is not None
    assert noise.matters
    assert "not finite" in noise.sentence


@pytest.mark.slow
class TestFit:
    def test_chooses_double_where_it_matters_and_says_why(self, auto):
        assert auto.plan.precision == "double"
        assert auto.plan.noise_log_density > LOG_DENSITY
        assert "would move the log posterior by" in auto.plan.precision_reason
        assert any(note.startswith("Computed in double precision:") for note in auto.notes)
        assert auto.certificate.verdict == "within"

    def test_chooses_single_where_it_is_enough(self, logistic):
        posterior = shardmc.fit(*logistic, **FIT)
        assert posterior.plan.precision == "single"
        assert "rounding moves" in posterior.plan.precision_reason
        assert not any("precision" in note for note in posterior.notes)

    def test_draws_are_those_of_double_precision(self, weibull, auto):
        double = shardmc.fit(*weibull, **FIT, precision="double")
        # The search for the mode began elsewhere, so that the draws are moved by the tolerance of the mode at most.
        gap = (auto.theta - double.theta) / double.theta.std(axis=0)
        assert np.abs(gap).max() < DECREMENT
        assert double.plan.precision_reason == "precision='double'"

    def test_single_precision_damages_the_draws(self, weibull, auto):
        """The negative control: what the choice prevents."""
        single = shardmc.fit(*weibull, **FIT, precision="single", sampler="independence")
        assert single.plan.precision == "single"
        assert np.mean(single.shards.acceptance) < np.mean(auto.shards.acceptance) - 0.1

    def test_jax_stays_as_it_was(self, weibull, auto):
        assert auto.plan.precision == "double"
        assert jnp.zeros(1).dtype == jnp.float32

        def fails(stage, done, total):
            if stage == "sample":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            shardmc.fit(*weibull, **FIT, progress=fails)
        assert jnp.zeros(1).dtype == jnp.float32
        assert not jax.config.jax_enable_x64

    def test_rows_stay_single_in_memory(self, weibull):
        blocks = as_source(weibull[1]).split(Partition(4), 0)
        with double_precision():
            _, batch = next(iter(blocks.batches([0], 1)))
            assert batch.rows.dtype == jnp.float32
            assert batch.take(0)[0].dtype == jnp.float64

    def test_the_users_float64_is_kept_or_left_on_request(self, logistic):
        with double_precision():
            assert shardmc.fit(*logistic, **FIT, check=False).plan.precision_reason == "JAX runs in float64"
            assert shardmc.fit(*logistic, **FIT, precision="single").plan.precision == "single"
            assert jnp.zeros(1).dtype == jnp.float64

    def test_a_resumed_run_keeps_its_precision(self, weibull, auto, tmp_path, monkeypatch):
        def stops(stage, done, total):
            if stage == "combine":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            shardmc.fit(*weibull, **FIT, run_dir=tmp_path / "run", progress=stops)
        monkeypatch.setattr("shardmc.locate.precision.measure_noise", lambda *_: Noise(0.0, 0.0))
        resumed = shardmc.fit(*weibull, **FIT, run_dir=tmp_path / "run")
        np.testing.assert_array_equal(resumed.theta, auto.theta)
        assert resumed.plan.precision_reason == auto.plan.precision_reason
        with pytest.raises(shardmc.errors.RunError, match="precision"):
            shardmc.fit(*weibull, **FIT, run_dir=tmp_path / "run", precision="single")

    def test_unknown_precision(self, weibull):
        with pytest.raises(OptionError, match="Valid: auto, double, single"):
            shardmc.fit(*weibull, precision="float64")


@pytest.mark.parametrize(
    "noise", [Noise(2.4, 0.1), Noise(0.001, 0.3), Noise(0.001, 0.001), Noise(np.inf, 0.0)]
)
def test_a_choice_survives_a_run_folder(noise):
    choice = Choice(noise.matters, noise.sentence, noise)
    assert Choice.from_array(choice.to_array(), "auto") == choice
    assert noise.matters == (noise != Noise(0.001, 0.001))


@pytest.mark.slow
def test_appended_rows_are_measured_with_the_old_ones(weibull, auto):
    model, y = weibull
    both = shardmc.append(auto, model, y[:500], weights=FIT["weights"][:500], shards=1)
    assert both.plan.precision == "double"


@pytest.mark.parametrize(
    ("rows", "capacity", "used"), [(10**6, 10**4, 2_048), (10**7, 10**5, 65_536), (10**9, 10**6, 2**20)]
)
def test_more_rows_are_compared_if_there_are_many(rows, capacity, used):
    """Errors of single rows of about 5e-8 average out: their mean, times all rows, must be well below the bound."""
    assert _rows(SimpleNamespace(num_rows=rows, capacity=capacity)) == used
    assert rows * 5e-8 / np.sqrt(min(used, capacity)) < LOG_DENSITY
