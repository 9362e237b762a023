"""The variables of a formula's posterior: which coefficients belong together, under which labels."""

import numpy as np
import pytest

import shardmc
from shardmc.formulas.regression import labels_in

FEW = {"shards": 1, "draws": 50, "check": False, "precision": "single"}
ROWS = 400


@pytest.mark.parametrize(
    ("column", "expressions", "found"),
    [
        ("age", ["age"], (1, [])),
        ("region[T.south]", ["region"], (1, ["south"])),
        ("region[]", ["region"], (1, [""])),
        ("region[a]:b]", ["region"], (1, ["a]:b"])),
        ("a[T.y]:b[u]", ["a", "b"], (2, ["y", "u"])),
        ("b[T.v]", ["a", "b"], (1, ["v"])),  # formulaic leaves out a factor
        ("n:a[x]", ["n", "a"], (2, ["x"])),
        ("poly(n, 2)[1]:a[T.y]", ["poly(n, 2)", "a"], (2, ["1", "y"])),
        ("ab[T.y]", ["a"], None),
        ("a[T.y]:b[u]", ["b"], None),
        ("`region[T.a]`", ["region"], None),
    ],
)
def test_labels_of_columns(column, expressions, found):
    assert labels_in(column, expressions) == found


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    return {
        "sigma": np.array(["", "T.b", "b"])[np.arange(ROWS) % 3],
        "x_dim": rng.normal(size=ROWS),
        "x": np.array(["u", "v\x1b", "w"])[np.arange(ROWS) // 2 % 3],
        "a/b": np.array([2020, 2021])[np.arange(ROWS) // 6 % 2],
        "y": rng.normal(size=ROWS),
    }


@pytest.mark.slow
def test_odd_names_are_stored_and_read_again(table, tmp_path):
    """A category called like a parameter, a number called like a dimension, levels that look like codings."""
    posterior = shardmc.glm("y ~ sigma + x_dim + x + C(`a/b`):x_dim - x_dim", table, **FEW)
    variables = posterior.tree.posterior
    assert variables["sigma"].dims == ("chain", "draw")
    assert variables["`sigma`"]["`sigma`_dim"].values.tolist() == ["T.b", "b"]
    assert variables["x"]["x_dim"].values.tolist() == ["v\\x1b", "w"]
    again = shardmc.load(posterior.save(tmp_path / "posterior.nc"))
    assert list(again.draws) == list(posterior.draws)
    for name, values in posterior.draws.items():
        np.testing.assert_array_equal(again.draws[name], values)
    assert len(posterior.draws) == len(again.summary())


def test_a_formula_without_an_intercept_has_all_levels(table):
    posterior = shardmc.glm("y ~ 0 + x + x:C(`a/b`)", table, **FEW)
    variables = posterior.tree.posterior
    assert variables["x"]["x_dim"].values.tolist() == ["u", "v\\x1b", "w"]
    assert sum(v.size for v in variables.data_vars.values()) == 50 * len(posterior.draws)
