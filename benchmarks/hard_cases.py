"""What is hard, and must be right all the same: modes, precision, names, and the certificate's cases.

    python benchmarks/hard_cases.py [--only modes precision names certificate] [--quick] [--rows 1000000]

Each part writes a page of its own, docs/benchmarks/hard_cases-PART.md. The program ends with 1 where a mode or a name
comes out wrong. On an accelerator `--only precision --rows 20000000 --device` writes hard_cases-precision-gpu.md.
"""

from __future__ import annotations

import argparse
import sys

import hard_modes
import hard_names
import hard_precision
from certificate_skewed import rare_levels
from provenance import header, publish, table

PARTS = ("modes", "precision", "names", "certificate")
SCRIPT = "hard_cases.py --only "


def modes(options: argparse.Namespace) -> int:
    text, wrong = hard_modes.table(options.quick)
    publish(
        "hard_cases-modes.md",
        f"# Hard cases: the mode is found where there is one\n\n{header(SCRIPT + 'modes')}\n"
        "How far the mode is from the exact one is computed from derivatives of all rows in double precision. A pass "
        f"is one reading of all rows. {wrong} outcomes are wrong.\n\n{text}\n",
        options.quick,
    )
    return wrong


def precision(options: argparse.Namespace) -> int:
    num_rows = hard_precision.QUICK_ROWS if options.quick else options.rows
    draws = 1_000 if options.quick else 10_000
    only = ["logistic", "Student t"] if options.quick else None
    found = []
    for row in hard_precision.all_rows(num_rows, draws, only, options.precisions):
        found.append(row)
        print(*row, sep=" | ", file=sys.stderr, flush=True)
    publish(
        "hard_cases-precision-gpu.md" if options.device else "hard_cases-precision.md",
        f"# Hard cases: precision is chosen by measurement\n\n{header(SCRIPT + 'precision')}\n"
        f"{num_rows:,} rows, {draws:,} draws, through NumPyro. Noise is what rounding in single precision does, as the "
        "fit measures it; 0.2 of the log density and 0.02 sd of the gradient are allowed. Seconds are those of a "
        f"second fit, in which nothing is compiled.\n\n{table(hard_precision.COLUMNS, found)}",
        options.quick,
    )
    return 0


def names(options: argparse.Namespace) -> int:
    text, wrong = hard_names.as_table(options.quick)
    publish(
        "hard_cases-names.md",
        f"# Hard cases: names\n\n{header(SCRIPT + 'names')}\n"
        "A column or a parameter of each name must give exactly the draws that an ordinary name gives. "
        f"{wrong} outcomes are wrong.\n\n{text}",
        options.quick,
    )
    return wrong


def certificate(options: argparse.Namespace) -> int:
    seeds = 2 if options.quick else 10
    publish(
        "hard_cases-certificate.md",
        f"# Hard cases: the certificate on rare and separated levels\n\n{header(SCRIPT + 'certificate')}\n"
        f"{rare_levels(seeds, options.quick)}",
        options.quick,
    )
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--device", action="store_true")
    parser.add_argument("--precisions", nargs="*", default=hard_precision.PRECISIONS)
    options = parser.parse_args()
    parts = {"modes": modes, "precision": precision, "names": names, "certificate": certificate}
    wrong = sum(parts[part](options) for part in options.only)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
