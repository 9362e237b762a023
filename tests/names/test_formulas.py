"""A column of any name is a predictor like any other in a formula, or the formula is refused in one sentence."""

import jax
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmc
from shardmc.data import Partition, as_source
from shardmc.errors import ModelError, OptionError, ShardmcError
from shardmc.formulas import glm
from shardmc.formulas.families import named_family
from shardmc.formulas.predicting import _level_summary
from shardmc.formulas.preparing import prepare

ROWS = 400
OWN = {"Intercept", "sigma", "coefficients"}  # names that parameters of the model have


def table(name, swapped=False):
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=ROWS), rng.normal(size=ROWS)
    y = 1 + 2 * x - z + 0.1 * rng.normal(size=ROWS)
    x, z = (z, x) if swapped else (x, z)
    return {"y": y, name: x, "z": z}


def fitted(name, data=None, swapped=False, **options):
    data = table(name, swapped) if data is None else data
    posterior = glm(f"y ~ `{name}` + z", data, shards=2, draws=60, check=False, precision="single", **options)
    return posterior, np.stack(list(posterior.draws.values()))


@pytest.fixture(scope="module")
def expected():
    return fitted("innocent")[1]


def label(name):
    return f"`{name}`" if name in OWN else name


FITTED = ["row number", "design (computed)", "Intercept", "sigma", "a/b", "class", "\x1b[31m"]


@pytest.mark.slow
def test_draws_are_those_of_an_innocent_name(expected, tmp_path):
    assert not np.array_equal(fitted("innocent", swapped=True)[1], expected)  # another column would be seen
    for name in FITTED:
        posterior, draws = fitted(name)
        np.testing.assert_array_equal(draws, expected, err_msg=repr(name))
        assert list(posterior.draws) == ["Intercept", label(name), "z", "sigma"]
        shown = label(name).replace("\x1b", "\\x1b")  # a terminal must not obey a name
        assert list(posterior.summary().index) == ["Intercept", shown, "z", "sigma"]
        again = shardmc.load(posterior.save(tmp_path / "posterior.nc"))
        np.testing.assert_array_equal(again.draws[label(name)], expected[1])
        mean = again.predict({name: np.array([0.0, 1.0]), "z": np.zeros(2)}, kind="mean")
        np.testing.assert_allclose(mean["mean"], [1, 3], atol=0.2)


def in_file(rows, folder):
    path = folder / "rows.parquet"
    pq.write_table(pa.table(rows), path)
    return path


SOURCES = {
    "numpy": lambda rows, _: rows,
    "pandas": lambda rows, _: pd.DataFrame(rows),
    "polars": lambda rows, _: pl.DataFrame(rows),
    "arrow": lambda rows, _: pa.table(rows),
    "parquet": in_file,
    "streamed": lambda rows, folder: as_source(in_file(rows, folder), memory=0, scratch=folder / "scratch"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_rows(kind, hostile_columns, tmp_path):
    """What the log-likelihood reads, bit for bit, with weights and strata given as arrays."""
    partition = Partition(2, weights=np.linspace(0.5, 1, ROWS), stratify=np.arange(ROWS) % 3)

    def rows(name, swapped=False):
        source = as_source(SOURCES[kind](table(name, swapped), tmp_path))
        prepared = prepared_for(f"y ~ `{name}` + z", source)
        assert prepared.design.names == (label(name), "z")
        ((_, batch),) = prepared.source.split(partition, 0).batches([0, 1], 2)
        return [np.asarray(leaf) for i in range(2) for leaf in jax.tree.leaves(batch.own(i))]

    expected, control = rows("innocent"), rows("innocent", swapped=True)
    assert any(not np.array_equal(a, b) for a, b in zip(expected, control, strict=True))
    for name in hostile_columns:
        for here, there in zip(rows(name), expected, strict=True):
            np.testing.assert_array_equal(here, there, err_msg=repr(name))


def prepared_for(formula, source):
    nothing = dict.fromkeys(("offset", "exposure", "trials"))
    return prepare(formula, source, named_family("gaussian"), None, **nothing, drop_missing=False)


def names_of(formula, **more):
    rng = np.random.default_rng(1)
    columns = table("x") | {"g": np.array(list("abc"))[np.arange(ROWS) % 3], "w": rng.normal(size=ROWS)}
    columns |= {name: rng.normal(size=ROWS) if v is None else v for name, v in more.items()}
    return prepared_for(formula, as_source(columns)).design.names


def test_labels_that_would_be_alike_are_quoted():
    assert names_of("y ~ g + `g[T.b]`", **{"g[T.b]": None}) == ("g[T.b]", "g[T.c]", "`g[T.b]`")
    assert names_of("y ~ x:w + `x:w`", **{"x:w": None}) == ("`x:w`", "x:w")
    assert names_of("y ~ 0 + x + Intercept", Intercept=None) == ("x", "`Intercept`")
    assert names_of("y ~ `a/b` + `a÷b` + I(x / 2)", **{"a/b": None, "a÷b": None}) == (
        "a/b",
        "a÷b",
        "I(x / 2)",
    )


@pytest.mark.parametrize(
    ("formula", "columns", "message"),
    [
        ("y ~ x + `1`", {"1": None}, "column called '1' looks like the intercept"),
        ("y ~ .", {"1": None}, "column called '1' looks like the intercept"),
        ("y ~ .", {"": None}, "cannot name the column ''"),
        ("y ~ C + C(g)", {"C": None}, "calls 'C' and reads a column of that name"),
        ("y ~ np + np.exp(x)", {"np": None}, "calls 'np' and reads a column of that name"),
        ("y ~ np.exp(`class`)", {"class": None}, "whose name is a Python keyword"),
        ("y ~ k:g", {"k": np.array(["a", "a]:g[T.b"])[np.arange(ROWS) % 2]}, "looks like a product of terms"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(formula, columns, message):
    with pytest.raises(ModelError, match=message):
        names_of(formula, **columns)


@pytest.mark.slow
def test_priors_of_a_column_and_of_the_parameter_of_its_name():
    rows = table("sigma")
    priors = {"`sigma`": "normal(0, 3)", "sigma": "exponential(2)"}
    posterior = glm("y ~ sigma + z", rows, priors=priors, shards=2, draws=60, check=False, precision="single")
    assert posterior.regression.priors["`sigma`"] == "normal(0, 3)"
    assert posterior.regression.priors["sigma"] == "exponential(2)"
    with pytest.raises(OptionError, match="Unknown parameter in priors 'a'"):
        glm("y ~ `a[0]`", table("a[0]"), priors={"a": "normal(0, 1)"})


def test_levels_whose_columns_of_a_prediction_are_alike():
    draws = np.zeros((3, 2, 2))
    assert set(_level_summary(draws, ["a", "a lower"], "mean", 0.9)) == {"a", "a lower"}
    with pytest.raises(ShardmcError, match="would be called 'a lower'"):
        _level_summary(draws, ["a", "a lower"], "interval", 0.9)


@pytest.mark.slow
def test_levels_with_control_characters_are_saved_and_reported(tmp_path):
    rows = table("x") | {"g": np.array(["a", "chain", "\x1b[2J", "n\x00m"])[np.arange(ROWS) % 4]}
    posterior = glm("y ~ g + x", rows, shards=2, draws=60)
    again = shardmc.load(posterior.save(tmp_path / "posterior.nc"))
    assert set(again.draws) == {"Intercept", "g[T.a]", "g[T.chain]", "g[T.n\0m]", "x", "sigma"}
    assert "\x1b" not in again.report(tmp_path / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_the_command_line_fits_hostile_columns(tmp_path, command):
    name = "a/\x1b[31m"
    pq.write_table(pa.table(table(name) | {"row weights": np.ones(ROWS)}), tmp_path / "rows.parquet")
    done = command(
        *("fit", "rows.parquet", f"y ~ `{name}` + z", "--weights", "row weights", "--shards", "2"),
        *("--draws", "60", "--memory", "0", "--out", "run", "--prior", f"{name}=normal(0, 9)"),
    )
    assert done.returncode == 0, done.stderr
    assert "a/\\x1b[31m" in done.stdout
    assert "\x1b[31m" not in done.stdout
    posterior = shardmc.load(tmp_path / "run")
    assert name in posterior.draws
    assert posterior.regression.priors[name] == "normal(0, 9)"
    assert (tmp_path / "run" / "report.html").exists()
