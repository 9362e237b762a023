"""New rows for a posterior: the result is that of all rows, and what cannot be right is refused or said."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import shardmc
from shardmc.errors import DataError, OptionError

_spec = importlib.util.spec_from_file_location("linear_append", Path(__file__).with_name("linear.py"))
assert _spec is not None
assert _spec.loader is not None
linear = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(linear)

OLD, NEW = linear.rows_of(0, 2_000), linear.rows_of(1, 600)
OPTIONS = {"shards": 2, "keep": None}


@pytest.fixture(scope="module")
def model():
    return linear.model()


@pytest.fixture(scope="module")
def sampler():
    return linear.exact()


@pytest.fixture(scope="module")
def first(model, sampler):
    return shardmc.fit(model, OLD, shards=4, draws=4_000, seed=2, sampler=sampler, keep=None)


@pytest.mark.slow
@pytest.mark.parametrize("old_data", [OLD, None], ids=["old rows there", "old rows gone"])
def test_the_result_is_the_posterior_of_all_rows(model, sampler, first, old_data):
    """Exact draws and an exactly Gaussian posterior: the only error is Monte Carlo's (see linear.rejects)."""
    both = shardmc.append(first, model, NEW, old_data=old_data, sampler=sampler, **OPTIONS)
    assert both.num_draws == pytest.approx(4_000 * 1.3, abs=2)
    assert both.plan.rows == 2_600
    assert both.plan.appended_rows == 600
    assert not linear.rejects(both.theta, *linear.posterior(OLD, NEW))
    assert (both.certificate is None) == (old_data is None)
    assert any("old rows were not given" in note for note in both.notes) == (old_data is None)


@pytest.mark.slow
def test_old_draws_that_are_not_contracted_are_rejected(model, sampler, first, monkeypatch):
    """The control: the old draws keep the spread that they had with fewer rows."""
    module = importlib.import_module("shardmc.pipeline.appending")
    rescaled = module.rescaled_draws

    def uncontracted(model, draws, mode, growth):
        _, moved = rescaled(model, draws, mode, growth)
        return draws - mode.theta + moved.theta, moved

    monkeypatch.setattr(module, "rescaled_draws", uncontracted)
    both = shardmc.append(first, model, NEW, sampler=sampler, **OPTIONS)
    assert linear.rejects(both.theta, *linear.posterior(OLD, NEW))


def test_the_old_posterior_alone_is_rejected(first):
    assert not linear.rejects(first.theta, *linear.posterior(OLD))
    assert linear.rejects(first.theta, *linear.posterior(OLD, NEW))


@pytest.mark.slow
def test_rows_can_be_appended_again(model, sampler, first):
    half = {name: column[:300] for name, column in NEW.items()}, {name: c[300:] for name, c in NEW.items()}
    once = shardmc.append(first, model, half[0], sampler=sampler, **OPTIONS)
    twice = shardmc.append(once, model, half[1], sampler=sampler, **OPTIONS)
    assert twice.plan.rows == 2_600
    assert not linear.rejects(twice.theta, *linear.posterior(OLD, NEW))


@pytest.mark.slow
def test_the_result_matches_a_fit_from_scratch():
    """A logistic posterior, against a fit of all rows, in the difference of the means.

    With effective sizes n and m it has covariance V (1/n + 1/m): the squared Mahalanobis distance is chi^2 with 2
    degrees of freedom. The effective sizes are taken at half of what was estimated, which makes the level of 1e-8
    conservative.
    """
    model = shardmc.Model(
        lambda params, rows: (
            rows["y"] * (rows["x"] @ params["beta"]) - jax.nn.softplus(rows["x"] @ params["beta"])
        ),
        lambda params: -0.5 * jnp.sum(params["beta"] ** 2) / 25,
        {"beta": 2},
    )
    rng = np.random.default_rng(7)
    x = np.column_stack([np.ones(5_000), rng.normal(size=5_000)]).astype(np.float32)
    y = (rng.random(5_000) < 1 / (1 + np.exp(-x @ np.array([-1.0, 0.8])))).astype(np.float32)
    old, new = {"x": x[:4_000], "y": y[:4_000]}, {"x": x[4_000:], "y": y[4_000:]}
    options = {"sampler": "independence", "keep": None}
    first = shardmc.fit(model, old, shards=4, draws=4_000, check=False, **options)
    both = shardmc.append(first, model, new, old_data=old, shards=1, **options)
    scratch = shardmc.fit(model, {"x": x, "y": y}, shards=5, draws=5_000, seed=1, check=False, **options)

    def distance(posterior):
        size = min(p.summary()["ess"].min() / 2 for p in (posterior, scratch))
        gap = posterior.theta.mean(axis=0) - scratch.theta.mean(axis=0)
        return float(gap @ scratch.curvature @ gap * size / 2)

    bar = stats.chi2.isf(1e-8, 2)
    assert distance(both) < bar
    assert distance(first) > bar  # the control: without the new rows the same test rejects
    np.testing.assert_allclose(both.mode, scratch.mode, atol=0.02 / np.sqrt(np.diag(scratch.curvature).min()))
    assert both.certificate.verdict != "off"


@pytest.mark.slow
def test_a_saved_posterior_and_a_run_folder_are_enough(model, sampler, first, tmp_path):
    first.save(tmp_path / "first.nc")
    here = shardmc.append(first, model, NEW, sampler=sampler, **OPTIONS)
    there = shardmc.append(tmp_path / "first.nc", model, NEW, sampler=sampler, **OPTIONS)
    np.testing.assert_array_equal(here.theta, there.theta)
    shardmc.fit(
        model, OLD, shards=4, draws=4_000, seed=2, sampler=sampler, keep=None, run_dir=tmp_path / "run"
    )
    run = shardmc.append(tmp_path / "run", model, NEW, sampler=sampler, **OPTIONS)
    np.testing.assert_array_equal(here.theta, run.theta)


def test_new_draws_do_not_repeat_the_old_random_numbers(model, sampler, first):
    both = shardmc.append(first, model, NEW, sampler=sampler, **OPTIONS)
    assert both.plan.seed != first.plan.seed
    other = shardmc.append(first, model, NEW, sampler=sampler, seed=123, **OPTIONS)
    assert not np.array_equal(both.theta, other.theta)


def test_rows_that_have_changed_are_said(model, sampler, first):
    shifted = linear.rows_of(1, 600, shift=1.0)
    both = shardmc.append(first, model, shifted, old_data=OLD, sampler=sampler, **OPTIONS)
    assert any(finding.check != "certificate" and finding.level != "note" for finding in both.findings)
    # Old and new rows are in shards of their own, so nothing says that rows went to shards at random.
    assert not any("at random" in finding.advice for finding in both.findings)


@pytest.mark.slow
def test_many_new_rows_are_a_reason_to_fit_again(model, sampler, first):
    many = linear.rows_of(1, 2_500)
    both = shardmc.append(first, model, many, sampler=sampler, **OPTIONS)
    assert any("Fit all rows from scratch" in note for note in both.notes)
    # Also where they came in two parts, neither of which is many.
    halves = [
        {name: column[part] for name, column in many.items()} for part in (slice(1_250), slice(1_250, None))
    ]
    once = shardmc.append(first, model, halves[0], sampler=sampler, **OPTIONS)
    twice = shardmc.append(once, model, halves[1], sampler=sampler, **OPTIONS)
    assert not any("Fit all rows from scratch" in note for note in once.notes)
    assert any("The posterior has 2.2 times as many rows" in note for note in twice.notes)


def test_the_table_of_shards_stays_small(model, sampler, first):
    both = shardmc.append(first, model, NEW, sampler=sampler, **OPTIONS)
    assert both.shards.num_shards == 3
    assert both.shards.draws.shape == (3, 600, 2)
    assert list(both.shards.size) == [2_000, 300, 300]
    assert np.isfinite(both.shards.draws).all()


def test_what_cannot_be_right_is_refused(model, first):
    with pytest.raises(DataError, match="old_data has 600 rows, but the posterior was computed from 2000"):
        shardmc.append(first, model, NEW, old_data=NEW)
    with pytest.raises(OptionError, match="has no mode and curvature"):
        shardmc.append(replace(first, curvature=None), model, NEW)
    with pytest.raises(OptionError, match='shards must be "auto" or a whole number from 1 to 600'):
        shardmc.append(first, model, NEW, shards=601)
    with pytest.raises(OptionError, match="keep must be a positive number, or None"):
        shardmc.append(first, model, NEW, keep=-0.1)
    with pytest.raises(OptionError, match="seed must be a whole number"):
        shardmc.append(first, model, NEW, seed=-1)
    other = shardmc.Model(
        lambda params, rows: -0.5 * (rows["y"] - rows["x"] @ params["gamma"]) ** 2,
        lambda params: -0.5 * jnp.sum(params["gamma"] ** 2),
        {"gamma": 2},
    )
    with pytest.raises(OptionError, match="give the model that it was fitted with"):
        shardmc.append(first, other, NEW)
