"""The combiners by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

from shardmc.combine.consensus import Consensus
from shardmc.combine.laplace import Laplace
from shardmc.combine.mposterior import MPosterior
from shardmc.combine.product import Product
from shardmc.combine.recenter import Recenter
from shardmc.combine.wasserstein import Wasserstein
from shardmc.combine.weierstrass import Weierstrass
from shardmc.errors import OptionError, unknown
from shardmc.types import Combiner

COMBINERS: dict[str, Callable[[], Combiner]] = {
    "recenter": Recenter,
    "algorithm-1": Recenter.algorithm_1,
    "swiss": Recenter.swiss,
    "consensus": Consensus,
    "product": Product,
    "nonparametric-product": partial(Product, kind="nonparametric"),
    "semiparametric-product": partial(Product, kind="semiparametric"),
    "weierstrass": Weierstrass,
    "mposterior": MPosterior,
    "wasserstein": Wasserstein,
    "pie": partial(Wasserstein, kind="quantile"),
    "empirical-wasserstein": partial(Wasserstein, kind="empirical"),
    "laplace": Laplace,
}
"""Every combiner by name, and what makes it with its defaults."""


def combiner(method: str | Combiner, **options: Any) -> Combiner:
    """The combiner of that name, with options of its class changed from their defaults.

    Parameters
    ----------
    method
        A name from `COMBINERS`, or a combiner.
    options
        Fields of the combiner's class.

    Examples
    --------
    >>> combiner("recenter", scale="none").scale
    'none'
    >>> combiner("recentre")
    Traceback (most recent call last):
        ...
    shardmc.errors.OptionError: Unknown combiner 'recentre'. Did you mean 'recenter'? Valid: ...
    """
    if isinstance(method, Combiner):
        made, name = method, type(method).__name__
    elif method in COMBINERS:
        made, name = COMBINERS[method](), method
    else:
        raise unknown("combiner", method, COMBINERS)
    if not options:
        return made
    valid = [f.name for f in fields(made)]  # pyright: ignore[reportArgumentType]
    for option in options:
        if not valid:
            raise OptionError(f"Combiner {name!r} has no options; {option!r} was given.")
        if option not in valid:
            raise unknown(f"option of combiner {name!r}", option, valid)
    return replace(made, **options)  # pyright: ignore[reportArgumentType]
