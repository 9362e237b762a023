"""Two small fits that the tests of what comes after a fit share."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import shardmc

OPTIONS = {"shards": 4, "draws": 400, "check": False, "keep": None, "precision": "single"}


@pytest.fixture(scope="session")
def policies() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    size = 600
    table = pd.DataFrame(
        {
            "id": [f"p{k}" for k in range(size)],
            "age": rng.uniform(18, 80, size),
            "region": rng.choice(["north", "south", "west"], size),
            "months": rng.uniform(1, 12, size),
        },
        index=pd.Index(np.arange(size) * 10 + 3, name="row"),
    )
    eta = 0.3 - 0.02 * table["age"] + 0.5 * (table["region"] == "south")
    table["claims"] = rng.poisson(np.exp(eta) * table["months"])
    table["sold"] = rng.random(size) < 1 / (1 + np.exp(-eta))
    return table


@pytest.fixture(scope="session")
def poisson(policies) -> shardmc.Posterior:
    return shardmc.glm("claims ~ age + region", policies, "poisson", exposure="months", **OPTIONS)


@pytest.fixture(scope="session")
def logistic(policies) -> shardmc.Posterior:
    return shardmc.glm("sold ~ age * region", policies, "bernoulli", **OPTIONS)
