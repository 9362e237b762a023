"""Weights, and rows that depend on each other."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import shardmc
from shardmc.cli.app import app
from shardmc.errors import DataError, ShardmcError

QUICK = {"shards": 2, "draws": 60, "check": False, "keep": None, "precision": "single"}


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_adjusted_posterior_says_so_everywhere(robust, tmp_path):
    said = (
        "their spread comes from a sandwich (scores of 80 clusters of 'worker'), not from the model. "
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


@pytest.mark.slow
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
    assert "80 clusters of 'worker'" in " ".join(done.output.split())
    loaded = shardmc.load(tmp_path / "run")
    np.testing.assert_allclose(loaded.draws["x"], robust.draws["x"], rtol=1e-4)


@pytest.mark.slow
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
