"""Where the posterior is: modes, curvatures, and the rows of high leverage."""

from shardmc.locate.ascent import DECREMENT
from shardmc.locate.gradient_sums import SampledGradients, gradients, gradients_call
from shardmc.locate.leverage import KEEP, Influential, influential, influential_call
from shardmc.locate.newton import Start, locate, near_mode, newton_steps
from shardmc.locate.precision import Choice, asked_precision, choose_precision, precision_of_rows
from shardmc.locate.shard_modes import locate_shards

__all__ = [
    "DECREMENT",
    "KEEP",
    "Choice",
    "Influential",
    "SampledGradients",
    "Start",
    "asked_precision",
    "choose_precision",
    "gradients",
    "gradients_call",
    "influential",
    "influential_call",
    "locate",
    "locate_shards",
    "near_mode",
    "newton_steps",
    "precision_of_rows",
]
