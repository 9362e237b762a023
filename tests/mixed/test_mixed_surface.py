"""Mixed models as a user meets them: refusals, warnings, the command line, and what a posterior offers."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import shardmc
from shardmc.cli.app import app
from shardmc.data import as_source
from shardmc.errors import DataError, ModelError, OptionError, ShardmcError
from shardmc.formulas.families import Family, Gaussian, Poisson, named_family
from shardmc.formulas.preparing import Prepared, prepare

MEASURES_PRECISION = False


def table(groups: int = 20, rows: int = 10) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(groups), rows)
    count = len(g)
    return pd.DataFrame(
        {
            "y": rng.normal(size=groups)[g] + rng.normal(size=count),
            "b": rng.integers(0, 2, count),
            "c": rng.poisson(2.0, count),
            "x": rng.normal(size=count),
            "z": rng.normal(size=count),
            "g": [f"g{k}" for k in g],
            "of_group": rng.normal(size=groups)[g],
            "school": g // 2,
            "class": g % 2,
            "row": np.arange(count),
        }
    )


def prepared(formula: str, rows: pd.DataFrame | None = None, family: Family | None = None) -> Prepared:
    """A formula on a table up to the point where it would be fitted."""
    rows = table() if rows is None else rows
    options = {"offset": None, "exposure": None, "trials": None, "drop_missing": False}
    return prepare(formula, as_source(rows), family or Gaussian(), None, **options)


@pytest.mark.parametrize(
    ("formula", "family", "error", "match"),
    [
        ("y ~ x | g", "gaussian", ModelError, r"in parentheses, as in 'y ~ x \+ \(1 \| g\)'"),
        ("y ~ (x + (1 | g))", "gaussian", ModelError, "inside other parentheses"),
        ("y ~ g + (1 | g)", "gaussian", ModelError, "Leave out one of them"),
        ("c ~ x + (1 | c)", "poisson", ModelError, "The response 'c' also names groups"),
        ("b ~ (1 | row)", "bernoulli", DataError, "a group of one row says nothing"),
        ("y ~ x + (1 + C(school) * x * z | g)", "gaussian", ModelError, "correlations; at most 200"),
        ("y ~ x + (1 | g/school)", "gaussian", DataError, r"write \(1 \| school/g\)"),
        ("y ~ s(x) + (1 | g)", "gaussian", ModelError, r"bs\(x, df=5\)"),
    ],
)
def test_what_cannot_be_fitted_is_one_sentence(
    formula: str, family: str, error: type[ShardmcError], match: str
) -> None:
    with pytest.raises(error, match=match) as caught:
        prepared(formula, family=named_family(family))
    assert "\n" not in str(caught.value)


def test_many_effects_need_groups_of_similar_size() -> None:
    rows, formula, family = table(100, 2), "b ~ (1 + x + z + row || g)", named_family("bernoulli")
    assert prepared(formula, rows, family).design.unit is not None
    rows["g"] = np.where(np.arange(200) < 80, rows["g"], "large")  # 40 groups of 2 and one of 120
    with pytest.raises(
        ModelError, match="groups must be of similar size, but the largest has 120 rows"
    ) as caught:
        prepared(formula, rows, family)
    assert "\n" not in str(caught.value)


def test_too_many_effects_as_parameters_are_refused_with_their_number() -> None:
    rows = table(1_500, 2).assign(h=np.tile(np.arange(1_001), 3)[:3_000])
    with pytest.raises(ModelError, match="'h' has 1,001"):
        prepared("y ~ (1 | g) + (1 | h)", rows)


def test_rows_of_groups_are_not_stratified() -> None:
    with pytest.raises(OptionError, match="stratify= cannot be used"):
        shardmc.glm("y ~ x + (1 | g)", table(), stratify="school")


def test_counts_may_have_a_group_for_every_row() -> None:
    """Such an effect is overdispersion, which counts do show."""
    assert prepared("c ~ (1 | row)", family=Poisson()).source.num_units == 200


@pytest.mark.parametrize(
    ("formula", "groups"),
    [("y ~ (1 | school/class)", {"school": 10, "school:class": 20}), ("y ~ (1 | class:g)", {"class:g": 20})],
)
def test_nested_groups_and_interactions_are_found(formula: str, groups: dict[str, int]) -> None:
    factors = prepared(formula).design.factors
    assert {factor.name: len(factor.levels) for factor in factors} == groups


def test_few_groups_are_a_warning_with_their_number() -> None:
    (finding,) = prepared("y ~ x + (1 | g)", table(5)).findings
    assert finding.level == "warning"
    assert "'g' has 5 groups" in finding.message
    assert 'priors={"sd_g__Intercept"' in finding.advice
    assert not prepared("y ~ x + (1 | g)", table(8)).findings


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_slope_that_varies_in_no_group_is_a_warning(shuffled: bool) -> None:
    rows = table().sample(frac=1, random_state=0) if shuffled else table()
    (finding,) = prepared("y ~ x + (1 + x + of_group | g)", rows).findings
    assert finding.level == "warning"
    assert finding.values == {"factor": "g", "columns": ["of_group"]}
    assert not prepared("y ~ x + (1 + x | g)", rows).findings


@pytest.mark.parametrize(
    ("model", "match"),
    [
        ("y ~ x + (1 | g)", "Give a formula and all rows to shardmc.glm"),
        (print, "is a function, not a shardmc.Model"),
    ],
)
def test_only_glm_takes_a_formula(model: Any, match: str) -> None:
    for call in (shardmc.fit, lambda model, rows: shardmc.sample_shard(model, rows, share=0.5)):
        with pytest.raises(ModelError, match=match):
            call(model, table())


FORMULA = "c ~ x + (1 | g)"
OPTIONS = {"family": "poisson", "shards": 2, "draws": 200}


def command(*arguments: object) -> str:
    """What a command prints, in one line; a mistake is raised as itself."""
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows, and with a run of the command line."""
    made = tmp_path_factory.mktemp("mixed")
    table(60, 5).to_parquet(made / "rows.parquet")
    options = [part for name, value in OPTIONS.items() for part in (f"--{name}", value)]
    shown = command("fit", made / "rows.parquet", FORMULA, *options, "--out", made / "run")
    assert "sd_g__Intercept ~ half_student_t(3, 2.5)" in shown
    assert "repeated" not in shown
    assert "<html" in (made / "run" / "report.html").read_text()
    return made


@pytest.mark.slow
def test_the_command_line_predicts_known_and_new_groups(folder: Path) -> None:
    new = pd.DataFrame({"x": [0.0, 0.0], "g": ["g0", "new"]})
    new.to_parquet(folder / "new.parquet")
    predicted = {}
    for groups in ("known", "population"):
        out = folder / f"{groups}.parquet"
        command("predict", folder / "run", folder / "new.parquet", "--out", out, "--groups", groups)
        predicted[groups] = pd.read_parquet(out)["mean"].to_numpy()
    assert predicted["known"][0] != predicted["known"][1]
    assert predicted["population"][0] == predicted["population"][1]
    with pytest.raises(OptionError, match="Valid: known, new, population"):
        command(
            "predict", folder / "run", folder / "new.parquet", "--out", folder / "x.csv", "--groups", "all"
        )


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_the_same_draws(folder: Path) -> None:
    class Interruption(Exception):
        pass

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "sample" and done:
            raise Interruption

    rows, run = folder / "rows.parquet", folder / "interrupted"
    with pytest.raises(Interruption):
        shardmc.glm(FORMULA, str(rows), **OPTIONS, run_dir=run, progress=interrupt)
    resumed = shardmc.glm(FORMULA, str(rows), **OPTIONS, run_dir=run)
    loaded = shardmc.load(folder / "run")
    assert all((resumed.draws[name] == values).all() for name, values in loaded.draws.items())
    assert loaded.effects("g").equals(resumed.effects("g"))


@pytest.mark.slow
def test_rows_cannot_be_appended_to_a_mixed_model(folder: Path) -> None:
    model = shardmc.Model(lambda params, rows: -(params["mu"] ** 2) * rows["x"], None, {"mu": ()})
    with pytest.raises(OptionError, match="Fit all rows again"):
        shardmc.append(folder / "run", model, table())


@pytest.mark.cluster
def test_dask_gives_the_same_draws(folder: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        found = shardmc.glm(FORMULA, table(60, 5), **OPTIONS, engine=shardmc.Dask(client))
    loaded = shardmc.load(folder / "run")
    assert all((found.draws[name] == values).all() for name, values in loaded.draws.items())


@pytest.mark.slow
def test_effects_are_drawn_in_their_order(folder: Path) -> None:
    posterior = shardmc.load(folder / "run")
    (axes,) = posterior.plot_effects("g").axes
    points = axes.lines[0].get_xdata()
    assert len(points) == 60
    assert (np.diff(points) >= 0).all()
    assert "g of" not in axes.get_xlabel()
    (few,) = posterior.plot_effects(most=10).axes
    assert len(few.lines[0].get_xdata()) == 10
    assert "10 of 60" in few.get_xlabel()


@pytest.mark.slow
def test_small_groups_of_a_right_model_pass_the_predictive_check():
    """Effects learnt from five rows each would make the lowest predictions look too high. Seen with p = 0.000.

    Three p-values of a right model: one below 0.002 by chance in about 1 of 160 data sets.
    """
    rng = np.random.default_rng(4)
    g, x = np.repeat(np.arange(300), 5), rng.normal(size=1_500)
    intercepts, slopes = 0.9 * rng.normal(size=(2, 300))
    eta = -0.3 + 0.5 * x + intercepts[g] + slopes[g] * x
    table = {"g": g, "x": x, "y": (rng.random(1_500) < 1 / (1 + np.exp(-eta))).astype(int)}
    fit = partial(shardmc.glm, family="bernoulli", draws=400, shards=1, check=False, nodes=7)
    right = fit("y ~ x + (1 + x | g)", table)
    assert right.predictive_check(table)["p"].min() > 0.002
    bent = table | {"y": (rng.random(1_500) < 1 / (1 + np.exp(3 - 2 * x**2))).astype(int)}
    wrong = fit("y ~ x + (1 + x | g)", bent)
    assert wrong.predictive_check(bent)["p"].min() < 0.002
