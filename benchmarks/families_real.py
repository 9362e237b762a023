"""Families of shardmc.glm against NumPyro's NUTS with the same priors, on random rows of real data.

    python benchmarks/families_real.py [--quick] [--only poisson]

Prints and writes docs/benchmarks/families_real.md, with the columns of benchmarks/families.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from datasets import data_file
from families import COLUMNS, Asked, compare
from provenance import header, publish, table


def flights(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path, columns=["arr_delay", "carrier", "distance", "hour"]).dropna()


def policies(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path)


def claims(path: Path) -> pd.DataFrame:
    data = policies(path)
    return data[data["ClaimAmountCut"] > 0]


def cover(path: Path) -> pd.DataFrame:
    stored = np.load(path)
    names = ("elevation", "aspect", "slope")
    data = pd.DataFrame({name: stored["X10"][:, k].astype(float) for k, name in enumerate(names)})
    data["wilderness"] = stored["wilderness"]
    return data.assign(lodgepole=(stored["cover_type"] == 2).astype(int))


# family -> (file, how it is read, formula, options)
Case = tuple[str, Callable[[Path], pd.DataFrame], str, dict[str, str]]
CASES: dict[str, Case] = {
    "poisson": (
        "freMTPL2.parquet",
        policies,
        "ClaimNb_corrected ~ np.minimum(BonusMalus, 150) + np.log(Density) + VehGas + Area + bs(DrivAge, df=4)",
        {"exposure": "Exposure"},
    ),
    "gamma": (
        "freMTPL2.parquet",
        claims,
        "ClaimAmountCut ~ np.minimum(BonusMalus, 150) + np.log(Density) + VehGas + VehPower",
        {},
    ),
    "student_t": (
        "nycflights13_flights.parquet",
        flights,
        "arr_delay ~ np.log(distance) + hour + C(carrier)",
        {},
    ),
    "gaussian": (
        "nycflights13_flights.parquet",
        flights,
        "arr_delay ~ np.log(distance) + hour + C(carrier)",
        {},
    ),
    "bernoulli": ("covtype.npz", cover, "lodgepole ~ elevation + aspect + slope + C(wilderness)", {}),
}


def main() -> None:
    asked = Asked.of(__doc__, CASES)
    num_rows, draws = asked.num_rows, asked.draws
    rows = []
    for family in asked.cases:
        name, read, formula, options = CASES[family]
        path = data_file(name)
        if path is None:
            return
        data = read(path)
        data = data.sample(min(num_rows, len(data)), random_state=1).reset_index(drop=True)
        found = compare(family, formula, family, options, data, draws)
        rows.append([found[0], f"{name}: `{formula}`", *found[1:]])
        print(rows[-1], flush=True)
    text = (
        "# Families against full-data NUTS, on real data\n\n"
        + header("families_real.py")
        + f"\n{num_rows:,} random rows of each, {draws:,} draws; NumPyro's NUTS on all of them, same priors. "
        "Errors of means in posterior standard deviations; `noise` is the largest Monte Carlo standard error of such a "
        "difference. Times include compilation and what else the machine had to do.\n\n"
        + table((COLUMNS[0], "data and formula", *COLUMNS[1:]), rows)
    )
    publish("families_real.md", text, asked.prints_only)


if __name__ == "__main__":
    main()
