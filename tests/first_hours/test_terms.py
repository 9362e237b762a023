"""Terms of a formula: categories, spellings of R, brms and bambi, and numbers of shards that cannot be."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import shardmc
from shardmc.cli.app import app
from shardmc.data import as_source
from shardmc.errors import DataError, ModelError, ShardmcError
from shardmc.formulas.families import named_family
from shardmc.formulas.preparing import prepare

QUICK = {"shards": 2, "draws": 60, "check": False, "keep": None, "precision": "single"}


def coefficients(formula, table, family="gaussian", **options):
    """The names of the coefficients that a formula makes, without fitting it."""
    roles = {"offset": None, "exposure": None, "trials": None, "drop_missing": False}
    found = prepare(formula, as_source(table), named_family(family), None, **(roles | options))
    return list(found.design.names)


def category(levels, order=None, ordered=False, n=300):
    return pd.Categorical(np.random.default_rng(0).choice(levels, n), order, ordered=ordered)


def with_y(**columns):
    return pd.DataFrame({**columns, "y": np.random.default_rng(1).normal(size=300)})


@pytest.mark.parametrize("ordered", [False, True])
def test_the_order_of_a_categorical_decides_its_reference_level(ordered):
    table = with_y(size=category(["s", "m", "l"], ["s", "m", "l"], ordered))
    for data in (
        table,
        pa.Table.from_pandas(table),
        pl.from_pandas(table[["y"]]).with_columns(
            size=pl.Series(table["size"].astype(str), dtype=pl.Enum(["s", "m", "l"]))
        ),
    ):
        assert coefficients("y ~ size", data) == ["size[T.m]", "size[T.l]"]
        assert coefficients("y ~ C(size)", data) == ["C(size)[T.m]", "C(size)[T.l]"]


def test_levels_without_an_order_are_sorted():
    table = with_y(size=category(["s", "m", "l"]))
    frame = pl.from_pandas(table[["y"]]).with_columns(
        size=pl.Series(table["size"].astype(str), dtype=pl.Categorical)
    )
    for data in (table, table.astype({"size": str}), frame):
        assert coefficients("y ~ size", data) == ["size[T.m]", "size[T.s]"]


@pytest.mark.parametrize(
    ("levels", "names"),
    [
        ([3, 1, 2], ["code[T.1]", "code[T.2]"]),
        (["10", "9", "1"], ["code[T.9]", "code[T.1]"]),
        ([0.5, 1.5], ["code[T.1.5]"]),
        ([True, False], ["code[T.False]"]),
        (list(pd.to_datetime(["2021-03-01", "2020-01-01"])), ["code[T.2020-01-01]"]),
    ],
    ids=["whole numbers", "numbers as text", "numbers", "booleans", "dates"],
)
def test_categorical_columns_are_categories_whatever_their_levels(levels, names):
    table = with_y(code=category(levels, levels))
    assert coefficients("y ~ code", table) == names
    assert coefficients("y ~ code", pa.Table.from_pandas(table)) == names


def test_a_response_that_is_a_categorical_of_numbers_is_numbers():
    table = with_y(sold=category([0, 1]), x=np.arange(300.0))
    assert coefficients("sold ~ x", table, "bernoulli") == ["x"]


def test_the_order_of_a_categorical_response_decides_its_reference_level():
    table = with_y(size=category(["s", "m", "l"], ["s", "m", "l"]))
    assert coefficients("size ~ y", table, "categorical") == ["y[m]", "y[l]"]
    assert coefficients("size ~ y", table.astype({"size": str}), "categorical") == ["y[m]", "y[s]"]


def test_a_category_in_arithmetic_is_refused():
    with pytest.raises(DataError, match="'code' holds text or a category, but"):
        coefficients("y ~ np.log(code)", with_y(code=category([3, 1, 2])))


def test_the_order_in_parquet_files(tmp_path):
    order = ["s", "m", "l"]
    table = with_y(size=category(order, order))
    table.to_parquet(tmp_path / "one.parquet", row_group_size=50)
    assert coefficients("y ~ size", tmp_path / "one.parquet") == ["size[T.m]", "size[T.l]"]
    agreeing, contradicting = tmp_path / "agreeing", tmp_path / "contradicting"
    for folder, second in ((agreeing, ["s", "m", "l", "xl"]), (contradicting, ["l", "m", "s"])):
        folder.mkdir()
        table.to_parquet(folder / "1.parquet")
        with_y(size=category(second, second)).to_parquet(folder / "2.parquet")
    assert coefficients("y ~ size", agreeing) == ["size[T.m]", "size[T.l]", "size[T.xl]"]
    assert coefficients("y ~ size", contradicting) == ["size[T.m]", "size[T.s]"]  # sorted


@pytest.mark.slow
def test_predictions_of_categories_that_are_numbers():
    table = with_y(code=category([3, 1, 2], [3, 1, 2]))
    posterior = shardmc.glm("y ~ code", table, **QUICK)
    as_numbers, as_category = pd.DataFrame({"code": [1, 3]}), pd.DataFrame({"code": pd.Categorical([1, 3])})
    expected = posterior.draws["Intercept"] + posterior.draws["code[T.1]"]
    for rows in (as_numbers, as_category):
        np.testing.assert_allclose(posterior.predict(rows, kind="draws")[:, 0], expected, rtol=1e-5)
    with pytest.raises(DataError, match="'code' has the level 7"):
        posterior.predict(pd.DataFrame({"code": [7]}))
    assert len(posterior.contrast("code", data=table)) == 2


@pytest.fixture(scope="module")
def trial():
    rng = np.random.default_rng(2)
    n = 400
    table = pd.DataFrame(
        {"x": rng.normal(size=n), "months": rng.uniform(1, 12, n), "region": rng.choice(list("abc"), n)}
    )
    tries = rng.integers(1, 9, n)
    wins = rng.binomial(tries, 0.4)
    return table.assign(
        claims=rng.poisson(table["months"] * np.exp(0.2 * table["x"])),
        wins=wins,
        losses=tries - wins,
        tries=tries,
    )


def same_draws(formula, other, table, family, **options):
    first = shardmc.glm(formula, table, family, **QUICK)
    second = shardmc.glm(other, table, family, **QUICK, **options)
    for name, draws in second.draws.items():
        np.testing.assert_allclose(first.draws[name], draws, rtol=1e-6)
    return first


def test_offset_in_the_formula(trial):
    posterior = same_draws(
        "claims ~ x + offset(log(months))", "claims ~ x", trial, "poisson", offset="np.log(months)"
    )
    rows = trial.iloc[:3]
    mean = posterior.predict(rows, kind="draws")
    eta = posterior.draws["Intercept"][:, None] + posterior.draws["x"][:, None] * rows["x"].to_numpy()
    np.testing.assert_allclose(mean, np.exp(eta) * rows["months"].to_numpy(), rtol=1e-5)
    with pytest.raises(ShardmcError, match="offset is given twice"):
        shardmc.glm("claims ~ x + offset(log(months))", trial, "poisson", offset="months")
    with pytest.raises(ShardmcError, match="added with a plus sign"):
        shardmc.glm("claims ~ x * offset(log(months))", trial, "poisson")


@pytest.mark.slow
def test_cbind_on_the_left(trial):
    same_draws("cbind(wins, losses) ~ x", "wins ~ x", trial, "binomial", trials="tries")
    with pytest.raises(ShardmcError, match="belongs to family 'binomial', not to 'poisson'"):
        shardmc.glm("cbind(wins, losses) ~ x", trial, "poisson")


def test_all_other_columns(trial):
    names = coefficients("claims ~ . + offset(log(months)) - tries", trial, "poisson")
    assert names == ["x", "region[T.b]", "region[T.c]", "wins", "losses"]
    names = coefficients("cbind(wins, losses) ~ . - tries", trial, "binomial")
    assert names == ["x", "months", "region[T.b]", "region[T.c]", "claims"]


def test_numbers_of_numpy(trial):
    season = "np.sin(2 * np.pi * months / 12)"
    assert coefficients(f"claims ~ {season}", trial, "poisson") == [season]


@pytest.mark.parametrize("function", ["cr", "cc", "cs"])
def test_splines_are_centred_beside_an_intercept(trial, function):
    names = coefficients(f"claims ~ {function}(x, df=4) + {function}(months, df=3)", trial, "poisson")
    assert len(names) == 7
    assert names[0] == f"{function}(x, df=4)[1]"
    assert len(coefficients(f"claims ~ 0 + {function}(x, df=4)", trial, "poisson")) == 4
    roles = {"offset": None, "exposure": None, "trials": None, "drop_missing": False}
    text = f"claims ~ {function}(x, df=4)"
    design = prepare(text, as_source(trial), named_family("poisson"), None, **roles).design
    columns = design.encoder.matrix(design.chunk(pa.Table.from_pandas(trial)))
    np.testing.assert_allclose(columns.mean(axis=0), 0, atol=1e-10)


SPELLINGS = {
    "I(x^2)": r"a power is written \*\*, as in x \*\* 2",
    "sqrt(months)": r"write np.sqrt\(...\)",
    "sin(2 * pi * x)": r"write np.sin\(...\)",
    "np.sin(2 * pi * x)": "There is no column 'pi'. In a formula it is written np.pi",
    "factor(region)": r"write C\(...\) for a category",
    "as.factor(region)": r"write C\(...\) for a category",
    "relevel(region, 'b')": "contr.treatment",
    "ns(x, df=3)": r"bs\(x, df=5\) or cr\(x, df=5\)",
    "s(x)": r"bs\(x, df=5\) or cr\(x, df=5\)",
    "gp(x)": r"no Gaussian processes; .*bs\(x, df=5\)",
    "mo(region)": r"no monotonic effects; write C\(...\)",
    "(x | region": "1 opening and 0 closing brackets",
    "x + weights(months)": "as the option weights= or survey_weights=",
    "x:offset(months)": "added with a plus sign",
    "x:offset(months) + tries": "added with a plus sign",
    "x - offset(months) + tries": "added with a plus sign",
    "x - (1 | region) + tries": "added with a plus sign",
}


@pytest.mark.parametrize("term", SPELLINGS)
def test_other_spellings_are_answered_with_the_right_one(trial, term):
    with pytest.raises(ShardmcError, match=SPELLINGS[term]) as caught:
        shardmc.glm(f"claims ~ {term}", trial, "poisson")
    assert "\n" not in str(caught.value)


def test_formulas_of_brms_and_survival_are_answered(trial):
    with pytest.raises(
        ShardmcError, match=r"write one formula, such as 'y ~ x'\. Only the mean has predictors"
    ):
        shardmc.glm("bf(claims ~ x, sigma ~ x)", trial)
    with pytest.raises(ShardmcError, match=r"as the option censored= \(--censored on the command line\)"):
        shardmc.glm("Surv(months, wins) ~ x", trial, "weibull")
    with pytest.raises(ShardmcError, match="Three or more are family 'categorical', or 'ordinal'"):
        shardmc.glm("region ~ x", trial)


def test_trials_of_brms_and_bambi(trial):
    for formula in ("wins | trials(tries) ~ x", "p(wins, tries) ~ x"):
        with pytest.raises(ShardmcError, match="trials="):
            shardmc.glm(formula, trial, "binomial", trials="tries")


@pytest.mark.parametrize(
    "formula",
    [
        "claims ~ x + offset(__import__('os').system('true'))",
        "claims ~ x + offset(months.__class__)",
        "cbind(wins, open('x')) ~ x",
        "claims ~ I(np.pi.__class__)",
        "claims ~ I(np.e.real)",
    ],
)
def test_no_formula_runs_code(trial, formula):
    with pytest.raises(ModelError, match="is not allowed"):
        shardmc.glm(formula, trial, "binomial" if "cbind" in formula else "poisson")


def test_too_many_shards_are_refused_before_anything_is_sampled(trial, monkeypatch):
    monkeypatch.setattr("shardmc.pipeline.driver.Driver.run", None)
    for shards in (400, 150):
        with pytest.raises(ShardmcError, match=r"too few for 4 parameters\. Take at most 20 shards"):
            shardmc.glm("claims ~ x + region", trial, "poisson", shards=shards)
    y = np.random.default_rng(0).normal(size=100)
    model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    with pytest.raises(ShardmcError, match="about 1 row to a shard, too few for 1 parameter"):
        shardmc.fit(model, y, shards=80)


@pytest.mark.slow
def test_small_shards_are_a_warning_at_once_and_a_finding(trial):
    options = QUICK | {"shards": 30}
    with pytest.warns(UserWarning, match="A shard has about 13 rows for 4 parameters"):
        posterior = shardmc.glm("claims ~ x + region", trial, "poisson", **options)
    assert "at most 20 shards" in next(f.advice for f in posterior.findings if f.check == "shards")


def test_shards_of_mixed_models_are_counted_in_groups(trial, monkeypatch):
    monkeypatch.setattr("shardmc.pipeline.driver.Driver.run", None)
    table = trial.assign(clinic=np.arange(len(trial)) % 20)
    with pytest.raises(ShardmcError, match=r"about 1 group \(about 26 rows\) to a shard"):
        shardmc.glm("claims ~ x + (1 | clinic)", table, "poisson", shards=15)


def test_too_many_shards_on_the_command_line(trial, tmp_path):
    path = tmp_path / "trial.parquet"
    trial.to_parquet(path)
    call = [
        "fit",
        str(path),
        "claims ~ x",
        "--family",
        "poisson",
        "--shards",
        "300",
        "--out",
        str(tmp_path / "run"),
    ]
    assert "too few for 2 parameters" in str(CliRunner().invoke(app, call).exception)
    assert not (tmp_path / "run").exists()
