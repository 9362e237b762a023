"""How many degrees of freedom independent proposals should have, on real and on skewed rows.

    python benchmarks/proposals.py [--only CASE ...] [--quick]

The same fits with proposals of 10 to 500 degrees of freedom, each with a few seeds. Prints and writes
docs/benchmarks/proposals.md.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from peer_cases import CASES, QUICK
from peer_methods import plain_model
from peers import effective_draws
from provenance import header, publish, table

import shardmc
from shardmc.sample import Auto
from shardmc.sample.independence import Warped

DEGREES = (10, 20, 50, 100, 500)
SEEDS = {"groups of five, small sd": 10}
"""Seeds, where certificates differ from seed to seed. Elsewhere two."""
FITS = ("covertype-4", "covertype-14", "freMTPL2", "nycflights13", "covertype-53")


def of_case(name: str, quick: bool) -> Callable[..., shardmc.Posterior] | None:
    """A case of the comparison with peers. Separated levels are sampled in warped coordinates."""
    case = (QUICK if quick else CASES)[name]()
    if case is None:
        return None
    model = plain_model(case)

    def fit(proposals: shardmc.Independence, seed: int) -> shardmc.Posterior:
        sampler: Any = Auto(first=proposals, warped=Warped(proposals)) if case.separated else proposals
        return shardmc.fit(model, case.rows, sampler=sampler, seed=seed)

    return fit


def rare_events(quick: bool) -> Callable[..., shardmc.Posterior]:
    """A logistic regression with one event in 500 rows: every shard holds few of them."""
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    x = rng.normal(size=(5_000 if quick else 100_000, 5)).astype(np.float32)
    x[:, 0] = 1
    y = rng.random(len(x)) < 1 / (1 + np.exp(-x @ np.array([-7, 1, 0.5, -0.5, 0])))

    def log_likelihood(params, rows):
        x, y = rows
        eta = x @ params["b"]
        return y * eta - jnp.logaddexp(0.0, eta)

    model = shardmc.Model(log_likelihood, lambda params: -0.005 * jnp.sum(params["b"] ** 2), {"b": 5})
    shards, rows = (2 if quick else 20), (x, y.astype(np.float32))

    def fit(proposals: shardmc.Independence, seed: int) -> shardmc.Posterior:
        return shardmc.fit(model, rows, shards=shards, sampler=proposals, seed=seed)

    return fit


def small_groups(quick: bool) -> Callable[..., shardmc.Posterior]:
    """Binary rows in groups of five with a small sd, whose logarithm has a long tail."""
    rng = np.random.default_rng(1)
    count = 200 if quick else 4_000
    group = np.repeat(np.arange(count), 5)
    x = rng.normal(size=len(group))
    eta = 0.3 + 0.5 * x + (0.15 * rng.normal(size=count))[group]
    y = rng.random(len(group)) < 1 / (1 + np.exp(-eta))
    rows = {"x": x, "y": y.astype(int), "g": group}

    def fit(proposals: shardmc.Independence, seed: int) -> shardmc.Posterior:
        return shardmc.glm(
            "y ~ x + (1 | g)", rows, "bernoulli", shards=2 if quick else 8, draws=4_000, nodes=7,
            precision="single", sampler=proposals, seed=seed,
        )  # fmt: skip

    return fit


def measure(name: str, fit: Callable[..., shardmc.Posterior], seeds: int) -> list[list[object]]:
    rows: list[list[object]] = []
    for df in DEGREES:
        found: list[Any] = [fit(shardmc.Independence(df=df), seed) for seed in range(1, seeds + 1)]
        draws = [p.theta.reshape(*p.chains, p.theta.shape[1]) for p in found]
        verdicts = Counter(p.certificate.verdict for p in found)
        rows.append(
            [
                name,
                df,
                f"{np.mean([p.shards.acceptance.mean() for p in found]):.2f}",
                f"{min(p.shards.acceptance.min() for p in found):.2f}",
                f"{np.mean([len(p.theta) for p in found]):,.0f}",
                f"{np.mean([effective_draws(each) for each in draws]):,.0f}",
                f"{np.mean([abs(p.certificate.mean_error).max() for p in found]):.2f}",
                f"{np.mean([p.certificate.sd_ratio.min() for p in found]):.2f}",
                ", ".join(f"{count} x {verdict}" for verdict, count in verdicts.items()),
            ]
        )
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="cases to run")
    parser.add_argument("--quick", action="store_true", help="few rows, one case; nothing is written")
    options = parser.parse_args()
    makers: dict[str, Callable[[bool], Any]] = {
        **{name: lambda quick, name=name: of_case(name, quick) for name in FITS},
        "one event in 500 rows": rare_events,
        "groups of five, small sd": small_groups,
    }
    wanted = options.only or (["one event in 500 rows"] if options.quick else list(makers))
    rows: list[list[object]] = []
    for name in wanted:
        fit = makers[name](options.quick)
        if fit is None:
            print(f"{name} is left out: its data file is not there.")
            continue
        rows += measure(name, fit, 1 if options.quick else SEEDS.get(name, 2))
    columns = (
        "case",
        "degrees of freedom",
        "acceptance",
        "lowest of a shard",
        "draws",
        "min ESS",
        "error of a mean, sd",
        "least ratio of sds",
        "verdicts",
    )
    text = "# Degrees of freedom of proposals\n\n" + header("proposals.py")
    text += f"""
Fits with independent proposals, a Student t at each shard's mode with its curvature; means over two seeds, or ten for
the groups, except the lowest acceptance of a shard. covertype-53 has separated levels and is sampled in warped
coordinates. Effective draws (ESS) are those of the worst parameter, chain by chain. The errors are the certificate's:
the largest error of a mean, and the smallest ratio of a parameter's sd to that of the posterior.

{table(columns, rows)}"""
    publish("proposals.md", text, options.quick)


if __name__ == "__main__":
    main()
