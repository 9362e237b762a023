"""Tables in a terminal: no number is ever cut off in a line of 80 characters."""

import numpy as np
import pandas as pd
from rich.console import Console

from shardmc.cli.console import frame_table

COLUMNS = ("mean", "sd", "2.5%", "97.5%", "ess", "r_hat", "mean_error", "sd_ratio")


def shown(names: list[str], width: int) -> str:
    values = np.full((len(names), len(COLUMNS)), -12.345678)
    frame = pd.DataFrame(values, index=pd.Index(names, name="parameter"), columns=list(COLUMNS))
    frame["sd"] = 0.0345678
    console = Console(width=width)
    with console.capture() as capture:
        console.print(frame_table(frame, "draws"))
    return capture.get()


def test_numbers_are_whole_and_long_names_are_folded():
    text = shown(["beta[0]", "C(np.minimum(VehPower, 10))[T.10]"], 80)
    assert "…" not in text
    assert text.count("-12.3457") == 2 * 3
    assert text.count("0.0346") == 2
    assert max(map(len, text.splitlines())) <= 80


def test_long_headings_take_two_lines():
    text = shown(["beta[0]"], 80)
    assert "mean_error" not in text
    assert [line.split()[-2:] for line in text.splitlines() if "ratio" in line] == [["error", "ratio"]]
