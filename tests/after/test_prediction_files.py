"""Predictions beside the rows that they belong to: index, key columns, formats, missing values."""

import warnings
from importlib import import_module

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from shardmc.cli.app import app
from shardmc.errors import OptionError
from shardmc.posterior.result import ends


def holes(policies: pd.DataFrame) -> pd.DataFrame:
    """A table with missing values in rows 1 (age), 3 (region) and 4 (both)."""
    rows = policies.iloc[:8].copy()
    rows.iloc[[1, 4], rows.columns.get_loc("age")] = np.nan
    rows.iloc[[3, 4], rows.columns.get_loc("region")] = None
    return rows


def test_predictions_have_the_index_of_the_table(policies, poisson):
    rows = policies.sample(20, random_state=0)
    for kind in ("mean", "interval", "link", "response"):
        assert poisson.predict(rows, kind).index.equals(rows.index)
    of_function = poisson.predict(rows, function=lambda params, rows: params["age"] * rows["age"])
    assert of_function.index.equals(rows.index)
    assert poisson.predict(pa.Table.from_pandas(rows)).index.equals(pd.RangeIndex(20))


def test_the_linear_predictor(policies, poisson):
    rows = policies.assign(region="north").iloc[:5]
    exact = (
        poisson.draws["Intercept"][:, None]
        + poisson.draws["age"][:, None] * rows["age"].to_numpy()
        + np.log(rows["months"].to_numpy())
    )
    link = poisson.predict(rows, "link", draws=10_000)
    np.testing.assert_allclose(link["mean"], exact.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(link["upper"], np.quantile(exact, 0.975, axis=0), rtol=1e-6)
    shortest = poisson.predict(rows, "link", draws=10_000, interval_kind="hdi")
    np.testing.assert_allclose(shortest["upper"], ends(exact, 0.95, "hdi")[1], rtol=1e-6)


@pytest.mark.parametrize("at_once", [1 << 22, 1_000])
def test_rows_with_missing_values_have_missing_predictions(policies, poisson, monkeypatch, at_once):
    module = import_module("shardmc.formulas.predicting")
    monkeypatch.setattr(module, "AT_ONCE", at_once)  # also three rows at a time
    rows = holes(policies)
    whole = poisson.predict(policies.iloc[:8])
    said = r"3 of 8 rows have missing values in 'age' \(2\), 'region' \(2\): their predictions are missing"
    with pytest.warns(UserWarning, match=said) as caught:
        found = poisson.predict(rows)
    assert [warning.filename for warning in caught] == [__file__]  # where the user called it
    missing = np.array([False, True, False, True, True, False, False, False])
    assert found.isna().all(axis=1).to_numpy().tolist() == missing.tolist()
    pd.testing.assert_frame_equal(found[~missing], whole[~missing], check_exact=False, rtol=1e-12)
    with pytest.warns(UserWarning, match=said):
        assert np.isnan(poisson.predict(rows, "draws", draws=10)).all(axis=0).tolist() == missing.tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        poisson.predict(rows[~missing])


def test_a_file_in_which_every_row_lacks_something(policies, poisson):
    with pytest.warns(UserWarning, match="4 of 4 rows"):
        found = poisson.predict(policies.iloc[:4].assign(age=np.nan))
    assert found.columns.tolist() == ["mean", "sd", "lower", "upper"]
    assert found.isna().all(axis=None)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_carry_keys_in_the_format_of_their_suffix(policies, poisson, tmp_path, suffix):
    rows = holes(policies).assign(id=lambda table: table["id"].astype("category"))
    out = tmp_path / f"out.{suffix}"
    count = poisson.predict_file(rows, out, key=["id", "months"])
    assert (count.rows, count.incomplete, count.missing) == (8, 3, {"age": 2, "region": 2})
    written = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    assert list(written.columns) == ["id", "months", "mean", "sd", "lower", "upper"]
    assert written["id"].tolist() == rows["id"].tolist()
    assert written["mean"].isna().tolist() == rows[["age", "region"]].isna().any(axis=1).tolist()
    with pytest.warns(UserWarning, match="3 of 8 rows"):
        np.testing.assert_allclose(written["upper"], poisson.predict(rows)["upper"], rtol=1e-9)


def test_what_cannot_be_written(policies, poisson, tmp_path):
    rows = policies.rename(columns={"id": "mean"})
    with pytest.raises(OptionError, match=r"written to a \.parquet or a \.csv file; 'out\.xlsx' was given"):
        poisson.predict_file(rows, tmp_path / "out.xlsx")
    with pytest.raises(OptionError, match="The key 'mean' has the name of a column of predictions"):
        poisson.predict_file(rows, tmp_path / "out.csv", key="mean")
    with pytest.raises(OptionError, match="Unknown column 'id'"):
        poisson.predict_file(rows, tmp_path / "out.csv", key="id")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_carries_keys_and_counts_missing_values(policies, poisson, tmp_path):
    poisson.save(tmp_path / "posterior.nc")
    holes(policies).to_parquet(tmp_path / "new.parquet")
    out = tmp_path / "out.csv"
    names = [str(tmp_path / name) for name in ("posterior.nc", "new.parquet")]
    options = ["--out", str(out), "--key", "id", "--kind", "link", "--interval-kind", "hdi"]
    done = CliRunner().invoke(app, ["predict", *names, *options])
    assert done.exit_code == 0, done.output
    assert "3 of 8 rows have missing values in 'age' (2), 'region' (2)" in done.output
    assert pd.read_csv(out)["id"].tolist() == policies["id"].iloc[:8].tolist()
