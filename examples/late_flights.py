"""nycflights13: which routes have late flights? A mixed model with an effect for every carrier and destination.

    python examples/late_flights.py [--quick] [--data nycflights13_flights.parquet] [--out FOLDER]

The rows are 336,776 flights of 2013. A flight is late if it arrives more than 15 minutes after its scheduled time.
A route is a carrier and a destination; some of the 312 routes have thousands of flights, and some only one. The model
draws the effect of a route with few flights towards the average route. Cancelled flights have no delay and are
dropped.
"""

from __future__ import annotations

import pandas as pd
import pyarrow.parquet as pq
from options import options

import shardmc

FORMULA = "I(arr_delay > 15) ~ origin + bs(hour, df=4) + (1 | carrier:dest)"
SD = "sd_carrier:dest__Intercept"


def shown(table: pd.DataFrame, *, index: bool = True) -> str:
    return table.to_string(index=index, float_format="{:.3f}".format)


def main() -> None:
    given = options(__doc__ or "", "nycflights13_flights.parquet")
    rows = pq.read_table(given.data)[::20] if given.quick else str(given.data)
    draws = 1_000 if given.quick else 10_000
    posterior = shardmc.glm(
        FORMULA,
        rows,
        family="bernoulli",
        priors={SD: "half_normal(1)"},
        drop_missing=True,
        draws=draws,
        seed=0,
    )
    print(posterior.certificate.sentence)
    for line in posterior.notes:
        print(line)
    for finding in posterior.findings:
        print(f"{finding.level}: {finding.message} {finding.advice}")

    columns = ["mean", "sd", "2.5%", "97.5%"]
    print("\nStandard deviation of the routes, in log odds:")
    print(shown(posterior.summary().loc[[SD], columns]))

    routes = posterior.effects().sort_values("mean")
    print("\nThe routes that are least and most often late, compared with the average route:")
    print(shown(pd.concat([routes[:4], routes[-4:]])))

    flight = {"carrier": "UA", "origin": "EWR", "hour": 18}
    new = pd.DataFrame([{**flight, "dest": dest} for dest in ("ORD", "LAX", "a new one")])
    print("\nProbability that a flight at six in the evening is late. For a new route the interval is wider:")
    print(shown(pd.concat([new[["carrier", "dest"]], posterior.predict(new)], axis=1), index=False))

    written = posterior.save(given.out / "late_flights.nc"), posterior.report(given.out / "late_flights.html")
    print("\nWrote {} and {}.".format(*written))


if __name__ == "__main__":
    main()
