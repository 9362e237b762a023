"""Every family of shardmc.glm against NumPyro's NUTS on all rows with the same priors, on simulated data.

    python benchmarks/families.py [--quick] [--only poisson]
    python benchmarks/families.py --more [--quick] [--only beta]

Prints and writes docs/benchmarks/families.md, or families-more.md for the families that fewer people use. Errors are
in posterior standard deviations of the reference; `noise` is the Monte Carlo standard error of their difference, so
that errors of two or three times it are none.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pyarrow as pa
from arviz_stats.base import array_stats
from numpyro.distributions.transforms import AffineTransform
from numpyro.infer import MCMC, NUTS
from provenance import header, publish, table
from scipy import special

from shardmc.formulas import Design, design_of, glm
from shardmc.formulas.families import Family

COLUMNS = (
    "family",
    "parameters",
    "largest mean error",
    "noise",
    "sd ratios",
    "certificate",
)
CASES = {
    "gaussian": ("gaussian", {}),
    "bernoulli": ("bernoulli", {}),
    "bernoulli, probit": ("bernoulli(link=probit)", {}),
    "binomial": ("binomial", {"trials": "trials"}),
    "poisson": ("poisson", {"exposure": "exposure"}),
    "negative_binomial": ("negative_binomial", {"exposure": "exposure"}),
    "gamma": ("gamma", {}),
    "student_t": ("student_t", {}),
    "ordinal": ("ordinal", {}),
}
MORE = {
    "bernoulli, cloglog": ("bernoulli(link=cloglog)", {}),
    "lognormal": ("lognormal", {}),
    "beta": ("beta", {}),
    "zero_inflated_poisson": ("zero_inflated_poisson", {"exposure": "exposure"}),
    "zero_inflated_negative_binomial": ("zero_inflated_negative_binomial", {"exposure": "exposure"}),
    "categorical": ("categorical", {}),
    "multinomial": ("multinomial", {}),
    "weibull, censored": ("weibull", {"censored": "censored"}),
    "inverse_gaussian": ("inverse_gaussian", {}),
}
PRIORS = {
    "beta": dist.Beta,
    "normal": dist.Normal,
    "student_t": dist.StudentT,
    "exponential": dist.Exponential,
    "gamma": dist.Gamma,
}


def simulate(num_rows: int, seed: int = 1) -> pd.DataFrame:
    """Predictors of different scales, and a response of every family."""
    rng = np.random.default_rng(seed)
    data = pd.DataFrame(
        {
            "age": rng.uniform(18, 80, num_rows),
            "log_income": rng.normal(10, 0.7, num_rows),
            "region": rng.choice(["east", "north", "south", "west"], num_rows, p=[0.5, 0.3, 0.15, 0.05]),
            "exposure": rng.uniform(0.1, 1, num_rows),
            "trials": rng.integers(1, 20, num_rows),
        }
    )
    eta = (
        -0.5 + 0.02 * (data["age"] - 50) + 0.4 * (data["log_income"] - 10) + 0.5 * (data["region"] == "south")
    )
    eta = eta.to_numpy()
    data["gaussian"] = 20 + 5 * eta + 3 * rng.normal(size=num_rows)
    data["student_t"] = 20 + 5 * eta + 2 * rng.standard_t(4, size=num_rows)
    data["bernoulli"] = (rng.random(num_rows) < special.expit(eta)).astype(int)
    data["binomial"] = rng.binomial(data["trials"], special.expit(eta))
    data["poisson"] = rng.poisson(np.exp(eta) * data["exposure"])
    data["negative_binomial"] = rng.poisson(rng.gamma(1.5, np.exp(eta) * data["exposure"] / 1.5))
    data["gamma"] = rng.gamma(2.0, np.exp(eta) / 2.0)
    data["ordinal"] = np.digitize(eta + rng.logistic(size=num_rows), [-1.5, 0.0, 1.5])
    proportion = special.expit(eta)
    inflated = rng.random(num_rows) < 0.3
    data["lognormal"] = np.exp(eta + 0.6 * rng.normal(size=num_rows))
    data["beta"] = rng.beta(6 * proportion, 6 * (1 - proportion))
    data["zero_inflated_poisson"] = np.where(inflated, 0, rng.poisson(3 * np.exp(eta) * data["exposure"]))
    data["zero_inflated_negative_binomial"] = np.where(
        inflated, 0, rng.poisson(rng.gamma(2.0, 3 * np.exp(eta) * data["exposure"] / 2.0))
    )
    logits = np.stack([0 * eta, 0.3 + eta, -0.2 - 0.5 * eta], axis=1)
    data["categorical"] = np.array(["bus", "car", "foot"])[
        (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    ]
    time, end = np.exp(eta) * rng.weibull(1.4, num_rows), rng.uniform(0.2, 2.0, num_rows)
    data["weibull"], data["censored"] = np.minimum(time, end), time > end
    data["inverse_gaussian"] = rng.wald(np.exp(eta), 1.5)
    shares = special.softmax(logits, axis=1)
    data["bus"], data["car"], data["foot"] = rng.multinomial(data["trials"], shares).T
    return data


def likelihood(family: Family, eta: jax.Array, own: dict[str, jax.Array], trials: np.ndarray | None):
    """The response's distribution in NumPyro's own words."""
    match family.name:
        case "gaussian":
            return dist.Normal(eta, own["sigma"])
        case "student_t":
            return dist.StudentT(own["nu"], eta, own["sigma"])
        case "bernoulli":
            if family.to_dict()["link"] == "probit":
                return dist.Bernoulli(probs=jax.scipy.special.ndtr(eta))
            return dist.Bernoulli(logits=eta)
        case "binomial":
            return dist.Binomial(trials, logits=eta)
        case "poisson":
            return dist.Poisson(jnp.exp(eta))
        case "negative_binomial":
            return dist.NegativeBinomial2(jnp.exp(eta), own["shape"])
        case "zero_inflated_poisson":
            return dist.ZeroInflatedPoisson(own["zi"], jnp.exp(eta))
        case "zero_inflated_negative_binomial":
            return dist.ZeroInflatedNegativeBinomial2(jnp.exp(eta), own["shape"], gate=own["zi"])
        case "lognormal":
            return dist.LogNormal(eta, own["sigma"])
        case "beta":
            return dist.BetaProportion(jax.scipy.special.expit(eta), own["kappa"])
        case "categorical":
            return dist.Categorical(logits=jnp.concatenate([jnp.zeros_like(eta[:, :1]), eta], axis=1))
        case "multinomial":
            logits = jnp.concatenate([jnp.zeros_like(eta[:, :1]), eta], axis=1)
            return dist.Multinomial(logits=logits, total_count=trials, total_count_max=20)
        case "gamma":
            return dist.Gamma(own["shape"], own["shape"] / jnp.exp(eta))
        case _:
            return dist.OrderedLogistic(eta, own["cutpoint"])


def log_density(family: Family, eta: jax.Array, own: dict[str, jax.Array], y: jax.Array, censored: jax.Array):
    """The log density of responses that NumPyro has no distribution for, or none that float32 can hold."""
    if family.name == "bernoulli":
        return jnp.where(y > 0, jnp.log(-jnp.expm1(-jnp.exp(eta))), -jnp.exp(eta))
    mean, shape = jnp.exp(eta), own["shape"]
    if family.name == "weibull":
        scale = mean / jnp.exp(jax.scipy.special.gammaln(1 + 1 / shape))
        event = dist.Weibull(scale, shape).log_prob(y)
        return jnp.where(censored > 0, -((y / scale) ** shape), event)
    return 0.5 * jnp.log(shape / (2 * jnp.pi * y**3)) - shape * (y - mean) ** 2 / (2 * mean**2 * y)


def prior(design: Design, name: str):
    chosen = design.priors[name]
    return PRIORS[chosen.name](*chosen.arguments)


def nuts(design: Design, data: pd.DataFrame, draws: int) -> dict[str, np.ndarray]:
    """Full-data NUTS with columns in standard units about their means; draws in the columns' own units."""
    chunk = design.chunk(pa.Table.from_pandas(data, preserve_index=False))
    x = design.encoder.matrix(chunk)
    middle, sd = x.mean(axis=0), x.std(axis=0)
    scaled = jnp.asarray((x - middle) / sd)
    y = design.roles.response_values(chunk, design.family.levels_of_response)
    offset, trials = design.roles.offset_values(chunk), design.roles.trial_values(chunk, len(y))
    if design.family.takes_counts:
        trials = y.sum(axis=1).astype(int)
    censored = design.roles.censored_values(chunk, len(y))
    levels, equations = design.family.levels_of_response, design.family.equations
    sds = np.repeat(sd, max(1, len(equations)))

    def model(scaled, y, offset, trials, censored) -> None:
        slopes = [
            numpyro.sample(
                name, dist.TransformedDistribution(prior(design, name), AffineTransform(0.0, float(s)))
            )
            for name, s in zip(design.names, sds, strict=True)
        ]
        eta = scaled @ design.per_equation(jnp.stack(slopes))
        own = {name: numpyro.sample(name, prior(design, name)) for name in design.family.auxiliaries}
        if equations:
            eta = eta + numpyro.sample(
                "center", prior(design, f"Intercept[{equations[0]}]").expand([len(equations)]).to_event(1)
            )
        elif levels is None:
            eta = eta + numpyro.sample("center", prior(design, "Intercept"))
        else:
            points = dist.ImproperUniform(dist.constraints.ordered_vector, (), (len(levels) - 1,))
            own["cutpoint"] = numpyro.sample("center", points)
            numpyro.factor("cutpoint prior", prior(design, "cutpoint").log_prob(own["cutpoint"]).sum())
        eta = eta if offset is None else eta + offset
        if design.family.name in ("weibull", "inverse_gaussian") or "cloglog" in str(design.family):
            numpyro.factor("y", log_density(design.family, eta, own, y, censored))
            return
        numpyro.sample("y", likelihood(design.family, eta, own, trials), obs=y)

    mcmc = MCMC(NUTS(model, dense_mass=True), num_warmup=500, num_samples=draws, progress_bar=False)
    # As arguments: constants of this size would be folded when the sampler is compiled.
    mcmc.run(jax.random.key(11), scaled, y if levels is None else y.astype(int), offset, trials, censored)
    found = {name: np.asarray(v, np.float64) for name, v in mcmc.get_samples().items()}
    result = {name: found[name] / s for name, s in zip(design.names, sds, strict=True)}
    if equations:
        slopes = design.per_equation(np.stack(list(result.values()), axis=1))
        centers = found["center"] - np.einsum("dce,c->de", slopes, middle)
        return result | dict(zip(design.entries_of("Intercept"), centers.T, strict=True))
    moved = sum(result[name] * m for name, m in zip(design.names, middle, strict=True))
    if levels is None:
        result["Intercept"] = found["center"] - moved
    else:
        result |= {f"cutpoint[{k}]": found["center"][:, k] + moved for k in range(len(levels) - 1)}
    return result | {name: found[name] for name in design.family.auxiliaries}


def ess(values: np.ndarray) -> float:
    return float(array_stats.ess(values.reshape(1, -1), chain_axis=0, draw_axis=1, method="mean"))


def compare(
    case: str, formula: str, family: str, options: dict[str, str], data: pd.DataFrame, draws: int
) -> list[object]:
    """One row of the table: a formula's posterior next to that of NUTS on all rows."""
    posterior = glm(formula, data, family, draws=draws, seed=2, **options)
    reference = nuts(design_of(posterior), data, 1_000 if draws < 5_000 else 3_000)
    ours = posterior.flat()
    errors, noises, ratios = [], [], []
    for name, theirs in reference.items():
        errors.append(abs(ours[name].mean() - theirs.mean()) / theirs.std())
        noises.append(np.sqrt(1 / ess(ours[name]) + 1 / ess(theirs)))
        ratios.append(ours[name].std() / theirs.std())
    verdict = "none" if posterior.certificate is None else posterior.certificate.verdict
    return [
        case,
        len(reference),
        float(max(errors)),
        float(max(noises)),
        f"{min(ratios):.3f} to {max(ratios):.3f}",
        verdict,
    ]


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    cases: list[str]
    num_rows: int
    draws: int
    prints_only: bool
    more: bool = False

    @staticmethod
    def of(description: str | None, cases: Iterable[str], more: Iterable[str] = ()) -> Asked:
        parser = argparse.ArgumentParser(description=description)
        if more:
            parser.add_argument("--more", action="store_true", help="the families that fewer people use")
        parser.add_argument("--quick", action="store_true", help="few rows and draws; writes nothing")
        parser.add_argument("--only", choices=[*cases, *more], help="one case; writes nothing")
        given = parser.parse_args()
        is_more = getattr(given, "more", False)
        num_rows, draws = (4_000, 2_000) if given.quick else (4_000, 4_000) if is_more else (20_000, 10_000)
        chosen = [given.only] if given.only else list(more if is_more else cases)
        return Asked(chosen, num_rows, draws, given.quick or given.only is not None, is_more)


def main() -> None:
    asked = Asked.of(__doc__, CASES, MORE)
    num_rows, draws = asked.num_rows, asked.draws
    data = simulate(num_rows)
    rows = []
    for case in asked.cases:
        family, options = (CASES | MORE)[case]
        response = "c(bus, car, foot)" if case == "multinomial" else case.partition(",")[0]
        formula = f"{response} ~ age + log_income + region + age:log_income"
        rows.append(compare(case, formula, family, options, data, draws))
        print(rows[-1], flush=True)
    text = (
        f"# {'More families' if asked.more else 'Families'} against full-data NUTS\n\n"
        + header("families.py" + (" --more" if asked.more else ""))
        + f"\n{num_rows:,} simulated rows, `age + log_income + region + age:log_income`, {draws:,} draws; NumPyro's "
        "NUTS on all rows with the same priors. Errors of means in posterior standard deviations; `noise` is the "
        "largest Monte Carlo standard error of such a difference.\n\n" + table(COLUMNS, rows)
    )
    publish("families-more.md" if asked.more else "families.md", text, asked.prints_only)


if __name__ == "__main__":
    main()
