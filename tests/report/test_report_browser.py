"""The page in a real browser: every figure has a size, the console is silent, nothing runs over the edge."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardmc.report import write_report
from shardmc.report.choice import worst_first

pytestmark = pytest.mark.browser

WIDTHS = (360, 768, 1280)

FIGURES = """
[...document.querySelectorAll("figure svg")].map(svg => {
  const box = svg.getBoundingClientRect();
  return [svg.closest("figure").id, box.width, box.height, svg.querySelectorAll("path, use").length];
})
"""

OVERFLOWING = """
(() => {
  const edge = document.documentElement.clientWidth + 0.5;
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    if (element.closest("svg") && element.tagName !== "svg") continue;
    if (element.parentElement.closest(".scroll, pre")) continue;
    const box = element.getBoundingClientRect();
    if (box.right > edge || box.left < -0.5) found.push([element.tagName, element.className, box.left, box.right]);
  }
  return found;
})()
"""

STRAY_TEXT = """
[...document.querySelectorAll("figure svg")].flatMap(svg => {
  const frame = svg.getBoundingClientRect(), slack = 3;
  return [...svg.querySelectorAll("text")].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - slack || box.right > frame.right + slack
        || box.top < frame.top - slack || box.bottom > frame.bottom + slack;
  }).map(text => [svg.closest("figure").id, text.textContent]);
})
"""

OVERLAPPING_TEXT = """
[...document.querySelectorAll("figure svg")].flatMap(svg => {
  const texts = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
  const found = [];
  texts.forEach(([one, a], k) => texts.slice(k + 1).forEach(([two, b]) => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const up = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 2 && up > 4) found.push([svg.closest("figure").id, one, two]);
  }));
  return found;
})
"""


class Browser:
    """A headless Chromium with one page."""

    def __init__(self, program: str, driver: str) -> None:
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in ("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"):
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(driver))

    def open(self, page: Path, *, width: int, dark: bool = False) -> None:
        """Load a file in a window of that width, in light or dark, and forget earlier messages."""
        narrow = width < 500
        size = {"width": width, "height": 800, "deviceScaleFactor": 2 if narrow else 1, "mobile": narrow}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.emulate("screen", dark=dark)
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(page.resolve().as_uri())

    def emulate(self, media: str, *, dark: bool) -> None:
        """Show the page as on a screen or in print, to a person who likes it light or dark."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self.driver.execute_script(f"return ({expression.strip()})")

    def complaints(self) -> list[str]:
        """What the console says: messages, warnings, errors, exceptions."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requested(self) -> list[str]:
        """Addresses that the page asked for since it was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in sent]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium and its driver. Without them the tests are skipped, but fail where CI is set."""
    stop = pytest.fail if os.environ.get("CI") else pytest.skip
    program = _first(os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    driver = _first(os.environ.get("CHROMEDRIVER", ""), "chromedriver", "chromium.chromedriver")
    if program is None or driver is None:
        stop(
            "No browser: install the packages chromium and chromium-driver, or name the programs in the variables "
            "CHROMIUM and CHROMEDRIVER."
        )
    try:
        opened = Browser(program, driver)
    except ImportError:
        stop("No selenium: install the extra 'test'.")
    yield opened
    opened.driver.quit()


def _first(*names: str) -> str | None:
    return next((found for name in names if name and (found := shutil.which(name))), None)


@pytest.fixture(scope="module")
def pages(rendered, make_posterior, tmp_path_factory):
    long_names = [f"a_parameter_with_a_very_long_name_{k}<b>" for k in range(16)]
    page = write_report(
        make_posterior(16, 8, names=long_names), tmp_path_factory.mktemp("long") / "page.html"
    )
    wild = make_posterior(1, 40, corrupted=range(0, 40, 3))
    return {**rendered, "long names": page, "wild": write_report(wild, page.with_name("wild.html"))}


@pytest.mark.parametrize(
    "name",
    ["within", "off", "uncertified", "one shard", "one coordinate", "long names", "bare", "wild", "polished"],
)
@pytest.mark.parametrize("width", WIDTHS)
def test_page_in_a_window(name, width, pages, browser):
    browser.open(pages[name], width=width)
    browser.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    figures = browser.evaluate(FIGURES)
    assert len(figures) >= 4
    for identifier, wide, high, parts in figures:
        assert wide >= min(width, 768) * 0.25, identifier
        assert high >= 50, identifier
        assert parts >= 3, identifier
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OVERFLOWING) == []
    assert browser.evaluate(STRAY_TEXT) == []
    assert browser.evaluate(OVERLAPPING_TEXT) == []
    assert browser.complaints() == []
    requested = browser.requested()
    assert pages[name].resolve().as_uri() in requested
    assert [url for url in requested if not url.startswith(("file:", "data:"))] == []


VERDICT_IS_SEEN = """
[...document.querySelectorAll(".as-model .scroll")].every(part => {
  const cells = [...part.querySelectorAll("tr > :last-child")];
  return cells.every(cell => cell.getBoundingClientRect().right <= part.getBoundingClientRect().right + 1);
})
"""

SHOWN_NAMES = """
[...document.querySelectorAll("#estimates .names tbody th")]
  .filter(cell => cell.offsetHeight > 0).map(cell => cell.textContent)
"""


@pytest.mark.parametrize("width", [600, 1200])
def test_long_names_leave_the_certificate_in_view(width, pages, browser):
    browser.open(pages["long names"], width=width)
    assert browser.evaluate(VERDICT_IS_SEEN)
    browser.evaluate("document.querySelector('.as-model tbody th').style.minWidth = '80rem'")
    assert not browser.evaluate(VERDICT_IS_SEEN)  # the check can fail


def test_a_switch_sorts_parameters_by_their_error(pages, cases, browser):
    posterior = cases["off"]
    names, worst = list(posterior.flat()), [posterior.names[k] for k in worst_first(posterior)]
    assert names != worst  # otherwise nothing would change
    browser.open(pages["off"], width=1200)
    assert browser.evaluate(SHOWN_NAMES) == names
    browser.evaluate("document.querySelector('label[for=order-error]').click()")
    assert browser.evaluate(SHOWN_NAMES) == worst


def test_checks_of_the_layout_can_fail(pages, browser):
    browser.open(pages["within"], width=360)
    browser.evaluate("document.querySelector('h1').style.width = '500px'")
    browser.evaluate("document.querySelector('figure text').setAttribute('x', '900')")
    browser.evaluate("document.querySelectorAll('#chains text').forEach(text => text.setAttribute('x', 50))")
    browser.evaluate("document.querySelectorAll('#chains text').forEach(text => text.setAttribute('y', 50))")
    browser.evaluate("console.error('seen')")
    assert browser.evaluate(OVERFLOWING)
    assert browser.evaluate(STRAY_TEXT)
    assert browser.evaluate(OVERLAPPING_TEXT)
    assert browser.complaints()


def test_light_and_dark(pages, browser):
    seen = {}
    script = """(() => {
      const page = getComputedStyle(document.body), text = getComputedStyle(document.querySelector("#chains text"));
      const line = getComputedStyle(document.querySelector("#forest-0 path[style*=combined]"));
      return [page.backgroundColor, page.color, text.fill, line.stroke];
    })()"""
    for dark in (False, True):
        browser.open(pages["within"], width=1280, dark=dark)
        seen[dark] = browser.evaluate(script)
    assert all(light != dark for light, dark in zip(seen[False], seen[True], strict=True))
    assert all(color.startswith("rgb(") for color in [*seen[False], *seen[True]])
    assert len(set(seen[True])) > 2


def test_prints_in_light_colors(pages, browser):
    browser.open(pages["within"], width=1280, dark=True)
    browser.emulate("print", dark=True)
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(browser.driver.print_page()) > 20_000
