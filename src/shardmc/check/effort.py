"""What the certificate may cost, and what counts as right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardmc.check.verdict import Bounds
from shardmc.errors import OptionError


@dataclass(frozen=True)
class Certify:
    """Effort and bounds of the certificate.

    Parameters
    ----------
    draws
        Draws at which it computes the gradient of all rows first; each costs as much as one evaluation of all rows.
    max_draws
        Where these cannot tell and more would help, it goes on with three times as many, up to this number.
    mean
        Error of a parameter's mean that counts as right, in posterior standard deviations.
    sd
        Relative error of a parameter's standard deviation that counts as right. For linear combinations of
        parameters twice the larger of the two bounds holds.

    Examples
    --------
    >>> Certify(mean=0.05).bounds
    Bounds(mean=0.05, sd=0.1, combination=0.2)
    >>> Certify(draws=5)
    Traceback (most recent call last):
    shardmc.errors.OptionError: Certify(draws=5): at least 20 draws are needed; 100 are usual.
    """

    draws: int = 100
    max_draws: int = 1000
    mean: float = 0.1
    sd: float = 0.1

    def __post_init__(self) -> None:
        for name in ("draws", "max_draws"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise OptionError(f"Certify({name}={value!r}): {name} must be a whole number.")
        if self.draws < 20:
            raise OptionError(f"Certify(draws={self.draws}): at least 20 draws are needed; 100 are usual.")
        if self.max_draws < self.draws:
            raise OptionError(
                f"Certify(draws={self.draws}, max_draws={self.max_draws}): max_draws must not be below draws."
            )
        for name in ("mean", "sd"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 < value < 0.5):
                raise OptionError(
                    f"Certify({name}={value!r}): the bound must lie between 0 and 0.5; 0.1 is usual."
                )

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.mean, self.sd, 2 * max(self.mean, self.sd))

    def stages(self, available: int) -> list[int]:
        """How many gradients are taken in all after each stage.

        >>> Certify().stages(10_000), Certify().stages(200), Certify(max_draws=100).stages(10_000)
        ([100, 300, 1000], [100, 200], [100])
        """
        most = min(self.max_draws, available)
        counts = [min(self.draws, most)]
        while counts[-1] < most:
            more = 3 * counts[-1]
            counts.append(most if 1.5 * more > most else more)
        return counts


def certify_options(certify: Certify | bool, check: bool = True) -> Certify | None:
    """The options that were given in short; None for no certificate."""
    if not isinstance(certify, Certify | bool):
        raise OptionError(
            f"certify must be True, False or shardmc.Certify(...), not {certify!r}; "
            "for example certify=shardmc.Certify(mean=0.05)."
        )
    if certify is False or not check:
        return None
    return Certify() if certify is True else certify
