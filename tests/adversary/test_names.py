"""Names that shardmc uses itself, or that a file or a terminal cannot hold, are names like any other."""

from __future__ import annotations

import os

import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.errors import DataError
from shardmc.store.run import status

ROWS = 400
FEW = {
    "shards": 2,
    "draws": 40,
    "check": False,
    "keep": None,
    "sampler": "independence",
    "precision": "single",
}


@pytest.fixture(scope="module")
def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=ROWS)
    return {"x": x, "y": 2.0 * x + 0.1 * rng.normal(size=ROWS), "z": rng.normal(size=ROWS)}


def slope(name: str) -> shardmc.Model:
    return shardmc.Model(
        lambda params, rows: -0.5 * (rows["y"] - params["b"] * rows[name]) ** 2,
        lambda params: -0.5 * jnp.square(params["b"]),
        {"b": ()},
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("row number", {}),
        ("row weights", {"weights": np.ones(ROWS)}),
        ("strata of rows", {"stratify": np.arange(ROWS) % 2}),
        ("design (computed)", {}),
    ],
)
def test_columns_called_like_those_of_shardmc(table, name, options):
    rows = {name: jnp.asarray(table["x"]), "y": table["y"]}
    named = shardmc.fit(slope(name), rows, **FEW, **options)
    assert named.draws["b"].mean() == pytest.approx(2.0, abs=0.1)


@pytest.mark.slow
def test_a_predictor_called_intercept(table):
    rows = {"Intercept": table["x"], "y": table["y"]}
    posterior = shardmc.glm("y ~ Intercept", rows, **FEW)
    plain = shardmc.glm("y ~ x", table, **FEW)
    np.testing.assert_array_equal(posterior.theta, plain.theta)
    assert len(posterior.draws) == len(plain.draws) == 3


def test_names_that_a_file_would_make_alike(table, tmp_path):
    model = shardmc.Model(
        lambda params, rows: -0.5 * (rows["y"] - params["a/b"] * rows["x"] - params["a÷b"]) ** 2,
        None,
        {"a/b": (), "a÷b": ()},
    )
    posterior = shardmc.fit(model, table, **FEW)
    again = shardmc.load(posterior.save(tmp_path / "posterior.nc"))
    assert list(again.draws) == ["a/b", "a÷b"]
    for name in again.draws:
        np.testing.assert_array_equal(again.draws[name], posterior.draws[name])


@pytest.mark.slow
def test_names_of_dimensions_and_control_characters(table, tmp_path):
    names = ["chain", "draw", "v\x0bt", "e\x1b[2Jsc", "n\x00ul"]
    model = shardmc.Model(
        lambda params, rows: -0.5 * (rows["y"] - sum(params.values()) * rows["x"]) ** 2,
        lambda params: -0.5 * sum(jnp.square(value) for value in params.values()),
        dict.fromkeys(names, ()),
    )
    posterior = shardmc.fit(model, table, **FEW)
    again = shardmc.load(posterior.save(tmp_path / "posterior.nc"))
    assert list(again.draws) == names
    page = again.report(tmp_path / "report.html").read_text()
    assert not {"\x0b", "\x1b", "\x00"} & set(page)


@pytest.mark.slow
def test_levels_with_control_characters(table, tmp_path):
    levels = np.array(["a\x1b[2J", "b\x00", "c\x0b"], dtype=object)[np.arange(ROWS) % 3]
    posterior = shardmc.glm("y ~ g", {**table, "g": levels}, run_dir=tmp_path / "run", **FEW)
    again = shardmc.load(tmp_path / "run")
    assert list(again.draws) == list(posterior.draws)
    assert len(posterior.draws) == 4


# The run folder of a formula.


def test_the_result_of_a_formula_is_written_once_with_its_formula(table, tmp_path, monkeypatch):
    """Whenever the folder has a result, `predict` can use it."""
    replace, written = os.replace, []

    def watched(source, target):
        replace(source, target)
        if os.fspath(target).endswith("posterior.nc"):
            written.append(shardmc.load(target))

    monkeypatch.setattr(os, "replace", watched)
    shardmc.glm("y ~ x", table, run_dir=tmp_path / "run", **FEW)
    (result,) = written
    assert len(status(tmp_path / "run").done) == 2
    assert result.regression is not None
    assert len(result.predict(table)) == ROWS


def test_names_of_arrays_that_are_not_all_texts(table):
    with pytest.raises(DataError, match="must all be text"):
        shardmc.fit(slope("1"), {"1": table["x"], "y": table["y"], 1: table["z"]}, **FEW)
