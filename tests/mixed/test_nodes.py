"""How many nodes quadrature uses."""

import numpy as np
import pandas as pd
import pytest

import shardmc
from shardmc.errors import OptionError, RunError
from shardmc.pipeline import grouping
from shardmc.report.tables import call, run_pairs

MEASURES_PRECISION = False


@pytest.mark.slow
@pytest.mark.parametrize(
    "draws", [pytest.param(grouping._DRAWS, id="default"), pytest.param(3, id="control")]
)
def test_five_corrected_nodes_are_not_enough_for_small_groups(draws, monkeypatch) -> None:
    """They miss 4 % of the curvature, of which few draws show half: the control."""
    rng = np.random.default_rng(3)
    g, x = np.repeat(np.arange(400), 3), rng.normal(size=1_200)
    eta = -0.3 + 0.6 * x + 1.5 * rng.normal(size=400)[g]
    table = pd.DataFrame({"g": g, "x": x, "y": (rng.random(1_200) < 1 / (1 + np.exp(-eta))).astype(int)})
    chosen = []

    class Enough(Exception):
        pass

    def use_nodes(self, nodes) -> None:
        chosen.append(nodes)
        raise Enough

    monkeypatch.setattr(grouping, "_DRAWS", draws)
    monkeypatch.setattr(grouping._Search, "use_nodes", use_nodes)
    with pytest.raises(Enough):
        shardmc.glm("y ~ x + (1 | g)", table, "bernoulli", draws=100)
    assert (chosen[0].few == 5) == (draws == 3)


@pytest.fixture(scope="module")
def pairs():
    """Groups of three binary rows with a large sd, for which Laplace's approximation is far off."""
    rng = np.random.default_rng(1)
    g = np.repeat(np.arange(500), 3)
    eta = 2.0 * rng.normal(size=500)[g]
    return pd.DataFrame(
        {"g": g, "x": rng.normal(size=1_500), "y": (rng.random(1_500) < 1 / (1 + np.exp(-eta))) * 1}
    )


def with_nodes(table, nodes, **options):
    options |= {"draws": 200, "shards": 1, "check": False, "predictive": False}
    return shardmc.glm("y ~ 1 + (1 | g)", table, "bernoulli", nodes=nodes, **options)


@pytest.mark.slow
def test_the_number_of_nodes_is_used_and_shown(pairs, tmp_path, monkeypatch) -> None:
    used = []
    use = grouping._Search.use_nodes
    monkeypatch.setattr(
        grouping._Search, "use_nodes", lambda self, nodes: (used.append(nodes), use(self, nodes))
    )
    one, chosen = with_nodes(pairs, 1, run_dir=tmp_path), with_nodes(pairs, "auto")
    assert [tuple(nodes) for nodes in used[:1]] == [(1, 1, 3)]
    assert (one.plan.nodes, one.plan.nodes_of_correction) == (1, None)
    assert chosen.plan.nodes == used[1].few > 1
    assert chosen.plan.nodes_of_correction == (used[1].finer if used[1].few < used[1].enough else None)
    assert ("nodes of quadrature", "1") in run_pairs(one)
    assert "nodes=1" in (call(one.plan, one.regression) or "")
    sds = [posterior.draws["sd_g__Intercept"] for posterior in (one, chosen)]
    assert abs(sds[0].mean() - sds[1].mean()) > sds[1].std()  # one node is Laplace's approximation
    with pytest.raises(RunError, match="nodes"):
        with_nodes(pairs, 13, run_dir=tmp_path)


@pytest.mark.parametrize(
    ("formula", "family", "nodes", "message"),
    [
        ("y ~ x + (1 | g)", "bernoulli", 0, "positive whole number"),
        ("y ~ x + (1 | g)", "bernoulli", 2.5, "positive whole number"),
        ("y ~ x + (1 | g)", "bernoulli", "many", "positive whole number"),
        ("y ~ x + (1 | g)", "bernoulli", 101, "at most 100"),
        ("y ~ x + (1 + x | g)", "bernoulli", 41, "2 effects per group there may be at most 40"),
        ("x ~ y + (1 | g)", "gaussian", 9, "Leave nodes out"),
        ("y ~ x", "bernoulli", 9, "Leave nodes out"),
    ],
)
def test_nodes_that_make_no_sense_are_refused(pairs, formula, family, nodes, message, monkeypatch) -> None:
    monkeypatch.setattr("shardmc.pipeline.driver.Driver.run", None)  # nothing is computed
    with pytest.raises(OptionError, match=message):
        shardmc.glm(formula, pairs, family, nodes=nodes, draws=100)
