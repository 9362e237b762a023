"""The report, the summary and the notebook say what was fitted, and what was not examined."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import shardmc
from shardmc.cli.printing import as_data

OPTIONS = {"shards": 4, "draws": 400}


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
    posterior = shardmc.glm("y ~ x", table, **OPTIONS, check=False, precision="single", predictive=False)
    assert posterior.predictive is None
    page = posterior.report(tmp_path / "page.html").read_text()
    assert 'id="predictive"' not in page
    assert "posterior.predictive_check(rows)" in page


def test_the_report_ends_without_a_dump(heavy, tmp_path):
    page = heavy.report(tmp_path / "page.html").read_text()
    assert heavy.plan.content not in page
    assert "{&#39;" not in page
    assert "normal(0, " in page  # priors are a table


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_formula_of_a_mixed_model_has_its_groups(table, tmp_path):
    rows = table.assign(clinic=np.arange(len(table)) % 20)
    posterior = shardmc.glm(
        "y ~ x + (1 | clinic)", rows, shards=2, draws=200, check=False, precision="single"
    )
    assert posterior.regression.formula == "y ~ x + (1 | clinic)"
    page = posterior.report(tmp_path / "page.html").read_text()
    assert "y ~ x + (1 | clinic)" in page
    shards = page.partition('<section id="shards">')[2].partition("</section>")[0]
    assert ">groups</th>" in shards
    assert ">rows</th>" not in shards  # 10 groups went to each shard, not 10 rows


@pytest.mark.slow
def test_columns_that_are_options_are_named_with_the_model(table, tmp_path):
    rows = table.assign(count=np.random.default_rng(1).poisson(3, len(table)), years=2.0)
    options = {"family": "poisson", "exposure": "years", "shards": 1, "draws": 200, "check": False}
    posterior = shardmc.glm("count ~ x", rows, **options)
    assert posterior.model == "count ~ x, family poisson, exposure years"
    page = posterior.report(tmp_path / "page.html").read_text()
    assert "<dt>exposure</dt><dd>years</dd>" in page
    assert "exposure=&#39;years&#39;" in page
    assert "<dt>shard</dt><dd>1</dd>" in page
    as_term = shardmc.glm(
        "count ~ x + offset(log(years))", rows, "poisson", shards=1, draws=50, check=False, precision="single"
    )
    assert as_term.model == "count ~ x, family poisson, offset log(years)"
    assert as_data(as_term)["roles"] == {"offset": "log(years)"}
