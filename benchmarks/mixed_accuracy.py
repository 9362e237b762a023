"""Mixed models of every family against long runs of NumPyro's NUTS in double precision, with the same priors.

    python benchmarks/mixed_accuracy.py [--quick] [--only "poisson, 10 rows" ...] [--part 1/7] [--results FOLDER]

Each fit and each reference runs in a process of its own. Finished runs stay in --results, so that a stopped benchmark
continues. Prints and writes docs/benchmarks/mixed_accuracy.md. To use more cores, start the parts 1/7, 2/7, ...
side by side with the same --results, and then the whole: it finds their results there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import special

from shardmc.formulas.families import named_family
from shardmc.formulas.priors import Prior

LIMIT, SD_LIMIT = 0.1, 0.1
"""The largest error of a mean, in posterior sds, and of a posterior sd, relative."""
FAMILIES = (
    "bernoulli",
    "poisson",
    "gaussian",
    "binomial",
    "negative_binomial",
    "gamma",
    "student_t",
    "ordinal",
)
ROLES = {
    "poisson": {"exposure": "exposure"},
    "negative_binomial": {"exposure": "exposure"},
    "binomial": {"trials": "trials"},
}


@dataclass(frozen=True)
class Case:
    """A family, the number and the size of its groups, and what varies by group."""

    family: str
    groups: int
    size: int
    slope: bool = False

    @property
    def name(self) -> str:
        return f"{self.family}, {self.size} rows" + (", with slope" if self.slope else "")

    @property
    def formula(self) -> str:
        return f"y ~ x + ({'1 + x' if self.slope else '1'} | g)"

    @property
    def centered(self) -> bool:
        """Whether the reference samples the effects themselves: better where groups have many rows."""
        return self.size >= 100

    def draws(self, quick: bool) -> int:
        """Draws of each of the four chains of the reference."""
        return 20 if quick else 1_500 if self.size >= 100 else 5_000

    def table(self) -> pd.DataFrame:
        """Rows of this case, sorted by group."""
        rng = np.random.default_rng([self.groups, self.size, self.slope, FAMILIES.index(self.family)])
        count = self.groups * self.size
        g, x = np.repeat(np.arange(self.groups), self.size), rng.normal(size=count)
        effects = rng.normal(size=(self.groups, 2)) @ np.array([[0.8, 0.15], [0.0, 0.37]])
        eta = -0.3 + 0.6 * x + effects[g, 0] + (effects[g, 1] * x if self.slope else 0)
        data = pd.DataFrame({"g": g, "x": x, "exposure": rng.uniform(0.2, 2, count)})
        data["trials"] = rng.integers(1, 8, count)
        data["y"] = response(self.family, eta, data, rng)
        return data


def response(family: str, eta: np.ndarray, data: pd.DataFrame, rng: np.random.Generator) -> np.ndarray:
    """The response of a family with this linear predictor."""
    count, rate = len(eta), np.exp(eta) * data["exposure"].to_numpy()
    match family:
        case "bernoulli":
            return (rng.random(count) < special.expit(eta)).astype(int)
        case "binomial":
            return rng.binomial(data["trials"], special.expit(eta))
        case "poisson":
            return rng.poisson(rate)
        case "negative_binomial":
            return rng.poisson(rng.gamma(1.5, rate / 1.5))
        case "gamma":
            return rng.gamma(2.0, np.exp(eta) / 2.0)
        case "student_t":
            return eta + 0.7 * rng.standard_t(4, size=count)
        case "ordinal":
            return np.digitize(eta + rng.logistic(size=count), [-1.5, 0.0, 1.5])
        case _:
            return eta + 0.7 * rng.normal(size=count)


def cases(quick: bool) -> dict[str, Case]:
    if quick:
        found = [Case("gaussian", 20, 3)]
    else:
        found = [Case(family, 400, size) for family in FAMILIES[:3] for size in (3, 10)]
        found += [Case(family, 300, 100) for family in FAMILIES[:3]]
        found += [Case("bernoulli", 400, 10, slope=True), Case("poisson", 400, 10, slope=True)]
        found += [Case(family, 400, 10) for family in FAMILIES[3:]]
        found += [Case(family, 400, 3) for family in FAMILIES[3:]]
        found += [Case(family, 300, 100) for family in FAMILIES[3:]]
    return {case.name: case for case in found}


def fit(case: Case, draws: int, out: Path) -> None:
    """In this process: the posterior by shardmc, with its default number of shards."""
    import shardmc

    posterior = shardmc.glm(
        case.formula, case.table(), family=case.family, draws=draws, seed=3, **_roles(case)
    )
    assert posterior.certificate is not None
    assert posterior.regression is not None
    facts = {
        "shards": posterior.plan.shards,
        "verdict": posterior.certificate.verdict,
        "priors": posterior.regression.priors,
    }
    np.savez(out, facts=json.dumps(facts), **posterior.flat())


def nuts(case: Case, priors: dict[str, str], draws: int, out: Path) -> None:
    """In this process: draws (chain, draw) of every parameter by NUTS on all rows. Columns are in standard units."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from families import PRIORS, likelihood
    from numpyro.distributions.transforms import AffineTransform
    from numpyro.infer import MCMC, NUTS, init_to_median

    data, shape = case.table(), (case.groups, case.size)
    x = data["x"].to_numpy().reshape(shape)
    middle, sd = x.mean(), x.std()
    rows = {
        "x": x,
        "y": data["y"].to_numpy().reshape(shape),
        "trials": data["trials"].to_numpy().reshape(shape),
        "offset": np.log(data["exposure"].to_numpy()).reshape(shape) if "exposure" in _roles(case) else 0.0,
    }
    effects = ("Intercept", "x") if case.slope else ("Intercept",)

    def prior(name: str) -> dist.Distribution:
        chosen = Prior.parse(priors[name])
        if chosen.name == "half_student_t":
            df, scale = chosen.arguments
            return dist.FoldedDistribution(dist.StudentT(df, 0.0, scale))
        return PRIORS[chosen.name](*chosen.arguments)

    def effects_of_groups(center) -> jax.Array:
        """(group, effect), with the location in the first effect."""
        sds = jnp.stack([numpyro.sample(f"sd_g__{name}", prior(f"sd_g__{name}")) for name in effects])
        root = numpyro.sample("root", dist.LKJCholesky(2, 1.0)) if case.slope else jnp.eye(1)
        around = jnp.zeros(len(effects)).at[0].set(center)
        if case.centered:
            law = dist.MultivariateNormal(around, scale_tril=sds[:, None] * root)
            return numpyro.sample("u", law.expand([case.groups]).to_event(1))
        v = numpyro.sample("v", dist.Normal().expand([case.groups, len(effects)]).to_event(2))
        return around + v @ (sds[:, None] * root).T

    def model(x, y, trials, offset) -> None:
        law = dist.TransformedDistribution(prior("x"), AffineTransform(0.0, float(sd)))
        slope = numpyro.sample("x", law)
        own = {n: numpyro.sample(n, prior(n)) for n in ("sigma", "nu", "shape") if n in priors}
        if case.family == "ordinal":
            center = 0.0
            points = dist.ImproperUniform(dist.constraints.ordered_vector, (), (3,))
            own["cutpoint"] = numpyro.sample("center", points)
            numpyro.factor("prior of cutpoints", prior("cutpoint").log_prob(own["cutpoint"]).sum())
        else:
            center = numpyro.sample("center", prior("Intercept"))
        u = effects_of_groups(center)
        eta = u[:, :1] + slope * (x - middle) / sd + offset
        if case.slope:
            eta = eta + u[:, 1:] * x
        law = likelihood(named_family(case.family), eta, own, trials)
        numpyro.sample("y", law.to_event(2), obs=y)

    sampler = MCMC(
        NUTS(model, init_strategy=init_to_median),
        num_warmup=max(draws // 5, 20),
        num_samples=draws,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    sampler.run(jax.random.key(11), **rows)
    found = {name: np.asarray(v) for name, v in sampler.get_samples(group_by_chain=True).items()}
    result = {name: v for name, v in found.items() if v.ndim == 2 and name not in ("center", "x")}
    result["x"] = found["x"] / sd
    moved = result["x"] * middle
    if case.family == "ordinal":
        result |= {f"cutpoint[{k}]": found["center"][:, :, k] + moved for k in range(3)}
    else:
        result["Intercept"] = found["center"] - moved
    if case.slope:
        result["cor_g__Intercept__x"] = found["root"][:, :, 1, 0]
    np.savez(out, facts="{}", **result)


def _roles(case: Case) -> dict[str, str]:
    return ROLES.get(case.family, {})


def effective(chains: np.ndarray, method: str) -> float:
    """Effective draws of (chain, draw) values, for their mean or their sd."""
    from arviz_stats.base import array_stats

    return float(array_stats.ess(chains, chain_axis=0, draw_axis=1, method=method))


def compared(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> list[dict[str, float | str]]:
    """Errors of every parameter, with their Monte Carlo standard errors."""
    rows: list[dict[str, float | str]] = []
    for name, chains in theirs.items():
        draws = ours[name]
        noise, sd_noise = (
            float(np.hypot(1 / np.sqrt(effective(chains, kind)), 1 / np.sqrt(effective(draws[None], kind))))
            for kind in ("mean", "sd")
        )
        error = float((draws.mean() - chains.mean()) / chains.std())
        ratio = float(draws.std() / chains.std())
        reached = abs(error) <= LIMIT + 2 * noise and abs(ratio - 1) <= SD_LIMIT + 2 * sd_noise / np.sqrt(2)
        rows.append(
            {
                "name": name,
                "error": error,
                "noise": noise,
                "ratio": ratio,
                "sd_noise": sd_noise / np.sqrt(2),
                "reached": "reached" if reached else "**missed**",
            }
        )
    return rows


def run(case: Case, what: str, path: Path, quick: bool) -> None:
    """Start a process that writes `path`, if it is not there yet."""
    if path.exists():
        return
    double = {"JAX_ENABLE_X64": "1"} if what == "nuts" else {}
    command = [sys.executable, __file__, "--one", case.name, what, str(path), *["--quick"] * quick]
    done = subprocess.run(
        command, env={**os.environ, **double, "PYTHONWARNINGS": "ignore"}, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{case.name}, {what}: {done.stderr[-2_000:]}")


def loaded(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    with np.load(path) as file:
        values = dict(file)
    return json.loads(str(values.pop("facts"))), values


def paths_of(case: Case, folder: Path) -> dict[str, Path]:
    label = case.name.replace(", ", "--").replace(" ", "-")
    return {what: folder / f"{label}--{what}.npz" for what in ("fit", "nuts")}


def row_of(case: Case, folder: Path, quick: bool) -> list[object]:
    """One row of the table: the worst mean and the worst sd of a case."""
    paths = {
        what: folder / f"{case.name.replace(', ', '--').replace(' ', '-')}--{what}.npz"
        for what in ("fit", "nuts")
    }
    for what, path in paths.items():
        run(case, what, path, quick)
    facts, ours = loaded(paths["fit"])
    _, theirs = loaded(paths["nuts"])
    each = compared(ours, theirs)
    mean = max(each, key=lambda one: abs(float(one["error"])))
    sd = max(each, key=lambda one: abs(float(one["ratio"]) - 1))
    tau = next(one for one in each if one["name"] == "sd_g__Intercept")
    missed = [one["name"] for one in each if one["reached"] != "reached"]
    return [
        case.name,
        case.groups,
        facts["shards"],
        f"{tau['error']:+.3f} ± {tau['noise']:.3f}",
        f"{mean['error']:+.3f} ± {mean['noise']:.3f} ({mean['name']})",
        f"{sd['ratio']:.3f} ± {sd['sd_noise']:.3f} ({sd['name']})",
        facts["verdict"],
        "reached" if not missed else f"**missed**: {', '.join(map(str, missed))}",
    ]


COLUMNS = (
    "family and size of groups",
    "groups",
    "shards",
    "error of the groups' sd",
    "largest error of a mean",
    "worst ratio of sds",
    "certificate",
    "",
)


def main() -> None:
    from provenance import header, publish, table

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small case, few draws; writes nothing")
    parser.add_argument("--only", nargs="+", help="cases; writes nothing")
    parser.add_argument(
        "--part", default="1/1", help="1/7: the first of seven parts of the cases; writes nothing"
    )
    parser.add_argument("--finished", action="store_true", help="only cases whose reference is there")
    parser.add_argument("--results", default="mixed-accuracy-results", help="folder of finished runs")
    parser.add_argument("--one", nargs=3, metavar=("CASE", "WHAT", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    every = cases(given.quick)
    draws = 200 if given.quick else 10_000
    if given.one:
        name, what, file = given.one
        case, path = every[name], Path(file)
        if what == "fit":
            fit(case, draws, path)
        else:
            facts, _ = loaded(Path(file.replace("--nuts.npz", "--fit.npz")))
            nuts(case, facts["priors"], case.draws(given.quick), path)
        return
    folder = Path(given.results)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    number, parts = map(int, given.part.split("/"))
    for name in list(given.only or every)[number - 1 :: parts]:
        if given.finished and not paths_of(every[name], folder)["nuts"].exists():
            continue
        rows.append(row_of(every[name], folder, given.quick))
        print(rows[-1], flush=True)
    text = (
        "# Mixed models against full-data NUTS\n\n"
        + header("mixed_accuracy.py")
        + f"\n`y ~ x + (1 | g)`, or `(1 + x | g)` with slope; simulated rows; {draws:,} draws with the default number "
        "of shards. The reference is NumPyro's NUTS on all rows in double precision with the same priors: 4 chains of "
        "5,000 draws (1,500 with groups of 100 rows), non-centred (centred with groups of 100 rows). Errors of means "
        "are in posterior sds. Each has its Monte Carlo standard error. The aim is an error of a mean below "
        f"{LIMIT} sd and of an sd below {SD_LIMIT:.0%}, plus two standard errors."
        + (" Cases whose reference is not finished are left out." if len(rows) < len(every) else "")
        + "\n\n"
        + table(COLUMNS, rows)
    )
    publish("mixed_accuracy.md", text, given.quick or given.only is not None or parts > 1)


if __name__ == "__main__":
    main()
