"""fit of arrays that are not copied: the same draws, to the last bit, as of a copy in the order of the shards."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import shardmc
from shardmc.data import as_source
from shardmc.data.gathered import GatheredBlocks

MEASURES_PRECISION = True  # on rows of the first shard, which are gathered, too

ROWS, SHARDS = 6_011, 10


@pytest.fixture(scope="module")
def rows():
    """Some rows have much leverage, so that they are kept in every shard."""
    rng = np.random.default_rng(2)
    x = np.column_stack([np.ones(ROWS), rng.standard_t(3, size=(ROWS, 2))])
    y = rng.random(ROWS) < 1 / (1 + np.exp(-x @ [-1.0, 1.0, 0.5]))
    return {
        "x": x,
        "y": y.astype(np.int64),
        "w": rng.uniform(0.5, 1.5, ROWS),
        "kind": rng.integers(0, 5, ROWS),
    }


@pytest.fixture(scope="module")
def model():
    def log_likelihood(params, rows):
        eta = rows["x"] @ params["beta"]
        return rows["y"] * eta - jnp.logaddexp(0.0, eta)

    return shardmc.Model(log_likelihood, lambda p: -0.5 * jnp.sum((p["beta"] / 10) ** 2), {"beta": 3})


@pytest.fixture
def gathered(monkeypatch):
    """As if there were so many shards that those in memory at a time do not count. Counts what is gathered."""
    monkeypatch.setattr("shardmc.data.gathered.shards_at_a_time", lambda: 0)
    filled = []
    fill = GatheredBlocks._fill

    def counted(self, number, shards, target):
        filled.append(len(shards))
        fill(self, number, shards, target)

    monkeypatch.setattr(GatheredBlocks, "_fill", counted)
    return filled


CASES = {
    "shuffled, kept rows, certificate": {},
    "weighted": {"weights": "w", "check": False},
    "stratified": {"stratify": "kind", "check": False},
    "in order": {"shuffle": False, "check": False},
    "double": {"precision": "double", "check": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_draws_are_those_of_a_copy(case, model, rows, gathered):
    def fitted(memory):
        options = {"precision": "single" if "check" in CASES[case] else "auto", **CASES[case]}
        return shardmc.fit(
            model, as_source(rows, memory=memory), shards=SHARDS, draws=400, seed=1, keep=0.05, **options
        )

    copied = fitted(1 << 40)
    assert not gathered
    found = fitted(0)
    assert gathered
    np.testing.assert_array_equal(found.theta, copied.theta)
    np.testing.assert_array_equal(found.mode, copied.mode)
    assert found.plan.kept_rows == copied.plan.kept_rows > 0
    if copied.certificate is not None:
        assert found.certificate.to_dict() == copied.certificate.to_dict()


@pytest.mark.slow
def test_arrays_of_jax_in_x64_have_the_draws_of_a_copy(model, rows, gathered):
    with jax.enable_x64(True):
        data = {**rows, "x": jnp.asarray(rows["x"])}
        assert data["x"].dtype == np.float64
        draws = [
            shardmc.fit(
                model, as_source(data, memory=memory), shards=SHARDS, draws=400, seed=1, check=False
            ).theta
            for memory in (1 << 40, 0)
        ]
    assert gathered
    np.testing.assert_array_equal(*draws)


@pytest.mark.slow
def test_wrong_rows_change_the_draws(model, rows, gathered, monkeypatch):
    """The control: the comparison of draws sees rows that are gathered for another shard."""

    def theta(memory):
        source = as_source(rows, memory=memory)
        return shardmc.fit(
            model, source, shards=SHARDS, draws=400, seed=1, check=False, precision="single"
        ).theta

    expected = theta(1 << 40)
    np.testing.assert_array_equal(theta(0), expected)
    fill = GatheredBlocks._fill
    monkeypatch.setattr(
        GatheredBlocks,
        "_fill",
        lambda blocks, number, shards, target: fill(blocks, number, [*shards[1:], 0], target),
    )
    assert not np.array_equal(theta(0), expected)


def test_a_subsample_takes_a_copy(model, rows, gathered):
    options = {"draws": 200, "seed": 3, "check": False, "precision": "single", "minibatch": 50, "warmup": 2}
    draws = [
        shardmc.subsample(model, as_source(rows, memory=memory), "sgld", **options).theta
        for memory in (1 << 40, 0)
    ]
    assert gathered
    np.testing.assert_array_equal(*draws)


@pytest.mark.slow
def test_a_formula_of_a_table_above_a_limit_has_the_draws_of_a_copy(rows):
    frame = pd.DataFrame(
        {"y": rows["y"], "u": rows["x"][:, 1], "kind": np.array(list("abcde"))[rows["kind"]]}
    )
    options = {"family": "bernoulli", "shards": SHARDS, "draws": 400, "check": False, "precision": "single"}
    draws = [
        shardmc.glm("y ~ u + kind", as_source(frame, memory=memory), **options).theta
        for memory in (None, 10_000)
    ]
    np.testing.assert_array_equal(*draws)


@pytest.mark.slow
def test_rows_of_groups_go_to_files_above_a_limit(rows, gathered):
    """Sums over a group's rows are then taken in another order, as for files larger than memory."""

    def log_likelihood(params, rows, effects):
        return -0.5 * (rows["u"] - params["mu"] - effects["b"]) ** 2

    parameters = {"mu": (), "tau": "positive"}
    model = shardmc.Model(log_likelihood, None, parameters, local={"b": "tau"}, groups="g")
    data = {"u": rows["x"][:, 1], "g": np.arange(ROWS) // 5}
    options = {"shards": 4, "draws": 200, "check": False, "precision": "single"}
    copied, streamed = (
        shardmc.fit(model, as_source(data, memory=memory), **options).theta for memory in (None, 0)
    )
    np.testing.assert_allclose(streamed, copied, rtol=1e-4, atol=1e-4)
    assert not gathered
