"""How many nodes quadrature uses."""

import numpy as np
import pandas as pd
import pytest

import shardmc
from shardmc.pipeline import grouping


@pytest.mark.parametrize(
    "draws", [pytest.param(grouping._DRAWS, id="default"), pytest.param(3, id="control")]
)
def test_three_corrected_nodes_are_not_enough_for_few_groups(draws, monkeypatch) -> None:
    """They miss a tenth of the curvature, which few draws do not show: the control."""
    rng = np.random.default_rng([400, 10, 0, 0])
    g, x = np.repeat(np.arange(400), 10), rng.normal(size=4_000)
    eta = -0.3 + 0.6 * x + (rng.normal(size=(400, 2)) @ np.array([[0.8, 0.15], [0.0, 0.37]]))[g, 0]
    table = pd.DataFrame({"g": g, "x": x, "y": (rng.random(4_000) < 1 / (1 + np.exp(-eta))).astype(int)})
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
    assert (chosen[0].few == 0) == (draws == 3)
