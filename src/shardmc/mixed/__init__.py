"""Models with effects of groups: the effects are integrated out, group by group."""

from shardmc.mixed.centers import blank_centers, center_groups, moments_of_effects
from shardmc.mixed.marginal import (
    GroupLikelihood,
    LocalEffects,
    Marginal,
    corrected,
    integrated,
    product_rule,
)
from shardmc.mixed.matched import LinearEffects, Matched, blank_sites, points_for

__all__ = [
    "GroupLikelihood",
    "LinearEffects",
    "LocalEffects",
    "Marginal",
    "Matched",
    "blank_centers",
    "blank_sites",
    "center_groups",
    "corrected",
    "integrated",
    "moments_of_effects",
    "points_for",
    "product_rule",
]
