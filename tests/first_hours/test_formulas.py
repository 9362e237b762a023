"""Formulas in the words of a new user: what works, and what is answered with the right spelling."""

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

QUICK = {"shards": 2, "draws": 60, "check": False, "precision": "single"}


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


# Collinear columns.


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


# Weights, and rows that depend on each other.

FLAT = {"coefficients": "flat", "Intercept": "flat"}
MANY = {"shards": 2, "draws": 4_000, "check": False, "precision": "single", "priors": FLAT}


@pytest.fixture(scope="module")
def workers():
    rng = np.random.default_rng(1)
    clusters, n = 80, 2_000
    worker = rng.integers(0, clusters, n)
    x = rng.normal(size=n) + rng.normal(size=clusters)[worker]
    eta = -0.3 + 0.5 * x + rng.normal(size=clusters)[worker]
    return pd.DataFrame(
        {
            "x": x,
            "hired": (rng.uniform(size=n) < 1 / (1 + np.exp(-eta))).astype(int),
            "worker": [f"w{k}" for k in worker],
            "instance_weight": rng.uniform(100, 3_000, n),
            "count": rng.integers(1, 4, n),
        }
    )


def sandwich(table, weights=None, clusters=None, counts=False):
    """Estimates and sds of a logistic regression, by the textbook: A^-1 B A^-1 with n / (n - 1)."""
    design, y = np.column_stack([np.ones(len(table)), table["x"]]), table["hired"].to_numpy()
    w = np.ones(len(y)) if weights is None else table[weights].to_numpy(float)
    beta = np.zeros(2)
    for _ in range(25):
        mu = 1 / (1 + np.exp(-design @ beta))
        bread = np.linalg.inv((design * (w * mu * (1 - mu))[:, None]).T @ design)
        beta = beta + bread @ design.T @ (w * (y - mu))
    scores = design * (w * (y - mu))[:, None]
    if clusters is not None:
        scores = pd.DataFrame(scores).groupby(table[clusters].to_numpy()).sum().to_numpy()
    if counts:
        scores, units = scores / np.sqrt(w)[:, None], w.sum()
    else:
        units = len(scores)
    meat = scores.T @ scores * units / (units - 1)
    return beta, np.sqrt(np.diag(bread @ meat @ bread))


CASES = {
    "rows": ({"robust": True}, {}),
    "clusters": ({"robust": "worker"}, {"clusters": "worker"}),
    "survey": ({"survey_weights": "instance_weight"}, {"weights": "instance_weight"}),
    "survey in clusters": (
        {"survey_weights": "instance_weight", "robust": "worker"},
        {"weights": "instance_weight", "clusters": "worker"},
    ),
    "counts": ({"weights": "count", "robust": True}, {"weights": "count", "counts": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_adjusted_spread_is_that_of_the_textbook(workers, case):
    options, exact = CASES[case]
    posterior = shardmc.glm("hired ~ x", workers, "bernoulli", **MANY, **options)
    means, sds = sandwich(workers, **exact)
    table = posterior.summary().loc[["Intercept", "x"]]
    # 4,000 draws: the sd of an sd is 1.1 %, that of a mean 1.6 % of its sd. Six of them, for 20 comparisons.
    np.testing.assert_allclose(table["sd"], sds, rtol=0.08)
    np.testing.assert_allclose(table["mean"], means, atol=0.12 * sds.max())
    if case == "clusters":  # the negative control: the model's own sds are much smaller
        assert (table["sd_before"] < 0.75 * sds).all()


def test_survey_weights_give_no_tiny_sds(workers):
    as_counts = shardmc.glm("hired ~ x", workers, "bernoulli", weights="instance_weight", **MANY)
    as_survey = shardmc.glm("hired ~ x", workers, "bernoulli", survey_weights="instance_weight", **MANY)
    assert "survey_weights=" in next(f.advice for f in as_counts.findings if f.check == "weights")
    assert not [f for f in as_survey.findings if f.check == "weights"]
    effective = workers["instance_weight"].sum() ** 2 / (workers["instance_weight"] ** 2).sum()
    assert as_survey.adjusted.effective_rows == pytest.approx(effective)
    assert (as_survey.summary()["sd"] > 30 * as_counts.summary()["sd"]).all()


@pytest.fixture(scope="module")
def robust(workers):
    options = {"shards": 2, "draws": 200, "precision": "single"}
    return shardmc.glm("hired ~ x", workers, "bernoulli", robust="worker", **options)


def test_an_adjusted_posterior_says_so_everywhere(robust, tmp_path):
    said = (
        "their spread is that of a sandwich, from the scores of 80 clusters of 'worker', and not that of the model. "
        "The certificate is about the draws before this adjustment."
    )
    assert said in next(f.message for f in robust.findings if f.check == "robust")
    assert said in repr(robust)
    assert list(robust.summary().columns)[6:] == ["sd_before", "mean_error", "sd_ratio"]
    page = robust.report(tmp_path / "report.html").read_text()
    assert "The certificate is about the draws before this adjustment." in page
    assert "sd before" in page
    assert "robust=&#39;worker&#39;" in page
    assert "The certificate is about the draws before this adjustment." in robust._repr_html_()
    loaded = shardmc.load(robust.save(tmp_path / "posterior.nc"))
    assert loaded.adjusted == robust.adjusted
    np.testing.assert_array_equal(loaded.draws["x"], robust.draws["x"])


def test_the_certificate_is_that_of_the_draws_before(robust, workers):
    options = {"shards": 2, "draws": 200, "precision": "single"}
    plain = shardmc.glm("hired ~ x", workers, "bernoulli", **options)
    np.testing.assert_array_equal(robust.certificate.mean_error, plain.certificate.mean_error)
    assert robust.adjusted.sds["x"] == pytest.approx(plain.draws["x"].std(ddof=1), rel=1e-6)


def test_loo_needs_draws_of_the_model(robust, workers):
    with pytest.raises(ShardmcError, match="these were adjusted"):
        robust.loo(workers)


def test_robust_from_files_and_on_the_command_line(workers, robust, tmp_path):
    path = tmp_path / "rows.parquet"
    workers.to_parquet(path, row_group_size=300)
    call = ["fit", str(path), "hired ~ x", "--family", "bernoulli", "--shards", "2", "--draws", "200"]
    call += [
        "--precision",
        "single",
        "--clusters",
        "worker",
        "--memory",
        "0.000001",
        "--out",
        str(tmp_path / "run"),
    ]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    assert "80 clusters of 'worker'" in done.output
    loaded = shardmc.load(tmp_path / "run")
    np.testing.assert_allclose(loaded.draws["x"], robust.draws["x"], rtol=1e-4)


def test_arrays_of_survey_weights_are_the_same_as_a_column(workers):
    by_name = shardmc.glm("hired ~ x", workers, "bernoulli", survey_weights="instance_weight", **QUICK)
    by_array = shardmc.glm(
        "hired ~ x", workers, "bernoulli", survey_weights=workers["instance_weight"].to_numpy(), **QUICK
    )
    np.testing.assert_allclose(by_name.draws["x"], by_array.draws["x"], rtol=1e-6)


@pytest.mark.parametrize(
    ("formula", "options", "message"),
    [
        ("hired ~ x", {"robust": "wroker"}, "Did you mean 'worker'"),
        ("hired ~ x", {"robust": 3}, "robust must be True"),
        ("hired ~ x + (1 | worker)", {"robust": True}, "for formulas without group terms"),
        (
            "hired ~ x",
            {"weights": "count", "survey_weights": "count"},
            "either weights .counts. or survey_weights",
        ),
        ("hired ~ x", {"survey_weights": "wieght"}, "Unknown weights column 'wieght'"),
        ("hired ~ x", {"survey_weights": "minus"}, "must not be negative, but the smallest is -1"),
        ("hired ~ x", {"robust": "all"}, "has one value only"),
        ("hired ~ x", {"robust": "holes"}, "has missing values; drop those rows"),
    ],
)
def test_mistakes_in_weights_and_clusters(workers, formula, options, message):
    table = workers.assign(minus=-1.0, all="same", holes=workers["worker"].mask(workers.index == 3))
    with pytest.raises(ShardmcError, match=message):
        shardmc.glm(formula, table, "bernoulli", **QUICK, **options)


def test_levels_without_rows_are_no_clusters(workers):
    left = [f"left {k}" for k in range(100)]
    codes = pd.Categorical(workers["worker"], categories=[*left, *workers["worker"].unique()])
    posterior = shardmc.glm("hired ~ x", workers.assign(code=codes), "bernoulli", robust="code", **QUICK)
    assert posterior.adjusted.units == 80
    one = workers.assign(code=pd.Categorical(["a"] * len(workers), categories=["a", "b"]))
    with pytest.raises(DataError, match="has one value only"):
        shardmc.glm("hired ~ x", one, "bernoulli", robust="code", **QUICK)


def test_few_clusters_are_a_warning(workers):
    table = workers.assign(team=np.arange(len(workers)) % 10)
    posterior = shardmc.glm("hired ~ x", table, "bernoulli", robust="team", **QUICK)
    assert [f.level for f in posterior.findings if f.check == "robust"] == ["warning", "note"]


def test_dependence_and_overdispersion_are_named_as_not_examined(workers, robust):
    posterior = shardmc.glm("count ~ x", workers, "poisson", **QUICK)
    assert posterior.not_examined.startswith(
        "Not examined: fit of the model beyond the predictive check, dependence of rows, overdispersion"
    )
    assert robust.not_examined == "Not examined: fit of the model beyond the predictive check."


# Categories.


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


# Spellings of R, brms and bambi.


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


# The number of shards.


def test_too_many_shards_are_refused_before_anything_is_sampled(trial, monkeypatch):
    monkeypatch.setattr("shardmc.pipeline.driver.Driver.run", None)
    for shards in (400, 150):
        with pytest.raises(ShardmcError, match=r"too few for 4 parameters\. Take at most 20 shards"):
            shardmc.glm("claims ~ x + region", trial, "poisson", shards=shards)
    y = np.random.default_rng(0).normal(size=100)
    model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    with pytest.raises(ShardmcError, match="about 1 row to a shard, too few for 1 parameter"):
        shardmc.fit(model, y, shards=80)


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
