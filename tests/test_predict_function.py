"""Predictions of a posterior without a formula: a function of parameters and rows, over draws and pieces."""

from decimal import Decimal

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import shardmc
import shardmc.posterior.prediction
from shardmc.errors import ModelError, OptionError, RunError


@pytest.fixture(scope="module")
def posterior():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2_000, 2))
    y = x @ [1.0, -2.0] + rng.normal(size=2_000)

    def log_likelihood(params, rows):
        return -0.5 * (rows["y"] - rows["x"] @ params["beta"]) ** 2

    model = shardmc.Model(log_likelihood, None, {"beta": 2})
    return shardmc.fit(model, {"x": x, "y": y}, shards=2, draws=400, check=False, precision="single")


NEW = pd.DataFrame({"a": np.linspace(-1, 1, 50), "b": np.arange(50) % 3, "name": ["row"] * 50})


def of_columns(params, rows):
    return rows["a"] * params["beta"][0] + rows["b"] * params["beta"][1]


def test_mean_interval_and_draws_are_those_of_the_draws(posterior):
    beta = posterior.draws["beta"]
    exact = beta @ NEW[["a", "b"]].to_numpy().T
    drawn = posterior.predict(NEW, "draws", function=of_columns, draws=10_000)
    np.testing.assert_allclose(drawn, exact, rtol=1e-5, atol=1e-5)
    table = posterior.predict(NEW, function=of_columns, draws=10_000, interval=0.8)
    assert list(table.columns) == ["mean", "sd", "lower", "upper"]
    np.testing.assert_allclose(table["mean"], exact.mean(axis=0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(table["lower"], np.quantile(exact, 0.1, axis=0), rtol=1e-5, atol=1e-5)
    assert list(posterior.predict(NEW, "mean", function=of_columns).columns) == ["mean"]


def test_arrays_tables_and_files_in_pieces(posterior, tmp_path, monkeypatch):
    whole = posterior.predict(NEW, function=of_columns)
    monkeypatch.setattr(shardmc.posterior.prediction, "AT_ONCE", 7 * 400)
    NEW.to_parquet(tmp_path / "new.parquet", row_group_size=11)
    NEW.to_csv(tmp_path / "new.csv", index=False)
    rows = np.stack([NEW["a"], NEW["b"]], axis=1)
    others = [
        posterior.predict(tmp_path / "new.parquet", function=of_columns),
        posterior.predict(tmp_path / "new.csv", function=of_columns),
        posterior.predict({"a": rows[:, 0], "b": rows[:, 1]}, function=of_columns),
        posterior.predict(rows, function=lambda params, rows: rows @ params["beta"]),
    ]
    for other in others:
        pd.testing.assert_frame_equal(other, whole, check_exact=False, rtol=1e-4, atol=1e-5)


def test_columns_that_are_numbers_in_another_form(posterior):
    """What fit takes of a table, predictions take: truth values, decimals, lists of equally many numbers."""
    pairs = np.arange(8.0).reshape(4, 2)
    table = pa.table(
        {
            "yes": [True, False, True, False],
            "price": pa.array([Decimal("1.5"), Decimal("2.5"), Decimal("0.5"), Decimal("1.0")]),
            "pair": pa.FixedSizeListArray.from_arrays(pa.array(pairs.ravel()), 2),
        }
    )

    def function(params, rows):
        return (
            rows["yes"] * params["beta"][0]
            + rows["price"] * params["beta"][1]
            + rows["pair"] @ params["beta"]
        )

    first, second = posterior.draws["beta"].mean(axis=0)
    exact = (
        table["yes"].to_numpy() * first + np.array([1.5, 2.5, 0.5, 1.0]) * second + pairs @ [first, second]
    )
    predicted = posterior.predict(table, "mean", function=function, draws=10_000)["mean"]
    np.testing.assert_allclose(predicted, exact, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_predicted(posterior, monkeypatch):
    with pytest.raises(RunError, match=r"a model without a formula, .* function=lambda params, rows"):
        posterior.predict(NEW)
    with pytest.raises(RunError, match="a model without a formula"):
        posterior.predictive_check(NEW)
    with pytest.raises(
        ModelError, match=r"returns shape \(\) for 50 rows; it must return one number, or one array"
    ):
        posterior.predict(NEW, function=lambda params, rows: jnp.sum(rows["a"]) * params["beta"][0])
    with pytest.raises(ModelError, match="The function given to predict raised KeyError: 'c'"):
        posterior.predict(NEW, function=lambda params, rows: rows["c"])
    with pytest.raises(OptionError, match="Unknown kind of prediction by a function 'response'"):
        posterior.predict(NEW, "response", function=of_columns)
    with pytest.raises(OptionError, match="interval must lie between 0 and 1"):
        posterior.predict(NEW, function=of_columns, interval=90)
    monkeypatch.setattr(shardmc.posterior.prediction, "MOST", 100)
    with pytest.raises(OptionError, match="20,000 predictions do not fit in memory"):
        posterior.predict(NEW, "draws", function=of_columns)
