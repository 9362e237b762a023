"""Mistakes people make: each is told in one sentence that says what to do, before anything is compiled."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from shardmc.data import as_source
from shardmc.errors import DataError, ModelError, OptionError, ShardmcError
from shardmc.formulas import contrast, glm
from shardmc.formulas.families import named_family
from shardmc.formulas.piecewise import averages
from shardmc.formulas.preparing import prepare
from shardmc.formulas.regression import _Formula, _separation
from shardmc.types import Finding


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    n = 600
    return pd.DataFrame(
        {
            "age": rng.uniform(18, 80, size=n),
            "income": rng.gamma(2.0, 20.0, size=n),
            "region": rng.choice(["north", "south", "west"], size=n),
            "claims": rng.poisson(1.0, size=n),
            "exposure": rng.uniform(0.1, 1, size=n),
            "sold": rng.integers(0, 2, size=n),
            "amount": rng.gamma(2.0, size=n) + 0.01,
        }
    )


def refusal(error, *arguments, **options):
    with pytest.raises(error) as caught:
        glm(*arguments, **options)
    assert isinstance(caught.value, ShardmcError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_misspelt_column(table):
    said = refusal(OptionError, "claims ~ agee + region", table, "poisson")
    assert said.startswith("Unknown column 'agee'. Did you mean 'age'? Valid: age, amount, claims")
    assert "Did you mean 'exposure'" in refusal(
        OptionError, "claims ~ age", table, "poisson", exposure="exposur"
    )
    assert "Did you mean 'income'" in refusal(OptionError, "np.log(incom) ~ age", table)


def test_a_response_with_three_values_for_bernoulli(table):
    said = refusal(DataError, "claims ~ age", table[table["claims"] < 3], "bernoulli")
    assert "must be 0 or 1, but it has 3 different values (0, 1, 2)" in said
    assert '"I(claims == 2) ~ ..."' in said


def test_text_in_a_numeric_column(table):
    ages = table["age"].round().astype(int).astype(str)
    said = refusal(DataError, "claims ~ age", table.assign(age=ages.mask(table.index == 3, "n/a")), "poisson")
    assert (
        said
        == "Column 'age' holds text, though its entries are numbers except 'n/a'; make the column numbers first, "
        "or write C(age) if they are levels."
    )
    said = refusal(DataError, "claims ~ np.log(region)", table, "poisson")
    assert "Column 'region' holds text or a category, but 'np.log(region)' needs numbers" in said
    said = refusal(DataError, "region ~ age", table, "bernoulli")
    assert "The response 'region' holds text" in said
    assert "I(region == '" in said
    mixed = table.assign(age=[1.5] * 599 + ["old"])
    assert "'age'" in refusal(DataError, "claims ~ age", mixed, "poisson")


def test_text_that_is_numbers_may_be_levels(table):
    codes = table.assign(code=(table["claims"] % 3 + 1).astype(str))
    found = prepared("amount ~ C(code)", codes)
    assert found.design.encoder.names == ("C(code)[T.2]", "C(code)[T.3]")


def test_a_constant_or_duplicated_column(table):
    said = refusal(DataError, "claims ~ age + one", table.assign(one=1.0), "poisson")
    assert said.startswith(
        "Column 'one' of the formula is 1 in every row, like the intercept; leave it out, or give drop_collinear=True"
    )
    said = refusal(ModelError, "claims ~ age + months", table.assign(months=12 * table["age"]), "poisson")
    assert "Columns 'age' and 'months' of the formula hold the same information" in said
    said = refusal(DataError, "claims ~ nothing", table.assign(nothing=0), "poisson")
    assert "is 0 in every row" in said


def test_groups_all_marked_beside_an_intercept(table):
    marked = table.join(pd.get_dummies(table["region"], dtype=float))
    said = refusal(ModelError, "claims ~ north + south + west", marked, "poisson")
    assert "is a linear combination of" in said
    for name in ("north", "south", "west"):
        assert repr(name) in said
    assert "write '0 + ...'" in said
    assert len(prepared("claims ~ 0 + north + south + west", marked, "poisson").design.names) == 3
    assert len(prepared("claims ~ 0 + region + C(sold)", marked, "poisson").design.names) == 4


def test_an_interaction_without_rows(table):
    apart = table.assign(sold=np.where(table["region"] == "west", 0, table["sold"]))
    said = refusal(DataError, "claims ~ region * C(sold)", apart, "poisson")
    assert "'region[T.west]:C(sold)[T.1]' of the formula is 0 in every row" in said


def test_counts_that_are_not_whole(table):
    said = refusal(DataError, "amount ~ age", table, "poisson")
    assert "must be counts, but 600 of 600 values are not whole numbers" in said
    assert "family 'gamma'" in said


def test_an_exposure_of_zero(table):
    none = table.assign(exposure=table["exposure"].mask(table.index < 3, 0.0))
    said = refusal(DataError, "claims ~ age", none, "poisson", exposure="exposure")
    assert "The exposure 'exposure' must be positive, but it is 0 in 3 rows" in said


def test_missing_values_are_counted_by_column(table):
    holes = table.assign(
        age=table["age"].mask(table.index < 5), region=table["region"].mask(table.index > 597)
    )
    said = refusal(DataError, "claims ~ age + region", holes, "poisson")
    assert said.startswith("Columns 'age' (5), 'region' (2) have missing values, 7 of 600 rows in all.")
    assert "drop_missing=True (--drop-missing on the command line)" in said
    weights = np.ones(600)
    said = refusal(
        DataError, "claims ~ age + region", holes, "poisson", drop_missing=True, weights=weights, draws=10
    )
    assert "weights was given as an array of all rows" in said


def prepared(formula, data, family="gaussian", **options):
    options = {"offset": None, "exposure": None, "trials": None, "drop_missing": False} | options
    return prepare(formula, as_source(data), named_family(family), None, **options)


@pytest.mark.slow
def test_separation_comes_before_less_serious_findings(table, monkeypatch):
    finish, note = _Formula.finish, Finding("note", "chains", "A note.")
    with_note = lambda self, posterior: finish(self, replace(posterior, findings=(note,)))  # noqa: E731
    monkeypatch.setattr(_Formula, "finish", with_note)
    sold = np.where(table["region"] == "west", 0, table["sold"])
    options = {"family": "bernoulli", "shards": 2, "draws": 40, "check": False}
    first, last = glm("sold ~ region", table.assign(sold=sold), **options).findings
    assert "Complete separation" in first.message
    assert last == note


def test_trials_of_the_wrong_type(table):
    said = refusal(OptionError, "sold ~ age", table, "binomial", trials=10.0)
    assert said.startswith("trials must be a whole number, the name of a column, or an expression")
    assert said.endswith("float was given.")


def test_contrasts_of_what_has_no_levels(table):
    clinics = table.assign(clinic=np.arange(600) % 30)
    found = prepared("claims ~ age + (1 + income | clinic)", clinics, "poisson", exposure="exposure")
    posterior = SimpleNamespace(regression=SimpleNamespace(design=found.design.to_dict()))
    for name in ("age", "exposure", "income", "clinic"):
        with pytest.raises(OptionError, match=f"Which values of '{name}' should be compared"):
            contrast(posterior, name, at={})
    with pytest.raises(
        OptionError, match=r"Unknown predictor 'claims'.*Valid: age, clinic, exposure, income"
    ):
        contrast(posterior, "claims", at={})


def test_averages_of_a_table_without_rows(table):
    nothing = SimpleNamespace(
        design=prepared("claims ~ age", table, "poisson").design, num_draws=1, pieces=lambda *_, **__: ()
    )
    with pytest.raises(OptionError, match=r"There is nothing to average over\. The table has no rows\.$"):
        averages(nothing, table[:0], (), 1, lambda rows: [])


def test_complete_separation_is_named(table):
    # No sale in the west, and everybody above 60 buys.
    sold = np.where(table["region"] == "west", 0, table["sold"])
    found = prepared("sold ~ age + region", table.assign(sold=sold), "bernoulli")
    assert found.separating == ("region[T.west]",)
    (finding,) = _separation(found)
    assert finding.level == "warning"
    assert (
        "Complete separation: 'region[T.west]' by itself predicts some outcomes of 'sold'" in finding.message
    )
    assert "priors={'region[T.west]'" in finding.advice
    found = prepared("sold ~ age", table.assign(sold=(table["age"] > 60).astype(int)), "bernoulli")
    assert found.separating == ("age",)
    claims = np.where(table["region"] == "west", 0, table["claims"])
    assert prepared("claims ~ age + region", table.assign(claims=claims), "poisson").separating == (
        "region[T.west]",
    )
    assert prepared("sold ~ age + region", table, "bernoulli").separating == ()
    assert prepared("claims ~ age + region", table, "poisson").separating == ()
    assert _separation(prepared("amount ~ region", table)) == ()


@pytest.mark.parametrize(
    ("formula", "family", "options", "message"),
    [
        ("claims ~ np.log(claims)", "poisson", {}, "is not finite in"),
        ("sold ~ age", "binomial", {}, "needs the number of trials.*0 or 1 use family 'bernoulli'"),
        ("sold ~ age", "binomial", {"trials": 0}, "positive whole number"),
        ("claims ~ age", "binomial", {"trials": 1}, "exceeds the number of trials"),
        ("sold ~ age", "bernoulli", {"trials": 3}, "trials belongs to family 'binomial'"),
        (
            "amount ~ age",
            "gaussian",
            {"exposure": "exposure"},
            "exposure belongs to families with a log link",
        ),
        ("amount ~ age", "gamma", {"offset": 3.0}, "must be the name of a column"),
        ("claims ~ C(income)", "poisson", {}, "makes 599 columns for 600 rows"),
        ("region ~ age", "ordinal", {}, "is text without an order"),
        ("amount ~ age", "ordinal", {}, "must have few levels"),
        ("C(sold) ~ age", "bernoulli", {}, "only 'ordinal', 'categorical' take one"),
        ("amount ~ age", "gausian", {}, "Unknown family 'gausian'"),
        ("amount ~ age + missing(age)", "gaussian", {}, "it is not a known function"),
        ("amount ~ age", "gaussian", {"priors": {"agee": "normal(0, 1)"}}, "Did you mean 'age'"),
    ],
)
def test_other_mistakes(table, formula, family, options, message):
    with pytest.raises(ShardmcError, match=message):
        glm(formula, table, family, **options)


def test_names_and_types_that_cannot_be(table):
    with pytest.raises(DataError, match="holds dates or times"):
        glm("amount ~ day", table.assign(day=pd.Timestamp("2020-01-01") + pd.to_timedelta(table["age"], "D")))
    with pytest.raises(DataError, match="holds nothing but missing values"):
        glm("amount ~ empty", table.assign(empty=None))
    with pytest.raises(DataError, match="is 1 in every row: there is nothing to explain"):
        glm("one ~ age", table.assign(one=1.0))
    ids = [f"id {k}" for k in range(600)] * 2
    many = pd.concat([table, table], ignore_index=True).assign(key=[f"{k}{i}" for i, k in enumerate(ids)])
    with pytest.raises(DataError, match="more than 1000 levels"):
        glm("amount ~ key", many)


@pytest.mark.slow
def test_robust_without_a_mode_is_refused_before_anything_is_sampled():
    x = np.random.default_rng(0).normal(size=200)
    stages = []
    flat = {"coefficients": "flat()", "Intercept": "flat()"}
    with pytest.raises(
        ModelError, match=r"no mode: it rises along 'x' .* robust and survey_weights need a mode"
    ):
        glm(
            "y ~ x",
            {"x": x, "y": x > 0},
            "bernoulli",
            flat,
            robust=True,
            sampler="random-walk",
            shards=1,
            draws=10,
            progress=lambda stage, *_: stages.append(stage),
        )
    assert "locate" in stages
    assert "sample" not in stages
