"""Columns that follow from others: one message with all of them, or left out with a note."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import shardmc
from shardmc.cli.app import app
from shardmc.errors import DataError, ModelError

QUICK = {"shards": 2, "draws": 60, "check": False, "keep": None, "precision": "single"}


@pytest.fixture(scope="module")
def census():
    rng = np.random.default_rng(0)
    n = 600
    table = pd.DataFrame(
        {
            "age": rng.uniform(18, 80, size=n),
            "income": rng.gamma(2.0, 20.0, size=n),
            "region": rng.choice(["north", "south", "west"], size=n),
            "country": "here",
        }
    )
    return table.assign(
        months=12 * table["age"],
        total=table["age"] + table["income"],
        is_south=(table["region"] == "south").astype(float),
        year=1994,
        wage=rng.normal(size=n) + 0.1 * table["age"],
    )


def test_all_collinear_columns_are_named_in_one_message(census):
    with pytest.raises(ModelError) as caught:
        shardmc.glm("wage ~ .", census)
    said = str(caught.value)
    assert "5 columns of the formula follow from the others" in said
    for part in (
        "'country' (the same level in every row)",
        "'months' (a multiple of 'age', up to a constant)",
        "'total' (a linear combination of 'age', 'income' and a constant)",
        "'is_south' (a multiple of 'region[T.south]', up to a constant)",
        "'year' (1994 in every row, like the intercept)",
        "drop_collinear=True (--drop-collinear on the command line)",
    ):
        assert part in said
    assert "\n" not in said


@pytest.fixture(scope="module")
def dropped(census):
    return shardmc.glm("wage ~ .", census, drop_collinear=True, **QUICK)


def test_drop_collinear_leaves_them_out_with_a_note(census, dropped):
    assert list(dropped.draws) == ["Intercept", "age", "income", "region[T.south]", "region[T.west]", "sigma"]
    (note,) = (finding for finding in dropped.findings if finding.check == "collinear")
    assert note.level == "note"
    assert note.values["columns"] == ["country", "months", "total", "is_south", "year"]
    plain = shardmc.glm("wage ~ age + income + region", census, **QUICK)
    for name, draws in plain.draws.items():
        np.testing.assert_array_equal(dropped.draws[name], draws)


def test_predictions_know_what_was_left_out(census, dropped, tmp_path):
    loaded = shardmc.load(dropped.save(tmp_path / "posterior.nc"))
    rows = census.iloc[:5]
    by_hand = sum(
        dropped.draws[name][:, None] * column
        for name, column in {
            "Intercept": 1.0,
            "age": rows["age"].to_numpy(),
            "income": rows["income"].to_numpy(),
            "region[T.south]": (rows["region"] == "south").to_numpy(),
            "region[T.west]": (rows["region"] == "west").to_numpy(),
        }.items()
    )
    needed = rows[["age", "income", "region"]]
    for posterior in (dropped, loaded):
        for table in (rows, needed):
            np.testing.assert_allclose(posterior.predict(table, kind="draws"), by_hand, rtol=1e-6)


@pytest.mark.slow
def test_only_part_of_a_category_may_be_left_out(census):
    table = census.assign(coast=np.where(census["region"] == "south", "south", census["region"].str[:1]))
    posterior = shardmc.glm("wage ~ region + age * coast", table, drop_collinear=True, **QUICK)
    assert set(posterior.regression.design["encoder"]["left_out"]) == {"coast[T.south]", "coast[T.w]"}
    rows = table.iloc[:6]
    columns = {
        "Intercept": np.ones(6),
        "age": rows["age"],
        **{f"region[T.{level}]": rows["region"] == level for level in ("south", "west")},
        **{f"age:coast[T.{level}]": rows["age"] * (rows["coast"] == level) for level in ("south", "w")},
    }
    by_hand = sum(posterior.draws[name][:, None] * np.asarray(column) for name, column in columns.items())
    np.testing.assert_allclose(posterior.predict(rows, kind="draws"), by_hand, rtol=1e-5)


@pytest.mark.slow
def test_drop_collinear_on_the_command_line(census, tmp_path):
    path = tmp_path / "census.parquet"
    census.to_parquet(path)
    call = ["fit", str(path), "wage ~ age + months", "--shards", "2", "--draws", "60"]
    refused = CliRunner().invoke(app, [*call, "--out", str(tmp_path / "refused")])
    assert isinstance(refused.exception, ModelError)
    done = CliRunner().invoke(app, [*call, "--drop-collinear", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "left out" in done.output
    assert list(shardmc.load(tmp_path / "run").draws) == ["Intercept", "age", "sigma"]


def test_a_category_with_one_level_is_said(census):
    with pytest.raises(
        DataError, match="'country' of the formula is the same level in every row; leave it out"
    ):
        shardmc.glm("wage ~ age + country", census)
