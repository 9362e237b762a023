"""Rows and posteriors that the tests of this folder share."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import shardmc

FEW = {"shards": 2, "draws": 200, "check": False, "keep": None, "precision": "single"}
ROWS = 600


@pytest.fixture(scope="package")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.uniform(18, 80, ROWS),
            "region": rng.choice(["north", "south", "west"], ROWS),
            "sex": rng.choice(["f", "m"], ROWS),
            "shop": rng.integers(0, 12, ROWS),
        }
    )
    effect = rng.normal(0, 0.7, 12)[table["shop"]]
    eta = 1 + 0.02 * table["age"] - 0.5 * (table["region"] == "south") + effect
    table["spent"] = eta + rng.normal(0, 0.5, ROWS)
    table["bought"] = rng.poisson(np.exp(0.3 * eta))
    return table


@pytest.fixture(scope="package")
def posterior(table) -> shardmc.Posterior:
    return shardmc.glm("spent ~ region * sex + bs(age, df=4, degree=2):sex", table, **FEW)


@pytest.fixture(scope="package")
def mixed(table) -> shardmc.Posterior:
    return shardmc.glm("spent ~ age + (1 | shop)", table, **FEW | {"shards": 1})


@pytest.fixture(scope="package")
def simple(table) -> shardmc.Posterior:
    return shardmc.glm("spent ~ age", table, **FEW)
