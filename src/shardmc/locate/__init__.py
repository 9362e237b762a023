"""Where the posterior is: modes, curvatures, and the rows that matter much."""

from shardmc.locate.gradients import gradients, gradients_call
from shardmc.locate.leverage import KEEP, Influential, influential, influential_call, leverage
from shardmc.locate.newton import DECREMENT, Start, locate, near_mode, newton_steps
from shardmc.locate.precision import Choice, asked_precision, choose_precision, precision_of_rows
from shardmc.locate.shards import locate_shards

__all__ = [
    "DECREMENT",
    "KEEP",
    "Choice",
    "Influential",
    "Start",
    "asked_precision",
    "choose_precision",
    "gradients",
    "gradients_call",
    "influential",
    "influential_call",
    "leverage",
    "locate",
    "locate_shards",
    "near_mode",
    "newton_steps",
    "precision_of_rows",
]
