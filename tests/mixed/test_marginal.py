"""The likelihood of a group with its effects integrated out, against exact integrals."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from shardmc.data.grouped import GroupedRows
from shardmc.mixed.centers import GroupModes, blank_centers
from shardmc.mixed.marginal import LocalEffects, Marginal, RuleErrors, product_rule
from shardmc.mixed.rows import cholesky, inverse_lower, solve_lower
from shardmc.model import Model
from shardmc.model.precision import double_precision

ETA = np.array([0.3, -1.0, 0.8, 2.0])
Y = np.array([1.0, 0.0, 1.0, 1.0])


def logistic(params: Any, rows: Any, effects: jax.Array, weights: jax.Array, counted: bool) -> jax.Array:
    eta = rows["eta"] + effects[:, :1]
    return jnp.sum(weights * (rows["y"] * eta - jnp.logaddexp(0.0, eta)), axis=1)


LOCAL = LocalEffects(logistic, lambda params: jnp.reshape(params["tau"], (1, 1)), 1)


def grouped(nodes: int) -> GroupedRows:
    """One group of three rows and a padding row, and one of all four rows."""
    rows: Any = {"eta": np.stack([ETA, ETA]), "y": np.stack([Y, Y])}
    weights: Any = np.array([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    centers = jax.tree.map(lambda a: np.asarray(a, float), blank_centers(2, 1, 1))
    group: Any = np.arange(2)
    return jax.tree.map(
        jnp.asarray, GroupedRows(rows, weights, group, centers, product_rule(nodes, 1), True, True)
    )


MODEL = Model(Marginal(LOCAL), None, {"tau": "positive"})


@jax.jit
def values(theta: jax.Array, data: GroupedRows) -> tuple[jax.Array, Any]:
    """Log-likelihoods of both groups, and the moments of their effects, by nodes around their modes."""
    centers, _ = GroupModes(MODEL, LOCAL)(data, jnp.ones(2), None, theta)
    params, around = MODEL.constrain(theta), replace(data, effects=centers)
    return Marginal(LOCAL)(params, around), Marginal(LOCAL).moments(params, around)


def exact(count: int, tau: float) -> float:
    def integrand(u: float) -> float:
        eta = ETA[:count] + u
        return float(np.exp(np.sum(Y[:count] * eta - np.logaddexp(0, eta))) * stats.norm.pdf(u, scale=tau))

    return float(np.log(integrate.quad(integrand, -12 * tau, 12 * tau, epsabs=1e-13)[0]))


@pytest.mark.parametrize("tau", [0.3, 1.5])
def test_quadrature_matches_the_integral(tau: float) -> None:
    with double_precision():
        found, (mean, covariance, _) = jax.tree.map(np.asarray, values(np.log([tau]), grouped(15)))
    np.testing.assert_allclose(found, [exact(3, tau), exact(4, tau)], atol=1e-6)
    # Moments of the effect of the second group, by the same integral.
    u = np.linspace(-12 * tau, 12 * tau, 20_001)
    log_density = (Y[:, None] * (ETA[:, None] + u) - np.logaddexp(0, ETA[:, None] + u)).sum(0) - 0.5 * (
        u / tau
    ) ** 2
    share = np.exp(log_density - log_density.max())
    share /= share.sum()
    assert mean[1, 0] == pytest.approx(share @ u, abs=1e-5)
    assert covariance[1, 0, 0] == pytest.approx(share @ u**2 - (share @ u) ** 2, rel=1e-4)


def test_one_node_is_laplace_and_not_the_integral() -> None:
    """Negative control: with a single node the value is Laplace's approximation, which is off."""
    with double_precision():
        found = np.asarray(values(np.log([1.5]), grouped(1))[0])
    assert abs(found[1] - exact(4, 1.5)) > 0.005


def test_three_nodes_are_corrected_by_fifteen_at_the_mode() -> None:
    """There the corrected rule has the value and the gradient of the integral; a little away only its error in bend."""
    tau, step = 1.5, 1e-3
    with double_precision():
        data, theta = grouped(3), jnp.log(jnp.array([tau]))
        ones = jnp.ones(2)
        centers, _ = jax.jit(lambda data: GroupModes(MODEL, LOCAL)(data, ones, None, theta))(data)
        data = replace(data, effects=centers)
        rules = (theta, *(jnp.asarray(product_rule(number, 1)) for number in (3, 15)))
        found = jax.jit(lambda data: RuleErrors(MODEL, Marginal(LOCAL))(data, ones, None, rules))(data)
        better = replace(data, effects={**centers, **found})

        @jax.jit
        def at(tau: float, data: GroupedRows) -> jax.Array:
            return Marginal(LOCAL)({"tau": jnp.asarray(tau)}, data)

        wrong = np.asarray(at(tau, data)) - [exact(3, tau), exact(4, tau)]
        assert np.abs(wrong).min() > 1e-4  # three nodes are too few
        np.testing.assert_allclose(at(tau, better), [exact(3, tau), exact(4, tau)], atol=1e-6)
        slope = (at(tau + step, better) - at(tau - step, better)) / (2 * step)
    right = [(exact(n, tau + step) - exact(n, tau - step)) / (2 * step) for n in (3, 4)]
    np.testing.assert_allclose(slope, right, atol=1e-5)


def test_the_mode_moves_with_the_parameters_to_first_order() -> None:
    with double_precision():
        data = grouped(5)
        program = jax.jit(lambda theta: GroupModes(MODEL, LOCAL)(data, jnp.ones(2), None, theta))

        def middle_at(tau: float, centers: Any) -> np.ndarray:
            params = {"tau": jnp.asarray(tau)}
            return np.asarray(LOCAL.middle(params, replace(data, effects=centers))[0])

        step, centers = 1e-4, program(jnp.log(jnp.array([0.8])))[0]
        exact = [
            middle_at(tau, program(jnp.log(jnp.array([tau])))[0]) for tau in (0.8 - step, 0.8, 0.8 + step)
        ]
        followed = [middle_at(tau, centers) for tau in (0.8 - step, 0.8, 0.8 + step)]
        np.testing.assert_allclose(followed[1], exact[1], atol=1e-9)
        np.testing.assert_allclose(followed[2] - followed[0], exact[2] - exact[0], rtol=1e-3)


def test_nodes_follow_a_group_of_many_rows_however_far_the_sd_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its effect hardly moves, so in units of the sd it moves far. Nodes that moved linearly would miss it."""
    with double_precision():
        local = LocalEffects(
            lambda params, rows, effects, weights, counted: jnp.sum(
                weights * (rows["y"] * effects[:, :1] - rows["eta"] * jnp.exp(effects[:, :1])), axis=1
            ),
            LOCAL.factor,
            1,
        )
        counts, exposures = np.array([4_000.0, 3_000.0]), np.array([3_300.0, 3_300.0])
        rows: Any = {"eta": exposures[:, None], "y": counts[:, None]}
        blank = jax.tree.map(lambda a: np.asarray(a, float), blank_centers(2, 1, 1))
        data: GroupedRows = jax.tree.map(
            jnp.asarray,
            GroupedRows(rows, np.ones((2, 1)), np.arange(2), blank, product_rule(3, 1), True, True),  # type: ignore[arg-type]
        )
        model, start = Model(Marginal(local), None, {"tau": "positive"}), 0.15
        centers, _ = GroupModes(model, local)(data, jnp.ones(2), None, jnp.log(jnp.array([start])))
        data = replace(data, effects=centers)

        def errors() -> np.ndarray:
            taus = np.array([0.05, 0.08, 0.3, 0.5])
            found = [np.asarray(Marginal(local)({"tau": jnp.asarray(tau)}, data)) for tau in taus]
            u = np.linspace(-1, 1, 200_001)
            right = [
                np.log(
                    np.sum(
                        np.exp(y * u - e * np.exp(u) - y * np.log(y / e) + y) * stats.norm.pdf(u, scale=tau)
                    )
                )
                + np.log(u[1] - u[0])
                + y * np.log(y / e)
                - y
                for tau in taus
                for y, e in zip(counts, exposures, strict=True)
            ]
            return np.abs(np.ravel(found) - right)

        assert errors().max() < 0.01

        at = [jnp.asarray(tau) for tau in (start, start + 1e-5)]
        (here, root), (ahead, _) = (local.middle({"tau": tau}, data) for tau in at)

        def linear(self: LocalEffects, params: Any, data: GroupedRows) -> tuple[jax.Array, jax.Array]:
            return here + (ahead - here) / 1e-5 * (params["tau"] - start), root

        monkeypatch.setattr(LocalEffects, "middle", linear)
        assert errors().max() > 0.5


def test_small_matrices() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 3, 3))
    matrices = root @ np.swapaxes(root, 1, 2) + np.eye(3)
    with double_precision():
        lower = np.asarray(cholesky(jnp.asarray(matrices)))
        np.testing.assert_allclose(lower, np.linalg.cholesky(matrices), atol=1e-12)
        np.testing.assert_allclose(
            np.asarray(inverse_lower(jnp.asarray(lower))), np.linalg.inv(lower), atol=1e-12
        )
        vectors = rng.normal(size=(5, 3))
        found = np.asarray(solve_lower(jnp.asarray(lower), jnp.asarray(vectors)))
    np.testing.assert_allclose(found, np.linalg.solve(lower, vectors[..., None])[..., 0], atol=1e-12)
