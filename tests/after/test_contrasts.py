"""Contrasts and marginal effects are those that the draws give by hand, averaged over rows."""

from importlib import import_module

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy.special import expit

import shardmc
from shardmc.errors import OptionError, RunError

REGIONS = ("north", "south", "west")


def eta_of(posterior, table, region=None):
    """Linear predictor (draw, row) of the logistic fit by hand, also with another region."""
    draws = posterior.draws
    regions = table["region"].to_numpy() if region is None else np.full(len(table), region)
    age = table["age"].to_numpy()
    eta = draws["Intercept"][:, None] + draws["age"][:, None] * age
    for level in REGIONS[1:]:
        here = regions == level
        eta = eta + here * (
            draws[f"region[T.{level}]"][:, None] + draws[f"age:region[T.{level}]"][:, None] * age
        )
    return eta


def slope_of(posterior, table):
    """Derivative of the linear predictor in age, (draw, row), by hand."""
    slope = posterior.draws["age"][:, None] + np.zeros(len(table))
    for level in REGIONS[1:]:
        slope = (
            slope + posterior.draws[f"age:region[T.{level}]"][:, None] * (table["region"] == level).to_numpy()
        )
    return slope


def check(found: pd.Series, drawn: np.ndarray, interval: float = 0.95) -> None:
    tail = (1 - interval) / 2
    exact = [drawn.mean(), drawn.std(ddof=1), *np.quantile(drawn, [tail, 1 - tail])]
    np.testing.assert_allclose(found[["mean", "sd", "lower", "upper"]].to_numpy(float), exact, rtol=1e-6)


def test_differences_ratios_and_odds_ratios_by_hand(policies, logistic):
    means = {level: expit(eta_of(logistic, policies, level)).mean(axis=1) for level in REGIONS}
    options = {"data": policies, "draws": 10_000}
    table = logistic.contrast("region", **options)
    assert table.index.tolist() == ["south - north", "west - north"]
    check(table.loc["south - north"], means["south"] - means["north"])
    ratio = logistic.contrast("region", ("west", "south"), compare="ratio", interval=0.8, **options)
    check(ratio.loc["south / west"], means["south"] / means["west"], 0.8)
    odds = {level: p / (1 - p) for level, p in means.items()}
    table = logistic.contrast("region", ("north", "west"), compare="odds_ratio", **options)
    check(table.loc["west / north"], odds["west"] / odds["north"])


def test_contrasts_of_the_linear_predictor(policies, poisson, logistic):
    draws = poisson.draws["region[T.south]"]
    options = {"data": policies, "draws": 10_000, "scale": "link"}
    check(poisson.contrast("region", **options).loc["south - north"], draws)
    check(poisson.contrast("region", compare="ratio", **options).loc["south / north"], np.exp(draws))
    at = {"age": 40.0}
    table = logistic.contrast(
        "region", ("north", "south"), at=at, compare="odds_ratio", scale="link", draws=10_000
    )
    exact = logistic.draws["region[T.south]"] + 40 * logistic.draws["age:region[T.south]"]
    check(table.loc["south / north"], np.exp(exact))
    age = poisson.contrast("age", (30, 40, 50), **options)
    check(age.loc["50 - 30"], 20 * poisson.draws["age"])


def test_contrasts_by_group(policies, poisson):
    table = poisson.contrast("age", (30.0, 60.0), data=policies, by="region", draws=10_000)
    assert table.index.names == ["region", "contrast"]
    assert table.index.get_level_values(0).tolist() == list(REGIONS)
    west = policies[policies["region"] == "west"]["months"].mean()
    rate = poisson.draws["Intercept"] + poisson.draws["region[T.west]"]
    exact = west * (np.exp(rate + 60 * poisson.draws["age"]) - np.exp(rate + 30 * poisson.draws["age"]))
    check(table.loc[("west", "60.0 - 30.0")], exact)


def test_slopes_are_the_derivatives(policies, logistic):
    p = expit(eta_of(logistic, policies))
    each = p * (1 - p) * slope_of(logistic, policies)
    check(logistic.marginal_effects("age", data=policies, draws=10_000).loc["age"], each.mean(axis=1))
    table = logistic.marginal_effects("age", data=policies, by=["region"], draws=10_000)
    south = (policies["region"] == "south").to_numpy()
    check(table.loc[("south", "age")], each[:, south].mean(axis=1))
    point = {"age": 50.0, "region": "north"}
    p = expit(logistic.draws["Intercept"] + 50 * logistic.draws["age"])
    table = logistic.marginal_effects("age", at=point, draws=10_000)
    check(table.loc["age"], p * (1 - p) * logistic.draws["age"])
    point = {"age": 40.0, "region": "south"}
    here = logistic.marginal_effects("region", at=point, draws=500)
    assert here.equals(logistic.contrast("region", at={"age": 40.0}, draws=500).rename_axis("effect"))
    of_levels = logistic.marginal_effects("region", data=policies)
    assert of_levels.index.name == "effect"
    np.testing.assert_array_equal(of_levels, logistic.contrast("region", data=policies))


def test_pieces_of_a_file_give_the_same(policies, logistic, tmp_path, monkeypatch):
    policies.to_parquet(tmp_path / "rows.parquet", row_group_size=70)
    options = {"by": "region", "draws": 100}
    whole = logistic.marginal_effects("age", data=policies, **options)
    sizes = []
    averages = import_module("shardmc.formulas.piecewise")
    monkeypatch.setattr(averages, "AT_ONCE", 100 * 2 * 50)
    add = averages.Averages.add

    def watched(self, rows, quantities):
        sizes.append(quantities[0].size)
        add(self, rows, quantities)

    monkeypatch.setattr(averages.Averages, "add", watched)
    parts = logistic.marginal_effects("age", data=tmp_path / "rows.parquet", **options)
    pd.testing.assert_frame_equal(parts, whole, check_exact=False, rtol=1e-9)
    assert len(sizes) > 10
    assert max(sizes) <= 100 * 50  # draws times the rows of a piece


def test_rows_with_missing_values_are_left_out(policies, logistic):
    holes = policies.assign(age=policies["age"].where(np.arange(len(policies)) >= 5))
    with pytest.warns(
        UserWarning, match=r"5 of 600 rows have missing values in 'age' \(5\): they are left out"
    ):
        found = logistic.marginal_effects("age", data=holes)
    pd.testing.assert_frame_equal(found, logistic.marginal_effects("age", data=policies.iloc[5:]))


@pytest.mark.slow
def test_splines_and_levels_of_the_response(policies):
    rows = policies.assign(grade=pd.qcut(policies["age"] + 20 * policies["sold"], 3, labels=False))
    posterior = shardmc.glm(
        "grade ~ bs(age, df=3)", rows, "ordinal", shards=2, draws=200, check=False, precision="single"
    )
    table = posterior.marginal_effects("age", data=rows)
    assert table.index.names == ["effect", "level"]
    assert abs(table["mean"].sum()) < 1e-9  # probabilities sum to one
    contrast = posterior.contrast("age", (20.0, 70.0), data=rows)
    assert contrast.loc[("70.0 - 20.0", "2"), "mean"] > 0 > contrast.loc[("70.0 - 20.0", "0"), "mean"]


def test_what_cannot_be_compared(policies, poisson, logistic):
    refused = {
        r"Unknown predictor 'aeg'\. Did you mean 'age'": lambda: poisson.contrast(
            "aeg", (1, 2), data=policies
        ),
        r"Unknown predictor 'regio'\. Did you mean 'region'": lambda: poisson.contrast(
            "regio", data=policies
        ),
        "Which values of 'age' should be compared": lambda: poisson.contrast("age", data=policies),
        "two or more values of 'age'": lambda: poisson.contrast("age", (30,), data=policies),
        r"Give the rows to average over \(data=\), or values of 'age', 'months'": lambda: poisson.contrast(
            "region"
        ),
        "not a probability, so it has no odds": lambda: poisson.contrast(
            "region", data=policies, compare="odds_ratio"
        ),
        "gives no ratio on the scale of the linear predictor": lambda: logistic.contrast(
            "region", data=policies, compare="ratio", scale="link"
        ),
        "Unknown comparison 'odds'": lambda: logistic.contrast("region", data=policies, compare="odds"),
        "Unknown scale 'response'": lambda: logistic.contrast("region", data=policies, scale="response"),
        "'age' changes its value": lambda: poisson.contrast("age", (1, 2), data=policies, at={"age": 3}),
        "Unknown column 'town'": lambda: poisson.marginal_effects("age", data=policies, by="town"),
    }
    for words, call in refused.items():
        with pytest.raises(OptionError, match=words):
            call()
    model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    plain = shardmc.fit(model, np.arange(9.0), shards=1, draws=50, check=False, precision="single")
    with pytest.raises(RunError, match="a model without a formula"):
        plain.marginal_effects("age", data=policies)


def test_figures(policies, logistic):
    contrasts = logistic.plot_contrast("region", data=policies, compare="ratio")
    effects = logistic.plot_marginal_effects("age", data=policies, by="region")
    for figure, count, nothing in ((contrasts, 2, 1.0), (effects, 3, 0.0)):
        assert isinstance(figure, Figure)
        axes = figure.axes[0]
        assert len(axes.get_yticks()) == count
        assert axes.lines[-1].get_xdata()[0] == nothing
    assert [label.get_text() for label in effects.axes[0].get_yticklabels()] == list(REGIONS)


@pytest.fixture(scope="module")
def grouped():
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(20), 15)
    rows = pd.DataFrame({"g": [f"g{k}" for k in g], "x": rng.normal(size=300)})
    rows["y"] = rng.normal(size=20)[g] + 2 * rows["x"] + rng.normal(size=300)
    return rows, shardmc.glm("y ~ x + (1 | g)", rows, shards=1, draws=300, check=False, precision="single")


@pytest.mark.slow
def test_group_terms(grouped):
    rows, posterior = grouped
    check(posterior.contrast("x", (0, 1), data=rows, draws=10_000).loc["1 - 0"], posterior.draws["x"])
    found = posterior.contrast("g", ("g0", "g7"), at={"x": 0.0}, draws=300)
    exact = posterior.effects("g")["mean"]
    error = found["sd"].iloc[0] / np.sqrt(300)
    assert abs(found["mean"].iloc[0] - (exact["g7"] - exact["g0"])) < 6 * error
    of_nobody = posterior.contrast("x", (0, 1), at={}, groups="population", draws=10_000)
    check(of_nobody.loc["1 - 0"], posterior.draws["x"])
    with pytest.raises(OptionError, match=r"or values of 'x' \(at=\)"):
        posterior.contrast("g", ("g0", "g7"))
