"""Checks of what sites send: whether the sites fit together, and whether the draws of each fit its own mode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from shardmc.errors import RunError
from shardmc.store.site import Site

_FAR = 2.0
"""The distance between mean and mode, in posterior sd, that a skewed posterior may have beyond the noise of draws."""
_SPREAD = 4.0
"""The factor by which the sd of the draws may differ from what the curvature says, beyond that noise."""
_LEVEL = 1e-9
"""The probability, per parameter, that draws of an exactly Gaussian posterior are refused by chance."""


def refuse_unlike(sites: Sequence[Site], other_models: bool) -> None:
    """Refuse sites with other parameters, supports or models than the first."""
    first = sites[0]
    for site in sites[1:]:
        pair = f"Sites {first.shard} and {site.shard} have different models"
        if site.names != first.names:
            raise RunError(
                f"{pair}: the parameters of site {first.shard} are {listed_names(first.names)}, those of site "
                f"{site.shard} are {listed_names(site.names)}."
            )
        for name in first.supports.keys() | site.supports.keys():
            here, there = first.supports.get(name), site.supports.get(name)
            if here != there:
                shapes = here is not None and there is not None and here[0] != there[0]
                raise RunError(
                    f"{pair}: {name!r} is {_described(here, shapes)} at site {first.shard} and "
                    f"{_described(there, shapes)} at site {site.shard}."
                )
        if site.model != first.model and not other_models:
            raise RunError(
                f"Sites {site.shard} and {first.shard} used different models: the hashes of their models differ. Use "
                "the same model and the same versions of the packages at all sites. If only the versions differ, allow "
                "it: other_models=True (--other-models on the command line)."
            )


def refuse_contradiction(site: Site) -> None:
    """Refuse a site whose curvature is not that of a maximum, or whose draws do not fit its own mode and curvature.

    If the site's posterior is Gaussian and H = L L^T, (theta - mode) L is standard normal. Moderate skewness is
    allowed. If the difference is larger, the draws, the mode or the curvature is wrong, or the method should not be
    used.
    """
    if site.mode is None or site.curvature is None:
        if site.mode is not None or site.curvature is not None:
            has, lacks = ("curvature", "mode") if site.mode is None else ("mode", "curvature")
            raise RunError(f"Site {site.shard} has a {has} without a {lacks}; sample it again.")
        _refuse_infinite(site, site.chains.theta)
        return
    lower = _cholesky(site, site.curvature)
    sd = np.sqrt(np.diag(np.linalg.inv(site.curvature)))
    centered = site.chains.theta - site.mode
    _refuse_infinite(site, centered / sd)
    effective = _effective(centered)
    _refuse_marginals(site, centered / sd, effective)
    _refuse_combinations(site, centered @ lower, float(effective.min()))


def _cholesky(site: Site, curvature: np.ndarray) -> np.ndarray:
    sizes = np.sqrt(np.abs(np.diag(curvature)))
    with np.errstate(all="ignore"):
        scaled = curvature / np.outer(sizes, sizes)
    if np.isfinite(scaled).all() and np.abs(scaled - scaled.T).max() < 1e-6:
        values, vectors = np.linalg.eigh(scaled)
        if values[0] > len(values) * np.finfo(np.float32).eps / 100:
            return np.linalg.cholesky(curvature)
        worst = int(np.abs(vectors[:, 0]).argmax())
    else:
        worst = int(np.argmin(sizes))
    raise RunError(
        f"Site {site.shard}'s curvature is not that of a maximum (it is singular, indefinite or not symmetric, at "
        f"{site.names[worst]}): its rows do not determine every parameter, or the file is wrong. Give the parameters a "
        "proper prior, or sample the site again."
    )


def _refuse_infinite(site: Site, draws: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        finite = np.isfinite(draws.var(axis=(0, 1)))
    if not finite.all():
        raise _contradiction(
            site, f"those of {site.names[int(finite.argmin())]} are too large to compute with"
        )


def _refuse_marginals(site: Site, z: np.ndarray, effective: np.ndarray) -> None:
    """Refuse draws (chain, draw, dim), in posterior sd from the mode, whose means or sds are not about 0 and 1."""
    count = z.shape[0] * z.shape[1]
    mean, sd = z.mean(axis=(0, 1)), z.std(axis=(0, 1), ddof=min(1, count - 1))
    noise = -stats.norm.ppf(_LEVEL / 2) * np.maximum(sd, 1) / np.sqrt(effective)
    low, high = (np.sqrt(stats.chi2.ppf(p, effective - 1) / (effective - 1)) for p in (_LEVEL, 1 - _LEVEL))
    wrong = np.abs(mean) > _FAR + noise
    if count > 1:
        wrong |= (sd < low / _SPREAD) | (sd > high * _SPREAD)
    if wrong.any():
        worst = int(np.flatnonzero(wrong)[0])
        raise _contradiction(
            site,
            f"for {site.names[worst]} their mean is {mean[worst]:.3g} sd from the mode, and their sd {sd[worst]:.3g} "
            "times what the curvature says",
        )


def _refuse_combinations(site: Site, z: np.ndarray, effective: float) -> None:
    """Refuse draws that are standard normal in each coordinate but not jointly, such as draws on a line.

    The singular values of n standard normal vectors in d dimensions, divided by sqrt(n), are within sqrt(d / n) + t of
    1, except with a probability of exp(-n t^2 / 2) on either side.
    """
    flat = z.reshape(-1, z.shape[2])
    if effective <= flat.shape[1] or len(flat) < 2:
        return
    slack = np.sqrt(flat.shape[1] / effective) + np.sqrt(-2 * np.log(_LEVEL) / effective)
    values = np.linalg.svd(flat - flat.mean(axis=0), compute_uv=False) / np.sqrt(len(flat) - 1)
    for value, wrong in (
        (values[-1], values[-1] < (1 - slack) / _SPREAD),
        (values[0], values[0] > (1 + slack) * _SPREAD),
    ):
        if wrong:
            raise _contradiction(
                site, f"in a combination of parameters their sd is {value:.3g} times what the curvature says"
            )


def _contradiction(site: Site, how: str) -> RunError:
    return RunError(
        f"Site {site.shard}'s draws do not fit the mode and curvature of the site itself: {how}. The file was altered, "
        "the sampler failed, or the site's posterior is far from Gaussian. Look at the chains there, and sample "
        "the site again."
    )


def _effective(z: np.ndarray) -> np.ndarray:
    """Effective number of draws of every coordinate, at least 2. Where it cannot be estimated, all draws count."""
    from arviz_stats.base.array import array_stats

    count = z.shape[0] * z.shape[1]
    found = np.full(z.shape[2], float(count))
    varies = z.std(axis=(0, 1)) > 0
    if z.shape[1] >= 4 and varies.any():
        found[varies] = array_stats.ess(z[..., varies], chain_axis=0, draw_axis=1)
    return np.clip(np.nan_to_num(found, nan=float(count)), 2.0, max(count, 2))


def _described(parameter: tuple[tuple[int, ...], object] | None, shapes: bool) -> str:
    """A parameter's shape or its support in words."""
    if parameter is None:
        return "absent"
    shape, support = parameter
    if shapes:
        return f"of shape {shape}"
    if support is None:
        return "without a named support"
    if isinstance(support, list | tuple):
        name, *arguments = support
        return f"{name}({', '.join(map(str, arguments))})"
    return str(support)


def listed_names(names: Sequence[str]) -> str:
    """The first names, and how many more there are.

    >>> listed_names(["a", "b"]), listed_names(list("abcdefgh"))
    ('a, b', 'a, b, c, d, e, f and 2 more')
    """
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
