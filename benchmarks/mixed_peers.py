"""How shardmc and each peer fits a mixed model: one function each, which returns times and estimates."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mixed_cases import Case

EXACT = "one shard"
EXACT_DRAWS, EXACT_DRAWS_OF_SLOPES = 4_000, 1_000
"""Draws of one shard: fewer with slopes, where a draw takes long."""
OURS = "shardmc"
Estimates = dict[str, tuple[float, float]]
"""Mean and sd of every parameter; the sd is nan if there is only an estimate."""


class Absent(Exception):
    """A peer that is not installed, or cannot fit the case; the message says which."""


@dataclass
class Fit:
    """What a peer found and how long it took."""

    estimates: Estimates
    cold: float
    """Seconds of the first call, by the clock."""
    cpu: float
    """Seconds of all cores in the call that counts: the compiled one if there is one."""
    compiled: float | None = None
    draws: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


class Clock:
    """Seconds since it was made: by the clock, and of all cores."""

    def __init__(self) -> None:
        self._start, self._cpu = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @property
    def cpu(self) -> float:
        return time.process_time() - self._cpu


def _moments(posterior: Any) -> Estimates:
    return {name: (float(v.mean()), float(v.std())) for name, v in posterior.flat().items()}


def _points(values: dict[str, float]) -> Estimates:
    return {name: (float(value), float("nan")) for name, value in values.items()}


def ours(case: Case, data: pd.DataFrame, draws: int) -> Fit:
    """Twice in one process: the second call finds its programs compiled."""
    import shardmc

    options = {"exposure": "exposure"} if case.exposed else {}
    seconds, cpu = [], 0.0
    for _ in range(2):
        clock = Clock()
        posterior = shardmc.glm(case.formula, data, family=case.family, draws=draws, seed=0, **options)
        seconds.append(clock.seconds)
        cpu = clock.cpu
    certificate = posterior.certificate
    facts = {
        "verdict": "none" if certificate is None else certificate.verdict,
        "shards": posterior.plan.shards,
        "nodes": posterior.plan.nodes,
        "acceptance": float(posterior.shards.acceptance.min()),
        "precision": posterior.plan.precision,
        "stages": {name: round(value, 2) for name, value in posterior.seconds.items()},
        "notes": list(posterior.notes) + [str(finding.message) for finding in posterior.findings],
    }
    return Fit(_moments(posterior), seconds[0], cpu, seconds[1], posterior.num_draws, facts)


def exact(case: Case, data: pd.DataFrame, draws: int) -> Fit:
    """All groups in one shard, twice the nodes, another seed, no certificate; only mean and sd are needed."""
    import shardmc

    draws = min(draws, EXACT_DRAWS_OF_SLOPES if case.slope else EXACT_DRAWS)
    options: dict[str, Any] = {"family": case.family, "check": False, "predictive": False}
    options |= {"exposure": "exposure"} if case.exposed else {}
    chosen = shardmc.glm(case.formula, data, draws=100, **options).plan
    enough = chosen.nodes_of_correction or chosen.nodes
    clock = Clock()
    posterior = shardmc.glm(
        case.formula,
        data,
        draws=draws,
        shards=1,
        seed=1,
        nodes="auto" if enough is None else 2 * enough,
        **options,
    )
    facts = {"acceptance": float(posterior.shards.acceptance.min()), "nodes": posterior.plan.nodes}
    return Fit(_moments(posterior), clock.seconds, clock.cpu, None, posterior.num_draws, facts)


def with_r(package: str) -> Callable[[Case, pd.DataFrame, int], Fit]:
    """lme4 or glmmTMB, in R. Only the fit is timed."""

    def fit(case: Case, data: pd.DataFrame, draws: int) -> Fit:
        if shutil.which("Rscript") is None:
            raise Absent("R is not installed")
        formula = case.formula + (" + offset(log(exposure))" if case.exposed else "")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "columns")
            path.write_bytes(data.to_numpy(np.float64).T.tobytes())
            script = Path(__file__).with_suffix(".R")
            command = ["Rscript", str(script), str(path), str(len(data)), ",".join(data.columns)]
            done = subprocess.run(
                [*command, formula, case.family, package], capture_output=True, text=True, check=False
            )
        if done.returncode and "there is no package" in done.stderr:
            raise Absent(f"the R package {package} is not installed")
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-300:])
        lines = map(str.split, done.stdout.strip().splitlines()[1:])
        found = {name: float(value) for name, value in lines}
        seconds, cpu, version = found.pop("seconds"), found.pop("cpu"), done.stdout.partition("\n")[0]
        return Fit(_points(found), seconds, cpu, facts={"version": version})

    return fit


def gpboost(case: Case, data: pd.DataFrame, draws: int) -> Fit:
    """GPBoost's own optimiser and defaults. It has no correlation between effects of a group."""
    try:
        import gpboost as gpb
    except ModuleNotFoundError:
        raise Absent("GPBoost is not installed") from None
    likelihood = {"bernoulli": "bernoulli_logit", "poisson": "poisson", "gaussian": "gaussian"}[case.family]
    options: dict[str, Any] = {}
    if case.slope:
        options = {"group_rand_coef_data": data[["x1"]].to_numpy(), "ind_effect_group_rand_coef": [1]}
    factors = ["g", *["h"] * bool(case.crossed)]
    design = np.column_stack([np.ones(len(data)), data[case.covariates]])
    offset = {"offset": np.log(data["exposure"].to_numpy())} if case.exposed else {}
    clock = Clock()
    model = gpb.GPModel(group_data=data[factors].to_numpy(), likelihood=likelihood, **options)
    model.fit(y=data["y"].to_numpy(np.float64), X=design, **offset)
    seconds, cpu = clock.seconds, clock.cpu
    variances = np.asarray(model.get_cov_pars(), np.float64).ravel().tolist()
    names = ["sd_g__Intercept", *["sd_g__x1"] * case.slope, *["sd_h__Intercept"] * bool(case.crossed)]
    names = ["sigma", *names] if case.family == "gaussian" else names
    found = {name: value**0.5 for name, value in zip(names, variances, strict=True)}
    coefficients = np.asarray(model.get_coef(), np.float64).ravel()
    found |= dict(zip(["Intercept", *case.covariates], coefficients.tolist(), strict=True))
    return Fit(_points(found), seconds, cpu, facts={"version": f"GPBoost {gpb.__version__}"})


def nuts(case: Case, data: pd.DataFrame, draws: int) -> Fit:
    """NumPyro's NUTS on all rows and all effects, non-centred: 500 draws after a warm-up of 500."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    rows = {name: jnp.asarray(data[name].to_numpy()) for name in ("g", "y")}
    rows["x"] = jnp.asarray(data[case.covariates].to_numpy(np.float32))
    rows["h"] = jnp.asarray(data["h"].to_numpy()) if case.crossed else None
    rows["offset"] = jnp.log(jnp.asarray(data["exposure"].to_numpy(np.float32))) if case.exposed else 0.0

    def effects(factor: str, levels: int, names: list[str]) -> jax.Array:
        """(level, effect)."""
        half = dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 2.5))
        sds = jnp.stack([numpyro.sample(f"sd_{factor}__{name}", half) for name in names])
        root = jnp.eye(len(names))
        if len(names) > 1:
            root = numpyro.sample("root", dist.LKJCholesky(len(names), 1.0))
            numpyro.deterministic("cor_g__Intercept__x1", root[1, 0])
        v = numpyro.sample(f"v_{factor}", dist.Normal().expand([levels, len(names)]).to_event(2))
        return v @ (sds[:, None] * root).T

    def model(g, h, x, y, offset) -> None:
        beta = [numpyro.sample(name, dist.Normal(0, 2.5)) for name in case.covariates]
        eta = numpyro.sample("Intercept", dist.Normal(0, 2.5)) + x @ jnp.stack(beta) + offset
        u = effects("g", case.groups, ["Intercept", *["x1"] * case.slope])[g]
        eta = eta + u[:, 0] + (u[:, 1] * x[:, 0] if case.slope else 0.0)
        if case.crossed:
            eta = eta + effects("h", case.crossed, ["Intercept"])[h, 0]
        law = {
            "bernoulli": lambda: dist.Bernoulli(logits=eta),
            "poisson": lambda: dist.Poisson(jnp.exp(eta)),
            "gaussian": lambda: dist.Normal(eta, numpyro.sample("sigma", dist.Exponential(1.0))),
        }[case.family]()
        numpyro.sample("y", law, obs=y)

    clock = Clock()
    sampler = MCMC(NUTS(model), num_warmup=500, num_samples=500, progress_bar=False)
    sampler.run(jax.random.key(0), **rows)
    chains = {name: np.asarray(v, np.float64) for name, v in sampler.get_samples().items() if v.ndim == 1}
    estimates = {name: (float(v.mean()), float(v.std())) for name, v in chains.items()}
    return Fit(estimates, clock.seconds, clock.cpu, None, 500)


METHODS: dict[str, Callable[[Case, pd.DataFrame, int], Fit]] = {
    OURS: ours,
    EXACT: exact,
    "lme4": with_r("lme4"),
    "glmmTMB": with_r("glmmTMB"),
    "GPBoost": gpboost,
    "NumPyro NUTS": nuts,
}
