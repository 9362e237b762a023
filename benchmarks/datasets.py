"""The data sets of the benchmarks: the paper's synthetic logistic regression, and Covertype where it is at hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # whoever only needs rows, and times what he loads, loads no more
    import shardmc

TRUE_BETA = np.array([0.3, 5.0, -7.0, 2.4, -20.0])


def data_file(name: str) -> Path | None:
    """A real data set: where SHARDMC_DATA points, or in ../shared/data from the project's root."""
    root = Path(__file__).resolve().parent.parent
    folder = Path(os.environ.get("SHARDMC_DATA", root.parent / "shared" / "data"))
    path = folder / name
    if path.exists():
        return path
    print(f"{name} is neither in {folder} nor where SHARDMC_DATA points: skipped.")
    return None


def synthetic_logistic(num_rows: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The paper's Example 2: x_1 = 1, the others uniform, beta = (0.3, 5, -7, 2.4, -20)."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(num_rows), rng.random((num_rows, 4))]).astype(np.float32)
    y = rng.random(num_rows) < 1 / (1 + np.exp(-x @ TRUE_BETA))
    return x, y.astype(np.float32)


def covertype(dim: int, num_rows: int = 500_000, seed: int = 1) -> tuple[np.ndarray, np.ndarray] | None:
    """Covertype, `cover_type == 2`: intercept and 3 attributes (dim 4), 10 + wilderness (14), + soil types (53).

    Attributes are standardised; one level of each factor is left out, so that no column is collinear.
    """
    path = data_file("covtype.npz")
    if path is None:
        return None
    stored = np.load(path)
    attributes = stored["X10"].astype(np.float64)
    attributes = (attributes - attributes.mean(axis=0)) / attributes.std(axis=0)
    wilderness = stored["wilderness"][:, None] == np.arange(1, 4)
    soil = stored["soil"][:, None] == np.array([k for k in range(1, 41) if k != 29])
    columns = np.column_stack([np.ones(len(attributes)), attributes, wilderness, soil])
    keep = {4: 4, 14: 14, 53: 53}[dim]
    rows = np.random.default_rng(seed).permutation(len(columns))[:num_rows]
    y = stored["cover_type"] == 2
    return columns[rows, :keep].astype(np.float32), y[rows].astype(np.float32)


def logistic_model(dim: int, prior_sd: float = 10.0) -> shardmc.Model:
    """Logistic regression with an N(0, prior_sd^2) prior, as plain JAX functions."""
    import jax.numpy as jnp

    import shardmc

    def log_likelihood(params, rows):
        x, y = rows
        eta = x @ params["beta"]
        return y * eta - (jnp.maximum(eta, 0) + jnp.log(1 + jnp.exp(-jnp.abs(eta))))

    return shardmc.Model(
        log_likelihood, lambda params: -0.5 * jnp.sum(params["beta"] ** 2) / prior_sd**2, {"beta": dim}
    )
