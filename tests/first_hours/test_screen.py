"""While it runs, and what it prints: progress, tables, findings and the report, in the words that a user would type."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from types import ModuleType, SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import shardmc
from shardmc.cli.printing import as_data
from shardmc.errors import OptionError
from shardmc.pipeline import progress as shown


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"x": rng.normal(size=4_000), "g": rng.choice(["north", "south"], 4_000)})
    rows["y"] = 1 + 0.5 * rows["x"] + (rows["g"] == "south") + rng.normal(size=4_000)
    return rows


OPTIONS = {"shards": 4, "draws": 400}


class Terminal(io.StringIO):
    """What stderr is where a person is looking."""

    def isatty(self) -> bool:
        return True


@contextmanager
def a_person_looks(monkeypatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stderr(Terminal()) as stream:
        yield stream


def test_a_terminal_shows_bars_by_default_and_stdout_stays_clean(table, monkeypatch, capsys):
    with a_person_looks(monkeypatch) as screen:
        shardmc.glm("y ~ x", table, **OPTIONS)
    assert "sample" in screen.getvalue()
    assert "check" in screen.getvalue()
    assert capsys.readouterr().out == ""


def test_progress_false_shows_nothing(table, monkeypatch):
    with a_person_looks(monkeypatch) as screen:
        shardmc.glm("y ~ x", table, **OPTIONS, progress=False)
    assert screen.getvalue() == ""


def test_a_log_file_gets_no_bars_even_where_colours_are_forced(table, monkeypatch):
    monkeypatch.delenv("TTY_INTERACTIVE")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with redirect_stderr(io.StringIO()) as log:
        shardmc.glm("y ~ x", table, **OPTIONS)
    assert log.getvalue() == ""


def test_without_a_terminal_nothing_is_shown_unless_it_is_asked_for(table, capfd):
    shardmc.glm("y ~ x", table, **OPTIONS)
    assert capfd.readouterr() == ("", "")
    shardmc.glm("y ~ x", table, **OPTIONS, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "shardmc: sample ..." in err
    assert "shardmc: check: done after" in err


def test_a_function_is_told_every_stage(table):
    told = []
    shardmc.glm("y ~ x", table, **OPTIONS, progress=lambda *event: told.append(event))
    assert {stage for stage, _, _ in told} >= {"read", "split", "locate", "sample", "check"}
    assert [event for event in told if event[0] == "sample"][1:-1] == [("sample", k, 4) for k in (1, 2, 3, 4)]


def test_progress_must_be_something_that_shows_it(table):
    with pytest.raises(OptionError, match="progress must be True, False or a function"):
        shardmc.glm("y ~ x", table, progress="bar")


def test_bars_are_gone_when_a_fit_fails_and_come_again(table, monkeypatch):
    with a_person_looks(monkeypatch) as screen:
        with pytest.raises(shardmc.ShardmcError):
            shardmc.glm("y ~ z", table, **OPTIONS)
        assert screen.getvalue().endswith("\x1b[2K")  # the last line is erased
        shardmc.glm("y ~ x", table, **OPTIONS)
    assert "sample" in screen.getvalue()


def test_a_notebook_shows_bars_in_the_cell_and_takes_them_away(table, monkeypatch):
    pictures = []

    class Handle:
        def update(self, picture, raw=False):
            pictures.append(picture)

    def display(picture, display_id):
        pictures.append(picture._repr_mimebundle_([], [])["text/html"])
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    shardmc.glm("y ~ x", table, **OPTIONS)
    assert "<pre" in pictures[0]
    assert pictures[-1] == {"text/plain": ""}


def test_sites_and_appended_rows_show_progress_too(capfd):
    y = np.random.default_rng(0).normal(size=1_000)
    model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    site = shardmc.sample_shard(model, y, share=1.0, draws=100, progress=True)
    assert "shardmc: sample" in capfd.readouterr().err
    shardmc.combine_sites([site], progress=True)
    assert "shardmc: combine" in capfd.readouterr().err
    posterior = shardmc.fit(model, y, shards=2, draws=200, check=False)
    shardmc.append(posterior, model, y[:500], check=False, progress=True)
    assert "shardmc: locate" in capfd.readouterr().err


def test_the_hmc_fallback_says_what_it_does_and_counts(table, monkeypatch):
    monkeypatch.setattr("shardmc.sample.sampling.LOW_ACCEPTANCE", {jax.default_backend(): 1.1})
    told = []
    posterior = shardmc.glm("y ~ x", table, shards=3, draws=300, progress=lambda *event: told.append(event))
    assert "HMC" in posterior.shards.sampler
    part = [event for event in told if event[0].startswith("sample: HMC on ")]
    name, _, total = part[0]
    assert name.endswith("of 3 shards")
    done = [event[1] for event in part]
    # The tuning comes first, and its time tells how long the draws will take.
    assert done[0] == 0
    assert 0 < done[1] < total
    assert done == sorted(done)
    assert done[-1] == total


def test_the_time_left_is_on_the_screen():
    console = Console(file=Terminal(), force_terminal=True, width=120)
    bars = shown.Bars(console)
    bars("sample: HMC on 3 of 20 shards", 0, 1000)
    task = bars.bars.tasks[0]
    began = task.fields["since"][0]
    bars("sample: HMC on 3 of 20 shards", 100, 1000)
    bars.bars.update(task.id, since=(began - 30, began))
    console.print(bars.bars)
    text = console.file.getvalue()
    assert "HMC on 3 of 20 shards" in text
    assert "100/1,000" in text
    assert "left" in text


# Findings can be followed, and do not contradict each other.


def counts(rng: np.random.Generator, noise: float) -> pd.DataFrame:
    """Counts that vary more than a Poisson model allows."""
    rows = pd.DataFrame({"x": rng.normal(size=6_000)})
    rows["y"] = rng.poisson(np.exp(1 + 0.3 * rows["x"] + noise * rng.normal(size=6_000)))
    return rows


@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_that_went_to_shards_at_random_are_not_to_be_shuffled_again(shuffle):
    rows = counts(np.random.default_rng(0), 1.5)
    posterior = shardmc.glm(
        "y ~ x", rows, "poisson", shards=20, draws=400, check=False, certify=False, shuffle=shuffle
    )
    advice = " ".join(f.message + " " + f.advice for f in posterior.findings if f.check == "agreement")
    assert "overdispersion" in advice
    assert ("shuffle=True" in advice) is not shuffle
    assert ("The rows went to shards at random" in advice) is shuffle


def test_a_note_about_repeated_draws_never_says_up_to_1_times():
    from shardmc.combiners.moments import pool

    rng = np.random.default_rng(0)
    _, _, notes = pool([rng.normal(size=(1_000, 1)), rng.normal(size=(10, 1))], np.array([0.97, 0.03]))
    assert notes == (
        "Draws of shard 1 were repeated, each up to 3 times, to give those shards their share of the pooled draws.",
    )


def few_steps(step_size=0.05):
    """A random walk that has not reached the posterior."""
    return shardmc.RandomWalk(warmup=0, thin=1, step_size=step_size, chains=4)


def test_one_shard_gets_no_advice_about_fewer_shards(table):
    posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, sampler=few_steps())
    assert posterior.certificate.verdict != "within"
    for finding in posterior.findings:
        assert "fewer shards" not in finding.advice
        assert "of the shards" not in finding.advice
        assert "1 of 1" not in finding.message
        assert "shard 0" not in finding.message


def test_one_shard_has_one_r_hat(table):
    """The finding, the summary, the shards' table and ArviZ show the same number."""
    posterior = shardmc.glm("y ~ 0 + x", table, shards=1, draws=400, sampler=few_steps())
    (finding,) = [f for f in posterior.findings if "not mixed" in f.message]
    name = finding.message.partition("R-hat of ")[2].partition(" is ")[0]
    shown_in_summary = posterior.summary().loc[name, "r_hat"]
    assert finding.values["r_hat"] == pytest.approx(shown_in_summary, abs=0.005)
    assert posterior.shards.r_hat.max() == pytest.approx(shown_in_summary, abs=0.005)
    assert posterior.tree["posterior"][name].shape == (4, 100)


def test_several_chains_of_several_shards_are_chains(table):
    posterior = shardmc.glm("y ~ x", table, shards=5, draws=400, sampler="hmc", check=False)
    assert posterior.chains == (20, 20)
    assert posterior.summary()["r_hat"].max() < 1.2


def test_within_stands_beside_no_warning_about_chains(table):
    slow = few_steps(step_size=0.3)
    posterior = shardmc.glm("y ~ x", table, shards=8, draws=12_000, sampler=slow)
    assert posterior.certificate.verdict == "within"
    (finding,) = [f for f in posterior.findings if f.check == "chains"]
    assert finding.level == "note"
    assert "The certificate finds means and sds within bounds all the same." in finding.message


def test_a_finding_about_chains_reads_differently_beside_within():
    from shardmc.check import beside_certificate, diagnose

    rng = np.random.default_rng(0)
    chains = [rng.normal(size=(1, 200, 2)) for _ in range(10)]
    chains[3][0, :, 1] += np.linspace(0, 5, 200)
    findings = diagnose(chains, np.full(10, 0.8), np.zeros(10), ["a", "b"]).findings
    assert beside_certificate(findings, within=False) == findings
    (note,) = beside_certificate(findings, within=True)
    assert note.level == "note"
    assert "have not mixed" not in note.message
    assert "within bounds" in note.message


def test_a_logarithm_is_never_proposed_as_an_exposure():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"months": rng.integers(0, 12, 1_000), "x": rng.normal(size=1_000)})
    rows["claims"] = rng.poisson(0.1 * rows["months"])
    with pytest.raises(shardmc.ShardmcError) as refused:
        shardmc.glm("claims ~ x", rows, "poisson", offset="np.log(months)")
    assert "exposure" not in str(refused.value)
    assert "where 'months' is zero or below, it has no logarithm" in str(refused.value)
    with pytest.raises(shardmc.ShardmcError, match="give exposure='months' instead"):
        shardmc.glm("claims ~ x", rows, "poisson", exposure="np.log(months)")


def test_a_slash_in_a_name_stays_a_slash(table, tmp_path):
    rows = table.rename(columns={"x": "km/h"})
    posterior = shardmc.glm("y ~ `km/h`", rows, **OPTIONS, check=False)
    again = shardmc.load(posterior.save(tmp_path / "posterior.nc"))
    for each in (posterior, again):
        assert "km/h" in each.draws
        assert "km/h" in each.summary().index
        page = each.report(tmp_path / "report.html").read_text()
        assert "km/h" in page
        assert "÷" not in page
        assert "km/h" in each._repr_html_()


# What the command line prints.


@pytest.fixture
def rows(table, tmp_path):
    table.to_parquet(tmp_path / "rows.parquet")
    return tmp_path


FIT = ("fit", "rows.parquet", "y ~ x + g", "--shards", "4", "--draws", "400", "--no-report")


def test_json_on_stdout_is_json_and_nothing_else(rows, command):
    done = command(*FIT, "--out", "run", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["formula"] == "y ~ x + g"
    assert found["data"] == "rows.parquet"
    assert found["rows"] == 4_000
    assert [each["parameter"] for each in found["parameters"]] == ["Intercept", "x", "g[T.south]", "sigma"]
    assert found["parameters"][1]["mean"] == pytest.approx(0.5, abs=0.1)
    assert "Wrote run/posterior.nc." in done.stderr
    assert json.loads(command("summary", "run", "--json").stdout) == found


def test_csv_on_stdout_is_a_table(rows, command):
    done = command(*FIT, "--out", "run", "--csv", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    read = pd.read_csv(io.StringIO(done.stdout), index_col="parameter")
    pd.testing.assert_frame_equal(read, shardmc.load(rows / "run").summary(), check_exact=False)


def test_quiet_prints_nothing_and_verbose_every_stage(rows, command):
    done = command(*FIT, "--out", "run", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = command(*FIT, "--out", "again", "--verbose")
    assert "shardmc: sample ..." in done.stderr
    assert "Model: y ~ x + g, family gaussian, rows of rows.parquet" in done.stdout
    both = command(*FIT, "--out", "again", "--verbose", "--quiet")
    assert both.returncode == 2
    assert "--quiet and --verbose exclude each other" in both.stderr


def test_long_names_are_whole_and_all_parameters_are_there_on_request(tmp_path, command, monkeypatch):
    rng = np.random.default_rng(0)
    levels = [f"a department with a very long name, number {k:02d}" for k in range(70)]
    rows = pd.DataFrame({"department": np.repeat(levels, 60), "y": rng.normal(size=4_200)})
    rows.to_parquet(tmp_path / "rows.parquet")
    fit = (
        "fit",
        "rows.parquet",
        "y ~ department",
        "--shards",
        "2",
        "--draws",
        "200",
        "--no-report",
        "--out",
        "run",
    )
    some = command(*fit, "--certify-draws", "20")
    assert "... and 11 more parameters: --all shows them." in some.stdout
    monkeypatch.delenv("COLUMNS")
    every = command("summary", "run", "--all").stdout
    for level in levels[1:]:
        assert f"department[T.{level}]" in every  # in a pipe nothing is folded
    assert "…" not in every
    monkeypatch.setenv("COLUMNS", "80")
    folded = command("summary", "run", "--all").stdout
    assert "…" not in folded
    assert max(map(len, folded.splitlines())) <= 80


def test_force_replaces_a_run_and_nothing_else(rows, command):
    assert command(*FIT, "--out", "run").returncode == 0
    (rows / "run" / "notes.txt").write_text("mine")
    other = ("fit", "rows.parquet", "y ~ x", *FIT[3:], "--out", "run")
    refused = command(*other)
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    # A mistake in the new call costs nothing.
    assert command("fit", "rows.parquet", "y ~ z", "--out", "run", "--force").returncode == 2
    assert command(*other, "--weights", "nosuch", "--force").returncode == 2
    assert "g[T.south]" in shardmc.load(rows / "run").draws
    assert command(*other, "--force").returncode == 0
    assert list(shardmc.load(rows / "run").draws) == ["Intercept", "x", "sigma"]
    assert (rows / "run" / "notes.txt").read_text() == "mine"


def test_force_leaves_a_folder_alone_that_is_not_a_run(rows, command):
    folder = rows / "thesis"
    folder.mkdir()
    (folder / "posterior.nc").write_text("mine")
    refused = command(*FIT, "--out", "thesis", "--force")
    assert refused.returncode == 2
    assert "is not a run folder" in refused.stderr
    assert (folder / "posterior.nc").read_text() == "mine"


def test_a_file_is_not_replaced_by_accident(rows, command):
    command(*FIT, "--out", "run", "--quiet")
    predict = ("predict", "run", "rows.parquet", "--out", "predicted.csv")
    assert command(*predict).returncode == 0
    refused = command(*predict)
    assert refused.returncode == 2
    assert "predicted.csv exists already" in refused.stderr
    assert command(*predict, "--force").returncode == 0


# What Intercept_centered is.


@pytest.fixture(scope="module")
def years(table):
    rng = np.random.default_rng(1)
    rows = table.assign(year=rng.integers(2000, 2024, len(table)))
    return shardmc.glm("y ~ x + year", rows, **OPTIONS)


def test_a_centred_intercept_is_explained_wherever_it_is_shown(years, tmp_path):
    assert "Intercept_centered" in years.summary().index
    (note,) = [note for note in years.notes if "Intercept_centered" in note]
    assert note.startswith("Intercept_centered is the value of Intercept of a row with year at 2011.")
    page = years.report(tmp_path / "page.html").read_text()
    assert "Intercept_centered is the value of Intercept" in page
    assert "Intercept_centered is the value of Intercept" in years._repr_html_()


def test_the_number_of_parameters_is_the_same_everywhere(years, tmp_path):
    many = len(years.summary())
    page = years.report(tmp_path / "page.html").read_text()
    assert f"draws of {many} parameters" in page
    assert f"draws of {many} parameters" in years._repr_html_()
    assert not re.search(rf"\b(?!{many}\b)\d+ parameters\b", page.partition("</header>")[0])


# The report and the notebook say what was fitted, and what was not examined.


@pytest.fixture(scope="module")
def heavy(tmp_path_factory):
    """A Gaussian model of responses with heavy tails, in a file."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"x": rng.normal(size=4_000), "y": rng.standard_t(2, size=4_000)})
    path = tmp_path_factory.mktemp("heavy") / "prices.parquet"
    rows.to_parquet(path)
    return shardmc.glm("y ~ x", str(path), **OPTIONS)


def test_the_report_says_first_what_was_fitted(heavy, tmp_path):
    page = heavy.report(tmp_path / "page.html").read_text()
    top = page.partition('class="verdict')[0]
    for words in ("y ~ x", "gaussian", "prices.parquet", "4,000", heavy.origin["date"]):
        assert words in top.partition("<body>")[2]
    assert "<dt>response</dt><dd>y</dd>" in top


def test_a_saved_posterior_still_knows_its_data(heavy, tmp_path):
    again = shardmc.load(heavy.save(tmp_path / "posterior.nc"))
    assert again.model == heavy.model == "y ~ x, family gaussian, rows of prices.parquet"
    assert again.origin == heavy.origin
    assert again.predictive == heavy.predictive
    assert again.chains == heavy.chains


def test_the_report_says_what_was_not_examined_and_has_a_predictive_check(heavy, tmp_path):
    page = heavy.report(tmp_path / "page.html").read_text()
    assert "<b>Not examined:</b> fit of the model beyond the predictive check, dependence of rows" in page
    assert '<a href="#predictive">' in page
    assert 'id="predictive"' in page
    assert heavy.predictive.statistics["max"]["p"] < 0.01
    (finding,) = [f for f in heavy.findings if f.check == "predictive"]
    assert finding.level == "note"
    assert "does not reproduce" in finding.message


def test_the_predictive_check_can_be_switched_off(table, tmp_path):
    posterior = shardmc.glm("y ~ x", table, **OPTIONS, check=False, predictive=False)
    assert posterior.predictive is None
    page = posterior.report(tmp_path / "page.html").read_text()
    assert 'id="predictive"' not in page
    assert "posterior.predictive_check(rows)" in page


def test_the_report_ends_without_a_dump(heavy, tmp_path):
    page = heavy.report(tmp_path / "page.html").read_text()
    assert heavy.plan.content not in page
    assert "{&#39;" not in page
    assert "normal(0, " in page  # priors are a table


def test_parameters_come_in_the_order_of_the_formula(table, tmp_path):
    rng = np.random.default_rng(0)
    rows = table.assign(**{f"x{k:02d}": rng.normal(size=len(table)) for k in range(30)})
    formula = "y ~ " + " + ".join(f"x{k:02d}" for k in range(30))
    posterior = shardmc.glm(formula, rows, **OPTIONS)
    page = posterior.report(tmp_path / "page.html").read_text()
    shown_names = re.findall(r'<th scope="row">(x\d\d)</th>', page.partition('class="as-error"')[0])
    assert shown_names == [f"x{k:02d}" for k in range(30)]
    assert "largest possible error first" in page
    assert "<script" not in page


def test_the_notebook_says_the_model(heavy):
    page = heavy._repr_html_()
    assert "y ~ x, family gaussian, rows of prices.parquet" in page


def test_the_formula_of_a_mixed_model_has_its_groups(table, tmp_path):
    rows = table.assign(clinic=np.arange(len(table)) % 20)
    posterior = shardmc.glm("y ~ x + (1 | clinic)", rows, shards=2, draws=200, check=False)
    assert posterior.regression.formula == "y ~ x + (1 | clinic)"
    page = posterior.report(tmp_path / "page.html").read_text()
    assert "y ~ x + (1 | clinic)" in page
    shards = page.partition('<section id="shards">')[2].partition("</section>")[0]
    assert ">groups</th>" in shards
    assert ">rows</th>" not in shards  # 10 groups went to each shard, not 10 rows


def test_columns_that_are_options_are_named_with_the_model(table, tmp_path):
    rows = table.assign(count=np.random.default_rng(1).poisson(3, len(table)), years=2.0)
    options = {"family": "poisson", "exposure": "years", "shards": 1, "draws": 200, "check": False}
    posterior = shardmc.glm("count ~ x", rows, **options)
    assert posterior.model == "count ~ x, family poisson, exposure years"
    page = posterior.report(tmp_path / "page.html").read_text()
    assert "<dt>exposure</dt><dd>years</dd>" in page
    assert "exposure=&#39;years&#39;" in page
    assert "<dt>shard</dt><dd>1</dd>" in page
    as_term = shardmc.glm("count ~ x + offset(log(years))", rows, "poisson", shards=1, draws=50, check=False)
    assert as_term.model == "count ~ x, family poisson, offset log(years)"
    assert as_data(as_term)["roles"] == {"offset": "log(years)"}
