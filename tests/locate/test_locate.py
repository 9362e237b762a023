"""Modes, curvatures and leverage against exact answers."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardmc.data import Partition, as_source
from shardmc.engine import Local
from shardmc.errors import ModelError
from shardmc.locate import DECREMENT, SampledGradients, gradients, influential, locate, locate_shards
from shardmc.locate.ascent import Ascent
from shardmc.locate.leverage import InfluentialRows, RowLeverage, _highest, _task
from shardmc.locate.newton import mode_after_one_step
from shardmc.locate.shard_modes import _Damped
from shardmc.locate.terms import Evaluator
from shardmc.model import Model
from shardmc.target import DeviceFrame
from shardmc.types import Frame, Mode


def regression(num_rows=4_000, dim=3, scale=1.0, seed=0):
    """Gaussian regression with known noise and a N(0, 10^2) prior: mode and curvature are known in closed form."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(num_rows), rng.normal(5.0, 1.0, (num_rows, dim - 1))])
    x[:, 1:] *= scale
    y = x @ np.arange(1.0, dim + 1) / np.array([1.0, *[scale] * (dim - 1)]).mean() + rng.normal(size=num_rows)
    model = Model(
        lambda params, rows: -0.5 * (rows[1] - rows[0] @ params["beta"]) ** 2,
        lambda params: -0.5 * jnp.sum(params["beta"] ** 2) / 100,
        {"beta": dim},
    )
    return model, x.astype(np.float32), y.astype(np.float32)


def exact(x, y, weights):
    """Mode and curvature of the weighted regression, in float64."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    curvature = (x * weights[:, None]).T @ x + np.eye(x.shape[1]) / 100
    return np.linalg.solve(curvature, (x * weights[:, None]).T @ y), curvature


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("shards", [1, 7, 40])
def test_mode_of_all_rows_whatever_the_columns_scale(shards, scale):
    model, x, y = regression(scale=scale)
    blocks = as_source((x, y)).split(Partition(shards), 0)
    mode = locate(model, blocks, Local())
    theta, curvature = exact(x, y, np.ones(len(y)))
    gap = mode.theta - theta
    assert np.sqrt(gap @ curvature @ gap) < 2 * DECREMENT
    whiten = np.linalg.inv(np.linalg.cholesky(curvature))
    np.testing.assert_allclose(whiten @ mode.curvature @ whiten.T, np.eye(3), atol=2e-3)
    assert mode.decrement < DECREMENT
    assert mode.passes > 0


def test_row_weights_are_multiplicities():
    model, x, y = regression()
    weights = np.random.default_rng(1).integers(0, 4, len(y)).astype(np.float64)
    blocks = as_source((x, y)).split(Partition(6, weights=weights), 0)
    theta, curvature = exact(x, y, weights)
    gap = locate(model, blocks, Local()).theta - theta
    assert np.sqrt(gap @ curvature @ gap) < 2 * DECREMENT


def test_shard_modes_of_rescaled_subposteriors_with_kept_rows():
    model, x, y = regression(num_rows=1_003)
    blocks = as_source((x, y)).split(Partition(9), 0)
    engine = Local(batch=2)
    mode = locate(model, blocks, engine)
    kept = blocks.keep([np.array([i % 3, 5]) for i in range(9)])
    located = locate_shards(model, kept, mode, engine)
    assert located.found.all()
    assert located.passes > 1
    for names, batch in kept.batches(range(9), 1):
        (sx, sy), weights = batch.take(0)
        theta, curvature = exact(np.asarray(sx), np.asarray(sy), np.asarray(weights, np.float64))
        gap = located.shard_modes[names[0]] - theta
        assert np.sqrt(gap @ curvature @ gap) < 2 * DECREMENT
        np.testing.assert_allclose(located.shard_curvatures[names[0]], curvature, rtol=2e-3)


@pytest.mark.parametrize("starts", ["none", "far off", "not a number"])
def test_shard_modes_are_the_same_wherever_the_search_starts(starts):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(6_000, 3))
    y = rng.random(6_000) < 1 / (1 + np.exp(-x @ [1.0, -2.0, 0.5]))
    model, blocks = logistic(x, y)
    mode = locate(model, blocks, Local())
    located = locate_shards(model, blocks, mode, Local())
    assert mode.shard_starts is not None
    other = {
        "none": None,
        "far off": mode.shard_starts + rng.normal(0, 20, mode.shard_starts.shape),
        "not a number": np.full_like(mode.shard_starts, np.nan),
    }[starts]
    again = locate_shards(model, blocks, replace(mode, shard_starts=other), Local())
    assert located.found.all()
    assert again.found.all()
    gap = located.shard_modes - again.shard_modes
    error = np.sqrt(np.einsum("ki,kij,kj->k", gap, located.shard_curvatures, gap))
    assert error.max() < 2 * DECREMENT
    np.testing.assert_allclose(located.shard_curvatures, again.shard_curvatures, rtol=0.01)


def test_a_damped_search_returns_from_where_only_the_prior_has_curvature():
    """A level with 300 of 1,000 successes from a log odds of 30, where Newton's step is a million sds long."""
    sd, prior_sd = 0.07, 10.0

    def terms(u):
        b = 40 + sd * u[0]  # in the frame of all rows, whose centre is worse still
        p = 1 / (1 + np.exp(-b))
        value = 300 * b - 1000 * np.logaddexp(0, b) - 0.5 * (b / prior_sd) ** 2
        curvature = 1000 * p * (1 - p) + prior_sd**-2
        return value, np.array([sd * (300 - 1000 * p - b / prior_sd**2)]), np.array([[sd**2 * curvature]])

    center = terms(np.zeros(1))[0]
    search = _Damped(np.array([-10 / sd]))
    for _ in range(60):
        value, gradient, curvature = terms(search.u)
        if not search.advance((value - center, gradient, curvature)):
            break
    assert search.remaining < DECREMENT
    assert np.abs(terms(search.u)[1]) < 1e-2


@pytest.mark.parametrize("seed", range(4))
def test_modes_of_small_shards_with_a_rare_column_are_exact(seed):
    """Far from a Gaussian, and with kept rows: the claimed error must not be far below the true one."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(4_000), rng.normal(size=4_000), rng.random(4_000) < 0.03])
    y = rng.random(4_000) < 1 / (1 + np.exp(-x @ [-0.5, 1.0, 1.0]))
    prior = lambda params: -0.5 * jnp.sum(params["beta"] ** 2)  # noqa: E731
    model, _ = logistic(x, y, prior)
    blocks = as_source((x.astype(np.float32), y.astype(np.float32))).split(Partition(30), 0)
    mode = locate(model, blocks, Local())
    kept = blocks.keep([np.array([i % 7]) for i in range(30)])
    located = locate_shards(model, kept, mode, Local())
    assert located.found.all()
    for names, batch in kept.batches(range(30), 1):
        (sx, sy), weights = (np.asarray(sx, np.float64) for sx in batch.take(0)[0]), batch.take(0)[1]
        theta, weights = located.shard_modes[names[0]], np.asarray(weights, np.float64)
        for _ in range(30):
            p = 1 / (1 + np.exp(-sx @ theta))
            curvature = (sx * (weights * p * (1 - p))[:, None]).T @ sx + np.eye(3)
            theta = theta + np.linalg.solve(curvature, sx.T @ (weights * (sy - p)) - theta)
        gap = located.shard_modes[names[0]] - theta
        assert np.sqrt(gap @ curvature @ gap) < DECREMENT


@pytest.mark.parametrize("width", [3.0, 5.0, 10.0, 20.0])
def test_a_skewed_parameter_does_not_hide_behind_one_that_converges_at_once(width):
    # `a` has 2,000 rows and is there in one step. `b` has one row and a prior, and needs several: were the search
    # ended by the decrement of both, the curvature of `b` would be off by 49 % at width 10.
    y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000).astype(np.float32)
    model = Model(
        lambda params, y: -64 * jnp.cosh((y - params["a"]) / 8),
        lambda params: -0.5 * (params["b"] / width) ** 2 - jnp.logaddexp(0.0, params["b"]),
        {"a": (), "b": ()},
    )
    mode = locate(model, as_source(y).split(Partition(1), 0), Local())
    b = mode.theta[1]
    for _ in range(20):  # Newton in double precision
        chance = 1 / (1 + np.exp(-b))
        curvature = 1 / width**2 + chance * (1 - chance)
        b -= (b / width**2 + chance) / curvature
    assert abs(mode.theta[1] - b) * np.sqrt(curvature) < DECREMENT
    np.testing.assert_allclose(mode.curvature[1, 1], curvature, rtol=0.02)


def test_a_start_that_is_the_mode_takes_one_pass():
    model, x, y = regression()
    blocks = as_source((x, y)).split(Partition(8), 0)
    mode = locate(model, blocks, Local())
    located = locate_shards(model, blocks, mode, Local())
    assert located.passes == pytest.approx(1.0)


def leverage(model, blocks, mode, engine):
    """Leverage of every row at the mode, one array per shard."""
    shares, frame = blocks.shares.astype(np.float32), DeviceFrame.of(mode.frame)
    found = dict(engine.map(RowLeverage(model), blocks, shares, frame))
    return [np.asarray(found[i])[:size] for i, size in enumerate(blocks.sizes)]


@pytest.mark.parametrize("curvature_ratio", [1.0, 1e-4])
def test_a_first_step_with_the_curvature_of_a_sample_leads_to_the_mode(curvature_ratio):
    """As for very many rows. With a curvature that is far too small the step is too long, and is not taken."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(3_000, 2)).astype(np.float32)
    y = (rng.random(3_000) < 1 / (1 + np.exp(-x @ [1.0, -2.0]))).astype(np.float32)
    model = Model(
        lambda p, rows: rows[1] * (rows[0] @ p["b"]) - jnp.logaddexp(0, rows[0] @ p["b"]), None, {"b": 2}
    )
    blocks, engine = as_source((x, y)).split(Partition(4), 0), Local()
    right = locate(model, blocks, engine)
    basis = right.frame.basis / np.sqrt(curvature_ratio)
    near = Frame(right.theta + right.frame.basis @ [20.0, -10.0], basis)
    ascent = Ascent(Evaluator(model, blocks, engine), None, near, is_estimated=True)
    assert not ascent.arrived(1e9)
    assert ascent.climb(DECREMENT)
    mode = ascent.mode()
    gap = mode.theta - right.theta
    assert np.sqrt(gap @ right.curvature @ gap) < 2 * DECREMENT
    np.testing.assert_allclose(mode.curvature, right.curvature, rtol=2e-3, atol=0.5)


@pytest.mark.parametrize(
    ("num_shards", "far", "enough"), [(100, 0.7, True), (4, 0.7, True), (100, 2.0, False), (100, 20.0, False)]
)
def test_one_step_and_a_sample_of_the_shards_lead_to_the_mode(num_shards, far, enough):
    """As for very many rows. From far away third derivatives add too much, and the climb goes on."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200_000, 2)).astype(np.float32)
    y = (rng.random(200_000) < 1 / (1 + np.exp(-x @ [1.0, -2.0]))).astype(np.float32)
    model = Model(
        lambda p, rows: rows[1] * (rows[0] @ p["b"]) - jnp.logaddexp(0, rows[0] @ p["b"]), None, {"b": 2}
    )
    blocks, engine = as_source((x, y)).split(Partition(num_shards), 0), Local()
    right = locate(model, blocks, engine)
    near = Frame(right.theta + right.frame.basis @ [far, -far], 1.1 * right.frame.basis)
    evaluate = Evaluator(model, blocks, engine)
    ascent = Ascent(evaluate, None, near, whitened=True)
    mode = mode_after_one_step(ascent)
    assert (mode is not None) == enough
    if mode is None:
        return
    gaps = [found.theta - right.theta for found in (mode, ascent.mode())]
    here, without = (np.sqrt(gap @ right.curvature @ gap) for gap in gaps)
    assert here < mode.decrement + right.decrement + 5e-4  # rounding in single precision
    assert mode.decrement < DECREMENT
    np.testing.assert_allclose(mode.curvature, right.curvature, rtol=0.01, atol=0.01 * right.curvature.max())
    # At the end of the step, and beside it in both directions.
    assert mode.passes == pytest.approx(1 + 3 * min(16, num_shards) / num_shards)
    # Control: the step itself, without what the sample adds, ends farther away.
    assert without > 3 * here


RARE = np.arange(5 * 1_000, 5 * 1_000 + 6)
"""Rows of a rare level, all in shard 5, which is none of the 16 of 100 shards that are sampled first."""


def rare_level(prior_sd):
    """Rows in order, half of those of the rare level events; others have few. The prior has most of its curvature."""
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(100_000), rng.normal(size=100_000), np.zeros(100_000)]).astype(np.float32)
    y = (rng.random(100_000) < 1 / (1 + np.exp(4.6 - 0.5 * x[:, 1]))).astype(np.float32)
    x[RARE, 2], x[RARE, 1], y[RARE] = 1, 0, np.arange(6) % 2
    model = Model(
        lambda p, rows: rows[1] * (rows[0] @ p["b"]) - jnp.logaddexp(0.0, rows[0] @ p["b"]),
        lambda p: -0.5 * jnp.sum((p["b"] / jnp.array([10.0, 10.0, prior_sd])) ** 2),
        {"b": 3},
    )
    blocks = as_source((x, y)).split(Partition(100, shuffle=False), 0)
    return model, x, blocks, locate(model, blocks, Local())


def test_one_step_is_not_enough_if_the_sample_lacks_a_level_that_the_prior_holds():
    """Every shard has the prior's curvature. It says nothing about the rows that are not in the sample."""
    model, x, blocks, right = rare_level(prior_sd=1.0)
    start = right.theta.copy()
    start[2] = 0.0  # where a search ends on shards without these rows
    chance = 1 / (1 + np.exp(-x @ start))
    curvature = (x * (chance * (1 - chance))[:, None]).T @ x + np.diag([0.01, 0.01, 1.0])
    evaluate = Evaluator(model, blocks, Local())
    assert mode_after_one_step(Ascent(evaluate, None, Frame.at(start, curvature), whitened=True)) is None
    # Control: the step ends far from the mode.
    end = Ascent(evaluate, None, Frame.at(start, curvature), whitened=True).mode().theta - right.theta
    assert np.sqrt(end @ right.curvature @ end) > 30 * DECREMENT


def test_a_sample_without_a_level_is_not_used_however_strong_the_prior():
    model, _, blocks, mode = rare_level(prior_sd=2.0)
    points = mode.frame.to_theta(np.random.default_rng(1).normal(size=(30, 3)))
    sample = np.linspace(0, 99, 16).astype(int).tolist()
    assert 5 not in sample
    found = SampledGradients(model, blocks, mode, Local(), sample, terms=mode.shard_terms)(points)
    assert found.noise is None  # all shards were read
    np.testing.assert_allclose(
        found.values @ mode.frame.basis,
        gradients(model, blocks, mode, points, Local()) @ mode.frame.basis,
        atol=2e-3,
    )
    with_level = [*sample[1:], 5]
    assert (
        SampledGradients(model, blocks, mode, Local(), with_level, terms=mode.shard_terms)(points).noise
        is not None
    )


def test_a_curvature_that_has_changed_beside_a_short_step_is_noticed(monkeypatch):
    """The step is long along one direction, and hardly moves along another, in which the curvature is not constant."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=200_000).astype(np.float32)
    model = Model(
        lambda p, rows: -0.5 * (rows - p["a"]) ** 2 - (jnp.exp(p["b"]) - p["b"]) * 40 / 200_000,
        None,
        {"a": (), "b": ()},
    )
    blocks = as_source(x).split(Partition(100), 0)
    evaluate = Evaluator(model, blocks, Local())
    right = locate(model, blocks, Local())
    near = Frame(right.theta + right.frame.basis @ [100.0, 0.0], np.diag([1.0, 0.7]) * right.frame.basis)

    def after(far):
        start = near.moved(np.array([0.0, far]))
        return mode_after_one_step(Ascent(evaluate, None, start, whitened=True))

    assert after(0.0) is not None
    assert after(2.0) is None
    monkeypatch.setattr("shardmc.locate.newton._CHANGED", np.inf)
    assert after(2.0) is not None  # the control: the length of the whole step hides it


def test_leverage_is_the_hat_matrix_diagonal_for_a_gaussian_regression():
    model, x, y = regression(num_rows=300)
    blocks = as_source((x, y)).split(Partition(4, shuffle=False), 0)
    mode = locate(model, blocks, Local())
    values = np.concatenate(
        [v[:n] for v, n in zip(leverage(model, blocks, mode, Local()), blocks.sizes, strict=True)]
    )
    theta, curvature = exact(x, y, np.ones(len(y)))
    hat = np.einsum("ij,jk,ik->i", x, np.linalg.inv(curvature), x)
    residual = y - x @ theta
    np.testing.assert_allclose(values, np.maximum(hat, residual**2 * hat), rtol=2e-3)


def test_influential_rows_are_those_above_the_bar():
    model, x, y = regression(num_rows=400)
    y[[17, 230]] += 30
    blocks = as_source((x, y)).split(Partition(4), 0)
    mode = locate(model, blocks, Local())
    found = influential(model, blocks, mode, Local(), 0.2)
    for positions, values in zip(found.positions, leverage(model, blocks, mode, Local()), strict=True):
        np.testing.assert_array_equal(positions, np.flatnonzero(values > 0.2 / 4))
    assert sum(map(len, found.positions)) >= 2


@pytest.mark.parametrize("known_steps", [True, False])
def test_a_row_that_cuts_off_a_part_of_the_posterior_is_influential(known_steps, monkeypatch):
    """A far outlier of a logistic regression has no slope or curvature at the mode. The control looks only there."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(2_000, 2)), (rng.random(2_000) < 0.5).astype(np.float32)
    x[7], y[7] = [0.0, 3_000.0], 1.0
    blocks = as_source({"x": x.astype(np.float32), "y": y}).split(Partition(1), 0)
    # About the mode of the other rows, whose second coefficient is 0.9 sds above 0.
    mode = Mode(np.array([0.0, 0.04]), np.eye(2) / 0.045**2, 0.0, 1.0)
    if not known_steps:
        monkeypatch.setattr("shardmc.locate.leverage.row_derivatives", lambda *args: None)

    def highest():
        def log_likelihood(params, rows):
            eta = rows["x"] @ params["b"]
            return rows["y"] * eta - jnp.logaddexp(0.0, eta)

        (values,) = leverage(Model(log_likelihood, None, {"b": 2}), blocks, mode, Local())
        return np.sort(values)[-2:]

    others, outlier = highest()
    assert others < 0.02
    assert outlier > 10
    monkeypatch.setattr("shardmc.locate.leverage._BENT", np.inf)
    assert highest()[1] < 0.02


@pytest.mark.parametrize("length", [500, 20_000, 20_001])
@pytest.mark.parametrize("count", [0, 1, 5, 24, 40])
def test_the_highest_values_of_short_and_long_arrays(length, count):
    most, rng = 24, np.random.default_rng(count)
    values = np.zeros(length, np.float32)
    values[rng.choice(length, count, replace=False)] = rng.random(count) + 0.5
    values[-1] = 2.0 if count else 0.0
    positions = np.asarray(_highest(jnp.asarray(values), most))
    highest = values[positions]
    np.testing.assert_array_equal(highest, np.sort(values)[::-1][:most])
    assert len(np.unique(positions[highest > 0])) == (highest > 0).sum()


@pytest.mark.parametrize("most", [1, 2, 3, 50])
def test_influential_rows_are_the_first_ones_or_if_there_are_too_many_the_highest(most):
    model, x, y = regression(num_rows=400)
    y[[17, 230, 300]] += [30, 40, 50]
    blocks = as_source((x, y)).split(Partition(1, shuffle=False), 0)
    mode = locate(model, blocks, Local())
    (values,) = leverage(model, blocks, mode, Local())
    above = np.flatnonzero(values > 0.2)
    assert len(above) == 3
    _, per_shard, shared = _task(model, blocks, mode.frame, 0.2)
    ((_, (positions, leverages, count)),) = Local().map(
        InfluentialRows(model, most), blocks, per_shard, shared
    )
    wanted = above if most >= 3 else above[np.argsort(-values[above])][:most]
    assert count == 3
    assert set(positions[:3].tolist()) == set(wanted.tolist())
    np.testing.assert_allclose(leverages, values[positions], rtol=1e-5)


def test_at_most_a_shard_of_rows_is_kept_the_most_influential_ones():
    model, x, y = regression(num_rows=400)
    blocks = as_source((x, y)).split(Partition(4), 0)
    mode = locate(model, blocks, Local())
    found = influential(model, blocks, mode, Local(), 1e-3)
    kept = np.concatenate(
        [v[p] for v, p in zip(leverage(model, blocks, mode, Local()), found.positions, strict=True)]
    )
    assert 0 < len(kept) <= blocks.capacity
    every = np.sort(np.concatenate(leverage(model, blocks, mode, Local())))
    assert np.sum(every > 1e-3 / 4) > blocks.capacity
    assert kept.min() >= every[-blocks.capacity]


def test_a_mistake_in_the_gradients_of_the_prior_is_reported(monkeypatch):
    model, x, y = regression()
    blocks = as_source((x, y)).split(Partition(2), 0)
    mode = locate(model, blocks, Local())

    def wrong(*_):
        raise ValueError("wrong prior")

    monkeypatch.setattr("shardmc.locate.gradient_sums._prior_gradients", wrong)
    with pytest.raises(ValueError, match="wrong prior"):
        gradients(model, blocks, mode, mode.theta[None], Local())
    whole = SampledGradients(model, blocks, mode, Local(), [0])
    with pytest.raises(ValueError, match="wrong prior"):
        whole(mode.theta[None])


def test_gradients_of_all_rows_match_float64():
    model, x, y = regression()
    blocks = as_source((x, y)).split(Partition(7), 0)
    mode = locate(model, blocks, Local())
    points = mode.theta + np.random.default_rng(0).normal(size=(5, 3)) @ mode.frame.basis.T
    got = gradients(model, blocks, mode, points, Local())
    theta, curvature = exact(x, y, np.ones(len(y)))
    want = (theta - points) @ curvature
    scale = np.sqrt(np.diag(curvature))
    np.testing.assert_allclose(got / scale, want / scale, atol=0.02)


def test_the_starting_point_may_be_a_kink():
    """softplus written with abs and max has no second derivative at zero, where every row starts."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2_000, 3)).astype(np.float32)
    y = (rng.random(2_000) < 1 / (1 + np.exp(-x @ np.ones(3)))).astype(np.float32)

    def log_likelihood(params, rows):
        eta = rows[0] @ params["beta"]
        return rows[1] * eta - jnp.maximum(eta, 0) - jnp.log1p(jnp.exp(-jnp.abs(eta)))

    model = Model(log_likelihood, None, {"beta": 3})
    assert locate(model, as_source((x, y)).split(Partition(5), 0), Local()).decrement < DECREMENT


def logistic(x, y, prior=None):
    model = Model(
        lambda params, rows: rows[1] * (rows[0] @ params["beta"]) - jax.nn.softplus(rows[0] @ params["beta"]),
        prior,
        {"beta": x.shape[1]},
    )
    return model, as_source((x.astype(np.float32), y.astype(np.float32))).split(Partition(4), 0)


def test_collinear_columns_are_named():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1_000, 4))
    x[:, 3] = x[:, 1]
    y = rng.random(1_000) < 0.5
    with pytest.raises(ModelError, match=r"no mode.*'beta\[[13]\]' and 'beta\[[13]\]'"):
        locate(*logistic(x, y), Local())


def test_a_parameter_that_neither_rows_nor_prior_hold_is_named():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1_000, 3))
    x[:, 2] = 0
    with pytest.raises(ModelError, match=r"does not fall along 'beta\[2\]'\."):
        locate(*logistic(x, rng.random(1_000) < 0.5), Local())


def test_complete_separation_is_named_unless_a_prior_holds_it():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(2_000), rng.normal(size=2_000), rng.random(2_000) < 0.05])
    y = (rng.random(2_000) < 0.5) | (x[:, 2] == 1)
    with pytest.raises(ModelError, match=r"no mode.*'beta\[2\]'"):
        locate(*logistic(x, y), Local())
    held, blocks = logistic(x, y, lambda params: -0.5 * jnp.sum(params["beta"] ** 2) / 100)
    assert locate(held, blocks, Local()).decrement < DECREMENT


def test_a_likelihood_with_a_reverse_derivative_only():
    """`jax.custom_vjp` has no forward derivative, by which leverages are computed otherwise."""
    half_square = jax.custom_vjp(lambda a: 0.5 * a**2)
    half_square.defvjp(lambda a: (0.5 * a**2, a), lambda a, change: (change * a,))
    plain, x, y = regression(400)
    own = Model(lambda params, rows: -half_square(rows[1] - rows[0] @ params["beta"]), None, {"beta": 3})
    frame = DeviceFrame(jnp.array([1.0, 2.0, 3.0]), 0.1 * jnp.eye(3))
    weights, share = jnp.ones(400), jnp.ones(())
    found, expected = (RowLeverage(model)((x, y), weights, share, frame) for model in (own, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    # The leverage of the curvature alone: a derivative that is left out would show.
    assert (found >= 0.009 * np.sum(x**2, axis=1)).all()
