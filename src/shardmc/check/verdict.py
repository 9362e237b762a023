"""From measured errors to a verdict (within bounds, off, or cannot tell) and the sentence that explains it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardmc.check.advice import ANY, Remedies
from shardmc.check.measured import FEWEST_GRADIENTS, Measured
from shardmc.errors import OptionError

Verdict = Literal["within", "off", "cannot tell"]
Remedy = Literal["gradients", "draws", ""]

_LEVEL = 0.002
"""Chance of a false "off" over all parameters. Far below 1 %, as p-values of skewed sums are approximate."""
_SHAPE_LEVEL = 0.01
_NAMING_LEVEL = 0.01
_SOMEWHAT_NONLINEAR = 0.5
"""Above this the posterior is too far from a Gaussian for m and C to be the errors of mean and sd."""
_VERY_NONLINEAR = 1.0
"""Above this the sums have such heavy tails that the Stein test must confirm their t tests."""
_MOST_SURPRISE = 2.0
"""A gradient that differs by more sds from the prediction of the others may mean another mode."""


@dataclass(frozen=True)
class Bounds:
    """What counts as within bounds."""

    mean: float = 0.1
    """Error of a parameter's mean, in posterior standard deviations."""
    sd: float = 0.1
    """Relative error of a parameter's standard deviation."""
    combination: float = 0.2
    """Either error, for the worst linear combination of the parameters."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < 1:
                raise OptionError(f"The bound {name} is {value}; it must lie between 0 and 1; 0.1 is usual.")


@dataclass(frozen=True)
class Decision:
    """The verdict on all parameters and on each, in words, with advice."""

    verdict: Verdict
    verdicts: tuple[Verdict, ...]
    sentence: str
    advice: str
    correctable: bool = True
    """Whether the errors are errors of mean and covariance, which an affine map of the draws corrects."""
    remedy: Remedy = ""
    """What would settle "cannot tell": gradients at more draws, or more draws."""


def decide(measured: Measured, bounds: Bounds, remedies: Remedies = ANY) -> Decision:
    """The verdict that the measured errors allow, with advice that the caller can follow.

    "off": the error of a mean, an sd or a combination exceeds its bound, and is significant at a family-wise level
    given the Monte Carlo noise. "within": all errors, Monte Carlo noise included, are inside the bounds with their
    standard errors, what the gradients leave unexplained is small, and the shape passes the Stein test. "cannot tell":
    neither.
    """
    level = _LEVEL / (2 * len(measured.names) + 3)
    confirmed = (measured.nonlinearity <= _VERY_NONLINEAR) | (measured.stein.p_value < _SHAPE_LEVEL)
    off_mean = (np.abs(measured.mean_error) > bounds.mean) & (measured.mean_p_value < level) & confirmed
    off_sd = (np.abs(measured.sd_ratio - 1) > bounds.sd) & (measured.sd_p_value < level) & confirmed
    clear = (
        (np.abs(measured.mean_error) + 2 * measured.mean_measured_se <= bounds.mean)
        & (np.abs(measured.sd_ratio - 1) + 2 * measured.sd_measured_se <= bounds.sd)
        & (measured.nonlinearity <= _SOMEWHAT_NONLINEAR)
        & (measured.surprise <= _MOST_SURPRISE)
    )
    verdicts: tuple[Verdict, ...] = tuple(
        _verdict(off, ok) for off, ok in zip(off_mean | off_sd, clear, strict=True)
    )
    worst = _worst(measured, bounds, level) if confirmed.all() else None
    if "off" in verdicts:
        sentence = _off_sentence(measured, bounds, off_mean | off_sd)
        return Decision("off", verdicts, sentence, off_advice(remedies))
    if worst is not None:
        return Decision("off", verdicts, worst, off_advice(remedies))
    doubt = _doubt(measured, bounds, clear, remedies)
    if doubt is None:
        percent = f"{100 * bounds.sd:g} %"
        sentence = f"Within bounds: every mean within {bounds.mean:g} sd and every sd within {percent}."
        return Decision("within", verdicts, sentence, "")
    correctable = _strange(measured, remedies) is None and not (clear.all() and _misshapen(measured))
    return Decision(
        "cannot tell", verdicts, f"Cannot tell: {doubt.reason}.", doubt.advice, correctable, doubt.remedy
    )


_READ_ALL = (
    "Each gradient reads a part of the rows. Read all: certify=shardmc.Certify(rows=1), or --certify-rows 1."
)
_NAMES_CAUSE = "Findings about shard agreement may name the cause."
_SKEWED_ADVICE = {
    False: "Or compare with a run of fewer shards, transform the parameter, or use a stronger prior.",
    True: "Or compare with another sampler, transform the parameter, or use a stronger prior.",
}
"""By whether there is only one shard."""
_SURPRISE_ADVICE = {
    False: "There may be another mode: look at the modes of the shards.",
    True: "There may be another mode: look at the draws of the one shard, and run it with another seed.",
}


def off_advice(remedies: Remedies) -> str:
    """What to do about draws that are off."""
    if remedies.one_shard:
        todo = remedies.use("take more draws", 'use another sampler such as "nuts"', "polish")
        return f"There is one shard, and its chain has probably not reached all of the posterior. {todo}"
    return f"{remedies.use('shards', 'keep', 'polish')} {_NAMES_CAUSE}".strip()


def _shape_advice(remedies: Remedies) -> str:
    if remedies.one_shard:
        return "Look at the marginal densities. Take more draws, or use another sampler."
    return f"Look at the marginal densities of the shards. {remedies.use('shards', 'use another sampler')}"


def _fewer_or_larger(remedies: Remedies) -> str:
    return f"{remedies.use('shards', 'keep')} {_NAMES_CAUSE}".strip()


def _verdict(off: bool, clear: bool) -> Verdict:
    return "off" if off else "within" if clear else "cannot tell"


def _off_sentence(measured: Measured, bounds: Bounds, off: np.ndarray) -> str:
    """Name the largest error, and count the other parameters that are off.

    At least one parameter is off, so the one named only has to be significant by itself.
    """
    size_mean = np.abs(measured.mean_error) * (measured.mean_p_value < _NAMING_LEVEL)
    size_sd = np.abs(np.log(measured.sd_ratio)) * (measured.sd_p_value < _NAMING_LEVEL)
    if size_mean.max() / bounds.mean >= size_sd.max() / bounds.sd:
        worst = int(size_mean.argmax())
        text = f"the mean of {measured.names[worst]} is {_shift(measured.mean_error[worst])}"
    else:
        worst = int(size_sd.argmax())
        text = f"the sd of {measured.names[worst]} is {_width(measured.sd_ratio[worst])}"
    others = int(np.sum(np.delete(off, worst)))
    more = (
        f", and {others} more of {len(measured.names)} parameters {'is' if others == 1 else 'are'} off"
        if others
        else ""
    )
    return f"Off: {text}{more}."


def _worst(measured: Measured, bounds: Bounds, level: float) -> str | None:
    """The sentence about a linear combination that is off although no single parameter is."""
    said = None
    if measured.shifted.value > bounds.combination and measured.shifted.p_value < level:
        said = f"the mean of {measured.shifted.words} is {measured.shifted.value:.2g} sd off"
    for extreme in (measured.widest, measured.narrowest):
        if abs(extreme.value - 1) > bounds.combination and extreme.p_value < level:
            said = f"the sd of {extreme.words} is {_width(extreme.value)}"
    return None if said is None else f"Off: {said}, although no single parameter is."


@dataclass(frozen=True)
class _Doubt:
    """Why the verdict is not "within", and what to do."""

    reason: str
    advice: str
    remedy: Remedy = ""


def _doubt(measured: Measured, bounds: Bounds, clear: np.ndarray, remedies: Remedies) -> _Doubt | None:
    """The most serious reason why the verdict is not "within"."""
    strange = _strange(measured, remedies)
    if strange is not None:
        return strange
    if _misshapen(measured):
        return _Doubt(
            f"means and sds look right, but the shape does not (Stein discrepancy, p = {measured.stein.p_value:.2g})",
            _shape_advice(remedies) if measured.rows_suffice else f"{_READ_ALL} {_shape_advice(remedies)}",
        )
    return _loose(measured, bounds) if clear.all() else _imprecise(measured, bounds, clear, remedies)


def _misshapen(measured: Measured) -> bool:
    return measured.stein.p_value < _SHAPE_LEVEL


def _strange(measured: Measured, remedies: Remedies) -> _Doubt | None:
    """Why the measured errors cannot be relied on, and what to do."""
    if measured.num_gradients < FEWEST_GRADIENTS:
        return _Doubt(
            f"only {measured.num_gradients} draws have finite gradients, and {FEWEST_GRADIENTS} are needed",
            "Take more draws. Look at draws whose gradient is not finite.",
        )
    if measured.num_lost:
        total = measured.num_lost + measured.num_gradients
        return _Doubt(
            f"the gradient is not finite at {measured.num_lost} of {total} draws",
            "Look at these draws: they may be outside the support, or the model may overflow.",
        )
    if (measured.nonlinearity > _SOMEWHAT_NONLINEAR).any():
        worst = int(measured.nonlinearity.argmax())
        return _Doubt(
            f"the posterior of {measured.names[worst]} is too far from a Gaussian to be measured by gradients "
            f"at {measured.num_gradients} draws",
            f"{_gradients(measured, 3.0)} {_SKEWED_ADVICE[remedies.one_shard]}",
            "gradients",
        )
    if (measured.surprise > _MOST_SURPRISE).any():
        worst = int(measured.surprise.argmax())
        return _Doubt(
            f"for {measured.names[worst]}, the gradient at one draw differs by {measured.surprise[worst]:.2g} sd from "
            "what the other gradients predict",
            _SURPRISE_ADVICE[remedies.one_shard],
            "gradients",
        )
    return None


def _loose(measured: Measured, bounds: Bounds) -> _Doubt | None:
    """Name a linear combination whose error may exceed its bound although every parameter is within bounds."""
    reach = measured.shifted.value + 2 * measured.shifted.se
    if reach > bounds.combination:
        reason = f"the mean of {measured.shifted.words} may be {reach:.2g} sd off"
        return _more(
            measured, reason, reach / bounds.combination, 1 / np.sqrt(measured.ess.min()), bounds.mean
        )
    for extreme in (measured.widest, measured.narrowest):
        reach = max(abs(extreme.value - 1) + 2 * extreme.se, abs(extreme.largest - 1))
        if reach > bounds.combination:
            reason = f"the sd of {extreme.words} may be {100 * reach:.0f} % off"
            # The extreme ratio of sds over d directions has noise of about sqrt(d / draws).
            noise = np.sqrt(len(measured.names) / measured.ess.min())
            return _more(measured, reason, reach / bounds.combination, noise, bounds.combination)
    return None


def _imprecise(measured: Measured, bounds: Bounds, clear: np.ndarray, remedies: Remedies) -> _Doubt:
    """Name the parameter whose error is known least precisely."""
    reach_mean = (np.abs(measured.mean_error) + 2 * measured.mean_measured_se) / bounds.mean
    reach_sd = (np.abs(measured.sd_ratio - 1) + 2 * measured.sd_measured_se) / bounds.sd
    worst = int(np.where(clear, 0, np.maximum(reach_mean, reach_sd)).argmax())
    name = measured.names[worst]
    if reach_mean[worst] >= reach_sd[worst]:
        numbers = measured.mean_error, measured.mean_error_se, measured.mean_measured_se
        value, se, own = (float(x[worst]) for x in numbers)
        text = f"the mean of {name} is {value:+.2f} ± {se:.2f} sd off"
        reach, bound, error = reach_mean[worst], bounds.mean, abs(value)
    else:
        numbers = measured.sd_ratio, measured.sd_ratio_se, measured.sd_measured_se
        value, se, own = (float(x[worst]) for x in numbers)
        text = f"the sd of {name} is {value:.2f} ± {se:.2f} times the correct one"
        reach, bound, error = reach_sd[worst], bounds.sd, abs(value - 1)
    if error <= bound:  # for these draws themselves: a more precise measurement would tell
        return _measure_more(measured, text, max(3.0, min((own / (bound / 3)) ** 2, 100.0)))
    if measured.shards_differ[worst]:
        return _Doubt(text, _differing(measured, worst, remedies))
    return _more(measured, text, float(reach), float(np.sqrt(max(se**2 - own**2, 0.0))), bound, own)


def _differing(measured: Measured, worst: int, remedies: Remedies) -> str:
    return (
        f"The draws of {measured.names[worst]} from different shards differ in their means: these "
        f"{measured.num_draws:,} draws are worth {measured.ess[worst]:,.0f} independent ones, and more would not help. "
        f"{_fewer_or_larger(remedies)}"
    )


def _more(
    measured: Measured,
    reason: str,
    reach: float,
    of_draws: float,
    bound: float,
    of_gradients: float | None = None,
) -> _Doubt:
    """Whether more draws, or gradients at more draws, would settle it, and how many.

    Standard errors fall as one over the square root of either number. A third of the bound is small enough.
    """
    enough = bound / 3
    if of_draws > enough and (of_gradients is None or of_draws >= of_gradients):
        needed = _rounded(measured.num_draws * (of_draws / enough) ** 2)
        return _Doubt(
            reason,
            f"The Monte Carlo noise is too large: these {measured.num_draws:,} draws are worth "
            f"{measured.ess.min():,.0f} independent ones. Take more draws: about {needed:,} are enough.",
            "draws",
        )
    times = 3.0 if of_gradients is None else float(np.clip((of_gradients / enough) ** 2, 2.0, 100.0))
    return _measure_more(measured, reason, max(times, min(reach, 10.0)))


def _measure_more(measured: Measured, reason: str, times: float) -> _Doubt:
    """What is too imprecise: the gradients are too few, or too few rows are read for each."""
    if measured.rows_suffice:
        return _Doubt(reason, _gradients(measured, times), "gradients")
    return _Doubt(reason, _READ_ALL)


def _gradients(measured: Measured, times: float) -> str:
    """Advice to compute more gradients, with the option to set."""
    wanted = min(_rounded(measured.num_gradients * times), measured.num_draws)
    if wanted <= measured.num_gradients:
        return f"Take more draws: gradients at all {measured.num_gradients} draws have already been used."
    return (
        f"Compute gradients at more than {measured.num_gradients} draws: "
        f"certify=shardmc.Certify(draws={wanted}, max_draws={max(wanted, 1000)}), or --certify-draws {wanted}."
    )


def _rounded(number: float) -> int:
    """Rounded up to two digits.

    >>> _rounded(123_456.0), _rounded(77.0)
    (130000, 77)
    """
    unit = 10 ** max(int(np.floor(np.log10(max(number, 1.0)))) - 1, 0)
    return int(np.ceil(number / unit)) * unit


def _shift(error: float) -> str:
    return f"{abs(error):.2g} sd too {'high' if error > 0 else 'low'}"


def _width(ratio: float) -> str:
    if ratio >= 2:
        return f"{ratio:.2g} times the correct one"
    return f"{100 * abs(ratio - 1):.0f} % too {'large' if ratio > 1 else 'small'}"
