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
    names = ["arr_delay", "carrier", "origin", "month", "distance", "hour"]
    return pd.read_parquet(path, columns=names).dropna()


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


REMARKS = """
Carrier OO has two of the 20,000 flights: one early, and one more than an hour late. With heavy-tailed errors either
flight can be an outlier, so the posterior of its coefficient has two modes. Shards that start at one mode give the
other too little weight, and the certificate says that it cannot measure this coefficient. With Gaussian errors
there is one mode. We tried this formula first. We chose the formula of the other Student t line, which has no rare
levels, after this one had failed.
"""
# family, and what is special -> (file, how it is read, formula, options)
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
        "arr_delay ~ np.log(distance) + hour + origin + C(month)",
        {},
    ),
    "student_t, a level of few rows": (
        "nycflights13_flights.parquet",
        flights,
        "arr_delay ~ np.log(distance) + hour + carrier",
        {},
    ),
    "gaussian": (
        "nycflights13_flights.parquet",
        flights,
        "arr_delay ~ np.log(distance) + hour + carrier",
        {},
    ),
    "bernoulli": ("covtype.npz", cover, "lodgepole ~ elevation + aspect + slope + C(wilderness)", {}),
}


def main() -> None:
    asked = Asked.of(__doc__, CASES)
    num_rows, draws = asked.num_rows, asked.draws
    rows = []
    for case in asked.cases:
        name, read, formula, options = CASES[case]
        path = data_file(name)
        if path is None:
            return
        data = read(path)
        data = data.sample(min(num_rows, len(data)), random_state=1).reset_index(drop=True)
        found = compare(case, formula, case.partition(",")[0], options, data, draws)
        rows.append([found[0], f"{name}: `{formula}`", *found[1:]])
        print(rows[-1], flush=True)
    text = (
        "# Families against full-data NUTS, on real data\n\n"
        + header("families_real.py")
        + f"\n{num_rows:,} random rows of each, {draws:,} draws; NumPyro's NUTS on all of them, same priors. "
        "Errors of means in posterior standard deviations; `noise` is the largest Monte Carlo standard error of such a "
        "difference.\n\n" + table((COLUMNS[0], "data and formula", *COLUMNS[1:]), rows) + REMARKS
    )
    publish("families_real.md", text, asked.prints_only)


if __name__ == "__main__":
    main()
