"""nycflights13: how late does a flight from New York arrive? Regression with Student t errors.

    python examples/nycflights13.py [--quick] [--data nycflights13_flights.parquet] [--out FOLDER]

The rows are 336,776 flights of 2013. Most arrive a little early, and a few are hours late. With Gaussian errors these
few dominate the coefficients; with Student t errors they do not. Cancelled flights have no delay and are dropped.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from options import options

import shardmc

FORMULA = "arr_delay ~ carrier + origin + C(month) + bs(hour, df=4) + np.log(distance)"


def main() -> None:
    given = options(__doc__ or "", "nycflights13_flights.parquet")
    rows = pq.read_table(given.data)[::20] if given.quick else str(given.data)
    draws = 1_000 if given.quick else 10_000
    posterior = shardmc.glm(FORMULA, rows, family="student_t", drop_missing=True, draws=draws, seed=0)
    print(posterior.certificate.sentence)
    for line in posterior.notes:
        print(line)
    for finding in posterior.findings:
        print(f"{finding.level}: {finding.message} {finding.advice}")

    summary = posterior.summary()
    print("\nScale of the errors in minutes, and their degrees of freedom:")
    print(summary.loc[["sigma", "nu"], ["mean", "sd", "ess"]].to_string(float_format="{:.3f}".format))

    # The same with Gaussian errors: the few very late flights move the coefficients and make them less certain.
    gaussian = shardmc.glm(FORMULA, rows, family="gaussian", drop_missing=True, draws=draws, seed=0).summary()
    carriers = [name for name in posterior.draws if name.startswith("carrier")]
    columns = {
        "Student t": summary["mean"],
        "sd": summary["sd"],
        "Gaussian": gaussian["mean"],
        "sd ": gaussian["sd"],
    }
    table = pd.DataFrame(columns).loc[carriers]
    print("\nDelay in minutes, compared with carrier 9E, all else equal:")
    print(table.sort_values("Student t").to_string(float_format="{:.2f}".format))

    flight = {"carrier": "UA", "origin": "EWR", "month": 7, "distance": 1400}
    new = pd.DataFrame([{**flight, "hour": hour} for hour in (6, 12, 18)])
    print("\nArrival delay of a flight in July in minutes: the average, and the interval for one flight:")
    average = posterior.predict(new)
    one = posterior.predict(new, kind="response", seed=1)[["lower", "upper"]]
    table = pd.concat([new["hour"], average, one.add_prefix("one ")], axis=1)
    print(table.to_string(index=False, float_format="{:.1f}".format))

    later = np.mean(posterior.draws["origin[T.LGA]"] > 0)
    print(
        f"\nProbability that flights from LaGuardia are later than from Newark, all else equal: {later:.3f}"
    )
    written = posterior.save(given.out / "nycflights13.nc"), posterior.report(given.out / "nycflights13.html")
    print("\nWrote {} and {}.".format(*written))


if __name__ == "__main__":
    main()
