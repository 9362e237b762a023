"""A headless Chromium driven over DevTools' pipe: what a page measures and says when a person opens it."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_PATIENCE = 60.0


def find() -> str | None:
    """Where the browser is, if there is one."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


class Chromium:
    """One browser with one page; messages are JSON with a zero byte behind each."""

    def __init__(self, program: str, profile: Path) -> None:
        self.program = program
        command_read, self._write = os.pipe()
        self._read, answer_write = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4. Free higher numbers first: these may be 3 or 4.
        high_read, high_write = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (command_read, answer_write))
        arguments = " ".join(f"'{a}'" for a in (program, *FLAGS, f"--user-data-dir={profile}", "about:blank"))
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {arguments} 3<&{high_read} 4>&{high_write}"],
            pass_fds=(high_read, high_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for descriptor in (command_read, answer_write, high_read, high_write):
            os.close(descriptor)
        os.set_blocking(self._read, False)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Run one command of the protocol and return its result; events on the way are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, page: Path, *, width: int, height: int = 800, dark: bool = False) -> None:
        """Load a file in a window of that width, in light or dark, and forget earlier events."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if width < 500 else 1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """What the console says: messages, warnings, errors, exceptions."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Log.entryAdded":
                found.append(str(params["entry"]["text"]))
            elif method == "Runtime.consoleAPICalled":
                found.append(str([a.get("value") for a in params["args"]]))
            elif method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]["text"]))
        return found

    def requested(self) -> list[str]:
        """Addresses the page asked for since it was opened."""
        sent = [e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in sent]

    def screenshot(self, path: Path, *, clip: Mapping[str, float] | None = None) -> Path:
        """A picture of the whole page, or of a part of it."""
        extra = {} if clip is None else {"clip": {**clip, "scale": 1}}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, **extra)["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def pdf(self, path: Path) -> Path:
        """The page as it is printed."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))
        return path

    def close(self) -> None:
        """End the browser."""
        try:
            self._session = None
            self.call("Browser.close")
            self._process.wait(10)
        except (OSError, EOFError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            os.close(self._write)
            os.close(self._read)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], _PATIENCE)
            if not ready:
                raise TimeoutError(f"The browser has said nothing for {_PATIENCE:g} s.")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise EOFError("The browser has ended.")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
