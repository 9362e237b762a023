"""The design worked out piece by piece is the one of the whole table, from every kind of table, and survives JSON."""

import json

import formulaic
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmc.data import as_source
from shardmc.errors import ModelError
from shardmc.formulas import scan
from shardmc.formulas.design import Design
from shardmc.formulas.families import named_family
from shardmc.formulas.preparing import prepare

FORMULAS = [
    "y ~ x + g",
    "y ~ 0 + g + x:g",
    "y ~ C(k) * x",
    "y ~ C(k, Treatment(2)) + C(g, contr.sum)",
    "y ~ bs(x, df=5) + scale(z)",
    "y ~ cr(x, df=4, constraints='center') + poly(z, 2) + center(`odd name`):g",
    "y ~ np.log(z) + I(z ** 2) + flag",
    "y ~ C(np.minimum(k, 2)) + `odd name`",
    "y ~ standardize(x) + bs(np.log(z), df=4, extrapolation='clip')",
]


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    n = 3_000
    return pd.DataFrame(
        {
            "x": rng.normal(size=n),
            "z": rng.gamma(2.0, size=n) + 0.1,
            "g": rng.choice(["north", "south", "west"], size=n, p=[0.6, 0.395, 0.005]),
            "k": rng.integers(0, 4, size=n),
            "flag": rng.integers(0, 2, size=n).astype(bool),
            "odd name": rng.normal(size=n),
            "y": rng.normal(size=n),
        }
    )


@pytest.fixture
def small_pieces(monkeypatch):
    """Tables are read in pieces of a few hundred rows."""
    monkeypatch.setattr(scan, "_PIECE", 257)
    monkeypatch.setattr(scan, "_DESIGN_PIECE", 311)


def prepared(formula, data, family="gaussian", **options):
    options = {"offset": None, "exposure": None, "trials": None, "drop_missing": False} | options
    return prepare(formula, as_source(data), named_family(family), options.pop("priors", None), **options)


def matrix(design, data, pieces=7):
    """The design matrix, in pieces."""
    whole = pa.Table.from_pandas(data, preserve_index=False)
    size = -(-len(data) // pieces)
    chunks = [design.chunk(whole.slice(start, size)) for start in range(0, len(data), size)]
    return np.concatenate([design.encoder.matrix(chunk) for chunk in chunks])


def theirs(formula, data):
    made = formulaic.Formula(formula.partition("~")[2]).get_model_matrix(data, output="numpy")
    names = list(made.model_spec.column_names)
    values = np.asarray(made, dtype=float)
    keep = [k for k, name in enumerate(names) if name != "Intercept"]
    return values[:, keep], [names[k] for k in keep]


@pytest.mark.parametrize("formula", FORMULAS)
def test_pieces_make_formulaics_matrix_of_the_whole_table(formula, table, small_pieces):
    design = prepared(formula, table).design
    expected, names = theirs(formula, table)
    assert list(design.encoder.names) == names
    np.testing.assert_allclose(matrix(design, table), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(design.scaling.means, expected.mean(axis=0), atol=1e-10)
    np.testing.assert_allclose(design.scaling.sds, expected.std(axis=0, ddof=1), rtol=1e-10)


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_design_survives_json(formula, table):
    design = prepared(formula, table).design
    again = Design.from_dict(json.loads(json.dumps(design.to_dict())))
    assert again.label == design.label
    # New rows that lack some levels are encoded as they were.
    few = table[table["g"] != "west"].iloc[:50]
    np.testing.assert_allclose(matrix(again, few, 2), matrix(design, few, 1), rtol=1e-12)
    for name, values in design.rows(pa.Table.from_pandas(few)).items():
        np.testing.assert_allclose(again.rows(pa.Table.from_pandas(few))[name], values, rtol=1e-6)


def test_levels_scales_and_bounds_are_exact_though_the_sample_is_small(table, small_pieces, monkeypatch):
    monkeypatch.setattr(scan, "SAMPLE", 200)
    design = prepared("y ~ g + C(k) + scale(z) + bs(x, df=5) + poly(`odd name`, 3)", table).design
    assert design.encoder.levels["g"] == ["north", "south", "west"]
    state = design.encoder.states["scale(z)"]
    assert state["center"] == pytest.approx(table["z"].mean(), rel=1e-12)
    assert state["scale"] == pytest.approx(table["z"].std(), rel=1e-12)
    spline = design.encoder.states["bs(x, df=5)"]
    assert (spline["lower_bound"], spline["upper_bound"]) == (table["x"].min(), table["x"].max())
    # Knots at thirds, learned from 200 rows: their quantiles among all rows scatter by 0.034.
    inner = [np.mean(table["x"] < knot) for knot in spline["knots"][4:6]]
    np.testing.assert_allclose(inner, [1 / 3, 2 / 3], atol=5 * 0.034)
    # Polynomials orthogonal over the sample: with the constant they span those of the whole table.
    exact, _ = theirs("y ~ poly(`odd name`, 3)", table)
    ours = np.column_stack([np.ones(len(table)), matrix(design, table)[:, -3:]])
    rest = exact - ours @ np.linalg.lstsq(ours, exact)[0]
    assert np.abs(rest).max() < 1e-10
    assert 0.7 < (ours[:, 1] ** 2).sum() < 1.4  # and have about their size


def test_every_kind_of_table_gives_the_same_rows(table, tmp_path):
    import polars as pl

    formula = "y ~ x + g + C(k) + flag"
    data = table.drop(columns="odd name")
    pq.write_table(
        pa.Table.from_pandas(data, preserve_index=False), tmp_path / "rows.parquet", row_group_size=500
    )
    data.to_csv(tmp_path / "rows.csv", index=False)
    forms = {
        "pandas": data,
        "categories": data.astype({"g": "category"}),
        "polars": pl.from_pandas(data),
        "arrow": pa.Table.from_pandas(data),
        "arrays": {name: data[name].to_numpy() for name in data},
        "parquet": str(tmp_path / "rows.parquet"),
        "csv": tmp_path / "rows.csv",
    }
    reference = prepared(formula, data)
    for form, given in forms.items():
        found = prepared(formula, given)
        assert found.design.label == reference.design.label or form == "csv", form
        rows, wanted = found.source.sample(3_000, 0), reference.source.sample(3_000, 0)
        # A sample of a file is of other rows; the sums over all rows are compared through the design's moments.
        np.testing.assert_allclose(found.design.scaling.means, reference.design.scaling.means, rtol=1e-9)
        assert rows.keys() == wanted.keys(), form
        assert rows["design"].dtype == wanted["design"].dtype


def test_categories_keep_their_order_and_text_is_sorted(table):
    data = table.assign(g=pd.Categorical(table["g"], ["west", "south", "north"], ordered=True))
    assert prepared("y ~ g", data).design.encoder.names == ("g[T.south]", "g[T.north]")
    data = table.assign(g=pd.Categorical(table["g"], ["west", "south", "north", "unused"]))
    assert prepared("y ~ g", data).design.encoder.names == ("g[T.south]", "g[T.north]")
    assert prepared("y ~ g", table).design.encoder.names == ("g[T.south]", "g[T.west]")


def test_missing_rows_are_dropped_on_request(table, small_pieces):
    data = table.copy()
    data.loc[::10, "x"] = np.nan
    data.loc[5, "g"] = None
    data["k"] = data["k"].astype("Int64").mask(data.index == 7)
    found = prepared("y ~ x + g + C(k)", data, drop_missing=True)
    whole = data.dropna(subset=["x", "g", "k"])
    assert found.dropped == len(data) - len(whole) == 302
    assert found.design.num_rows == len(whole)
    assert found.design.scaling.means[0] == pytest.approx(whole["x"].mean())
    assert found.design.encoder.categories["C(k)"] == [0, 1, 2, 3]


def test_columns_far_from_zero_are_shifted_and_only_they(table):
    data = table.assign(year=2000.0 + np.arange(len(table)) % 20, y=table["y"] + 1e6)
    scaling = prepared("y ~ x + year", data).design.scaling
    assert scaling.shifts.tolist() == [0.0, data["year"].mean()]
    assert scaling.response_shift == pytest.approx(data["y"].mean())
    assert not prepared("y ~ 0 + x + year", data).design.scaling.is_shifted


def test_rows_hold_response_offset_and_trials(table):
    data = table.assign(n=7, s=np.arange(len(table)) % 7, months=np.arange(len(table)) % 5 + 1.0)
    rows = prepared("s ~ x", data, "binomial", trials="n").source.sample(50, 0)
    assert set(rows) == {"design", "response", "trials"}
    assert set(rows["trials"]) == {7.0}
    rows = prepared("s ~ x", data, "poisson", exposure="months", offset="0.5 * x").source.sample(5_000, 0)
    expected = np.log(data["months"]) + 0.5 * data["x"]
    np.testing.assert_allclose(np.sort(rows["offset"]), np.sort(expected), rtol=1e-5, atol=1e-6)


def test_a_formula_in_a_file_cannot_run_code(table):
    stored = prepared("y ~ x", table).design.to_dict()
    stored["encoder"]["formula"] = "y ~ {__import__('os').system('true')}"
    with pytest.raises(ModelError, match="is not allowed"):
        Design.from_dict(stored)
    stored = prepared("y ~ x", table).design.to_dict()
    stored["roles"]["offset"] = "open('file')"
    with pytest.raises(ModelError, match="is not allowed"):
        Design.from_dict(stored)


def test_priors_are_those_of_the_exact_scales(table):
    priors = prepared("y ~ x + g", table).design.priors
    expected = 2.5 * table["y"].std() / table["x"].std()
    assert str(priors["x"]) == f"normal(0, {expected:.4g})"
