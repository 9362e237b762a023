"""The families that users of R, brms and bambi ask for first, in their words."""

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

import shardmc
from shardmc.cli.app import app
from shardmc.errors import DataError, ModelError, OptionError

OPTIONS = {"shards": 2, "draws": 400, "check": False, "precision": "single"}
WAYS = np.array(["bus", "car", "foot"])


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(4)
    n = 1_500
    table = pd.DataFrame({"age": rng.normal(size=n), "region": rng.choice(["north", "south"], n)})
    eta = (0.4 + 0.5 * table["age"]).to_numpy()
    mean, share = np.exp(eta), special.expit(eta)
    table["died"] = rng.random(n) < -np.expm1(-np.exp(eta - 1))
    table["income"] = np.exp(eta + 0.4 * rng.normal(size=n))
    table["delay"] = rng.wald(mean, 3.0)
    table["rate"] = rng.beta(9 * share, 9 * (1 - share))
    table["fish"] = rng.poisson(mean) * (rng.random(n) < 0.7)
    table["visits"] = rng.poisson(rng.gamma(2.0, mean / 2)) * (rng.random(n) < 0.7)
    time = mean / special.gamma(1 + 1 / 1.5) * rng.weibull(1.5, n)
    table["time"], table["lost"] = np.minimum(time, 2.0), time > 2.0
    of_ways = np.stack([0 * eta, eta, -eta + (table["region"] == "south")], axis=1)
    table["way"] = WAYS[(of_ways + rng.gumbel(size=of_ways.shape)).argmax(axis=1)]
    counts = rng.multinomial(rng.integers(1, 30, n), special.softmax(of_ways, axis=1))
    return table.assign(bus=counts[:, 0], car=counts[:, 1], foot=counts[:, 2])


# Family as users write it, response, options, and the parameters besides the coefficients with their true values.
ASKED = {
    "bernoulli(link=cloglog)": ("died", {}, {"Intercept": -0.6}),
    "lognormal": ("income", {}, {"Intercept": 0.4, "sigma": 0.4}),
    "inverse.gaussian": ("delay", {}, {"Intercept": 0.4, "shape": 3.0}),
    "beta": ("rate", {}, {"Intercept": 0.4, "kappa": 9.0}),
    "zip": ("fish", {}, {"Intercept": 0.4, "zi": 0.3}),
    "zero_inflated_negbinomial": ("visits", {}, {"Intercept": 0.4, "shape": 2.0, "zi": 0.3}),
    "weibull": ("time", {"censored": "lost"}, {"Intercept": 0.4, "shape": 1.5}),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", ASKED)
def test_a_family_finds_what_made_the_rows_and_predicts(people, family):
    """Within 5.5 posterior sds: a false alarm for one of 20 parameters has probability below 1e-6."""
    response, options, truth = ASKED[family]
    posterior = shardmc.glm(f"{response} ~ age", people, family, **options, **OPTIONS)
    assert list(posterior.draws) == ["Intercept", "age", *(name for name in truth if name != "Intercept")]
    for name, value in (truth | {"age": 0.5}).items():
        draws = posterior.draws[name]
        assert abs(draws.mean() - value) < 5.5 * draws.std()
    new = people[["age"]].head(3)
    draws = posterior.predict(new, kind="draws")
    assert draws.shape == (400, 3)
    np.testing.assert_allclose(posterior.predict(new, kind="mean")["mean"], draws.mean(axis=0))
    assert posterior.predict(new, kind="response").notna().all(axis=None)
    if "censored" in options:
        with pytest.raises(OptionError, match="censored times are not observed"):
            posterior.predictive_check(people)
        assert "posterior_predictive" not in posterior.to_arviz(people, rows=20, draws=50).children
    else:
        # The smallest p is that of the largest income, 0.04: of 400 draws none reaches it once in five million times.
        assert (posterior.predictive_check(people, draws=400)["p"] > 0).all()


@pytest.fixture(scope="module")
def ways(people):
    return shardmc.glm("way ~ age + region", people, "categorical", **OPTIONS)


def test_categorical_with_a_column_far_from_zero(people):
    posterior = shardmc.glm("way ~ year", people.assign(year=2000 + people["age"]), "categorical", **OPTIONS)
    assert any("the value of Intercept of a row with year at" in note for note in posterior.notes)
    for name, value in {"year[car]": 0.5, "year[foot]": -0.5}.items():
        assert abs(posterior.draws[name].mean() - value) < 5.5 * posterior.draws[name].std()


def test_categorical_has_a_coefficient_for_each_level_but_the_first(ways):
    assert list(ways.draws) == [
        "Intercept[car]",
        "Intercept[foot]",
        "age[car]",
        "age[foot]",
        "region[T.south][car]",
        "region[T.south][foot]",
    ]
    truth = {"Intercept[car]": 0.4, "Intercept[foot]": -0.4, "age[car]": 0.5, "age[foot]": -0.5}
    truth |= {"region[T.south][car]": 0.0, "region[T.south][foot]": 1.0}
    for name, value in truth.items():
        assert abs(ways.draws[name].mean() - value) < 5.5 * ways.draws[name].std()
    assert ways.regression.priors["Intercept[car]"] == "student_t(3, 0, 2.5)"


def test_categorical_predicts_the_probability_of_each_level(people, ways, tmp_path):
    new = people[["age", "region"]].head(4)
    table = ways.predict(new, kind="mean")
    assert list(table.columns) == list(WAYS)
    np.testing.assert_allclose(table.sum(axis=1), 1.0)
    assert list(ways.predict(new, kind="link", draws=50).columns[::4]) == ["car", "foot"]
    assert ways.predict(new, kind="draws", draws=50).shape == (50, 4, 3)
    np.testing.assert_allclose(ways.predict(new, kind="response").sum(axis=1), 1.0)
    ways.save(tmp_path / "ways.nc")
    pd.testing.assert_frame_equal(shardmc.load(tmp_path / "ways.nc").predict(new, kind="mean"), table)


def test_categorical_after_the_fit(people, ways):
    odds = ways.contrast("region", data=people, scale="link", compare="odds_ratio")
    assert odds.loc[("south / north", "foot"), "mean"] == pytest.approx(np.e, rel=0.4)
    effect = ways.marginal_effects("age", data=people)
    assert list(effect.loc["age"].index) == list(WAYS)
    assert abs(effect["mean"].sum()) < 1e-6  # probabilities stay 1 in all
    check = ways.predictive_check(people, draws=100)
    assert {"share of foot", "share of foot, highest tenth"} <= set(check.index)
    assert (check["p"] > 0.001).all()
    # A model that ignores the predictors leaves the rows less probable.
    shares = people["way"].value_counts(normalize=True)
    assert ways.loo(people, draws=200).elpd > np.log(shares[people["way"]]).sum()


@pytest.mark.slow
def test_multinomial_counts(people, tmp_path):
    posterior = shardmc.glm("c(bus, car, foot) ~ age + region", people, "multinomial", **OPTIONS)
    truth = {"Intercept[car]": 0.4, "Intercept[foot]": -0.4, "age[car]": 0.5, "age[foot]": -0.5}
    truth |= {"region[T.south][car]": 0.0, "region[T.south][foot]": 1.0}
    assert list(posterior.draws) == list(truth)
    for name, value in truth.items():
        assert abs(posterior.draws[name].mean() - value) < 5.5 * posterior.draws[name].std()
    assert posterior.regression.formula == "c(bus, car, foot) ~ age + region"
    new = people[["age", "region"]].head(4)  # of one more trial: counts are not needed
    np.testing.assert_allclose(posterior.predict(new, kind="mean").sum(axis=1), 1.0)
    np.testing.assert_allclose(posterior.predict(new, kind="response").sum(axis=1), 1.0)
    assert (posterior.predictive_check(people, draws=100)["p"] > 0.001).all()
    counts = people[list(WAYS)].to_numpy()
    exact = stats.multinomial.logpmf(counts, counts.sum(axis=1), posterior.predict(people, kind="mean"))
    assert posterior.loo(people, draws=200).elpd == pytest.approx(exact.sum(), abs=20)
    tree = posterior.to_arviz(people, rows=20, draws=50)
    simulated = tree["posterior_predictive"]["c(bus, car, foot)"]
    np.testing.assert_array_equal(
        simulated.sum(axis=-1)[0, 0], tree["observed_data"]["c(bus, car, foot)"].sum(axis=-1)
    )
    posterior.save(tmp_path / "counts.nc")
    again = shardmc.load(tmp_path / "counts.nc")
    pd.testing.assert_frame_equal(again.predict(new, kind="mean"), posterior.predict(new, kind="mean"))


@pytest.mark.slow
@pytest.mark.parametrize("is_ordered", [True, False])
def test_the_order_of_a_category_says_which_level_is_the_reference(people, is_ordered):
    way = pd.Categorical(people["way"], categories=["foot", "bus", "car", "boat"], ordered=is_ordered)
    few = {"shards": 1, "draws": 100, "check": False}
    posterior = shardmc.glm("way ~ 1", people.assign(way=way), "categorical", **few)
    assert list(posterior.draws) == ["Intercept[bus]", "Intercept[car]"]  # nobody takes the boat
    again = shardmc.glm("C(way, levels=['car', 'foot', 'bus']) ~ 1", people, "categorical", **few)
    assert list(again.draws) == ["Intercept[foot]", "Intercept[bus]"]


def test_priors_of_all_levels_or_of_one(people):
    from shardmc.formulas.families import named_family
    from shardmc.formulas.preparing import prepare

    options = {"offset": None, "exposure": None, "trials": None, "drop_missing": False}
    given = {"age": "normal(0, 1)", "age[foot]": "normal(0, 0.1)", "region": "laplace(0, 1)"}
    source = shardmc.data.as_source(people)
    priors = prepare(
        "way ~ age + region", source, named_family("categorical"), given, **options
    ).design.priors
    shown = {name: str(prior) for name, prior in priors.items()}
    assert shown["age[car]"] == "normal(0, 1)"
    assert shown["age[foot]"] == "normal(0, 0.1)"
    assert shown["region[T.south][car]"] == shown["region[T.south][foot]"] == "laplace(0, 1)"
    with pytest.raises(OptionError, match=r"of 'zi' is not possible: probabilities take beta\(a, b\)"):
        prepare("fish ~ age", source, named_family("zip"), {"zi": "normal(0, 1)"}, **options)
    priors = prepare("fish ~ age", source, named_family("zip"), {"zi": "beta(2, 8)"}, **options).design.priors
    assert str(priors["zi"]) == "beta(2, 8)"


@pytest.mark.parametrize(
    ("given", "car", "foot"),
    [
        ({}, "student_t(3, 0, 2.5)", "student_t(3, 0, 2.5)"),
        ({"Intercept": "normal(0, 2)"}, "normal(0, 2)", "normal(0, 2)"),
        ({"Intercept[foot]": "normal(1, 2)"}, "student_t(3, 0, 2.5)", "normal(1, 2)"),
        ({"Intercept[foot]": "normal(1, 2)", "Intercept": "normal(0, 1)"}, "normal(0, 1)", "normal(1, 2)"),
    ],
)
def test_priors_of_the_intercepts_of_all_levels_or_of_one(people, given, car, foot):
    from shardmc.formulas.families import named_family
    from shardmc.formulas.linear_model import model_of
    from shardmc.formulas.preparing import prepare
    from shardmc.formulas.priors import Prior

    options = {"offset": None, "exposure": None, "trials": None, "drop_missing": False}
    source = shardmc.data.as_source(people)
    found = prepare("way ~ 1", source, named_family("categorical"), given, **options)
    shown = {name: str(prior) for name, prior in found.design.priors.items()}
    assert shown == {"Intercept[car]": car, "Intercept[foot]": foot}
    log_prior = model_of(found).log_prior
    moved = float(log_prior(np.array([0.3, 0.7])) - log_prior(np.zeros(2)))
    expected = sum(
        float(Prior.parse(text).log_density(value) - Prior.parse(text).log_density(0.0))
        for text, value in ((car, 0.3), (foot, 0.7))
    )
    assert moved == pytest.approx(expected, abs=1e-5)
    with pytest.raises(OptionError, match=r"Unknown parameter in priors 'Intercept\[train\]'"):
        prepare("way ~ 1", source, named_family("categorical"), {"Intercept[train]": "flat()"}, **options)


def test_a_level_that_a_category_never_has_is_said(people):
    """No one in the south takes the bus: its coefficients are what the prior makes them."""
    some = people[~((people["region"] == "south") & (people["way"] == "bus"))]
    posterior = shardmc.glm(
        "way ~ region", some, "categorical", shards=1, draws=100, check=False, precision="single"
    )
    found = [finding for finding in posterior.findings if finding.check == "separation"]
    assert found[0].values["columns"] == ["region[T.south]"]


MISTAKES = {
    "beta with a 0": (
        "rate ~ age",
        "beta",
        {},
        {"rate": 0.0},
        DataError,
        "between 0 and 1, without the ends",
    ),
    "a lognormal debt": (
        "income ~ age",
        "lognormal",
        {},
        {"income": -1.0},
        DataError,
        "must be positive, but 1",
    ),
    "half a fish": ("fish ~ age", "zip", {}, {"fish": 1.5}, DataError, "must be counts, but 1 of 1500"),
    "no event": (
        "time ~ age",
        "weibull",
        {"censored": "one"},
        {},
        DataError,
        "Every time in 'time' is censored",
    ),
    "censored twice": (
        "time ~ age",
        "weibull",
        {"censored": "age"},
        {},
        DataError,
        "must be 1 .or true. where",
    ),
    "censored what": (
        "time ~ age",
        "weibull",
        {"censored": "alive"},
        {},
        OptionError,
        "Unknown column 'alive'",
    ),
    "censored counts": (
        "fish ~ age",
        "zip",
        {"censored": "lost"},
        {},
        OptionError,
        "belongs to family 'weibull'",
    ),
    "two ways": ("region ~ age", "categorical", {}, {}, DataError, "2 levels; it needs three or more"),
    "ages as ways": ("age ~ fish", "categorical", {}, {}, DataError, "must have few levels, text or whole"),
    "groups": ("way ~ age + (1 | region)", "categorical", {}, {}, ModelError, "takes no group terms"),
    "an offset": (
        "way ~ age",
        "categorical",
        {"offset": "age"},
        {},
        OptionError,
        "an offset could belong to any",
    ),
    "two counts": ("cbind(bus, car) ~ age", "multinomial", {}, {}, ModelError, "three or more levels, as in"),
    "no counts": ("way ~ age", "multinomial", {}, {}, ModelError, "three or more levels, as in"),
    "half a bus": (
        "c(bus, car, foot) ~ age",
        "multinomial",
        {},
        {"bus": 0.5},
        DataError,
        "must be counts, but 1",
    ),
    "no count": ("c(bus, car, none) ~ age", "multinomial", {}, {}, DataError, "of 'none' are 0 in every row"),
    "text counts": ("c(bus, car, way) ~ age", "multinomial", {}, {}, DataError, "'way' holds text"),
    "a link": ("died ~ age", "bernoulli(link=cauchit)", {}, {}, OptionError, "Unknown link"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cannot_be_is_said_in_a_sentence(people, mistake):
    formula, family, options, values, error, sentence = MISTAKES[mistake]
    table = people.assign(one=1, none=0)
    for name, value in values.items():
        table[name] = table[name].astype(float)
        table.loc[7, name] = value
    with pytest.raises(error, match=sentence):
        shardmc.glm(formula, table, family, **options, **OPTIONS)


def test_more_levels_than_make_sense(people):
    table = people.assign(way=np.arange(len(people)).astype(str))
    with pytest.raises(DataError, match="'way' has more than 1000 levels; merge the rare ones"):
        shardmc.glm("way ~ age", table, "categorical")
    table = people.assign(way=np.arange(len(people)) % 60)
    with pytest.raises(DataError, match="has 60 levels; at most 50 are possible"):
        shardmc.glm("way ~ age", table, "categorical")


@pytest.mark.slow
def test_weibull_without_censoring_is_biased_and_with_it_is_not(people):
    """Negative control of the above: times cut off at 2, taken for events, say that people live shorter."""
    naive = shardmc.glm("time ~ age", people, "weibull", **OPTIONS)
    assert abs(naive.draws["Intercept"].mean() - 0.4) > 5.5 * naive.draws["Intercept"].std()


@pytest.mark.slow
def test_the_command_line_takes_them_too(people, tmp_path):
    from typer.testing import CliRunner

    people.to_parquet(tmp_path / "people.parquet")
    asked = [
        "fit",
        str(tmp_path / "people.parquet"),
        "time ~ age",
        "--family",
        "weibull",
        "--censored",
        "lost",
    ]
    asked += ["--out", str(tmp_path / "run"), "--shards", "2", "--draws", "400", "--no-report"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    found = shardmc.load(tmp_path / "run").draws["shape"]
    assert stats.norm.sf(abs(found.mean() - 1.5) / found.std()) > 1e-7


@pytest.mark.slow
def test_separation_is_said_beside_collinear_columns(people):
    """The parts of the rows that separation looks at know which columns were left out."""
    some = people[~((people["region"] == "south") & (people["way"] == "bus"))].assign(
        twice=lambda t: 2 * t["age"]
    )
    options = {"shards": 1, "draws": 100, "check": False, "drop_collinear": True}
    posterior = shardmc.glm("way ~ age + twice + region", some, "categorical", **options)
    found = {finding.check: finding.values.get("columns") for finding in posterior.findings}
    assert found["separation"] == ["region[T.south]"]
    assert found["collinear"] == ["twice"]
