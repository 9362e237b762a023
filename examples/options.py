"""The command-line options that the examples share."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def options(description: str, file_name: str) -> argparse.Namespace:
    """Reads `--quick`, `--data FILE` and `--out FOLDER`. Exits with a message if the data file does not exist."""
    folder = Path(os.environ.get("SHARDMC_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a twentieth of the rows and fewer draws")
    parser.add_argument("--data", type=Path, default=folder / file_name, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("shardmc-examples"), help="default: %(default)s")
    given = parser.parse_args()
    if not given.data.exists():
        parser.exit(
            0,
            f"Skipped: {given.data} does not exist. Give the file with --data, or its folder in SHARDMC_DATA.\n",
        )
    if given.quick:
        print("Quick run with few rows and draws: the certificate often says that it cannot tell.")
    given.out.mkdir(parents=True, exist_ok=True)
    return given
