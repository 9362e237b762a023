"""Draws and summaries as tables, and one default for all intervals."""

import inspect

import arviz_stats
import numpy as np
import pytest
import typer
from scipy import stats

import shardmc
from shardmc import formulas, report
from shardmc.cli.app import app
from shardmc.errors import OptionError
from shardmc.formulas.group_effects import _standard_ends
from shardmc.posterior.result import INTERVAL, ends


def test_draws_as_a_table_with_flat_names(poisson):
    table = poisson.to_pandas()
    assert list(table.columns) == list(poisson.flat())
    assert table.index.names == ["chain", "draw"]
    posterior = poisson.tree["posterior"].to_dataset()
    assert table.loc[(2, 5), "age"] == posterior["age"].sel(chain=2, draw=5).item()


def test_intervals_of_highest_density_are_those_of_arviz(poisson):
    summary = poisson.summary(0.8, interval_kind="hdi")
    exact = arviz_stats.hdi(poisson.tree["posterior"].to_dataset(), prob=0.8)
    for name in ("Intercept", "age"):
        found = summary.loc[name, ["hdi80_lb", "hdi80_ub"]].to_numpy(float)
        np.testing.assert_array_equal(found, exact[name].to_numpy())
    assert {"10%", "90%"} <= set(poisson.summary(0.8).columns)
    with pytest.raises(OptionError, match="Unknown kind of interval 'hpd'"):
        poisson.summary(interval_kind="hpd")
    with pytest.raises(OptionError, match="interval must lie between 0 and 1"):
        poisson.summary(95)


def test_missing_draws_are_left_out_of_intervals():
    draws = np.random.default_rng(0).normal(size=(1_000, 3))
    draws[:10, 0] = np.nan
    draws[:, 1] = np.nan
    for kind in ("eti", "hdi"):
        lower, upper = ends(draws, 0.9, kind)
        assert (lower[0], upper[0]) == ends(draws[10:, 0], 0.9, kind)
        assert np.isnan([lower[1], upper[1]]).all()


@pytest.mark.parametrize("skewness", [0.0, 0.6, -0.6])
def test_intervals_of_highest_density_of_skewed_effects_are_the_shortest(skewness):
    z = stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    draws = z + (z**2 - 1) * skewness / 6
    found = _standard_ends(np.array(skewness), 0.9, "hdi")
    np.testing.assert_allclose(found, ends(draws, 0.9, "hdi"), atol=0.02)
    assert np.ptp(found) <= np.ptp(_standard_ends(np.array(skewness), 0.9, "eti")) + 1e-12


def test_all_intervals_have_the_same_default():
    functions = [getattr(shardmc.Posterior, name) for name in ("summary", "predict", "effects")]
    functions += [getattr(module, name) for module in (formulas, report) for name in module.__all__]
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    functions += [inspect.unwrap(command.callback) for command in commands]
    found = {
        f"{function.__qualname__}: {option}": parameter.default
        for function in functions
        if inspect.isfunction(function)
        for option, parameter in inspect.signature(inspect.unwrap(function)).parameters.items()
        if option in ("interval", "interval_kind")
    }
    assert len(found) >= 14
    assert {name for name, default in found.items() if default not in (INTERVAL, "eti")} == set()
