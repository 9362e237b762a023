"""The command line: one file per command, and one place where errors become sentences."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line. A user's mistake is one sentence and exit code 2; an interruption is one line and 130."""
    signal.signal(signal.SIGINT, _interrupted)
    from shardmc.cli.app import app
    from shardmc.errors import ShardmcError

    try:
        app()
    except ShardmcError as error:
        print(f"shardmc: {error}", file=sys.stderr)
        sys.exit(2)


def _interrupted(number: int, frame: FrameType | None) -> None:
    show_cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""
    sentence = "shardmc: interrupted; finished shards of a run folder are kept."
    print(f"{show_cursor}{sentence}", file=sys.stderr, flush=True)
    # Threads may be inside compiled code, which cannot be interrupted: leave without waiting for them.
    os._exit(130)
