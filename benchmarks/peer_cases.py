"""The problems on which shardmc and its peers are run: the same rows, priors and likelihood for everybody."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from datasets import covertype, data_file, synthetic_logistic

PRIOR_SD = 10.0


@dataclass(frozen=True)
class Case:
    """A regression with N(0, 10^2) coefficients: logistic, Poisson with an offset, or linear with unknown sigma."""

    name: str
    family: str  # "logistic", "poisson" or "linear"
    x: np.ndarray  # (row, coefficient) float32
    y: np.ndarray  # (row,) float32
    offset: np.ndarray  # (row,) float32
    reference_draws: int
    separated: bool = False
    """Whether only the prior holds some coefficients, so that the posterior is far from a Gaussian."""

    @property
    def dim(self) -> int:
        return self.x.shape[1] + (self.family == "linear")

    @property
    def rows(self) -> dict[str, np.ndarray]:
        return {"x": self.x, "y": self.y, "offset": self.offset}


def _case(name: str, family: str, x: Any, y: Any, reference_draws: int, offset: Any = None) -> Case:
    x, y = np.ascontiguousarray(x, np.float32), np.asarray(y, np.float32)
    offset = np.zeros(len(y), np.float32) if offset is None else np.asarray(offset, np.float32)
    return Case(name, family, x, y, offset, reference_draws)


def _standardised(*columns: np.ndarray) -> np.ndarray:
    x = np.column_stack([np.asarray(c, np.float64) for c in columns])
    return (x - x.mean(axis=0)) / x.std(axis=0)


def _levels(values: np.ndarray) -> np.ndarray:
    """Dummy columns of a factor, without its commonest level."""
    found, counts = np.unique(values, return_counts=True)
    return values[:, None] == np.delete(found, counts.argmax())


def _table(name: str) -> dict[str, np.ndarray] | None:
    import pyarrow.parquet as pq

    path = data_file(name)
    if path is None:
        return None
    table = pq.read_table(path)
    return {c: table.column(c).to_numpy(zero_copy_only=False) for c in table.column_names}


def insurance(num_rows: int) -> Case | None:
    """French motor insurance: claim counts with exposure, brand, area, ages, power, bonus, density and fuel."""
    t = _table("freMTPL2.parquet")
    if t is None:
        return None
    age, car = np.minimum(t["DrivAge"], 85), np.minimum(t["VehAge"], 25)
    numbers = _standardised(
        np.log(age),
        np.log(age) ** 2,
        car,
        car**2,
        np.minimum(t["VehPower"], 10),
        np.log(np.minimum(t["BonusMalus"], 150)),
        np.log(t["Density"]),
    )
    fuel, brand = t["VehGas"].astype(str), t["VehBrand"].astype(str)
    area = t["Area"].astype(str)
    x = np.column_stack([np.ones(len(age)), numbers, _levels(fuel), _levels(brand), _levels(area)])
    offset = np.log(t["Exposure"])
    keep = np.random.default_rng(1).permutation(len(x))[:num_rows]
    return _case("freMTPL2", "poisson", x[keep], t["ClaimNb_corrected"][keep], 20_000, offset[keep])


def flights(num_rows: int) -> Case | None:
    """Arrival delays out of New York in 2013, in sds, by carrier, month, hour and distance."""
    t = _table("nycflights13_flights.parquet")
    if t is None:
        return None
    known = np.isfinite(t["arr_delay"].astype(float))
    t = {name: values[known] for name, values in t.items()}
    hour = t["hour"].astype(float)
    numbers = _standardised(np.log(t["distance"].astype(float)), hour, hour**2)
    carrier, month = t["carrier"].astype(str), t["month"].astype(int)
    x = np.column_stack([np.ones(len(hour)), numbers, _levels(carrier), _levels(month)])
    keep = np.random.default_rng(1).permutation(len(x))[:num_rows]
    y = _standardised(t["arr_delay"].astype(float))[:, 0]
    return _case("nycflights13", "linear", x[keep], y[keep], 20_000)


def _covertype(dim: int, num_rows: int, draws: int) -> Case | None:
    data = covertype(dim, num_rows)
    if data is None:
        return None
    # Some soil types have one outcome only.
    return replace(_case(f"covertype-{dim}", "logistic", *data, draws), separated=dim == 53)


def _synthetic(num_rows: int, draws: int) -> Case:
    return _case(f"synthetic-{num_rows}", "logistic", *synthetic_logistic(num_rows), draws)


CASES = {
    "covertype-4": lambda: _covertype(4, 500_000, 20_000),
    "covertype-14": lambda: _covertype(14, 500_000, 20_000),
    "covertype-53": lambda: _covertype(53, 500_000, 16_000),
    "freMTPL2": lambda: insurance(700_000),
    "nycflights13": lambda: flights(400_000),
    "synthetic-100000": lambda: _synthetic(100_000, 100_000),
    "synthetic-1000000": lambda: _synthetic(1_000_000, 20_000),
    "synthetic-10000000": lambda: _synthetic(10_000_000, 4_000),
}
QUICK = {
    "covertype-4": lambda: _covertype(4, 50_000, 2_000),
    "freMTPL2": lambda: insurance(50_000),
    "nycflights13": lambda: flights(50_000),
    "synthetic-2000": lambda: _synthetic(2_000, 500),
}
