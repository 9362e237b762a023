"""Fitted formulas against the posterior of all rows; what a posterior keeps, and its predictions."""

import numpy as np
import pandas as pd
import pytest
from arviz_stats.base import array_stats
from scipy import stats

import shardmc
from shardmc.errors import DataError, OptionError, RunError
from shardmc.formulas import Prior, design_of, glm, posterior_predictive_check, predict, predict_file

# Each of about 40 comparisons raises a false alarm with probability below 2.5e-8: 1e-6 in all.
Z = stats.norm.isf(1.25e-8)


@pytest.fixture(scope="module")
def policies():
    rng = np.random.default_rng(1)
    n = 2_000
    table = pd.DataFrame(
        {
            "age": rng.uniform(18, 80, size=n),
            "region": rng.choice(["north", "south", "west"], size=n, p=[0.5, 0.4, 0.1]),
            "year": rng.integers(2010, 2020, size=n),
            "months": rng.uniform(1, 12, size=n),
        }
    )
    eta = -2 - 0.02 * table["age"] + 0.5 * (table["region"] == "south") + 0.03 * (table["year"] - 2015)
    table["claims"] = rng.poisson(np.exp(eta) * table["months"])
    table["storm"] = rng.poisson(rng.gamma(0.8, np.exp(eta + 2.5) / 0.8))
    table["cost"] = 1e5 + 30 * table["age"] + 400 * (table["region"] == "west") + rng.normal(size=n) * 500
    return table


@pytest.fixture(scope="module")
def poisson(policies):
    return glm("claims ~ age + region", policies, "poisson", exposure="months", shards=4, draws=4_000, seed=3)


def sampling_error(posterior, reference):
    """Parameter -> (ours, theirs, difference of means in sds less its Monte Carlo error, log sd ratio less its)."""
    result = {}
    for name, theirs in reference.items():
        ours = posterior.draws[name]
        sizes = [
            array_stats.ess(v.reshape(1, -1), chain_axis=0, draw_axis=1, method="mean")
            for v in (ours, theirs)
        ]
        error = Z * np.sqrt(sum(1 / float(size) for size in sizes))
        mean = abs(ours.mean() - theirs.mean()) / theirs.std()
        spread = abs(np.log(ours.std() / theirs.std()))
        result[name] = (max(mean - error, 0.0), max(spread - error / np.sqrt(2), 0.0))
    return result


def is_close(posterior, reference):
    found = sampling_error(posterior, reference).values()
    return all(mean < 0.1 and spread < np.log(1.1) for mean, spread in found)


@pytest.mark.slow
def test_poisson_with_exposure_is_the_posterior_of_all_rows(policies, poisson, posterior_of_all_rows):
    reference = posterior_of_all_rows(design_of(poisson), policies, 700, 5)
    assert list(poisson.draws) == ["Intercept", "age", "region[T.south]", "region[T.west]"]
    assert is_close(poisson, reference)
    # Negative control: half of the rows are another posterior, and the same test says so.
    half = glm(
        "claims ~ age + region",
        policies,
        "poisson",
        exposure="months",
        weights=np.arange(len(policies)) % 2,
        shards=4,
        draws=4_000,
        check=False,
    )
    assert not is_close(half, reference)


@pytest.mark.slow
def test_gaussian_far_from_zero_is_the_posterior_of_all_rows(policies, posterior_of_all_rows):
    """Response and year are so far from zero that float32 would lose them, were they not shifted."""
    some = policies.iloc[:1_000]
    posterior = glm("cost ~ age + region + year", some, shards=2, draws=4_000, check=False)
    reference = posterior_of_all_rows(design_of(posterior), some, 700, 6)
    assert {"Intercept", "Intercept_centered", "sigma"} <= set(posterior.draws)
    # The intercept is a difference of large numbers: it is compared at the columns' means.
    for draws in (posterior.draws, reference):
        columns = {"age": "age", "year": "year"}
        means = {name: some[column].mean() for name, column in columns.items()}
        means |= {f"region[T.{level}]": (some["region"] == level).mean() for level in ("south", "west")}
        at_means = draws["Intercept"] + sum(draws[name] * mean for name, mean in means.items())
        if draws is reference:
            reference["Intercept"] = at_means
        else:
            centered = at_means
    moved = {**posterior.draws, "Intercept": centered}
    assert is_close(type("Draws", (), {"draws": moved})(), reference)


@pytest.mark.slow
def test_negative_binomial_is_the_posterior_of_all_rows(policies, posterior_of_all_rows):
    some = policies.iloc[:1_000]
    options = {"shards": 2, "draws": 4_000, "check": False, "precision": "single"}
    posterior = glm("storm ~ age + region", some, "negative_binomial", **options)
    assert is_close(posterior, posterior_of_all_rows(design_of(posterior), some, 700, 7))


def test_the_posterior_says_what_was_fitted(poisson):
    regression = poisson.regression
    assert regression.formula == "claims ~ age + region"
    assert regression.family == "Poisson()"
    assert regression.priors["Intercept"].startswith("normal(-")
    assert poisson.names == ("Intercept", "age", "region[T.south]", "region[T.west]")
    assert poisson.certificate is not None
    summary = poisson.summary()
    assert list(summary.index) == list(poisson.draws)
    assert summary[["mean_error", "sd_ratio"]].notna().all().all()


def test_predictions_are_those_of_the_draws(policies, poisson):
    new = policies.iloc[:50]
    eta = (
        poisson.draws["Intercept"][:, None]
        + poisson.draws["age"][:, None] * new["age"].to_numpy()
        + poisson.draws["region[T.south]"][:, None] * (new["region"] == "south").to_numpy()
        + poisson.draws["region[T.west]"][:, None] * (new["region"] == "west").to_numpy()
    )
    expected = np.exp(eta) * new["months"].to_numpy()
    columns = new.drop(columns="claims")  # the response is not needed
    table = predict(poisson, columns, draws=10_000)
    np.testing.assert_allclose(table["mean"], expected.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(table["sd"], expected.std(axis=0, ddof=1), rtol=1e-4)
    np.testing.assert_allclose(table["lower"], np.quantile(expected, 0.025, axis=0), rtol=1e-6)
    assert predict(poisson, columns, kind="draws", draws=100).shape == (100, 50)
    assert list(predict(poisson, columns, kind="mean").columns) == ["mean"]


def test_new_responses_scatter_about_their_expectation(policies, poisson):
    new = policies.iloc[:200]
    mean = predict(poisson, new, kind="mean", draws=2_000)["mean"]
    response = predict(poisson, new, kind="response", draws=2_000)
    # 200 rows, 2,000 simulated responses each; Poisson: the variance is about the mean.
    assert (np.abs(response["mean"] - mean) < 6.5 * np.sqrt(mean / 2_000) + 1e-3).all()
    assert (response["sd"] > 0.8 * np.sqrt(mean)).all()
    covered = (policies["claims"].iloc[:200] <= response["upper"]).mean()
    assert covered > 0.85


def test_a_saved_posterior_predicts_as_before(policies, poisson, tmp_path):
    poisson.save(tmp_path / "posterior.nc")
    again = shardmc.load(tmp_path / "posterior.nc")
    new = policies.iloc[:20]
    pd.testing.assert_frame_equal(predict(again, new), predict(poisson, new))
    pd.testing.assert_frame_equal(again.predict(new), predict(poisson, new))
    np.testing.assert_array_equal(
        again.predict(new, "draws", draws=9), predict(poisson, new, "draws", draws=9)
    )
    arrays = {name: new[name].to_numpy() for name in ("age", "region", "months")}
    pd.testing.assert_frame_equal(
        again.predict(arrays, "response", seed=4), predict(poisson, new, "response", seed=4)
    )
    policies.to_parquet(tmp_path / "new.parquet", row_group_size=700)
    told = []
    count = predict_file(
        again, tmp_path / "new.parquet", tmp_path / "out.parquet", draws=4_200, on_rows=told.append
    )
    assert count.rows == len(policies) == told[-1]
    assert count.incomplete == 0
    assert len(told) > 1  # in pieces
    written = pd.read_parquet(tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(
        written, predict(poisson, policies, draws=4_200), check_exact=False, rtol=1e-9
    )


def test_new_rows_that_cannot_be_predicted(policies, poisson, tmp_path):
    new = policies.iloc[:5]
    with pytest.raises(
        DataError, match="'region' has the level 'east' in 5 rows, which no row of the fit had"
    ):
        predict(poisson, new.assign(region="east"))
    with pytest.raises(OptionError, match="Unknown column 'months'"):
        predict(poisson, new.drop(columns="months"))
    with pytest.raises(DataError, match="holds numbers where the model needs text"):
        predict(poisson, new.assign(region=1))
    with pytest.raises(DataError, match="must be positive"):
        predict(poisson, new.assign(months=0))
    with pytest.raises(OptionError, match=r"Unknown kind of prediction 'means'\. Did you mean 'mean'"):
        predict(poisson, new, kind="means")
    with pytest.raises(DataError, match="level 'east'"):
        predict_file(poisson, new.assign(region="east"), tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_posterior_without_a_formula_says_so(poisson):
    from dataclasses import replace

    with pytest.raises(RunError, match="a model without a formula"):
        predict(replace(poisson, regression=None), {"age": np.zeros(1)})


def test_predictive_check_finds_what_the_model_lacks(policies, poisson):
    good = poisson.predictive_check(policies, draws=300)
    assert (good["p"] > 0.001).all()
    assert {"mean", "sd", "share of zeros", "mean, highest tenth"} <= set(good.index)
    # Negative control: counts of which some are a hundred times what the model expects.
    more = policies.assign(claims=policies["claims"] + 20 * (np.arange(len(policies)) % 40 == 0))
    bad = posterior_predictive_check(poisson, more, draws=300)
    assert bad.loc["max", "p"] < 0.01
    assert bad.loc["sd", "p"] < 0.01


@pytest.mark.slow
def test_a_run_folder_keeps_a_posterior_that_predicts(policies, tmp_path):
    run = tmp_path / "run"
    posterior = glm(
        "np.log(cost / 1e5) ~ C(np.minimum(year, 2012)) + I(age / 10)",
        policies,
        "student_t(df=5)",
        priors={"I(age / 10)": Prior("normal", (0.0, 1.0))},
        shards=2,
        draws=400,
        check=False,
        run_dir=run,
    )
    assert "I(age / 10)" in posterior.draws
    assert posterior.regression.priors["I(age / 10)"] == "normal(0, 1)"
    again = shardmc.load(run)
    new = policies.iloc[:3]
    pd.testing.assert_frame_equal(predict(again, new), predict(posterior, new))
