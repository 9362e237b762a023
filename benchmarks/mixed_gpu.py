"""One GPU: a mixed model of 10^8 binary rows in 10^7 groups by the public call, next to NumPyro's gradient of it.

    python benchmarks/mixed_gpu.py [--rows 100000000] [--draws 10000] [--quick] > lines.txt
    python benchmarks/mixed_gpu.py --table lines.txt

Rows are made on the device. Prints one JSON line per measurement; `--table` makes docs/benchmarks/mixed_gpu.md from
saved lines.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import date
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from mixed_cases import COEFFICIENTS, SD
from provenance import publish, table

import shardmc

SIZE = 10  # rows of a group
GRADIENTS = 5
NAMES = tuple(f"x{k + 1}" for k in range(len(COEFFICIENTS)))
Arrays = dict[str, jax.Array]


@partial(jax.jit, static_argnums=0)
def simulate(groups: int, key: jax.Array) -> Arrays:
    """Rows made on the device, those of a group one after another."""
    keys = jax.random.split(key, 3)
    x = jax.random.normal(keys[0], (len(COEFFICIENTS), groups * SIZE))
    g = jnp.repeat(jnp.arange(groups, dtype=jnp.int32), SIZE)
    effects = jnp.repeat(SD * jax.random.normal(keys[1], (groups,)), SIZE)
    eta = -0.5 + jnp.asarray(COEFFICIENTS) @ x + effects
    y = jax.random.uniform(keys[2], eta.shape) < jax.nn.sigmoid(eta)
    return {**dict(zip(NAMES, x, strict=True)), "g": g, "y": y.astype(jnp.float32)}


def tell(**values: object) -> None:
    print(json.dumps(values), flush=True)


def measure_fit(data: Arrays, draws: int) -> None:
    """Cold and compiled: the whole call, from a table in memory to certified draws."""
    columns = {name: np.asarray(column) for name, column in data.items()}
    formula = f"y ~ {' + '.join(NAMES)} + (1 | g)"
    for run in ("cold", "compiled"):
        start = time.perf_counter()
        fitted = shardmc.glm(formula, columns, family="bernoulli", draws=draws, seed=1)
        seconds = time.perf_counter() - start
        certificate = fitted.certificate
        sd = fitted.draws["sd_g__Intercept"]
        tell(
            what=f"shardmc.glm, {draws:,} draws, {run}",
            rows=len(columns["y"]),
            seconds=seconds,
            shards=fitted.plan.shards,
            sd=[float(sd.mean()), float(sd.std())],
            stages={name: round(value, 2) for name, value in fitted.seconds.items()},
            verdict=None if certificate is None else certificate.verdict,
        )


def measure_gradient(data: Arrays) -> None:
    """One gradient of NumPyro's log density of all parameters and all effects, non-centred."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer.util import log_density

    groups = len(data["y"]) // SIZE

    def model(data: Arrays) -> None:
        intercept = numpyro.sample("Intercept", dist.Normal(0, 2.5))
        b = numpyro.sample("b", dist.Normal(0, 2.5).expand([len(NAMES)]).to_event(1))
        sd = numpyro.sample("sd", dist.HalfNormal(2.5))
        with numpyro.plate("groups", groups):
            z = numpyro.sample("z", dist.Normal(0, 1))
        eta = sum((b[k] * data[name] for k, name in enumerate(NAMES)), intercept) + sd * z[data["g"]]
        numpyro.sample("y", dist.Bernoulli(logits=eta), obs=data["y"])

    point = {
        "Intercept": jnp.zeros(()),
        "b": jnp.zeros(len(NAMES)),
        "sd": jnp.ones(()),
        "z": jnp.zeros(groups),
    }
    gradient = jax.jit(jax.grad(lambda point, data: log_density(model, (data,), {}, point)[0]))
    jax.block_until_ready(gradient(point, data))
    start = time.perf_counter()
    for _ in range(GRADIENTS):
        jax.block_until_ready(gradient(point, data))
    seconds = (time.perf_counter() - start) / GRADIENTS
    tell(what="one gradient of all rows and effects (NumPyro)", rows=len(data["y"]), seconds=seconds)


def write_table(files: list[str]) -> None:
    """docs/benchmarks/mixed_gpu.md from the lines that runs printed."""
    printed = [line for name in files for line in Path(name).read_text().splitlines() if line.startswith("{")]
    lines = [json.loads(line) for line in printed]
    device = next(line for line in lines if "device" in line)
    rows = [
        [
            f"{line['rows']:.0e}",
            line["what"],
            f"{line['seconds']:.4g}",
            "{:.5f} ± {:.5f}".format(*line["sd"]) if "sd" in line else "",
            line.get("verdict") or "",
            ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in line.get("stages", {}).items()),
        ]
        for line in lines
        if "what" in line
    ]
    columns = ("rows", "what", "seconds", f"sd of the groups (true: {SD})", "certificate", "seconds by stage")
    text = (
        f"# Mixed model on one GPU\n\nMade by `python benchmarks/mixed_gpu.py` on {date.today()}: {device['device']}, "
        f"jax {device['jax']}. Binary rows in groups of {SIZE}, {len(NAMES)} covariates, intercepts by group. Rows are "
        f"made on the card; shardmc gets them as a table in memory, and its time includes reading it. NumPyro has them "
        f"on the card.\n\n{table(columns, rows)}"
    )
    publish("mixed_gpu.md", text, quick=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000, help="rows, ten of them in a group")
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="2,000 rows, 200 draws")
    parser.add_argument("--table", nargs="+", help="files of printed lines to make the table from")
    options = parser.parse_args()
    if options.table:
        write_table(options.table)
        return
    rows, draws = (2_000, 200) if options.quick else (options.rows, options.draws)
    tell(device=str(jax.devices()[0]), jax=jax.__version__, rows=rows)
    data = jax.block_until_ready(simulate(rows // SIZE, jax.random.key(0)))
    measure_gradient(data)
    measure_fit(data, draws)


if __name__ == "__main__":
    main()
