"""The pipeline: a run is a job and a list of stages, and one driver runs them."""

from shardmc.pipeline.fitting import FrontEnd, fit, open_rows

__all__ = ["FrontEnd", "fit", "open_rows"]
