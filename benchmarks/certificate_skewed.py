"""The part of certificate_calibration.py about regressions with rare and separated levels.

Wrong draws are made from right ones, along one of the three most skewed parameters.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from certificate_levels import Regression, long_run, problems
from provenance import table

from shardmc.check import Certificate, certify_draws
from shardmc.types import Gradients

NUM_DRAWS = 10_000
RIGHT = ("exact", "0.03 sd", "3 %")
WRONG = ("+0.3 sd", "-0.3 sd", "sd x 1.25", "sd / 1.25", "Laplace")
VERDICTS = ("within", "cannot tell", "off")


def changed(target: Regression, theta: np.ndarray, how: str, at: int, rng: np.random.Generator) -> np.ndarray:
    """Draws with an error in parameter `at`, or those of the Laplace approximation."""
    if how == "Laplace":
        return target.mode.frame.to_theta(rng.normal(size=theta.shape))
    one = theta[:, at]
    shift = {"0.03 sd": 0.03 * rng.choice([-1, 1]), "+0.3 sd": 0.3, "-0.3 sd": -0.3}.get(how, 0.0)
    scale = {"3 %": 1.03, "sd x 1.25": 1.25, "sd / 1.25": 0.8}.get(how, 1.0)
    theta = theta.copy()
    theta[:, at] = one.mean() + scale * (one - one.mean()) + shift * one.std()
    return theta


def staged(target: Regression, theta: np.ndarray, rng: np.random.Generator) -> Certificate:
    """The certificate as `fit` makes it: gradients at 100 draws, and at up to 1,000 where these cannot tell."""
    names, worth = target.names, np.full(len(target.names), float(len(theta)))
    return certify_draws(
        names, lambda points: Gradients(target.score(points)), target.mode, theta, None, rng, lambda: worth
    )[0]


def rare_levels(num_seeds: int, quick: bool) -> str:
    rows, total = [], Counter()
    for number, make in enumerate(problems()[:: 4 if quick else 1]):
        target = make()
        pool = long_run(target, 12_800 if quick else 25_600, np.random.default_rng([number, 1]))
        skewness = np.mean(((pool - pool.mean(axis=0)) / pool.std(axis=0)) ** 3, axis=0)
        skewed = np.argsort(-np.abs(skewness))[:3]
        counts, gradients = Counter(), []
        for seed in range(num_seeds):
            rng = np.random.default_rng([number, 2, seed])
            theta = pool[rng.permutation(len(pool))[:NUM_DRAWS]]
            for how in (*RIGHT, *WRONG):
                certificate = staged(target, changed(target, theta, how, skewed[seed % 3], rng), rng)
                counts[how, certificate.verdict] += 1
                if how == "exact":
                    gradients.append(certificate.num_gradients)
        total.update(counts)
        rows.append(_row(target.name, float(np.abs(skewness).max()), float(np.mean(gradients)), counts))
        print(rows[-1], flush=True)
    rows.append(_row("**all**", None, None, total))
    columns = ("posterior", "largest skewness", "gradients", *RIGHT, *WRONG)
    return (
        f"## Rare and separated levels\n\n{NUM_DRAWS:,} draws out of long runs of Hamiltonian Monte Carlo, "
        f"{num_seeds} seeds each; gradients at 100 of them, and at up to 1,000 where these cannot tell (the column has "
        "the mean number for right draws). The columns from 0.03 sd on change one of the three most skewed "
        "parameters; the first three must not be off, the last five must not be within. Verdicts are counted as "
        f"within / cannot tell / off.\n\n{table(columns, rows)}\n"
        f"Within: {_share(total, RIGHT, 'within')} of draws with errors below 0.05 sd and 5 %, "
        f"{_share(total, WRONG, 'within')} of wrong ones. Off: {_share(total, RIGHT, 'off')} of the former, "
        f"{_share(total, WRONG, 'off')} of the latter.\n\n"
    )


def _row(name: str, skewness: float | None, gradients: float | None, counts: Counter) -> list[object]:
    cells = [" / ".join(str(counts[how, verdict]) for verdict in VERDICTS) for how in (*RIGHT, *WRONG)]
    shown = ["" if skewness is None else f"{skewness:.1f}", "" if gradients is None else f"{gradients:.0f}"]
    return [name, *shown, *cells]


def _share(counts: Counter, kinds: tuple[str, ...], verdict: str) -> str:
    whole = sum(count for (how, _), count in counts.items() if how in kinds)
    return f"{100 * sum(counts[how, verdict] for how in kinds) / whole:.1f} %"
