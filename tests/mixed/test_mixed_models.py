"""Posteriors of mixed models against exact ones, and what is refused."""

from functools import partial

import jax
import numpy as np
import pandas as pd
import pytest
from scipy.special import gammaln, logsumexp

import shardmc
from shardmc.errors import DataError, ModelError, OptionError, ShardmcError
from shardmc.formulas.groups import split_formula

GROUPS, ROWS, TAU = 600, 5, 0.8
DRAWS = 4_000


def simulated(family: str, groups: int = GROUPS, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    g = rng.permutation(np.repeat(np.arange(groups), ROWS))
    eta = 0.4 + (TAU * rng.normal(size=groups))[g]
    y = rng.random(len(g)) < 1 / (1 + np.exp(-eta)) if family == "bernoulli" else rng.poisson(np.exp(eta))
    return pd.DataFrame({"g": [f"group {k}" for k in g], "y": y.astype(int)})


def exact(
    table: pd.DataFrame, family: str, effects: dict[int, tuple[float, float]] | None = None
) -> dict[str, tuple[float, float]]:
    """Mean and sd of intercept and sd of the groups, on a grid, with every group integrated by 80 nodes.

    With `effects`, those of a group of binary rows are added to it, by the group's number of successes.
    """
    sums = table.groupby("g")["y"].agg(["sum", "count"]).value_counts()
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    log_weights = np.log(weights) - 0.5 * np.log(2 * np.pi)
    mean_y = table["y"].mean()
    center = np.log(mean_y / (1 - mean_y)) if family == "bernoulli" else np.log(mean_y)
    intercepts, taus = np.linspace(center - 0.7, center + 0.4, 56), np.linspace(0.45, 1.2, 56)
    log_posterior = np.zeros((len(intercepts), len(taus)))
    eta = intercepts[:, None, None] + taus[None, :, None] * nodes
    for (total, count), number in sums.items():
        if family == "bernoulli":
            terms = total * eta - count * np.logaddexp(0, eta)
        else:
            terms = total * eta - count * np.exp(np.minimum(eta, 30)) - gammaln(total + 1)
        log_posterior += number * logsumexp(terms + log_weights, axis=2)
    log_posterior += -0.5 * ((intercepts[:, None] - center) / 2.5) ** 2 - 2 * np.log1p((taus / 2.5) ** 2 / 3)
    share = np.exp(log_posterior - log_posterior.max())
    share /= share.sum()
    for total, count in sums.index if effects is not None else ():
        terms = total * eta - count * np.logaddexp(0, eta) + log_weights
        inside = np.exp(terms - logsumexp(terms, axis=2, keepdims=True))
        values = taus[None, :, None] * nodes
        mean = float((share * (inside * values).sum(axis=2)).sum())
        square = float((share * (inside * values**2).sum(axis=2)).sum())
        effects[int(total)] = mean, float(np.sqrt(square - mean**2))
    found = {}
    for name, values, part in (
        ("Intercept", intercepts, share.sum(axis=1)),
        ("sd_g__Intercept", taus, share.sum(axis=0)),
    ):
        mean = float(part @ values)
        found[name] = mean, float(np.sqrt(part @ (values - mean) ** 2))
    return found


def worst(posterior: shardmc.Posterior, reference: dict[str, tuple[float, float]]) -> float:
    """The largest error: of a mean in units of 0.1 sd, of an sd in units of 10 %."""
    errors = []
    for name, (mean, sd) in reference.items():
        draws = posterior.draws[name]
        errors += [abs(draws.mean() - mean) / (0.1 * sd), abs(draws.std() / sd - 1) / 0.1]
    return max(errors)


@pytest.fixture(scope="module")
def binary() -> shardmc.Posterior:
    return shardmc.glm("y ~ 1 + (1 | g)", simulated("bernoulli"), family="bernoulli", draws=DRAWS, shards=4)


@pytest.fixture(scope="module")
def counts() -> shardmc.Posterior:
    return shardmc.glm("y ~ 1 + (1 | g)", simulated("poisson"), family="poisson", draws=DRAWS, shards=4)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "fitted"), [("bernoulli", "binary"), ("poisson", "counts")])
def test_the_posterior_is_the_exact_one(family: str, fitted: str, request: pytest.FixtureRequest) -> None:
    """With an effective 2,000 draws a mean is off by 0.1 sd once in 10^5 times, and an sd by 10 % as rarely."""
    posterior = request.getfixturevalue(fitted)
    assert worst(posterior, exact(simulated(family), family)) < 1
    assert posterior.certificate is not None
    assert posterior.certificate.verdict == "within"


@pytest.mark.slow
def test_another_seed_compiles_nothing_and_another_prior_does(
    counts: shardmc.Posterior, compilations: list[str]
) -> None:
    """The same formula on the same table is the same model, though its rows are in other shards."""

    class Located(Exception):
        pass

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "keep":
            raise Located

    fit = partial(shardmc.glm, "y ~ 1 + (1 | g)", simulated("poisson"), "poisson", draws=DRAWS, shards=4)
    found = fit(seed=1)
    assert not compilations
    assert not np.array_equal(found.theta, counts.theta)
    with pytest.raises(Located):  # the control
        fit(priors={"Intercept": "normal(0, 1)"}, progress=stop)
    assert compilations


@pytest.mark.slow
def test_effects_of_groups_are_the_exact_ones(binary: shardmc.Posterior) -> None:
    """Means within 0.1 sd and sds within 10 %. They follow from moments, so only the parameters' draws vary."""
    table = simulated("bernoulli")
    wanted: dict[int, tuple[float, float]] = {}
    exact(table, "bernoulli", wanted)
    found = binary.effects("g")
    means, sds = np.array([wanted[k] for k in table.groupby("g")["y"].sum().loc[found.index]]).T
    assert np.max(np.abs(found["mean"] - means) / sds) < 0.1
    assert np.max(np.abs(found["sd"] / sds - 1)) < 0.1
    groups = found.index[:6]
    draws = binary.effect_draws("g", groups=list(groups), draws=DRAWS)["Intercept"]
    # 4,000 draws: an error of 0.1 sd is six standard errors.
    assert np.max(np.abs(draws.mean(axis=0) - means[:6]) / sds[:6]) < 0.1
    assert np.max(np.abs(draws.std(axis=0) / sds[:6] - 1)) < 0.1
    # Negative control: the effects of other groups.
    assert np.max(np.abs(found["mean"].to_numpy()[::-1] - means) / sds) > 0.5


@pytest.mark.slow
def test_ignoring_the_groups_fails() -> None:
    """Negative control."""
    table = simulated("bernoulli")
    ignored = shardmc.glm("y ~ 1", table, family="bernoulli", draws=1_000, shards=4, check=False)
    assert worst(ignored, {"Intercept": exact(table, "bernoulli")["Intercept"]}) > 1.5


@pytest.mark.slow
def test_groups_that_are_split_fail() -> None:
    """Negative control: half of each group in one shard and half in another is another model."""
    table = simulated("bernoulli")
    halves = table.assign(g=table["g"] + np.where(np.arange(len(table)) % 2, " a", " b"))
    split = shardmc.glm("y ~ 1 + (1 | g)", halves, family="bernoulli", draws=1_000, shards=4, check=False)
    assert worst(split, exact(table, "bernoulli")) > 1.5


@pytest.mark.parametrize(
    ("text", "fixed", "terms"),
    [
        ("y ~ x + (1 | g)", "y ~ x", [("1", "g", True)]),
        ("y ~ (1 + x || g) + z", "y ~ z", [("1 + x", "g", False)]),
        ("y ~ (1 | a/b)", "y ~ 1", [("1", "a", True), ("1", "a:b", True)]),
        (
            "y ~ x + (0 + x | a:b) + (1 | `my group`)",
            "y ~ x",
            [("0 + x", "a:b", True), ("1", "my group", True)],
        ),
        ("y ~ I(x | z)", "y ~ I(x | z)", []),
    ],
)
def test_group_terms_are_read(text: str, fixed: str, terms: list[tuple[str, str, bool]]) -> None:
    if "I(" in text:
        with pytest.raises(ModelError, match="inside a function"):
            split_formula(text)
        return
    found, groups = split_formula(text)
    assert found == fixed
    assert [(t.effects, t.factor, t.correlated) for t in groups] == terms


def _frame(**columns: object) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(20), 10)
    return pd.DataFrame({"y": rng.normal(size=200), "x": rng.normal(size=200), "g": g} | columns)


@pytest.mark.parametrize(
    ("formula", "change", "error", "match"),
    [
        ("y ~ (1 | g)", {"g": [None, *range(199)]}, DataError, "missing"),
        ("y ~ (1 | g)", {"g": 0}, DataError, "one level in all rows"),
        ("y ~ (1 | g)", {"g": np.arange(200)}, DataError, "a different level in every row"),
        ("y ~ (1 | g)", {"g": np.linspace(0, 1, 200)}, DataError, "whole numbers or text"),
        ("y ~ (1 | nothing)", {}, OptionError, "nothing"),
        ("y ~ (1 + | g)", {}, ModelError, "not understood"),
        ("y ~ (1 | log(g))", {}, ModelError, "names of columns after the bar"),
        ("y ~ (1 | g) + (1 | g)", {}, ModelError, "varies twice"),
        ("y ~ (1 + x | g)", {"x": 1.0}, DataError, "like the intercept"),
        ("y ~ x * (1 | g)", {}, ModelError, "plus sign"),
    ],
)
def test_bad_input_is_one_sentence(
    formula: str, change: dict[str, object], error: type[ShardmcError], match: str
) -> None:
    with pytest.raises(error, match=match) as caught:
        shardmc.glm(formula, _frame(**change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("priors", "match"),
    [
        ({"sd_g__Intercept": "lkj(2)"}, "only they do"),
        ({"cor_g": "normal(0, 1)"}, "only they do"),
        ({"sd_g": "exponential(1)"}, "sd_g__Intercept"),
    ],
)
def test_priors_of_groups(priors: dict[str, str], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        shardmc.glm("y ~ (1 + x | g)", _frame(), priors=priors)


def linear() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    g, x = np.repeat(np.arange(300), 8), rng.normal(size=2_400)
    effects = rng.normal(size=(300, 2)) @ np.array([[0.9, 0.25], [0.0, 0.43]])
    y = 1.0 + 0.5 * x + effects[g, 0] + effects[g, 1] * x + 0.6 * rng.normal(size=2_400)
    return pd.DataFrame({"g": g, "x": x, "y": y})


@pytest.mark.slow
def test_a_normal_response_with_correlated_slopes_has_the_exact_likelihood() -> None:
    """The log-likelihood of groups against the multivariate normal density."""
    from scipy.stats import multivariate_normal

    from shardmc.data import Partition, as_source
    from shardmc.formulas.families import Gaussian
    from shardmc.formulas.linear_model import model_of
    from shardmc.formulas.preparing import prepare
    from shardmc.model.precision import double_precision

    table = linear()
    with double_precision():
        prepared = prepare(
            "y ~ x + (1 + x | g)", as_source(table), Gaussian(), None,
            offset=None, exposure=None, trials=None, drop_missing=False,
        )  # fmt: skip
        model = model_of(prepared)
        blocks = prepared.source.split(Partition(1), seed=0)
        _, batch = next(iter(blocks.batches([0], 1)))
        rows, _ = batch.take(0)
        sds, correlation, sigma = np.array([0.8, 0.5]), 0.3, 0.7
        root = np.array([[1.0, 0.0], [correlation, np.sqrt(1 - correlation**2)]])
        values = {"Intercept": 0.9, "coefficients": [0.4], "sigma": sigma, "sd_g": sds, "cor_g": root}
        found = np.asarray(jax.jit(lambda v, r: model.log_likelihood(model.unconstrain(v), r))(values, rows))
    covariance = (sds[:, None] * root) @ (sds[:, None] * root).T
    scale = prepared.design.scaling.response_scale
    for place, code in enumerate(blocks.layout.order[:5]):
        part = table[table["g"] == code]
        design = np.column_stack([np.ones(len(part)), part["x"]])
        spread = design @ covariance @ design.T + sigma**2 * np.eye(len(part))
        wanted = multivariate_normal.logpdf(part["y"], design @ [0.9, 0.4], spread)
        # The response is scaled, and constants are left out.
        constant = len(part) * (0.5 * np.log(2 * np.pi) + np.log(scale))
        assert found[place] == pytest.approx(wanted + constant, abs=1e-6)


@pytest.mark.slow
def test_the_mode_belongs_to_the_nodes_that_are_used() -> None:
    """Large counts in small groups need more nodes than the search starts with; the draws must follow."""
    rng = np.random.default_rng(3)
    g = np.repeat(np.arange(1_500), 3)
    y = rng.poisson(np.exp(1.0 + (1.2 * rng.normal(size=1_500))[g]))
    table = pd.DataFrame({"g": g, "y": y})
    posterior = shardmc.glm("y ~ 1 + (1 | g)", table, family="poisson", draws=1_000, shards=4)
    assert posterior.certificate is not None
    assert posterior.certificate.verdict == "within"


@pytest.mark.slow
def test_a_second_factor_without_variation_has_a_posterior() -> None:
    """Its sd may be zero. With the effects themselves as parameters the density would have no mode."""
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(200), 8)
    y = (0.8 * rng.normal(size=200))[g] + rng.normal(size=1_600)
    table = pd.DataFrame({"school": g // 20, "class": g % 20, "y": y})
    posterior = shardmc.glm("y ~ 1 + (1 | school/class)", table, draws=500, check=False)
    assert posterior.draws["sd_school__Intercept"].mean() < 0.5
    assert posterior.draws["effects_school"].shape[1:] == (10,)
    assert posterior.draws["sd_school:class__Intercept"].mean() == pytest.approx(0.8, abs=0.2)
