"""How each peer draws from the posterior of a case: one function per peer, each told how many seconds it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from peer_cases import PRIOR_SD, Case


@dataclass
class Run:
    """What a peer did. Draws are (chain, draw, dim): coefficients, then log sigma where there is one."""

    draws: np.ndarray
    cold: float
    """Seconds from nothing loaded to draws, compilation and adaptation included."""
    warm: float
    """The same without loading and compilation."""
    passes: float
    note: str = ""
    extra: dict[str, float] = field(default_factory=dict)


class Compiling:
    """Sums the seconds that JAX spends on tracing and compiling; made when everything is loaded."""

    def __init__(self) -> None:
        import jax

        self.seconds, self.begun = 0.0, time.perf_counter()
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, seconds: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            self.seconds += seconds

    def spared(self) -> float:
        """Seconds since everything was loaded, less those of compiling."""
        return time.perf_counter() - self.begun - self.seconds


def numpyro_model(case: Case) -> Callable[..., None]:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    count, family = case.x.shape[1], case.family

    def model(x, y, offset):
        beta = numpyro.sample("beta", dist.Normal(0, PRIOR_SD).expand([count]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(PRIOR_SD)) if family == "linear" else 1.0
        with numpyro.plate("rows", x.shape[0]):
            eta = x @ beta + offset if family == "poisson" else x @ beta
            likelihood = {
                "logistic": lambda: dist.Bernoulli(logits=eta),
                "poisson": lambda: dist.Poisson(jnp.exp(eta)),
                "linear": lambda: dist.Normal(eta, sigma),
            }[family]()
            numpyro.sample("y", likelihood, obs=y)

    return model


def log_posterior(case: Case) -> Callable[..., Any]:
    """(theta, x, y, offset) -> the log posterior, written by hand in JAX; theta = coefficients, log sigma."""
    import jax.numpy as jnp

    terms = row_terms(case)

    def density(theta, x, y, offset):
        beta = theta[: x.shape[1]]
        prior = -0.5 * jnp.sum(beta**2) / PRIOR_SD**2
        if case.family == "linear":
            prior = prior - 0.5 * jnp.exp(2 * theta[-1]) / PRIOR_SD**2 + theta[-1]
        return prior + jnp.sum(terms(beta, theta[-1], x, y, offset))

    return density


def row_terms(case: Case) -> Callable[..., Any]:
    import jax.numpy as jnp

    def logistic(beta, log_sigma, x, y, offset):
        eta = x @ beta
        return y * eta - jnp.maximum(eta, 0) - jnp.log1p(jnp.exp(-jnp.abs(eta)))

    def poisson(beta, log_sigma, x, y, offset):
        eta = x @ beta + offset
        return y * eta - jnp.exp(eta)

    def linear(beta, log_sigma, x, y, offset):
        return -0.5 * ((y - x @ beta) * jnp.exp(-log_sigma)) ** 2 - log_sigma

    return {"logistic": logistic, "poisson": poisson, "linear": linear}[case.family]


def plain_model(case: Case):
    """The model as plain JAX functions for shardmc."""
    import jax.numpy as jnp

    import shardmc

    terms = row_terms(case)
    linear = case.family == "linear"

    def log_likelihood(params, rows):
        log_sigma = jnp.log(params["sigma"]) if linear else 0.0
        return terms(params["beta"], log_sigma, rows["x"], rows["y"], rows["offset"])

    def log_prior(params):
        prior = -0.5 * jnp.sum(params["beta"] ** 2) / PRIOR_SD**2
        return prior - 0.5 * params["sigma"] ** 2 / PRIOR_SD**2 if linear else prior

    parameters: dict[str, Any] = {"beta": case.x.shape[1]}
    return shardmc.Model(log_likelihood, log_prior, parameters | ({"sigma": "positive"} if linear else {}))


def _shardmc(case: Case, front_end: str, begun: float, draws: int = 10_000) -> Run:
    import shardmc

    model = plain_model(case) if front_end == "plain" else shardmc.from_numpyro(numpyro_model(case))
    posterior = shardmc.fit(model, case.rows, draws=draws, seed=1)
    cold = time.perf_counter() - begun
    warm, sampling = [], []
    for _ in range(3):
        start = time.perf_counter()
        posterior = shardmc.fit(model, case.rows, draws=draws, seed=1)
        warm.append(time.perf_counter() - start)
        sampling.append(posterior.seconds["sample"])
    assert posterior.certificate is not None
    chains = posterior.theta.reshape(*posterior.chains, case.dim)
    note = (
        f"K = {posterior.plan.shards}, {posterior.plan.kept_rows} kept rows; {posterior.certificate.sentence}"
    )
    passes = sum(posterior.passes.values())
    # The median, as the machine may do other things at times.
    return Run(chains, cold, float(np.median(warm)), passes, note, {"sampling": float(np.median(sampling))})


def shardmc_plain(case: Case, seconds: float, begun: float) -> Run:
    return _shardmc(case, "plain", begun)


def shardmc_numpyro(case: Case, seconds: float, begun: float) -> Run:
    return _shardmc(case, "numpyro", begun)


def shardmc_numpyro_longer(case: Case, seconds: float, begun: float) -> Run:
    return _shardmc(case, "numpyro", begun, 20_000)


def laplace(case: Case, seconds: float, begun: float) -> Run:
    """Draws of N(mode, inverse curvature), both from shardmc's Newton search over all rows."""
    from shardmc.data import Partition
    from shardmc.engine import Local
    from shardmc.locate import locate
    from shardmc.pipeline import open_rows

    source, model = open_rows(plain_model(case), case.rows, 0)
    blocks = source.split(Partition(8), 0)

    def run() -> np.ndarray:
        mode = locate(model, blocks, Local())
        return np.random.default_rng(0).multivariate_normal(
            mode.theta, np.linalg.inv(mode.curvature), 100_000
        )

    draws = run()
    cold = time.perf_counter() - begun
    start = time.perf_counter()
    draws = run()
    return Run(draws[None], cold, time.perf_counter() - start, float("nan"))


def svi(case: Case, seconds: float, begun: float) -> Run:
    """NumPyro's SVI with a full-covariance Gaussian guide on all rows."""
    import jax
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal

    steps = _affordable(case, 0.8 * seconds)
    compiling = Compiling()
    model = numpyro_model(case)
    guide = AutoMultivariateNormal(model, init_scale=0.01)
    schedule = _decaying(steps)
    engine = SVI(model, guide, numpyro.optim.Adam(schedule), Trace_ELBO())
    found = engine.run(jax.random.key(0), steps, **case.rows, progress_bar=False)
    latent = guide.get_posterior(found.params).sample(jax.random.key(1), (20_000,))
    draws = np.asarray(jax.block_until_ready(latent), np.float64)
    cold = time.perf_counter() - begun
    return Run(draws[None], cold, compiling.spared(), steps, f"{steps} steps of Adam")


def _decaying(steps: int) -> Callable[[Any], Any]:
    return lambda i: 0.02 * 0.01 ** (i / steps)


def numpyro_nuts(case: Case, seconds: float, begun: float, seed: int = 0) -> Run:
    import jax
    from numpyro.infer import MCMC, NUTS

    count, begun = _affordable_draws(case, seconds, begun)
    compiling = Compiling()
    mcmc = MCMC(NUTS(numpyro_model(case)), num_warmup=count, num_samples=count, progress_bar=False)
    mcmc.run(jax.random.key(seed), **case.rows, extra_fields=("num_steps",))
    samples = mcmc.get_samples()
    draws = np.asarray(samples["beta"], np.float64)
    if "sigma" in samples:
        draws = np.column_stack([draws, np.log(np.asarray(samples["sigma"], np.float64))])
    steps = float(np.sum(mcmc.get_extra_fields()["num_steps"]))
    cold = time.perf_counter() - begun
    note = f"{count} + {count} draws, {steps / count:.0f} steps a draw"
    return Run(draws[None], cold, compiling.spared(), float("nan"), note)


def blackjax_nuts(case: Case, seconds: float, begun: float) -> Run:
    import blackjax
    import jax
    import jax.numpy as jnp

    count, begun = _affordable_draws(case, seconds, begun)
    compiling = Compiling()
    density = log_posterior(case)
    data = tuple(jnp.asarray(v) for v in case.rows.values())

    # The data as arguments: as constants they would be folded while compiling.
    @jax.jit
    def run(key, *data):
        def target(theta):
            return density(theta, *data)

        warmup = blackjax.window_adaptation(blackjax.nuts, target)
        key_warmup, key_draws = jax.random.split(key)
        (state, tuned), _ = warmup.run(key_warmup, jnp.zeros(case.dim), count)
        kernel = blackjax.nuts(target, **tuned)

        def step(state, key):
            state, info = kernel.step(key, state)
            return state, (state.position, info.num_integration_steps)

        return jax.lax.scan(step, state, jax.random.split(key_draws, count))[1]

    positions, steps = jax.block_until_ready(run(jax.random.key(0), *data))
    cold = time.perf_counter() - begun
    note = f"{count} + {count} draws, {float(jnp.mean(steps)):.0f} steps a draw"
    return Run(np.asarray(positions, np.float64)[None], cold, compiling.spared(), float("nan"), note)


def nutpie_nuts(case: Case, seconds: float, begun: float) -> Run:
    """nutpie on a PyMC model, two chains side by side."""
    count, begun = _affordable_draws(case, seconds, begun)
    import nutpie
    import pymc as pm

    with pm.Model() as model:
        beta = pm.Normal("beta", 0, PRIOR_SD, shape=case.x.shape[1])
        x, y, offset = (v.astype(np.float64) for v in (case.x, case.y, case.offset))
        eta = pm.math.dot(x, beta) + (offset if case.family == "poisson" else 0.0)
        if case.family == "logistic":
            pm.Bernoulli("y", logit_p=eta, observed=y)
        elif case.family == "poisson":
            pm.Poisson("y", pm.math.exp(eta), observed=y)
        else:
            pm.Normal("y", eta, pm.HalfNormal("sigma", PRIOR_SD), observed=y)
    compiled = nutpie.compile_pymc_model(model)
    ready = time.perf_counter()
    sampler = nutpie.sample(
        compiled, draws=count, tune=count, chains=2, cores=2, progress_bar=False, seed=0, blocking=False
    )
    while time.perf_counter() - ready < 4 * seconds and not _finished(sampler):
        time.sleep(0.05)
    trace = sampler.abort()
    end = time.perf_counter()
    draws = np.asarray(trace.posterior["beta"].values)
    if case.family == "linear":
        draws = np.concatenate([draws, np.log(trace.posterior["sigma"].values)[..., None]], axis=-1)
    # What a chain had not drawn when its time was over is NaN.
    done = np.isfinite(draws).all(axis=2).sum(axis=1)
    if done.min() < 4:
        raise SystemExit(f"still adapting after {end - ready:.0f} s ({count} draws to adapt)")
    steps = float(trace.sample_stats["n_steps"].mean())
    note = f"2 chains of {count} + {done.min()} draws, {steps:.0f} steps a draw"
    return Run(draws[:, : done.min()], end - begun, end - ready, float("nan"), note)


def _finished(sampler: Any) -> bool:
    try:
        return sampler.is_finished
    except TimeoutError:  # raised while the sampler is too busy to answer
        return False


def _affordable(case: Case, seconds: float) -> int:
    """How many gradients of all rows fit into so many seconds on this machine, by trying a few."""
    import jax
    import jax.numpy as jnp

    gradient = jax.jit(jax.grad(log_posterior(case)))
    data = tuple(jnp.asarray(v) for v in case.rows.values())
    point = jnp.zeros(case.dim)
    jax.block_until_ready(gradient(point, *data))
    start = time.perf_counter()
    for _ in range(5):
        jax.block_until_ready(gradient(point, *data))
    return max(100, int(seconds / ((time.perf_counter() - start) / 5)))


_STEPS_A_DRAW = 30


def _affordable_draws(case: Case, seconds: float, begun: float) -> tuple[int, float]:
    """Draws, and as many to adapt, that fit into the time, at most 1,000; and `begun`, later by what this took."""
    start = time.perf_counter()
    count = int(min(1_000, max(20, _affordable(case, seconds) // (2 * _STEPS_A_DRAW))))
    return count, begun + time.perf_counter() - start


OTHER_SEEDS = (1, 2, 3)
METHODS = {
    "shardmc, plain JAX": shardmc_plain,
    "shardmc, NumPyro model": shardmc_numpyro,
    "shardmc, NumPyro model, 20,000 draws": shardmc_numpyro_longer,
    "NumPyro NUTS": numpyro_nuts,
    **{f"NumPyro NUTS, seed {seed}": partial(numpyro_nuts, seed=seed) for seed in OTHER_SEEDS},
    "BlackJAX NUTS": blackjax_nuts,
    "nutpie (PyMC)": nutpie_nuts,
    "NumPyro SVI": svi,
    "Laplace": laplace,
}
