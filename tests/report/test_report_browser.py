"""The page in a real browser: every figure has a size, the console is silent, nothing runs over the edge."""

from __future__ import annotations

import contextlib
import os

import pytest

from shardmc.report import write_report

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
    assert [url for url in browser.requested() if not url.startswith(("file:", "data:"))] == []


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


def test_prints_in_light_colors(pages, browser, tmp_path):
    browser.open(pages["within"], width=1280, dark=True)
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.pdf(tmp_path / "page.pdf").stat().st_size > 20_000


def test_starting_a_browser_leaves_the_open_files_alone(browser, tmp_path):
    """A font's file that matplotlib holds open was once replaced by the browser's pipe, by number."""
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(open(os.devnull)) for _ in range(80)]
        before = [os.fstat(file.fileno()) for file in files]
        opened.callback(type(browser)(browser.program, tmp_path / "profile").close)
        assert [os.fstat(file.fileno()) for file in files] == before
