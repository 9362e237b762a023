"""The command line: one file per command, and one place where errors become sentences."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2, an interruption one line and 130."""
    from shardmc.cli.app import app
    from shardmc.errors import ShardmcError

    try:
        app(standalone_mode=True)
    except ShardmcError as error:
        print(f"shardmc: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("shardmc: interrupted; finished shards of a run folder are kept.", file=sys.stderr, flush=True)
        # Threads may still be inside compiled code, which cannot be interrupted: leave without waiting for them.
        os._exit(130)
