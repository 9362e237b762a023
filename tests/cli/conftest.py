"""The command line in this process, which has imported everything already."""

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from shardmc.cli import main

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path, monkeypatch, capfd) -> Command:
    """Run a command in `tmp_path`, and return what a process of its own would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["shardmc", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code or 0
        assert isinstance(code, int)
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run
