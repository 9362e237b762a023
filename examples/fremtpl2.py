"""freMTPL2: which motor policies have more claims? Poisson regression with exposure, from a Parquet file.

    python examples/fremtpl2.py [--quick] [--data freMTPL2.parquet] [--out FOLDER]

The rows are 678,013 French motor policies, each with its number of claims and the part of the year in which it was in
force. shardmc reads the file in pieces and computes the columns of the formula, including categories and splines.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from options import options

import shardmc

FORMULA = (
    "ClaimNb_corrected ~ Area + VehGas + VehBrand + Region + np.log(Density) + np.minimum(BonusMalus, 150) "
    "+ bs(np.minimum(VehAge, 25), df=5) + bs(np.minimum(DrivAge, 85), df=5)"
)


def main() -> None:
    given = options(__doc__ or "", "freMTPL2.parquet")
    rows = pq.read_table(given.data)[::20] if given.quick else str(given.data)
    posterior = shardmc.glm(
        FORMULA, rows, family="poisson", exposure="Exposure", draws=500 if given.quick else 10_000, seed=0
    )
    print(posterior.certificate.sentence)
    print(
        f"{posterior.plan.rows:,} policies in {posterior.plan.shards} shards, {posterior.num_draws:,} draws."
    )
    for finding in posterior.findings:
        print(f"{finding.level}: {finding.message} {finding.advice}")

    # exp(coefficient) multiplies the claim rate. Draws give an interval for any function of the coefficients.
    factors = [name for name in posterior.draws if name.startswith(("VehGas", "VehBrand", "Region"))]
    relativities = pd.DataFrame({name: np.exp(posterior.draws[name]) for name in factors})
    table = relativities.quantile([0.5, 0.025, 0.975]).T.set_axis(["median", "2.5%", "97.5%"], axis=1)
    print("\nRate relativities, compared with the first level of each factor:")
    print(table.sort_values("median").to_string(float_format="{:.3f}".format))

    policy = {"Area": "C", "VehGas": "Diesel", "VehBrand": "B1", "Region": "R24", "Density": 400, "VehAge": 5}
    drivers = [(19, 100), (25, 80), (45, 50), (75, 50)]  # young drivers have not yet earned a bonus
    new = pd.DataFrame([{**policy, "DrivAge": a, "BonusMalus": b, "Exposure": 1.0} for a, b in drivers])
    expected = posterior.predict(new)
    print("\nExpected claims of a policy per year, by age of the driver and bonus-malus:")
    print(
        pd.concat([new[["DrivAge", "BonusMalus"]], expected], axis=1).to_string(
            index=False, float_format="{:.4f}".format
        )
    )

    written = posterior.save(given.out / "fremtpl2.nc"), posterior.report(given.out / "fremtpl2.html")
    print("\nWrote {} and {}.".format(*written))


if __name__ == "__main__":
    main()
