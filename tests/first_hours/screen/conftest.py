"""Rows that the tests of this folder share."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest


@pytest.fixture(scope="package")
def table():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"x": rng.normal(size=4_000), "g": rng.choice(["north", "south"], 4_000)})
    rows["y"] = 1 + 0.5 * rows["x"] + (rows["g"] == "south") + rng.normal(size=4_000)
    return rows
