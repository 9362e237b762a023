"""What to show first: the parameters that may be most wrong, the worst pair, and the shards that disagree most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardmc.errors import OptionError, unknown
from shardmc.names import shown
from shardmc.posterior import Posterior


def severity(posterior: Posterior) -> np.ndarray | None:
    """How wrong each coordinate may be, as a multiple of what is allowed, (dim,); None without a certificate.

    max(|mean error| + 2 se, over its bound;  |sd ratio - 1| + 2 se, over its bound)
    """
    certificate = posterior.certificate
    if certificate is None:
        return None
    mean = (np.abs(certificate.mean_error) + 2 * certificate.mean_error_se) / certificate.bounds.mean
    sd = (np.abs(certificate.sd_ratio - 1) + 2 * certificate.sd_ratio_se) / certificate.bounds.sd
    return np.fmax(mean, sd)


def worst_first(posterior: Posterior) -> list[int]:
    """All coordinates, those that may be most wrong first. Without a certificate they keep their order."""
    how_wrong = severity(posterior)
    if how_wrong is None:
        return list(range(len(posterior.names)))
    return [int(k) for k in np.argsort(-np.nan_to_num(how_wrong, nan=-1.0), kind="stable")]


def worst_pair(posterior: Posterior) -> tuple[int, int] | None:
    """The two coordinates with the largest weights in the worst linear combination; None for a single coordinate.

    Without a certificate they are the two most correlated coordinates.
    """
    if len(posterior.names) < 2:
        return None
    certificate = posterior.certificate
    if certificate is not None:
        combinations = [
            (abs(certificate.shifted.value), certificate.shifted),
            (abs(certificate.widest.value - 1), certificate.widest),
            (abs(certificate.narrowest.value - 1), certificate.narrowest),
        ]
        worst = max(combinations, key=lambda c: c[0] if np.isfinite(c[0]) else -1.0)[1]
        named = [posterior.names.index(name) for name, _ in worst.loadings if name in posterior.names]
        if len(named) >= 2:
            return named[0], named[1]
    correlation = _correlation(posterior.theta)
    first, second = np.unravel_index(int(np.argmax(correlation)), correlation.shape)
    return int(first), int(second)


def _correlation(theta: np.ndarray) -> np.ndarray:
    """Absolute correlations (dim, dim); -1 on and below the diagonal, so the largest one is that of a pair."""
    finite = theta[np.isfinite(theta).all(axis=1)]
    dim = theta.shape[1]
    found = np.zeros((dim, dim))
    if len(finite) > 1:
        scale = finite.std(axis=0)
        z = (finite - finite.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
        found = np.abs(z.T @ z) / len(finite)
    found[np.tril_indices(dim)] = -1.0
    return found


def shards_to_draw(posterior: Posterior, most: int) -> np.ndarray:
    """Shards whose curves are drawn, at most `most`: a third are those that disagree most, the others evenly spaced.

    Shards without draws are left out.
    """
    shards = posterior.shards
    there = (
        np.flatnonzero(np.isfinite(shards.draws[:, 0]).all(axis=1)) if shards.draws.size else np.empty(0, int)
    )
    if len(there) <= most:
        return there
    picked: set[int] = set()
    if shards.disagreement is not None:
        order = np.argsort(-np.nan_to_num(shards.disagreement[there], nan=-1.0), kind="stable")
        picked.update(int(i) for i in there[order[: most // 3]])
    rest = np.array([i for i in there if int(i) not in picked])
    even = np.linspace(0, len(rest) - 1, most - len(picked)).round().astype(int)
    return np.sort(np.concatenate([np.array(sorted(picked), int), rest[even]]))


def coordinates(posterior: Posterior, chosen: Sequence[str | int] | None, most: int) -> list[int]:
    """Positions of coordinates given by name or position; by default the `most` that may be most wrong."""
    if chosen is None:
        return worst_first(posterior)[:most]
    if len(chosen) == 0:
        raise OptionError("parameters is empty; give at least one parameter, or leave it out.")
    found = []
    for one in chosen:
        if isinstance(one, str):
            if one not in posterior.names:
                raise unknown("parameter", one, posterior.names)
            found.append(posterior.names.index(one))
        elif 0 <= int(one) < len(posterior.names):
            found.append(int(one))
        else:
            raise OptionError(
                f"There is no coordinate {one}: the posterior has {len(posterior.names)} coordinates, counted from 0."
            )
    return found


def label(posterior: Posterior, coordinate: int, most: int = 36) -> str:
    """The coordinate's name, with "(unconstrained)" if its values differ from those of the parameter."""
    name = posterior.names[coordinate]
    natural = posterior.flat().get(name)
    theta = posterior.theta[:, coordinate]
    if natural is not None and natural.shape == theta.shape:
        some = np.isfinite(natural) & np.isfinite(theta)
        if np.allclose(natural[some], theta[some], rtol=1e-5, atol=1e-8):
            return shortened(shown(name), most)
    suffix = " (unconstrained)"
    return shortened(shown(name), most - len(suffix)) + suffix


def shortened(name: str, most: int) -> str:
    """A name cut to at most `most` characters. Its end stays, because indices are there; levels begin earlier.

    >>> shortened("a_very_long_name[12]", 12)
    'a_very…e[12]'
    """
    if len(name) <= most:
        return name
    end = min((most - 1) // 2, 6)
    return name[: most - 1 - end] + "…" + name[-end:]
