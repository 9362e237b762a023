"""The version, read by the build and by `shardmc --version`."""

__version__ = "0.1.0"
