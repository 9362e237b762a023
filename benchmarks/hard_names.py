"""Names that could collide with those of shardmc: draws must be those of an innocent name, also after saving."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from provenance import table

import shardmc
from shardmc.errors import ShardmcError

NAMES = (
    "row weights",
    "row number",
    "strata of rows",
    "chain",
    "draw",
    "Intercept",
    "design (computed)",
    "a/b",
    "a÷b",
    "a[0]",
    "sigma",
    "theta",
    "\x1b[31m",
)
COLUMNS = (
    "name",
    "dict of arrays, weights and strata given",
    "pandas, formula",
    "Parquet, formula",
    "parameter, saved",
)
ROWS = 400
OPTIONS = {"shards": 2, "draws": 60, "check": False}


def columns(name: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, ROWS))
    return {"y": 1 + 2 * x - z + 0.1 * rng.normal(size=ROWS), name: x, "z": z}


def from_dict(name: str, folder: Path) -> np.ndarray:
    def log_likelihood(p: Any, rows: Any) -> Any:
        return -0.5 * (rows["y"] - p["b"][0] * rows[name] - p["b"][1] * rows["z"]) ** 2

    model = shardmc.Model(log_likelihood, lambda p: -0.5 * (p["b"] ** 2).sum(), {"b": 2})
    given = {"weights": np.ones(ROWS), "stratify": np.arange(ROWS) % 2}
    return shardmc.fit(model, columns(name), **given, **OPTIONS).draws["b"]


def from_pandas(name: str, folder: Path) -> np.ndarray:
    return _formula(name, pd.DataFrame(columns(name)))


def from_parquet(name: str, folder: Path) -> np.ndarray:
    pq.write_table(pa.table(columns(name)), folder / "rows.parquet")
    return _formula(name, folder / "rows.parquet")


def _formula(name: str, data: Any) -> np.ndarray:
    posterior = shardmc.glm(f"y ~ `{name}` + z", data, **OPTIONS)
    return np.stack(list(posterior.draws.values()))


def as_parameter(name: str, folder: Path) -> np.ndarray:
    def log_likelihood(p: Any, rows: Any) -> Any:
        return -0.5 * (rows["y"] - p[name] * rows["x"] - p["other"] * rows["z"]) ** 2

    model = shardmc.Model(log_likelihood, lambda p: -0.5 * (p[name] ** 2), {name: (), "other": ()})
    posterior = shardmc.fit(model, columns("x"), **OPTIONS)
    posterior.summary()
    posterior.report(folder / "report.html")
    return shardmc.load(posterior.save(folder / "posterior.nc")).draws[name]


WAYS: tuple[Callable[[str, Path], np.ndarray], ...] = (from_dict, from_pandas, from_parquet, as_parameter)


def outcome(way: Callable[[str, Path], np.ndarray], name: str, expected: np.ndarray, folder: Path) -> str:
    try:
        return "same draws" if np.array_equal(way(name, folder), expected) else "**other draws**"
    except ShardmcError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"**{type(error).__name__}**"


def rows(quick: bool = False) -> list[list[str]]:
    """One row of the table per name."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        expected = [way("innocent", folder) for way in WAYS]
        return [
            [
                f"`{name!r}`",
                *(outcome(way, name, draws, folder) for way, draws in zip(WAYS, expected, strict=True)),
            ]
            for name in (NAMES[:4] if quick else NAMES)
        ]


def as_table(quick: bool = False) -> tuple[str, int]:
    """The table as Markdown, and how many outcomes are wrong."""
    found = rows(quick)
    return table(COLUMNS, found), sum(cell.startswith("**") for row in found for cell in row)
