"""Gradients and curvatures of the last pass of the search for the mode serve later steps."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.data import Partition, as_source
from shardmc.engine import Local
from shardmc.locate import DECREMENT, SampledGradients, gradients, locate, locate_shards, shard_modes, terms
from shardmc.locate.terms import Evaluator
from shardmc.model import Model
from shardmc.types import Frame

ENGINE = Local()


@pytest.fixture(scope="module")
def located():
    """A logistic regression whose shards have nearly the curvature of all rows at their own modes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60_000, 2)).astype(np.float32)
    y = (rng.random(60_000) < 1 / (1 + np.exp(-x @ [0.2, -0.1]))).astype(np.float32)
    model = Model(
        lambda p, rows: rows[1] * (rows[0] @ p["b"]) - jnp.logaddexp(0, rows[0] @ p["b"]), None, {"b": 2}
    )
    blocks = as_source((x, y)).split(Partition(8), 0)
    return model, blocks, locate(model, blocks, ENGINE)


@pytest.fixture
def very_many_rows(monkeypatch):
    """Every data set counts as a very large one."""
    monkeypatch.setattr(shard_modes, "is_large", lambda blocks, dim: True)


def test_terms_are_those_of_the_shards_near_the_mode(located):
    _, blocks, mode = located
    gap = mode.shard_terms.point - mode.theta
    assert gap @ mode.curvature @ gap < 1
    whole = np.tensordot(blocks.shares, mode.shard_terms.curvatures, axes=1)
    np.testing.assert_allclose(whole, mode.curvature, rtol=1e-3, atol=1e-3 * np.diag(mode.curvature).max())
    step = np.linalg.solve(whole, blocks.shares @ mode.shard_terms.gradients)
    left = mode.shard_terms.point + step - mode.theta
    assert np.sqrt(left @ mode.curvature @ left) < DECREMENT


def test_terms_that_would_take_much_memory_are_not_kept(located, monkeypatch):
    model, blocks, _ = located
    monkeypatch.setattr(terms, "_MOST_TERMS", 8 * 4 - 1)
    assert locate(model, blocks, ENGINE).shard_terms is None


@pytest.mark.parametrize("stretch", [0.0, 1e-60, 1e60, np.nan])
def test_a_frame_beyond_the_range_of_numbers_has_no_terms(located, stretch):
    """A direction that was stretched as far as it goes is zero or infinite in single precision."""
    model, blocks, mode = located
    evaluate = Evaluator(model, blocks, ENGINE)
    evaluate(mode.frame, np.zeros(2))
    assert evaluate.shard_terms() is not None
    frame, u, found = evaluate._last
    evaluate._last = (Frame(frame.center, frame.basis * [1.0, stretch]), u, found)
    assert evaluate.shard_terms() is None


def test_shards_need_only_gradients_for_their_modes(located, very_many_rows, monkeypatch):
    model, blocks, mode = located
    found = locate_shards(model, blocks, mode, ENGINE)
    assert found.passes == 1
    monkeypatch.undo()
    right = locate_shards(model, blocks, mode, ENGINE)
    assert right.passes > 0
    gap = found.shard_modes - right.shard_modes
    assert np.sqrt(np.einsum("ki,kij,kj->k", gap, right.shard_curvatures, gap)).max() < DECREMENT
    scale = np.diag(mode.curvature).max()
    np.testing.assert_allclose(found.shard_curvatures, right.shard_curvatures, rtol=0.01, atol=0.01 * scale)


def test_a_wrong_curvature_is_not_used(located, very_many_rows):
    """With half of the curvature a step is twice as long as it should be, and another one is needed."""
    model, blocks, mode = located
    known = mode.shard_terms
    wrong = replace(known, curvatures=0.5 * known.curvatures)
    starts = known.point + np.linalg.solve(wrong.curvatures, known.gradients[..., None])[..., 0]
    found = locate_shards(model, blocks, replace(mode, shard_terms=wrong, shard_starts=starts), ENGINE)
    assert found.passes >= 2
    gap = found.shard_modes - locate_shards(model, blocks, mode, ENGINE).shard_modes
    assert np.sqrt(np.einsum("ki,ij,kj->k", gap, mode.curvature, gap)).max() < 2 * DECREMENT


def test_terms_without_kept_rows_are_not_used_with_them(located, very_many_rows, monkeypatch):
    model, blocks, mode = located
    kept = blocks.keep([np.array([1, 2])] * 8)
    found = locate_shards(model, kept, mode, ENGINE)
    monkeypatch.undo()
    np.testing.assert_array_equal(found.shard_modes, locate_shards(model, kept, mode, ENGINE).shard_modes)


def test_gradients_of_the_certificate_from_known_terms(located):
    """What is subtracted from each shard is added to the whole. So terms of a wrong point cost precision only."""
    model, blocks, mode = located
    known, noises = mode.shard_terms, []
    points = mode.frame.to_theta(np.random.default_rng(1).normal(size=(5, 2)))
    exact = gradients(model, blocks, mode, points, ENGINE) @ mode.frame.basis
    for shift in (0.0, 3.0):
        moved = replace(known, point=known.point + shift * mode.frame.basis @ [1.0, -1.0])
        score = SampledGradients(model, blocks, mode, ENGINE, range(6), terms=moved)
        found = score(points)
        assert score.passes == pytest.approx(5 * blocks.shares[:6].sum())  # none for the terms
        noise = np.sqrt(np.sum((found.noise @ mode.frame.basis) ** 2, axis=0)).max()
        assert np.abs(found.values @ mode.frame.basis - exact).max() < 4 * noise + 0.002
        assert np.allclose(found.more().values @ mode.frame.basis, exact, atol=2e-3)
        noises.append(noise)
    assert noises[1] > 3 * noises[0]


def test_a_resumed_run_has_the_terms_and_the_certificate(tmp_path):
    rng = np.random.default_rng(3)
    y = rng.normal(size=2_000)
    model = Model(
        lambda p, rows: -0.5 * (rows - p["mu"]) ** 2 / p["s"] ** 2 - jnp.log(p["s"]),
        None,
        {"mu": (), "s": "positive"},
    )
    first = shardmc.fit(model, y, shards=50, draws=1_000, keep=None, seed=1, run_dir=tmp_path / "run")
    (tmp_path / "run" / "posterior.nc").unlink()
    again = shardmc.fit(model, y, shards=50, draws=1_000, keep=None, seed=1, run_dir=tmp_path / "run")
    assert again.passes["check"] == pytest.approx(20)  # a fifth of 100; another one would be for the terms
    assert first.passes["check"] == pytest.approx(20)
    np.testing.assert_allclose(again.certificate.mean_error, first.certificate.mean_error, atol=1e-5)
