"""Many effects in each group: the likelihood by matched moments, against closed forms and dense quadrature."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import shardmc
from shardmc.data.grouped import GroupedRows
from shardmc.mixed import LinearEffects, Matched, blank_sites, points_for, product_rule
from shardmc.mixed.matched import GroupNormal, find_sites
from shardmc.mixed.rows import conditioned, inverse_of_sum
from shardmc.model.precision import double_precision

GROUPS = 40
LOG_SD = float(np.log(0.7))


def _effects(size: int, family: str) -> LinearEffects:
    def log_likelihood(params, rows, eta):
        if family == "gaussian":
            return -0.5 * (rows["y"] - eta) ** 2
        return -jnp.logaddexp(0.0, -(2 * rows["y"] - 1) * eta)

    return LinearEffects(
        lambda params, rows: params["mu"] * jnp.ones_like(rows["y"]),
        lambda params, rows: rows["z"] * params["sd"],
        log_likelihood,
        lambda params: params["sd"] * jnp.eye(size),
        size,
    )


def _rows(rows: int, size: int, family: str) -> GroupedRows:
    rng = np.random.default_rng([rows, size])
    z = rng.normal(size=(GROUPS, rows, size))
    z[:, :, 0] = 1.0
    eta = 0.3 + 0.7 * np.einsum("gnq,gq->gn", z, rng.normal(size=(GROUPS, size)))
    y = (
        eta + rng.normal(size=eta.shape)
        if family == "gaussian"
        else rng.random(eta.shape) < jax.nn.sigmoid(eta)
    )
    leaves = {"z": jnp.asarray(z), "y": jnp.asarray(y, float)}
    weights = jnp.ones((GROUPS, rows)).at[0, -1].set(0.0)  # a row that only pads
    sites = jax.tree.map(jnp.asarray, blank_sites(GROUPS, rows))
    return GroupedRows(leaves, weights, jnp.arange(GROUPS), sites, None, True, True)


def _params(log_sd: jax.Array | float = LOG_SD) -> dict[str, jax.Array]:
    return {"mu": jnp.asarray(0.3), "sd": jnp.exp(log_sd)}


def _with_sites(local: LinearEffects, data: GroupedRows, place: int = 1) -> GroupedRows:
    """Rows with matched sites, or with Laplace's for place 0."""
    return replace(data, effects={"sites": find_sites(local, _params(), data)[place]})


def _dense(data: GroupedRows, size: int, params: dict[str, jax.Array], family: str) -> jax.Array:
    """Log-likelihoods of the groups by a fine product rule around zero."""
    rule = jnp.asarray(product_rule(41, size))
    local = _effects(size, family)

    def at(point: jax.Array) -> jax.Array:
        f = local.columns(params, data.rows) @ point[:-1]
        return jnp.sum(local.of_rows(params, data)(f), axis=1) + point[-1]

    return jax.nn.logsumexp(jax.vmap(at)(rule), axis=0)


def _slope(value, log_sd: float = LOG_SD) -> tuple[jax.Array, jax.Array]:
    """Values of the groups and their derivatives by the log of the sd."""
    return jax.jvp(value, (log_sd,), (1.0,))


@pytest.mark.parametrize(("rows", "size"), [(3, 5), (7, 4)])
def test_normal_rows_are_exact(rows, size):
    with double_precision():
        local, data = _effects(size, "gaussian"), _rows(rows, size, "gaussian")
        found = jax.jit(lambda data: Matched(local)(_params(0.1), _with_sites(local, data)))(data)
        columns = np.asarray(local.columns(_params(0.1), data.rows))
        residual = np.asarray(data.rows["y"]) - 0.3
        for group in range(1, GROUPS):
            covariance = columns[group] @ columns[group].T + np.eye(rows)
            exact = -0.5 * residual[group] @ np.linalg.solve(covariance, residual[group])
            exact -= 0.5 * np.linalg.slogdet(covariance)[1]
            assert found[group] == pytest.approx(exact, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2, 10])
def test_close_to_dense_quadrature(rows):
    """Values and slopes; sites found elsewhere, as in a sampler. Laplace is twenty times further off."""
    with double_precision():
        local, data = _effects(2, "bernoulli"), _rows(rows, 2, "bernoulli")

        @jax.jit
        def compared(log_sd, data):
            exact = _slope(lambda t: _dense(data, 2, _params(t), "bernoulli"), log_sd)
            matched = _slope(lambda t: Matched(local)(_params(t), _with_sites(local, data)), log_sd)
            return exact, matched, _laplace(local, data, log_sd)

        for log_sd in LOG_SD + np.array([-0.1, 0.0, 0.1]):
            (value, slope), matched, of_laplace = compared(log_sd, data)
            laplace = np.abs(of_laplace - value).mean()
            assert np.abs(matched[0] - value).mean() < min(2e-4, laplace / 20)
            assert np.abs(matched[1] - slope).mean() < 2e-3


def _laplace(local: LinearEffects, data: GroupedRows, log_sd: float) -> jax.Array:
    sites = find_sites(local, _params(log_sd), data)[0]
    columns = local.columns(_params(log_sd), data.rows)
    normal = GroupNormal.given(columns, sites[..., 0], sites[..., 1])
    heights = normal.log_ratio(local.of_rows(_params(log_sd), data)(normal.mean), normal.mean)
    return normal.value + jnp.sum(heights, axis=1)


def test_flipped_correction_fails(monkeypatch):
    """Negative control: with the other sign of the pairs, the same bound is broken."""
    with double_precision():
        local, data = _effects(2, "bernoulli"), _rows(10, 2, "bernoulli")

        def error():
            """Traced anew, with the sign of the moment."""
            found, exact = jax.jit(
                lambda data: (
                    Matched(local)(_params(), _with_sites(local, data)),
                    _dense(data, 2, _params(), "bernoulli"),
                )
            )(data)
            return np.abs(found - exact).mean()

        right = error()
        pairs = GroupNormal.pairs
        monkeypatch.setattr(GroupNormal, "pairs", lambda self, a: -pairs(self, a))
        wrong = error()
        assert right < 2e-4 < 4 * right + 2e-4 < 2 * wrong


@pytest.mark.parametrize("rows", [2, 10])
def test_importance_sampling_agrees(rows):
    """The rule of the certificate: third and higher orders, too."""
    with double_precision():
        local, data = _effects(2, "bernoulli"), _rows(rows, 2, "bernoulli")

        @jax.jit
        def compared(data, rule):
            data = replace(_with_sites(local, data), rule=rule)
            exact = _slope(lambda t: _dense(data, 2, _params(t), "bernoulli"))
            return exact, _slope(lambda t: Matched(local)(_params(t), data))

        (value, slope), found = compared(data, jnp.asarray(points_for(2, 64)))
        assert np.abs(found[0] - value).mean() < 1e-3
        assert np.abs(np.mean(found[1] - slope)) < 2e-3


def test_moments_of_effects():
    with double_precision():
        local, data = _effects(2, "bernoulli"), _rows(10, 2, "bernoulli")

        @jax.jit
        def moments(data, rule):
            points = 0.7 * rule[:, :2]
            f = jnp.einsum("gnq,kq->kgn", data.rows["z"], points)
            logs = jnp.sum(jax.vmap(local.of_rows(_params(), data))(f), axis=2) + rule[:, 2, None]
            share = jax.nn.softmax(logs, axis=0)
            mean = jnp.einsum("kg,kq->gq", share, points)
            gap = points[:, None] - mean
            covariance = jnp.einsum("kg,kgi,kgj->gij", share, gap, gap)
            exact = mean, covariance, jnp.einsum("kg,kgi->gi", share, gap**3)
            return Matched(local).moments(_params(), _with_sites(local, data)), exact

        for found, exact in zip(*moments(data, jnp.asarray(product_rule(41, 2))), strict=True):
            assert np.abs(found - exact).max() < 0.02


@pytest.mark.slow
def test_derivatives_of_conditioned():
    with double_precision():
        rng = np.random.default_rng(0)
        root, w = jnp.asarray(rng.normal(size=(3, 4, 6))), jnp.asarray(rng.random((3, 4)))

        def dense(root, w):
            prior, weights = root @ jnp.swapaxes(root, 1, 2), jax.vmap(jnp.diag)(w)
            inside = jnp.linalg.inv(jnp.linalg.inv(prior) + weights)
            return jnp.sum(jnp.sin(inside)) + jnp.sum(
                jnp.linalg.slogdet(jnp.eye(4) + prior @ weights)[1] ** 2
            )

        def fast(root, w):
            inside, log_det = conditioned(root @ jnp.swapaxes(root, 1, 2), w)
            return jnp.sum(jnp.sin(inside)) + jnp.sum(log_det**2)

        found, expected = (np.asarray(jax.jit(jax.hessian(f))(root, w)) for f in (fast, dense))
        np.testing.assert_allclose(found, expected, atol=1e-9)
        matrices = np.swapaxes(root, 1, 2) @ np.asarray(root)
        inverse, log_det = jax.jit(inverse_of_sum)(matrices)
        product = inverse @ (np.eye(6) + matrices)
        np.testing.assert_allclose(product, np.broadcast_to(np.eye(6), (3, 6, 6)), atol=1e-9)
        np.testing.assert_allclose(log_det, np.linalg.slogdet(np.eye(6) + matrices)[1])


@pytest.fixture(scope="module")
def fitted() -> tuple[pd.DataFrame, shardmc.Posterior]:
    rng = np.random.default_rng(3)
    g = np.repeat(np.arange(150), 6)
    data = pd.DataFrame(rng.normal(size=(900, 3)), columns=["x1", "x2", "x3"]).assign(g=g)
    effects = rng.normal(size=(150, 4)) * [1.0, 0.8, 0.6, 0.6]
    eta = effects[g, 0] + np.sum(data[["x1", "x2", "x3"]] * effects[g, 1:], axis=1)
    data["y"] = rng.poisson(np.exp(eta))
    formula = "y ~ x1 + x2 + x3 + (1 + x1 + x2 + x3 || g)"
    posterior = shardmc.glm(formula, data, family="poisson", draws=300, shards=1, check=False, seed=1)
    return data.assign(truth=effects[g, 0]), posterior


@pytest.mark.slow
def test_a_fit_finds_the_sds_and_effects(fitted):
    data, posterior = fitted
    summary = posterior.summary()
    for name, truth in zip(("Intercept", "x1", "x2", "x3"), (1.0, 0.8, 0.6, 0.6), strict=True):
        row = summary.loc[f"sd_g__{name}"]
        assert abs(row["mean"] - truth) < 5 * row["sd"]
    table = posterior.effects("g").xs("Intercept", level="effect")
    truth = data.groupby("g")["truth"].first().to_numpy()
    z = (table["mean"].to_numpy() - truth) / table["sd"].to_numpy()
    assert 0.7 < np.std(z) < 1.3


@pytest.mark.slow
def test_predictions_and_loo_of_groups(fitted):
    data, posterior = fitted
    new = data.iloc[:2].assign(g=[0, 1000])
    known, unknown = posterior.predict(new)["sd"]
    assert np.isfinite([known, unknown]).all()
    found = posterior.loo(data, sample=20, draws=50)
    assert np.isfinite(found.elpd)
