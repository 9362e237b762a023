"""Another seed, another prior or a few rows more compile nothing: ten fits with the programs of the first."""

import jax.numpy as jnp
import numpy as np
import pytest

import shardmc


def simulated(rows):
    rng = np.random.default_rng(0)
    x = rng.standard_t(2, size=(rows, 3)).astype(np.float32)  # heavy tails: some rows have high leverage
    y = (rng.random(rows) < 1 / (1 + np.exp(-x @ np.array([1.0, -0.5, 0.2])))).astype(np.float32)
    return {"x": x, "y": y}


def logistic(scale):
    def log_likelihood(params, rows):
        eta = rows["x"] @ params["beta"]
        return rows["y"] * eta - jnp.logaddexp(0.0, eta)

    return shardmc.Model(
        log_likelihood, lambda params: -0.5 * jnp.sum((params["beta"] / scale) ** 2), {"beta": 3}
    )


@pytest.mark.slow
def test_ten_fits_compile_nothing_after_the_first(compilations):
    kept = []
    for seed in range(10):
        compilations.clear()
        # 5 % between the least and the most rows. Slices of 2,049 to 2,304 rows share their programs.
        posterior = shardmc.fit(
            logistic(1 + seed),
            simulated(20_500 + 114 * ((3 * seed) % 10)),
            shards=10,
            draws=400,
            seed=seed,
            precision="single",
        )
        assert bool(compilations) == (seed == 0)
        kept.append(posterior.plan.kept_rows)
        assert np.abs(posterior.theta.mean(axis=0) - [1.0, -0.5, 0.2]).max() < 0.2
    assert (
        len(set(kept)) > 1
    )  # the seeds keep different numbers of rows, without which this would show little


@pytest.mark.slow
def test_no_kept_rows_and_some_share_their_programs(compilations):
    rows = simulated(20_000)
    rows["x"] = np.clip(rows["x"], -3, 3)
    far = {**rows, "x": rows["x"].copy()}
    far["x"][:5] = 300.0
    kept = []
    once = shardmc.Certify(max_draws=100)  # a second round, at more draws, has programs of its own
    for table in (rows, far):
        compilations.clear()
        fitted = shardmc.fit(logistic(1.0), table, shards=10, draws=400, precision="single", certify=once)
        kept.append(fitted.plan.kept_rows)
    assert not compilations
    assert kept[0] == 0
    assert kept[1] > 0


@pytest.mark.slow
def test_folds_of_a_cross_validation_share_their_programs(compilations):
    rows = simulated(12_503)
    fold = np.arange(12_503) % 5
    table = {"a": rows["x"][:, 0], "b": rows["x"][:, 1], "y": rows["y"]}
    for number in range(3):
        compilations.clear()
        train = {name: column[fold != number] for name, column in table.items()}
        shardmc.glm("y ~ a + b", train, "bernoulli", shards=5, draws=400, precision="single")
        assert bool(compilations) == (number == 0)
