"""One GPU: the posterior of 10^8 and 10^9 rows by the public call, against NumPyro's NUTS on the same card.

    python benchmarks/gpu.py [--rows 100000000] [--x64] [--nuts] [--products] [--parts] [--quick]

Prints one JSON line per measurement; `--table FILE...` makes docs/benchmarks/gpu.md from saved lines.
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
from datasets import logistic_model
from gpu_ways import WAYS
from provenance import publish, table

import shardmc
from shardmc.locate.leverage import RowLeverage
from shardmc.locate.terms import SubposteriorTerms, expanded
from shardmc.model.shared import joined, split
from shardmc.target import DeviceFrame, Target

DIM = 14
CHUNK = 1_000_000
MOST_ROWS_OF_A_WAY = 200_000_000
"""Some ways copy all rows."""
REMARKS = """
With the default options shards gather their rows from all over the card's memory, in an order that is computed once.
Arrays are copied in that order as far as half of the free memory goes: of 10^9 rows the response only, of 10^8 rows all
of them. The certificate reads 16 shards. Without shuffling the shards are slices of memory, and the certificate reads
all of them.

The lines of single passes show what the GPU itself needs. A fit of 10^9 rows makes one pass over all draws, one with
curvature, one for the leverages and about one with gradients: 1.13 s together. The rest is time on the host, which
checks 1,000 chains of 14 parameters, takes steps for 1,000 shards and starts thousands of small programs. It hardly
grows with the rows, so it is most of the time at 10^8 rows. The fit takes a third longer than the aim of 1.5 s.

Can the pass over all draws be faster? It writes the products of rows and 128 points to memory and reads them again.
The last lines are ways that keep them in registers, or multiply in less time, for a fifth of the rows
(`benchmarks/gpu_ways.py`). The fastest, a kernel of its own, saves a quarter of the pass, which is 0.14 s of 10^9 rows.
It would have to be written for each likelihood. Three short factors save a fifth here. In a fit, where several shards
run in parallel, they saved nothing when that was tried. So shardmc leaves the pass to XLA.

Single precision is close to its limit at 10^9 rows. In two other processes, on 18 and 20 November, the fit without
shuffling measured a rounding of 0.22 in the log posterior, where 0.2 is allowed. It chose double precision and took
4.4 to 4.6 s.

NumPyro cannot hold 10^9 rows, because it copies them. On 10^8 rows its chain had not begun to mix when its time was
over, so the ratio of rates only gives an order of magnitude. Its lines are from a run of 18 November.

The GPU multiplies matrices faster if each number is split into three short ones, but the result is not precise enough.
`python benchmarks/gpu.py --products` measures the root mean square error of the log-likelihood of 1,048,576 rows in
float32 at 128 points, where the log-likelihood has an sd of 343. The error is 0.00018 with the products that shardmc
uses, 0.0012 with six short products, and 69, which is wrong, with nine (jax 0.11.2).
"""


@partial(jax.jit, static_argnums=(0, 1))
def simulate(num_rows: int, chunk: int, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows made on the device, chunk by chunk: intercept, standard normal columns, logistic response."""
    beta = jnp.linspace(-1.0, 1.0, DIM)

    def fill(i, arrays):
        x, y = arrays
        key_x, key_y = jax.random.split(jax.random.fold_in(key, i))
        part = jax.random.normal(key_x, (chunk, DIM)).at[:, 0].set(1.0)
        response = jax.random.uniform(key_y, (chunk,)) < jax.nn.sigmoid(part @ beta)
        x = jax.lax.dynamic_update_slice(x, part, (i * chunk, 0))
        return x, jax.lax.dynamic_update_slice(y, response.astype(y.dtype), (i * chunk,))

    real = jnp.result_type(float)
    start = (jnp.zeros((num_rows, DIM), real), jnp.zeros(num_rows, real))
    return jax.lax.fori_loop(0, num_rows // chunk, fill, start)


def tell(**values: object) -> None:
    print(json.dumps(values), flush=True)


def measure_fit(data, shards: int, draws: int, check: bool, shuffle: bool) -> None:
    """Cold and warm: the second and third call find everything compiled."""
    model = logistic_model(DIM)
    for run in ("cold", "warm", "warm"):
        start = time.perf_counter()
        fitted = shardmc.fit(model, data, shards=shards, draws=draws, shuffle=shuffle, check=check, seed=1)
        seconds = time.perf_counter() - start
        from arviz_stats.base import array_stats

        chained = fitted.theta.reshape(*fitted.chains, DIM)
        ess = float(np.min(array_stats.ess(chained, chain_axis=0, draw_axis=1)))
        tell(
            what=f"shardmc.fit{'' if shuffle else ', not shuffled'}, {run}{'' if check else ', no certificate'}",
            rows=len(data[1]),
            seconds=seconds,
            min_ess=ess,
            min_ess_per_second=ess / seconds,
            acceptance=float(fitted.shards.acceptance.min()),
            stages={k: round(v, 4) for k, v in fitted.seconds.items()},
            passes={k: round(v, 2) for k, v in fitted.passes.items()},
            kept=fitted.plan.kept_rows,
            verdict=None if fitted.certificate is None else fitted.certificate.sentence,
            notes=list(fitted.notes),
        )


def measure_products(num_rows: int) -> None:
    """Errors of the log-likelihood, in single precision, of the ways in which a card can multiply matrices."""
    presets = jax.lax.DotAlgorithmPreset
    ways = (jax.lax.Precision.HIGHEST, presets.BF16_BF16_F32_X6, presets.BF16_BF16_F32_X9)
    with jax.enable_x64(True):
        x = jax.random.normal(jax.random.key(0), (num_rows, DIM), jnp.float32).at[:, 0].set(1.0)
        beta = jnp.linspace(-1.0, 1.0, DIM, dtype=jnp.float32)
        y = (jax.random.uniform(jax.random.key(1), (num_rows,)) < 0.5).astype(jnp.float32)
        points = beta + 1e-3 * jax.random.normal(jax.random.key(2), (128, DIM), jnp.float32)

        @partial(jax.jit, static_argnums=(3, 4))
        def gains(x, y, points, groups, way):
            def value(theta, x, y):
                eta = jnp.dot(x, theta, precision=way)
                return y * eta - (jnp.maximum(eta, 0) + jnp.log(1 + jnp.exp(-jnp.abs(eta))))

            def group(x, y):
                center = value(jnp.asarray(beta, x.dtype), x, y)
                return jax.vmap(lambda theta: jnp.sum(value(theta, x, y) - center))(points)

            return jax.vmap(group)(x.reshape(groups, -1, DIM), y.reshape(groups, -1)).sum(axis=0)

        for count, groups in ((128, 1), (8, 32), (8, 512)):
            wide = [a.astype(jnp.float64) for a in (x, y, points[:count])]
            exact = np.asarray(gains(*wide, groups, None))
            for way in ways:
                found = np.asarray(gains(x, y, points[:count], groups, way), np.float64)
                tell(
                    what=f"error of the log-likelihood of {groups} x {num_rows // groups:,} rows at {count} points",
                    products=str(way).split(".")[-1],
                    root_mean_square=float(np.sqrt(np.mean((found - exact) ** 2))),
                    spread_of_the_values=float(exact.std()),
                )


def measure_parts(data) -> None:
    """Seconds of single passes over all rows, in chunks as large as a shard: what a fit is made of, and no less."""
    frame = DeviceFrame(jnp.linspace(-1.0, 1.0, DIM), 1e-4 * jnp.eye(DIM))
    points = jax.random.normal(jax.random.key(3), (128, DIM))
    model, origin = logistic_model(DIM), jnp.zeros(DIM)
    kind, numbers = split(model, data)

    def target(x, y):
        return Target(joined(kind, numbers), (x, y), jnp.ones(len(y)), frame)

    parts = {
        "sum of all numbers": lambda x, y: jnp.sum(x) + jnp.sum(y),
        "log-likelihood at 128 points": lambda x, y: target(x, y).log_densities(points),
        "gradient": lambda x, y: jax.grad(target(x, y).log_density)(origin),
        "gradient and curvature, along every parameter": lambda x, y: expanded(
            target(x, y).log_density, origin
        ),
        "gradient and curvature, by linear predictors": lambda x, y: SubposteriorTerms(joined(kind, numbers))(
            (x, y), jnp.ones(len(y)), origin, frame
        ),
        "leverage of every row": lambda x, y: jnp.max(
            RowLeverage(joined(kind, numbers))((x, y), jnp.ones(len(y)), jnp.ones(()), frame)
        ),
    }
    for name, part in parts.items():
        measure_pass(name, part, data)
    few = tuple(array[:MOST_ROWS_OF_A_WAY] for array in data)
    for name, way in WAYS.items():
        if jax.default_backend() == "gpu" or name == "product, then sum":
            part = partial(lambda way, x, y: way(x, y, frame.center, frame.center + 1e-4 * points), way)
            measure_pass(f"128 points, {name}", part, few)


def measure_pass(name: str, part, data) -> None:
    """The mean of three passes in which the data is read in chunks."""
    rows = len(data[1])
    chunk = min(CHUNK, rows)

    @jax.jit
    def of_all(x, y):
        def add(i, total):
            some = [jax.lax.dynamic_slice_in_dim(a, i * chunk, chunk) for a in (x, y)]
            with jax.default_matmul_precision("highest"):
                return jax.tree.map(jnp.add, total, part(*jax.lax.optimization_barrier(some)))

        few = jax.eval_shape(part, x[:chunk], y[:chunk])
        return jax.lax.fori_loop(
            0, rows // chunk, add, jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), few)
        )

    jax.block_until_ready(of_all(*data))
    start = time.perf_counter()
    for _ in range(3):
        jax.block_until_ready(of_all(*data))
    tell(what=f"one pass: {name}", rows=rows, seconds=(time.perf_counter() - start) / 3)


def measure_nuts(data, warmup: int, draws: int) -> None:
    """NumPyro's NUTS on all rows: time of one gradient, and a short run."""
    import numpyro
    import numpyro.distributions as dist

    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(0, 10).expand([DIM]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    try:
        _measure_nuts(model, data, warmup, draws)
    except jax.errors.JaxRuntimeError as error:
        tell(what="NumPyro on all rows", rows=len(data[1]), failed=str(error).splitlines()[0])


def _measure_nuts(model, data, warmup: int, draws: int) -> None:
    from numpyro.infer import MCMC, NUTS
    from numpyro.infer.util import initialize_model

    with jax.default_matmul_precision("highest"):
        info = initialize_model(jax.random.key(0), model, model_args=data, dynamic_args=True)
        gradient = jax.jit(lambda p, x, y: jax.grad(info.potential_fn(x, y))(p))
        point = {"beta": jnp.linspace(-1.0, 1.0, DIM)}
        jax.block_until_ready(gradient(point, *data))
        start = time.perf_counter()
        for _ in range(5):
            jax.block_until_ready(gradient(point, *data))
        tell(
            what="one gradient of all rows (NumPyro)",
            rows=len(data[1]),
            seconds=(time.perf_counter() - start) / 5,
        )
        if draws:
            kernel = NUTS(model, max_tree_depth=8)
            mcmc = MCMC(kernel, num_warmup=warmup, num_samples=draws, num_chains=1, progress_bar=False)
            start = time.perf_counter()
            mcmc.run(jax.random.key(1), *data, extra_fields=("num_steps",))
            seconds = time.perf_counter() - start
            from arviz_stats.base import array_stats

            beta = np.asarray(mcmc.get_samples(group_by_chain=True)["beta"])
            ess = float(np.min(array_stats.ess(beta, chain_axis=0, draw_axis=1)))
            tell(
                what=f"NumPyro NUTS, {warmup} + {draws} draws, compilation included",
                rows=len(data[1]),
                seconds=seconds,
                min_ess=ess,
                min_ess_per_second=ess / seconds,
                steps_a_draw=float(np.mean(mcmc.get_extra_fields()["num_steps"])),
            )


def write_table(files: list[str]) -> None:
    """docs/benchmarks/gpu.md from the lines that runs printed."""
    printed = [line for name in files for line in Path(name).read_text().splitlines() if line.startswith("{")]
    lines = [json.loads(line) for line in printed]
    rows, device = [], {}
    for line in lines:
        if "device" in line:
            device = line
            continue
        precision = "float64" if device["x64"] else "float32"
        stages = ", ".join(f"{k} {v:.2f}" for k, v in line.get("stages", {}).items())
        rows.append(
            [
                f"{line['rows']:.0e}",
                precision,
                line["what"] + (f": {line['failed']}" if "failed" in line else ""),
                f"{line['seconds']:.4g}" if "seconds" in line else "",
                f"{line['min_ess']:,.0f}" if "min_ess" in line else "",
                f"{line['min_ess_per_second']:,.3g}" if "min_ess" in line else "",
                stages,
            ]
        )
    columns = ("rows", "precision", "what", "seconds", "min ESS", "min ESS a second", "seconds by stage")
    text = (
        f"# One NVIDIA H200\n\nMade by `python benchmarks/gpu.py` on {date.today()}, jax {device['jax']}: logistic "
        f"regression, d = {DIM}, K = {device['shards']:,}, 10^5 draws, rows made on the card and left there. "
        f"Cold includes compilation.\n\n{table(columns, rows)}{REMARKS}"
    )
    publish("gpu.md", text, quick=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--shards", type=int, default=1_000)
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--x64", action="store_true")
    parser.add_argument(
        "--nuts", type=int, default=0, help="draws of a short NUTS run; 0 times gradients only"
    )
    parser.add_argument("--no-check", action="store_true", help="also without the certificate")
    parser.add_argument("--no-nuts", action="store_true")
    parser.add_argument(
        "--parts", action="store_true", help="also the seconds of single passes over all rows"
    )
    parser.add_argument("--products", action="store_true", help="only the errors of matrix products")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", nargs="+", help="files of printed lines to make the table from")
    options = parser.parse_args()
    if options.table:
        write_table(options.table)
        return
    if options.x64:
        jax.config.update("jax_enable_x64", True)
    if options.quick:
        options.rows, options.shards, options.draws = 5_000, 20, 1_000
    rows = options.rows
    tell(device=str(jax.devices()[0]), jax=jax.__version__, x64=options.x64, rows=rows, shards=options.shards)
    if options.products:
        measure_products(1 << 20)
        return
    data = jax.block_until_ready(simulate(rows, min(CHUNK, rows), jax.random.key(0)))
    for shuffle in (False, True):
        measure_fit(data, options.shards, options.draws, True, shuffle)
    if options.no_check:
        measure_fit(data, options.shards, options.draws, False, shuffle=True)
    if options.parts or options.quick:
        measure_parts(data)
    if not options.no_nuts:
        measure_nuts(data, options.nuts, options.nuts)


if __name__ == "__main__":
    main()
