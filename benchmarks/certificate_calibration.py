"""How often the certificate is right: false alarms and power on exact targets, and posteriors far from Gaussian.

    python benchmarks/certificate_calibration.py [--quick] [--seeds 50]

Prints and writes docs/benchmarks/certificate_calibration.md. Draws are exact or as good as exact.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from certificate_skewed import rare_levels
from provenance import header, publish, table
from scipy import special

from shardmc.check import certify, choose
from shardmc.types import Mode

NUM_DRAWS, NUM_GRADIENTS = 10_000, 100
Draw = Callable[[int, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Target:
    """A posterior whose score is known and whose draws are exact."""

    name: str
    mode: Mode
    draw: Draw
    score: Callable[[np.ndarray], np.ndarray]

    @property
    def names(self) -> list[str]:
        return [f"x{k}" for k in range(len(self.mode.theta))]


def mode_of(score: Callable, start: Sequence[float]) -> Mode:
    """Mode and curvature by Newton steps of bounded length with numerical derivatives of the score."""
    theta = np.array(start, dtype=float)
    for _ in range(100):
        curvature = _curvature(score, theta)
        values, vectors = np.linalg.eigh(curvature)
        step = vectors @ ((vectors.T @ score(theta[None])[0]) / np.maximum(np.abs(values), 1e-3))
        theta = theta + step * min(1, 1 / max(float(np.linalg.norm(step)), 1e-12))
    return Mode(theta, _curvature(score, theta), 0.0, 0.0)


def _curvature(score: Callable, theta: np.ndarray, width: float = 1e-5) -> np.ndarray:
    steps = width * np.eye(len(theta))
    slopes = (score(theta + steps) - score(theta - steps)) / (2 * width)
    return -(slopes + slopes.T) / 2


def gaussian(dim: int) -> Target:
    root = np.random.default_rng(dim).normal(size=(dim, dim)) / np.sqrt(dim) + np.eye(dim)
    precision = np.linalg.inv(root @ root.T)
    mode = Mode(np.zeros(dim), precision, 0.0, 0.0)
    return Target(
        f"Gaussian, d = {dim}", mode, lambda n, r: r.normal(size=(n, dim)) @ root.T, lambda t: -t @ precision
    )


def log_gamma(shape: float) -> Target:
    """Log of a Gamma rate: the posterior of a Poisson mean on the log scale."""
    mode = Mode(np.zeros(1), np.array([[shape]]), 0.0, 0.0)
    return Target(
        f"log Gamma({shape:g})",
        mode,
        lambda n, r: np.log(r.gamma(shape, size=(n, 1)) / shape),
        lambda t: shape * (1 - np.exp(t)),
    )


def logit_beta(a: float, b: float) -> Target:
    score = lambda t: a - (a + b) * special.expit(t)  # noqa: E731
    return Target(
        f"logit Beta({a:g}, {b:g})",
        mode_of(score, [special.logit(a / (a + b))]),
        lambda n, r: special.logit(r.beta(a, b, size=(n, 1))),
        score,
    )


def gamma_shape(num_rows: int) -> Target:
    """Log shape of a Gamma sample with mean 1, drawn by the inverse of its distribution function on a fine grid."""
    rows = np.random.default_rng(num_rows).gamma(2.0, 0.5, size=num_rows)
    known = np.sum(np.log(rows) - rows)

    def log_density(t):
        return num_rows * (np.exp(t) * t - special.gammaln(np.exp(t))) + np.exp(t) * known - t**2 / 8

    def score(t):
        return np.exp(t) * (num_rows * (t + 1 - special.digamma(np.exp(t))) + known) - t / 4

    grid = np.linspace(-4, 6, 200_001)
    density = log_density(grid)
    below = np.cumsum(np.exp(density - density.max()))
    return Target(
        f"shape of a Gamma, {num_rows} rows",
        mode_of(score, [0.5]),
        lambda n, r: np.interp(r.uniform(size=(n, 1)) * below[-1], below, grid),
        score,
    )


def regression(family: str, num_rows: int, dim: int, intercept: float = 0.0) -> Target:
    """A small regression with an N(0, 5^2) prior; draws by 12 steps of independence sampling, one chain per draw."""
    rng = np.random.default_rng([num_rows, dim])
    x = np.column_stack(
        [np.ones(num_rows), rng.normal(size=(num_rows, dim - 1)) + 0.3 * rng.normal(size=(num_rows, 1))]
    )
    eta = x @ np.concatenate([[intercept], 0.5 * rng.normal(size=dim - 1)])
    if family == "logistic":
        y = (rng.uniform(size=num_rows) < special.expit(eta)).astype(float)
        terms = lambda e: (y * e - np.logaddexp(0, e), y - special.expit(e))  # noqa: E731
    elif family == "Poisson":
        y = rng.poisson(np.exp(eta)).astype(float)
        terms = lambda e: (y * e - np.exp(e), y - np.exp(e))  # noqa: E731
    else:
        y = rng.gamma(2.0, np.exp(eta) / 2)
        terms = lambda e: (-2 * e - 2 * y * np.exp(-e), 2 * y * np.exp(-e) - 2)  # noqa: E731

    def score(t):
        return terms(t @ x.T)[1] @ x - t / 25

    def log_density(t):
        return terms(t @ x.T)[0].sum(axis=1) - 0.5 * np.sum(t**2, axis=1) / 25

    mode = mode_of(score, np.zeros(dim))
    return Target(f"{family}, {num_rows} rows, d = {dim}", mode, _independence(log_density, mode), score)


def _independence(log_density: Callable, mode: Mode, steps: int = 12, freedom: int = 10) -> Draw:
    """Student t proposals; each draw is the end of its own chain, so that draws are independent."""
    frame = mode.frame

    def propose(n, rng):
        u = rng.normal(size=(n, frame.dim)) / np.sqrt(rng.chisquare(freedom, size=(n, 1)) / freedom)
        weight = 0.5 * (freedom + frame.dim) * np.log1p(np.sum(u**2, axis=1) / freedom)
        return u, log_density(frame.to_theta(u)) + weight

    def draw(n, rng):
        parts = []
        for size in np.diff(np.r_[np.arange(0, n, 1000), n]):
            u, weight = propose(size, rng)
            for _ in range(steps):
                other, its_weight = propose(size, rng)
                accept = np.log(rng.uniform(size=size)) < its_weight - weight
                u[accept], weight[accept] = other[accept], its_weight[accept]
            parts.append(frame.to_theta(u))
        return np.concatenate(parts)

    return draw


def models() -> list[Target]:
    return [
        *(gaussian(d) for d in (5, 20, 50)),
        *(log_gamma(a) for a in (2, 3, 5, 20)),
        logit_beta(3, 60),
        logit_beta(10, 20),
        gamma_shape(8),
        gamma_shape(50),
        *(regression("logistic", n, d) for n, d in ((200, 3), (300, 6), (500, 14))),
        *(regression("Poisson", n, d, b) for n, d, b in ((60, 3, -0.5), (150, 6, 0.0), (300, 10, 0.0))),
        *(regression("Gamma", n, d) for n, d in ((60, 4), (100, 6), (150, 10))),
    ]


def judged(target: Target, theta: np.ndarray, rng: np.random.Generator, gradients: int = NUM_GRADIENTS):
    chosen = choose(theta, None, gradients, rng)
    return certify(theta, chosen, target.score(theta[chosen]), target.mode, target.names, rng=rng)


def spoiled(target: Target, theta: np.ndarray, how: str, rng: np.random.Generator) -> np.ndarray:
    """The draws shifted by 0.3 sd, or stretched or squeezed by 1.3, along a random direction."""
    basis = target.mode.frame.basis
    z = np.linalg.solve(basis, (theta - target.mode.theta).T).T
    v = rng.normal(size=z.shape[1])
    v /= np.linalg.norm(v)
    along = z @ v
    if how == "shifted":
        move = np.full(len(z), rng.choice([-0.3, 0.3]) * along.std())
    else:
        move = (along - along.mean()) * ({"wide": 1.3, "narrow": 1 / 1.3}[how] - 1)
    return theta + np.outer(move, v) @ basis.T


def false_alarms_and_power(num_seeds: int) -> str:
    rows, total = [], Counter()
    for target in models():
        counts, departure = Counter(), []
        for seed in range(num_seeds):
            rng = np.random.default_rng(seed)
            theta = target.draw(NUM_DRAWS, rng)
            certificate = judged(target, theta, rng)
            departure.append(certificate.nonlinearity.max())
            counts["exact", certificate.verdict] += 1
            for how in ("shifted", "wide", "narrow"):
                counts[how, judged(target, spoiled(target, theta, how, rng), rng).verdict] += 1
        total.update(counts)
        rows.append(_verdict_row(target.name, counts, float(np.mean(departure))))
        print(rows[-1], flush=True)
    rows.append(_verdict_row("**all**", total, None))
    columns = ("posterior", "nonlinearity", "exact draws", "shifted 0.3 sd", "sd x 1.3", "sd / 1.3")
    return (
        f"## False alarms and power\n\n{NUM_DRAWS:,} draws, gradients at {NUM_GRADIENTS} of them, {num_seeds} seeds "
        "each; the last three columns move the draws along one random direction of the whitened parameters. Verdicts "
        f"are counted as within / cannot tell / off.\n\n{table(columns, rows)}\n"
        f"Off: {', '.join(f'{_percent_off(total, how)} of {what}' for how, what in _HOW.items())}.\n\n"
    )


_HOW = {
    "exact": "exact draws",
    "shifted": "shifted ones",
    "wide": "too wide ones",
    "narrow": "too narrow ones",
}


def _percent_off(counts: Counter, how: str) -> str:
    total = sum(count for (kind, _), count in counts.items() if kind == how)
    return f"{100 * counts[how, 'off'] / total:.1f} %"


def _verdict_row(name: str, counts: Counter, departure: float | None) -> list[object]:
    cells = [
        " / ".join(str(counts[how, verdict]) for verdict in ("within", "cannot tell", "off")) for how in _HOW
    ]
    return [name, "" if departure is None else f"{departure:.2f}", *cells]


def normal(mean: Sequence[float], variance: float | Sequence[float]) -> Draw:
    return lambda n, r: np.array(mean) + np.sqrt(variance) * r.normal(size=(n, len(mean)))


def laplace(mode: Mode) -> Draw:
    return lambda n, r: mode.frame.to_theta(r.normal(size=(n, mode.frame.dim)))


def mixture_score(means: np.ndarray, weights: np.ndarray, sds: np.ndarray) -> Callable:
    def score(t):
        gaps = means - t[:, None]
        logs = np.log(weights) - means.shape[1] * np.log(sds) - 0.5 * np.sum(gaps**2, axis=2) / sds**2
        share = special.softmax(logs, axis=1)
        return np.sum(share[:, :, None] * gaps / sds[:, None] ** 2, axis=1)

    return score


def funnel_score(sd: float) -> Callable:
    """x0 ~ N(0, sd^2); x1 and x2 ~ N(0, exp(x0))."""

    def score(t):
        pull = np.exp(-t[:, 0])
        first = -t[:, 0] / sd**2 - 1 + 0.5 * np.sum(t[:, 1:] ** 2, axis=1) * pull
        return np.column_stack([first, -t[:, 1:] * pull[:, None]])

    return score


def far_cases() -> list[tuple[str, Callable, Mode, Draw]]:
    """Posteriors far from Gaussian, each with draws that are wrong."""

    def mixed(separation, weight=0.5, sds=(1.0, 1.0), dim=1):
        means = np.zeros((2, dim))
        means[1, 0] = separation
        return mixture_score(means, np.array([weight, 1 - weight]), np.array(sds))

    def two_modes(n, r):
        return r.normal(size=(n, 1)) + 4 * (r.uniform(size=(n, 1)) < 0.05)

    def no_neck(n, r):
        first = 3 * r.normal(size=8 * n)
        first = first[first > -2][:n, None]
        return np.column_stack([first, np.exp(first / 2) * r.normal(size=(n, 2))])

    funnel, mild = funnel_score(3.0), funnel_score(1.0)
    student = lambda t: -4 * t / (3 + t**2)  # noqa: E731
    banana = lambda t: np.column_stack([-t[:, 0] + 4 * t[:, 0] * (b := t[:, 1] - t[:, 0] ** 2), -2 * b])  # noqa: E731
    separated = lambda t: np.exp(3 - t) - t / 100  # noqa: E731
    modes = {name: mode_of(s, x) for name, s, x in (
        ("funnel", funnel, [-9, 0, 0]), ("mild", mild, [-1, 0, 0]), ("student", student, [0.0]),
        ("banana", banana, [0.0, 0.0]), ("separated", separated, [6.0]),
    )}  # fmt: skip
    near, apart, spike = mixed(3), mixed(4, 0.7), mixed(0, sds=(0.1, 1.0))
    return [
        ("funnel, its Laplace approximation", funnel, modes["funnel"], laplace(modes["funnel"])),
        ("funnel without its neck", funnel, modes["funnel"], no_neck),
        ("mild funnel, its Laplace approximation", mild, modes["mild"], laplace(modes["mild"])),
        ("two modes 3 sd apart, one missed", near, mode_of(near, [0.0]), normal([0.0], 1.0)),
        (
            "the same in five dimensions",
            mixed(3, dim=5),
            mode_of(mixed(3, dim=5), [0.0] * 5),
            normal([0.0] * 5, 1.0),
        ),
        ("two modes 4 sd apart, weights 0.95 for 0.7", apart, mode_of(apart, [0.0]), two_modes),
        ("spike and slab, the spike alone", spike, mode_of(spike, [0.0]), laplace(mode_of(spike, [0.0]))),
        ("banana, its Laplace approximation", banana, modes["banana"], laplace(modes["banana"])),
        ("Student t3, a Gaussian that obeys E[z s] = -1", student, modes["student"], normal([0.0], 1.5)),
        (
            "separated logistic coefficient, Laplace",
            separated,
            modes["separated"],
            laplace(modes["separated"]),
        ),
    ]


def far_from_gaussian(num_seeds: int) -> str:
    rows = []
    for name, score, mode, draw in far_cases():
        target, cells = Target(name, mode, draw, score), []
        for gradients in (NUM_GRADIENTS, 4 * NUM_GRADIENTS):
            counts = Counter()
            for seed in range(num_seeds):
                rng = np.random.default_rng(seed)
                counts[judged(target, draw(NUM_DRAWS, rng), rng, gradients).verdict] += 1
            cells.append(" / ".join(str(counts[verdict]) for verdict in ("within", "cannot tell", "off")))
        rows.append([name, *cells])
    columns = ("posterior and wrong draws", f"{NUM_GRADIENTS} gradients", f"{4 * NUM_GRADIENTS} gradients")
    return (
        "## Far from Gaussian\n\nDraws that are wrong; no verdict may be within. Verdicts of "
        f"{num_seeds} seeds are counted as within / cannot tell / off.\n\n{table(columns, rows)}\n"
        "A second mode so far away that no draw comes near it cannot be seen by gradients at the draws. The modes of "
        "the shards may show it: the check of shard agreement compares them.\n\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few seeds; prints only")
    parser.add_argument("--seeds", type=int, default=50, help="data sets of draws for every posterior")
    options = parser.parse_args()
    quick, num_seeds = options.quick, 3 if options.quick else options.seeds
    text = (
        "# Calibration of the certificate\n\n"
        + header(f"certificate_calibration.py --seeds {num_seeds}")
        + "\n"
    )
    text += false_alarms_and_power(num_seeds) + rare_levels(2 if quick else max(num_seeds // 4, 3), quick)
    text += far_from_gaussian(num_seeds)
    publish("certificate_calibration.md", text.rstrip() + "\n", quick)


if __name__ == "__main__":
    main()
