"""What the examples have in common: their options, and where the data are."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def options(description: str, file_name: str) -> argparse.Namespace:
    """`--quick`, `--data FILE` and `--out FOLDER`; ends with a sentence where the data are not at hand."""
    folder = Path(os.environ.get("SHARDMC_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a twentieth of the rows and fewer draws")
    parser.add_argument("--data", type=Path, default=folder / file_name, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("shardmc-examples"), help="default: %(default)s")
    given = parser.parse_args()
    if not given.data.exists():
        parser.exit(
            0, f"{given.data} is not there: skipped. Name the file by --data, its folder by SHARDMC_DATA.\n"
        )
    if given.quick:
        print("Quick: to try the script. With this few rows and draws the certificate often cannot tell.")
    given.out.mkdir(parents=True, exist_ok=True)
    return given
