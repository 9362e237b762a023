"""The errors that a user can cause. The command line shows each as one sentence, with exit code 2."""

import difflib
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypeVar

from shardmc.names import shown_text

P = ParamSpec("P")
R = TypeVar("R")


_CHAINS = ("sampler", "Chains belong to the sampler: sampler=shardmc.HMC(chains=4).")
_WARMUP = ("sampler", "Warm-up belongs to the sampler: sampler=shardmc.HMC(warmup=200).")
_TARGET = ("sampler", "The acceptance belongs to the sampler: sampler=shardmc.HMC(target_acceptance=0.9).")
_DRAWS = ("draws", "The number of draws from the posterior, of all chains together, is draws=.")
_SEED = ("seed", "Random numbers are set by seed=.")
_CORES = ("engine", "All cores are used. On a cluster: engine=shardmc.Dask(...).")
_ELSEWHERE = {
    "chains": _CHAINS,
    "num_chains": _CHAINS,
    "tune": _WARMUP,
    "warmup": _WARMUP,
    "num_warmup": _WARMUP,
    "burn_in": _WARMUP,
    "target_accept": _TARGET,
    "adapt_delta": _TARGET,
    "iter": _DRAWS,
    "samples": _DRAWS,
    "num_samples": _DRAWS,
    "random_seed": _SEED,
    "random_state": _SEED,
    "cores": _CORES,
    "n_jobs": _CORES,
    "link": ("family", "The link belongs to the family: family='bernoulli(link=probit)'."),
}
"""Options of other programs -> the option to use here, for functions that have it, and how."""


class ShardmcError(Exception):
    """The call, the model or the data must change. The message says how.

    Examples
    --------
    >>> import shardmc
    >>> try:
    ...     shardmc.load("nowhere.nc")
    ... except shardmc.ShardmcError as error:
    ...     print(error)
    There is no file or folder 'nowhere.nc'.

    Names of columns and levels may be part of a message. Control characters in it are written as escapes, so that no
    name reaches the terminal as a command.

    >>> print(ShardmcError("Column \\x1b[2J is empty."))
    Column \\x1b[2J is empty.
    """

    def __str__(self) -> str:
        return shown_text(super().__str__())


class DataError(ShardmcError):
    """The rows cannot be used as they are."""


class ModelError(ShardmcError):
    """The model cannot be used as it is."""


class OptionError(ShardmcError, ValueError):
    """An argument has a value that is not allowed."""


class RunError(ShardmcError):
    """A run folder or a result file cannot be used."""


class EngineError(ShardmcError):
    """This process or the cluster cannot run the computation, or has stopped."""


class SamplingError(ShardmcError):
    """Sampling failed: in all shards, at a site, on every worker that tried, or because a chain diverged."""


class OutOfMemoryError(ShardmcError, MemoryError):
    """The computation needs more memory than there is."""


def counted(count: int, noun: str) -> str:
    """A count of something, for messages.

    >>> counted(1, "row"), counted(20_000, "row")
    ('1 row', '20,000 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def unknown(kind: str, given: object, valid: Iterable[str]) -> OptionError:
    """The error for a misspelt name. It lists the valid names and suggests the nearest.

    >>> print(unknown("combiner", "consensis", ["consensus", "recenter"]))
    Unknown combiner 'consensis'. Did you mean 'consensus'? Valid: consensus, recenter.
    """
    names = sorted(valid)
    nearest = difflib.get_close_matches(str(given).lower(), names, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return OptionError(f"Unknown {kind} {given!r}.{hint} Valid: {', '.join(names)}.")


def warn(message: str) -> None:
    """A warning that names the line of the user's code, however deep in shardmc its cause lies.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warn("Few rows.")
    >>> str(caught[0].message)
    'Few rows.'
    """
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)


_INSIDE = ("shardmc", "contextlib", "functools")
"""Packages whose functions lie between a user's call and a warning."""


def knows_its_options(*inner: Callable[..., object]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function refuse unknown options, in a message with its name. It knows those of the `inner` functions, too.

    >>> @knows_its_options()
    ... def fit(model, *, draws=10): ...
    >>> fit("model", num_draws=5)
    Traceback (most recent call last):
    shardmc.errors.OptionError: Unknown option of fit 'num_draws'. Did you mean 'draws'? Valid: draws, model.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        own = [n for n, p in signature(function).parameters.items() if p.kind is not Parameter.VAR_KEYWORD]
        passed = [
            n
            for each in inner
            for n, p in signature(each).parameters.items()
            if p.kind is Parameter.KEYWORD_ONLY
        ]
        names = dict.fromkeys(own + passed)

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in names:
                    option, advice = _ELSEWHERE.get(name, ("", ""))
                    if option in names:
                        raise OptionError(f"Unknown option of {function.__name__} {name!r}. {advice}")
                    raise unknown(f"option of {function.__name__}", name, names)
            return function(*args, **kwargs)

        return checked

    return decorate
