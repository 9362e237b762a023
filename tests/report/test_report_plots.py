"""Figures: each has what it promises, leaves no global state, and refuses what it cannot draw with one sentence."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from shardmc import report
from shardmc.combiners.density import density_curve
from shardmc.errors import OptionError
from shardmc.report.choice import shards_to_draw, worst_first, worst_pair
from shardmc.report.shards import outlying
from shardmc.report.style import COLORS, DARK, TickLabels, to_svg
from shardmc.types import Finding

# Effects and contrasts need a formula: see tests/mixed and tests/after.
OF_FORMULAS = {"plot_effects", "plot_contrast", "plot_marginal_effects"}


@pytest.mark.parametrize("name", sorted({n for n in report.__all__ if n.startswith("plot_")} - OF_FORMULAS))
def test_figures_for_notebooks(name, cases):
    before = dict(matplotlib.rcParams)
    figure = getattr(report, name)(cases["within"])
    assert isinstance(figure, Figure)
    assert figure._repr_svg_().lstrip().startswith("<?xml")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_figures_do_not_import_pyplot(cases):
    import subprocess
    import sys

    code = "import sys, shardmc.report; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_svg_is_well_formed_and_takes_the_pages_colors(cases):
    drawn = to_svg(report.plot_shards(cases["off"]), "Shards < & >", "one")
    root = ElementTree.fromstring(drawn)
    assert root.attrib["aria-label"] == "Shards < & >"
    assert "var(--combined)" in drawn
    assert "var(--alarm)" in drawn
    assert not any(color in drawn for color in COLORS.values())
    assert "font-family" not in drawn


@pytest.mark.parametrize(("palette", "page"), [(COLORS, "#ffffff"), (DARK, "#14181d")])
def test_colors_stand_out_from_the_page(palette, page):
    for meaning, color in palette.items():
        if meaning == "rule":
            continue
        least = 4.5 if meaning in ("ink", "muted", "good", "alarm") else 2.7
        assert _contrast(color, page) >= least, meaning


def _contrast(one: str, other: str) -> float:
    """Contrast ratio of the Web Content Accessibility Guidelines."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    parts = np.array([int(color[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_density_curve_of_normal_draws():
    values = np.random.default_rng(1).normal(2.0, 0.01, size=100_000)
    x, y = density_curve(values, 200)
    # Bias of the kernel (h^2/2 p'') is 1.2 % of the peak here, the noise 0.5 %: five of these are 4 %.
    exact = stats.norm(2.0, 0.01).pdf(x)
    assert np.abs(y - exact).max() < 0.04 * exact.max()
    assert np.trapezoid(y, x) == pytest.approx(1, abs=0.01)
    # Negative control: the same bound rejects draws that are 5 % too wide.
    wide = density_curve(2.0 + 1.05 * (values - 2.0), 200)
    assert np.abs(wide[1] - stats.norm(2.0, 0.01).pdf(wide[0])).max() > 0.04 * exact.max()


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0, 1.0], [np.nan, 2.0], [1e300, 1e300]])
def test_density_of_almost_nothing_is_empty(values):
    x, y = density_curve(np.array(values, float))
    assert len(x) == len(y) == 0


def test_density_with_heavy_tails_keeps_its_peak():
    values = np.random.default_rng(2).standard_cauchy(size=20_000)
    x, y = density_curve(values[np.abs(values) < 1e4], 20_001)
    assert np.interp(0.0, x, y) == pytest.approx(1 / np.pi, rel=0.15)


def test_worst_parameters_come_first(cases):
    off = cases["off"]
    assert off.names[worst_first(off)[0]] == "beta[0]"
    assert 0 in worst_pair(off)
    assert worst_first(cases["uncertified"]) == [0, 1, 2, 3]
    assert worst_pair(cases["one coordinate"]) is None


def test_pair_without_certificate_is_the_most_correlated(cases):
    posterior = cases["uncertified"]
    theta = posterior.theta.copy()
    theta[:, 3] = -2 * theta[:, 1] + 1e-6 * theta[:, 3]
    assert worst_pair(replace(posterior, theta=theta)) == (1, 3)


def test_outlying_shards_are_drawn_and_named(cases):
    off = cases["off"]
    assert set(outlying(off)) == {3, 21}
    assert {3, 21} <= set(shards_to_draw(off, 9))
    assert len(shards_to_draw(off, 9)) == 9
    words = {text.get_text() for axes in report.plot_shards(off).axes for text in axes.texts}
    assert {"shard 3", "shard 21"} <= words
    assert len(outlying(cases["within"])) == 0


def test_many_outlying_shards_are_counted(make_posterior):
    wild = make_posterior(2, 40, corrupted=range(0, 30, 3))
    assert set(outlying(wild)) >= set(range(0, 30, 3))
    (axes,) = report.plot_shards(wild).axes
    assert f"{len(outlying(wild))} shards disagree" in axes.get_title(loc="left")


def test_findings_of_shards_that_do_not_exist_are_left_out(cases):
    strange = (Finding("warning", "agreement", "Shard 99.", "", {"shard": 99, "q": 1e4}),)
    assert len(outlying(replace(cases["within"], findings=strange))) == 0


def test_shards_that_do_not_mix_are_marked(cases):
    figure = report.plot_chains(cases["within"])  # its finding names shard 7
    marked = [line.get_xdata() for line in figure.axes[2].lines if line.get_marker() == "D"]
    assert [list(x) for x in marked] == [[7]]


def test_failed_shards_are_not_drawn(cases):
    assert 5 not in shards_to_draw(cases["failed shard"], 50)
    assert len(shards_to_draw(cases["failed shard"], 50)) == 11


def test_unknown_parameters_are_named(cases):
    posterior = cases["within"]
    with pytest.raises(OptionError, match="Did you mean 'sigma'"):
        report.plot_marginals(posterior, ["sigmaa"])
    with pytest.raises(OptionError, match="no coordinate 9"):
        report.plot_marginals(posterior, [9])
    with pytest.raises(OptionError, match="parameters is empty"):
        report.plot_marginals(posterior, [])
    with pytest.raises(OptionError, match="Unknown parameter 'gamma'"):
        report.plot_forest(posterior, ["gamma"])
    with pytest.raises(OptionError, match="between 0 and 1"):
        report.plot_forest(posterior, interval=95)


def test_what_is_missing_is_said(cases):
    with pytest.raises(OptionError, match="no certificate"):
        report.plot_certificate(cases["uncertified"])
    with pytest.raises(OptionError, match="no shard agreement"):
        report.plot_shards(cases["bare"])
    with pytest.raises(OptionError, match="two coordinates"):
        report.plot_pair(cases["one coordinate"])


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ([0.0, 0.05, 0.1], ["0", "0.05", "0.10"]),
        ([-0.025, 0.0, 0.025], ["−0.025", "0", "0.025"]),
        ([1000.0, 2000.0], ["1,000", "2,000"]),
        ([1e-7, 3e-7], ["1·10⁻⁷", "3·10⁻⁷"]),
        ([2e9, 4e9], ["2·10⁹", "4·10⁹"]),
        ([0.25], ["0.25"]),
        ([], []),
    ],
)
def test_tick_labels(ticks, labels):
    assert TickLabels().format_ticks(ticks) == labels
