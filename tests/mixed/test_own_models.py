"""Own models with effects of groups: against exact posteriors, and what is refused."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import shardmc
from shardmc.data import as_source
from shardmc.errors import DataError, ModelError, OptionError, ShardmcError
from shardmc.mixed import integrated
from shardmc.mixed.marginal import OwnGroupLikelihood
from shardmc.model.precision import double_precision
from shardmc.pipeline.own_groups import RowsInGroups

GROUPS, ROWS = 500, 5


def binary() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    g = rng.permutation(np.repeat(np.arange(GROUPS), ROWS))
    eta = 0.4 + (0.8 * rng.normal(size=GROUPS))[g]
    y = (rng.random(len(g)) < 1 / (1 + np.exp(-eta))).astype(int)
    return pd.DataFrame({"g": [f"group {k}" for k in g], "y": y, "unused": 0.0})


def logistic(params: Any, rows: Any, effects: Any) -> jax.Array:
    eta = params["mu"] + effects["intercept"]
    return rows["y"] * eta - jnp.logaddexp(0.0, eta)


def log_prior(params: Any) -> jax.Array:
    return -0.5 * params["mu"] ** 2 - params["tau"]


def declared(**changes: Any) -> shardmc.Model:
    given: dict[str, Any] = {
        "log_likelihood": logistic,
        "log_prior": log_prior,
        "parameters": {"mu": (), "tau": "positive"},
        "local": {"intercept": "tau"},
        "groups": "g",
    }
    return shardmc.Model(**given | changes)


MODEL = declared()


def exact(table: pd.DataFrame) -> tuple[dict[str, tuple[float, float]], dict[int, tuple[float, float]]]:
    """Mean and sd of the parameters, and of the effect of a group by its successes, on a grid with 80 nodes."""
    sums = table.groupby("g")["y"].agg(["sum", "count"]).value_counts()
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    log_weights = np.log(weights) - 0.5 * np.log(2 * np.pi)
    mus, taus = np.linspace(0.0, 0.8, 81), np.linspace(0.3, 1.3, 81)
    eta = mus[:, None, None] + taus[None, :, None] * nodes
    terms = {k: k[0] * eta - k[1] * np.logaddexp(0, eta) + log_weights for k in sums.index}
    total = sum(number * logsumexp(terms[k], axis=2) for k, number in sums.items())
    total = total - 0.5 * mus[:, None] ** 2 - taus
    share = np.exp(total - total.max())
    share /= share.sum()

    def moments(part: np.ndarray, values: np.ndarray) -> tuple[float, float]:
        mean = float((part * values).sum())
        return mean, float(np.sqrt((part * values**2).sum() - mean**2))

    effects = {}
    for k, each in terms.items():
        inside = np.exp(each - logsumexp(each, axis=2, keepdims=True)) * share[..., None]
        effects[int(k[0])] = moments(inside, np.broadcast_to(taus[None, :, None] * nodes, inside.shape))
    return {"mu": moments(share.sum(1), mus), "tau": moments(share.sum(0), taus)}, effects


def worst(found: Any, wanted: dict[Any, tuple[float, float]]) -> float:
    """The largest error of means and sds, in units of 0.1 sd and of 10 %."""
    errors = [
        (abs(found[k][0] - m) / (0.1 * s), abs(found[k][1] / s - 1) / 0.1) for k, (m, s) in wanted.items()
    ]
    return float(np.max(errors))


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return binary()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own") / "run"


@pytest.fixture(scope="module")
def posterior(table: pd.DataFrame, folder: Path) -> shardmc.Posterior:
    return shardmc.fit(MODEL, table, draws=4_000, shards=4, run_dir=folder)


@pytest.mark.slow
def test_the_posterior_is_the_exact_one(posterior: shardmc.Posterior, table: pd.DataFrame) -> None:
    """With an effective 2,000 draws a mean is off by 0.1 sd once in 10^5 times, and an sd by 10 % as rarely."""
    wanted, _ = exact(table)
    found = {name: (posterior.draws[name].mean(), posterior.draws[name].std()) for name in wanted}
    assert worst(found, wanted) < 1
    assert posterior.certificate is not None
    assert posterior.certificate.verdict == "within"
    # Negative control: the posterior of other groups.
    other, _ = exact(table.assign(g=np.roll(table["g"], 1)))
    assert worst(found, other) > 1


@pytest.mark.slow
def test_effects_of_groups_are_the_exact_ones(
    posterior: shardmc.Posterior, table: pd.DataFrame, tmp_path: Path
) -> None:
    _, wanted = exact(table)
    posterior.save(tmp_path / "posterior.nc")
    for each in (posterior, shardmc.load(tmp_path / "posterior.nc")):
        effects = each.effects("g")
        assert effects.index.name == "g"
        successes = table.groupby("g")["y"].sum().loc[effects.index]
        found = {k: tuple(effects[successes.to_numpy() == k].iloc[0][["mean", "sd"]]) for k in wanted}
        assert worst(found, wanted) < 1
    draws = posterior.effect_draws("g", groups=["group 7"], draws=4_000)["intercept"]
    mean, sd = wanted[int(successes["group 7"])]
    assert abs(draws.mean() - mean) < 0.1 * sd
    with pytest.raises(OptionError, match="Unknown grouping factor 'h'"):
        posterior.effects("h")


@pytest.mark.slow
def test_an_interrupted_run_resumes(posterior: shardmc.Posterior, table: pd.DataFrame, folder: Path) -> None:
    (folder / "posterior.nc").unlink()
    (folder / "shards" / "00002.npz").unlink()
    again = shardmc.fit(MODEL, table, draws=4_000, shards=4, run_dir=folder)
    np.testing.assert_array_equal(again.theta, posterior.theta)
    twice = declared(log_likelihood=lambda p, rows, e: 2 * logistic(p, rows, e))
    with pytest.raises(ShardmcError, match="model"):
        shardmc.fit(twice, table, draws=4_000, shards=4, run_dir=folder)


@pytest.mark.slow
def test_files_larger_than_memory_give_the_same(
    posterior: shardmc.Posterior, table: pd.DataFrame, tmp_path: Path
) -> None:
    table.to_parquet(tmp_path / "rows.parquet", row_group_size=700)
    rows = as_source(tmp_path / "rows.parquet", memory=0)
    found = shardmc.fit(MODEL, rows, draws=4_000, shards=4, check=False)
    np.testing.assert_allclose(found.theta, posterior.theta, rtol=1e-4, atol=1e-4)


def gaussian(params: Any, rows: Any, effects: Any) -> jax.Array:
    eta = rows["x"] @ params["beta"] + effects["intercept"] + effects["slope"] * rows["x"][:, 1]
    return -0.5 * ((rows["y"] - eta) / params["sigma"]) ** 2 - jnp.log(params["sigma"])


def covariance(params: Any) -> jax.Array:
    between = 0.3 * params["sds"][0] * params["sds"][1]
    return jnp.array([[params["sds"][0] ** 2, between], [between, params["sds"][1] ** 2]])


@pytest.mark.slow
def test_correlated_effects_of_a_normal_response_have_the_closed_form(log_likelihoods: Any) -> None:
    """Groups of 1 to 7 rows, against the multivariate normal density, at one point."""
    rng = np.random.default_rng(1)
    g = rng.permutation(np.repeat(np.arange(40), 1 + np.arange(40) % 7))
    x = np.column_stack([np.ones(len(g)), rng.normal(size=len(g))])
    rows = {"x": x, "y": rng.normal(size=len(g)), "g": g}
    parameters = {"beta": 2, "sds": shardmc.Parameter(2, "positive"), "sigma": "positive"}
    model = shardmc.Model(gaussian, None, parameters, local={("intercept", "slope"): covariance}, groups="g")
    sds, sigma, beta = np.array([0.7, 1.3]), 0.6, np.array([0.4, -0.2])
    params = {"beta": beta, "sds": sds, "sigma": sigma}
    found = log_likelihoods(model, rows, params)
    spread = np.asarray(covariance(params))

    def wanted(spread: np.ndarray, code: int) -> float:
        design, y = x[g == code], rows["y"][g == code]
        around = design @ spread @ design.T + sigma**2 * np.eye(len(y))
        return multivariate_normal.logpdf(y, design @ beta, around) + 0.5 * len(y) * np.log(2 * np.pi)

    np.testing.assert_allclose(found, [wanted(spread, code) for code in range(40)], atol=1e-6)
    # Negative control: without the correlation.
    apart = np.array([wanted(np.diag(sds**2), code) for code in range(40)])
    assert np.abs(found - apart).max() > 0.01


@pytest.mark.slow
def test_a_formula_is_the_same_model(table: pd.DataFrame, log_likelihoods: Any) -> None:
    """Log-likelihoods of groups of the same formula."""
    from shardmc.formulas.families import Bernoulli
    from shardmc.formulas.regression import model_of, prepare

    with double_precision():
        prepared = prepare(
            "y ~ 1 + (1 | g)", as_source(table), Bernoulli(), None,
            offset=None, exposure=None, trials=None, drop_missing=False,
        )  # fmt: skip

    class Formula:
        mode_for = ""

        def open(self, source: Any, seed: int) -> Any:
            return prepared.source, model_of(prepared)

        def finish(self, posterior: Any) -> Any:
            return posterior

    own = log_likelihoods(MODEL, table, {"mu": 0.3, "tau": 0.7})
    other = log_likelihoods(Formula(), table, {"Intercept": 0.3, "sd_g": [0.7]})
    np.testing.assert_allclose(own, other, atol=1e-6)


def small(**changes: Any) -> dict[str, Any]:
    return {"g": np.repeat(np.arange(10), 5), "y": np.tile([0, 1, 1, 0, 1], 10)} | changes


@pytest.mark.parametrize(
    ("changes", "rows", "error", "match"),
    [
        ({"groups": "clinic"}, small(), OptionError, "Unknown group column 'clinic'"),
        ({}, small(g=[None, *range(49)]), DataError, "'g' has 1 missing value"),
        ({}, small(g=np.zeros(50, int)), DataError, "one level in all rows"),
        ({}, small(g=np.linspace(0, 1, 50)), DataError, "whole numbers or text"),
        ({}, small(y=np.r_[np.nan, np.ones(49)]), DataError, "Column 'y' has 1 missing value"),
        ({}, (np.ones(50), np.ones(50)), ModelError, "log_likelihood"),
        ({"local": dict.fromkeys("abcd", "tau")}, small(), ModelError, "declares 4 effects"),
        ({"local": None}, small(), ModelError, "groups= was given without"),
        ({"groups": None}, small(), ModelError, "local= was given without"),
        ({"local": {"intercept": "sd"}}, small(), ModelError, "Unknown parameter of effect intercept"),
        ({"local": {"intercept": "mu"}}, small(), ModelError, "one positive number"),
        ({"local": {"intercept": lambda p: p["mu"]}}, small(), ModelError, "must be positive"),
        ({"local": {"intercept": lambda p: jnp.ones(2)}}, small(), ModelError, "returns shape"),
        ({"local": {"other": "tau"}}, small(), ModelError, "reads effect 'intercept', which does not exist"),
        ({"local": {"intercept": "tau", "slope": 1.0}}, small(), ModelError, "does not read effect 'slope'"),
        ({"log_likelihood": lambda p, r: r["y"]}, small(), ModelError, "log_likelihood raised TypeError"),
        (
            {"log_likelihood": lambda p, r, e: jnp.sum(logistic(p, r, e))},
            small(),
            ModelError,
            "one number for all rows",
        ),
        (
            {"log_likelihood": lambda p, r, e: logistic(p, r, e) + jnp.log(-1.0 - p["mu"] ** 2)},
            small(),
            ModelError,
            "NaN for 50 of 50",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    changes: dict[str, Any], rows: Any, error: type[ShardmcError], match: str
) -> None:
    if isinstance(rows, dict) and isinstance(rows["g"], list):
        rows = pd.DataFrame(rows)
    with pytest.raises(error, match=match) as caught:
        shardmc.fit(declared(**changes), rows)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_what_needs_independent_rows_refuses_effects(
    posterior: shardmc.Posterior, table: pd.DataFrame
) -> None:
    rows = table[["y"]].assign(g=np.arange(len(table)) % 50)
    calls: list[Any] = [
        lambda: shardmc.append(posterior, MODEL, rows),
        lambda: shardmc.sample_shard(MODEL, rows, share=0.5, shard=0),
        lambda: posterior.loo(rows, model=MODEL),
        lambda: shardmc.subsample(MODEL, rows, method="sgld"),
    ]
    for call in calls:
        with pytest.raises(ShardmcError, match=r"groups|mixed model"):
            call()


@pytest.mark.slow
def test_few_groups_are_a_finding(posterior: shardmc.Posterior) -> None:
    assert MODEL.effects is not None
    few = RowsInGroups(("y",), MODEL.effects, pd.Index(range(5)), np.ones(5, int)).describe(posterior)
    assert any(finding.check == "few groups" for finding in few.findings)
    assert not any(finding.check == "few groups" for finding in posterior.findings)


def test_weights_count_rows_and_padding_does_not() -> None:
    """A row of weight 2 is two rows; one of weight 0 is none, even where its log-likelihood is not finite."""
    likelihood = integrated(MODEL).log_likelihood_function
    assert isinstance(likelihood, OwnGroupLikelihood)
    params, effects = {"mu": jnp.array(0.3), "tau": jnp.array(1.0)}, jnp.array([[0.5], [-1.0]])

    def total(y: Any, weights: Any, counted: bool) -> np.ndarray:
        rows = {"y": jnp.asarray(y).T}
        return np.asarray(likelihood.of_stretches(params, rows, effects, jnp.asarray(weights).T, counted))

    twice = total([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], np.ones((2, 3)), True)
    weighted = total([[1.0, 0.0, np.inf], [0.0, 1.0, np.inf]], [[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]], False)
    np.testing.assert_allclose(weighted, twice, rtol=1e-6)


@pytest.mark.slow
def test_report_and_caterpillar_plot(posterior: shardmc.Posterior, tmp_path: Path) -> None:
    posterior.report(tmp_path / "report.html")
    assert ">groups<" in (tmp_path / "report.html").read_text()  # of each shard
    assert posterior.plot_effects("g").axes[0].get_xlabel().startswith("effect of g")
