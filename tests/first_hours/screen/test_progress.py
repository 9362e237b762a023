"""While it runs: progress on a terminal, in a notebook and in a log file."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from types import ModuleType, SimpleNamespace

import jax
import numpy as np
import pytest
from rich.console import Console

import shardmc
from shardmc.errors import OptionError
from shardmc.pipeline import bars as shown
from shardmc.pipeline.progress import reporting

OPTIONS = {"shards": 4, "draws": 400}


class Terminal(io.StringIO):
    """What stderr is where a person is looking."""

    def isatty(self) -> bool:
        return True


@contextmanager
def a_person_looks(monkeypatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stderr(Terminal()) as stream:
        yield stream


@pytest.mark.slow
def test_a_terminal_shows_bars_by_default_and_stdout_stays_clean(table, monkeypatch, capsys):
    with a_person_looks(monkeypatch) as screen:
        shardmc.glm("y ~ x", table, **OPTIONS)
    assert "sample" in screen.getvalue()
    assert "check" in screen.getvalue()
    assert capsys.readouterr().out == ""


def test_progress_false_shows_nothing(table, monkeypatch):
    with a_person_looks(monkeypatch) as screen:
        shardmc.glm("y ~ x", table, **OPTIONS, progress=False)
    assert screen.getvalue() == ""


def test_a_log_file_gets_no_bars_even_where_colours_are_forced(table, monkeypatch):
    monkeypatch.delenv("TTY_INTERACTIVE")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with redirect_stderr(io.StringIO()) as log:
        shardmc.glm("y ~ x", table, **OPTIONS)
    assert log.getvalue() == ""


def test_without_a_terminal_nothing_is_shown_unless_it_is_asked_for(table, capfd):
    shardmc.glm("y ~ x", table, **OPTIONS)
    assert capfd.readouterr() == ("", "")
    shardmc.glm("y ~ x", table, **OPTIONS, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "shardmc: sample ..." in err
    assert "shardmc: check: done after" in err
    assert err.count("shardmc: sample: done after") == 1


def test_a_log_file_gets_a_line_for_each_quarter_of_a_stage_whatever_its_steps(capfd):
    with reporting(True) as report:
        for done in (0, 30, 40, 60, 70, 100):
            report("sample", done, 100)
        report("sample", 1, 1)
        report("sample", 0, 1)  # the next fit
        report("sample", 1, 1)
    lines = [line.removeprefix("shardmc: ") for line in capfd.readouterr().err.splitlines()]
    said = [line.split(",")[0].split(" after")[0] for line in lines]
    assert said == [
        "sample ...",
        "sample: 30 of 100",
        "sample: 60 of 100",
        "sample: done",
        "sample ...",
        "sample: done",
    ]


def test_a_function_is_told_every_stage(table):
    told = []
    shardmc.glm("y ~ x", table, **OPTIONS, progress=lambda *event: told.append(event))
    assert {stage for stage, _, _ in told} >= {"read", "split", "locate", "sample", "check"}
    assert [event for event in told if event[0] == "sample"][1:-1] == [("sample", k, 4) for k in (1, 2, 3, 4)]


def test_progress_must_be_something_that_shows_it(table):
    with pytest.raises(OptionError, match="progress must be True, False or a function"):
        shardmc.glm("y ~ x", table, progress="bar")


def test_bars_are_gone_when_a_fit_fails_and_come_again(table, monkeypatch):
    with a_person_looks(monkeypatch) as screen:
        with pytest.raises(shardmc.ShardmcError):
            shardmc.glm("y ~ z", table, **OPTIONS)
        assert screen.getvalue().endswith("\x1b[2K")  # the last line is erased
        shardmc.glm("y ~ x", table, **OPTIONS)
    assert "sample" in screen.getvalue()


def test_a_notebook_shows_bars_in_the_cell_and_takes_them_away(table, monkeypatch):
    pictures = []

    class Handle:
        def update(self, picture, raw=False):
            pictures.append(picture)

    def display(picture, display_id):
        pictures.append(picture._repr_mimebundle_([], [])["text/html"])
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    shardmc.glm("y ~ x", table, **OPTIONS)
    assert "<pre" in pictures[0]
    assert pictures[-1] == {"text/plain": ""}


@pytest.mark.slow
def test_sites_and_appended_rows_show_progress_too(capfd):
    y = np.random.default_rng(0).normal(size=1_000)
    model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    site = shardmc.sample_shard(model, y, share=1.0, draws=100, progress=True)
    assert "shardmc: sample" in capfd.readouterr().err
    shardmc.combine_sites([site], progress=True)
    assert "shardmc: combine" in capfd.readouterr().err
    posterior = shardmc.fit(model, y, shards=2, draws=200, check=False, precision="single")
    shardmc.append(posterior, model, y[:500], check=False, progress=True)
    assert "shardmc: locate" in capfd.readouterr().err


@pytest.mark.slow
def test_the_hmc_fallback_says_what_it_does_and_counts(table, monkeypatch):
    monkeypatch.setattr("shardmc.sample.sampling.LOW_ACCEPTANCE", {jax.default_backend(): 1.1})
    told = []
    posterior = shardmc.glm("y ~ x", table, shards=3, draws=300, progress=lambda *event: told.append(event))
    assert "HMC" in posterior.shards.sampler
    part = [event for event in told if event[0].startswith("sample: HMC on ")]
    name, _, total = part[0]
    assert name.endswith("of 3 shards")
    done = [event[1] for event in part]
    # The tuning comes first, and its time tells how long the draws will take.
    assert done[0] == 0
    assert 0 < done[1] < total
    assert done == sorted(done)
    assert done[-1] == total


def test_the_time_left_is_on_the_screen():
    console = Console(file=Terminal(), force_terminal=True, width=120)
    bars = shown.Bars(console)
    bars("sample: HMC on 3 of 20 shards", 0, 1000)
    task = bars.bars.tasks[0]
    began = task.fields["since"][0]
    bars("sample: HMC on 3 of 20 shards", 100, 1000)
    bars.bars.update(task.id, since=(began - 30, began))
    console.print(bars.bars)
    text = console.file.getvalue()
    assert "HMC on 3 of 20 shards" in text
    assert "100/1,000" in text
    assert "left" in text
