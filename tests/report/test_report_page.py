"""The page by its text: all parts there, nothing that is not a number, nothing unescaped, nothing from elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

import shardmc
from shardmc.errors import RunError
from shardmc.posterior import Plan
from shardmc.report import repr_html, write_report
from shardmc.report.page import render
from shardmc.report.tables import call
from shardmc.types import Finding

CASES = (
    "within",
    "off",
    "uncertified",
    "not pooled",
    "one shard",
    "one coordinate",
    "lost draws",
    "failed shard",
    "bare",
    "polished",
)
VOID = {"meta", "link", "br", "hr", "img", "input"}
NASTY = ("<b>", "a & b", "$x_1$", '"quoted"', "<script>alert(1)</script>", "ünïcode")


@dataclass
class Node:
    """An element: its tag, attributes, text and the tags it lies in."""

    tag: str
    attributes: dict[str, str]
    path: tuple[str, ...]
    text: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """All elements of a page; complains about tags that do not match."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self._open: list[Node] = []
        self.feed(source)
        self.close()
        assert not self._open, [node.tag for node in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {k: v or "" for k, v in attrs}, tuple(n.tag for n in self._open))
        self.nodes.append(node)
        if tag not in VOID:
            self._open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.nodes.append(Node(tag, {k: v or "" for k, v in attrs}, tuple(n.tag for n in self._open)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1].text.append(data)

    def all(self, tag: str) -> list[Node]:
        return [node for node in self.nodes if node.tag == tag]

    def texts(self, *tags: str) -> list[str]:
        return ["".join(node.text).strip() for node in self.nodes if node.tag in tags]

    @property
    def words(self) -> str:
        return " ".join("".join(n.text) for n in self.nodes if n.tag not in ("style", "title"))


@pytest.fixture(scope="module")
def pages(rendered) -> dict[str, str]:
    return {name: path.read_text(encoding="utf-8") for name, path in rendered.items()}


@pytest.mark.parametrize("name", CASES)
def test_all_figures_are_there(name, pages, cases):
    page, posterior = Page(pages[name]), cases[name]
    wanted = {f"marginal-{k}" for k in range(len(posterior.names))} | {"forest-0", "chains"}
    if posterior.certificate is not None:
        wanted.add("certificate")
    if len(posterior.names) > 1:
        wanted.add("pair")
    if posterior.shards.disagreement is not None:
        wanted.add("agreement")
    assert {node.attributes["id"] for node in page.all("figure")} == wanted
    drawings = page.all("svg")
    assert len(drawings) == len(wanted)
    assert all(node.attributes["role"] == "img" and node.attributes["aria-label"] for node in drawings)
    curves = [node for node in page.all("path") if "figure" in node.path]
    assert len(curves) > 4 * len(wanted)


@pytest.mark.parametrize("name", CASES)
def test_every_number_is_finite_or_a_dash(name, pages):
    page = Page(pages[name])
    assert not re.search(r"\b(nan|NaN|inf|Infinity|None|NaT)\b", page.words)
    for node in page.nodes:
        for key, value in node.attributes.items():
            if key in ("d", "x", "y", "transform", "style", "viewbox"):
                assert not re.search(r"nan|inf\b", value, re.IGNORECASE), (node.tag, key, value[:80])
    cells = [node for node in page.all("td") if node.attributes.get("class") != "bar"]
    assert cells
    assert all("".join(node.text).strip() for node in cells), "an empty cell should be a dash"


@pytest.mark.parametrize("name", CASES)
def test_identifiers_are_unique_and_references_lead_to_them(name, pages):
    page = Page(pages[name])
    identifiers = Counter(node.attributes["id"] for node in page.nodes if "id" in node.attributes)
    assert max(identifiers.values()) == 1
    targets = [n.attributes["href"] for n in page.all("use")]
    clips = [m for n in page.nodes for m in re.findall(r"url\((#.*?)\)", n.attributes.get("clip-path", ""))]
    assert {target.removeprefix("#") for target in [*targets, *clips]} <= set(identifiers)


@pytest.mark.parametrize("name", CASES)
def test_nothing_comes_from_elsewhere(name, pages):
    page = Page(pages[name])
    assert not page.all("script")
    assert "http" not in pages[name].replace("http-equiv", "")
    assert not any("src" in node.attributes for node in page.nodes)
    assert "default-src 'none'" in pages[name]
    assert {n.attributes["href"] for n in page.all("link")} == {"data:,"}


@pytest.mark.parametrize(
    ("name", "word"), [("within", "Within bounds"), ("off", "Off"), ("uncertified", "Not certified")]
)
def test_verdict_is_said_in_words_before_anything_else(name, word, pages, cases):
    page = Page(pages[name])
    assert page.texts("strong")[0] == word
    certificate = cases[name].certificate
    if certificate is not None:
        rest = certificate.sentence.partition(": ")[2]
        assert rest[1:] in page.words
    assert pages[name].index(f"<strong>{word}") < pages[name].index('id="findings"')


def test_findings_are_sorted_and_say_what_to_do(cases):
    findings = (
        Finding("note", "chains", "A remark."),
        Finding(
            "error", "agreement", "Shard 3 disagrees.", "Look at its rows.", {"q": float("nan"), "size": 7}
        ),
        Finding("warning", "chains", "Few draws.", "Draw more."),
    )
    source = render(replace(cases["within"], findings=findings))
    places = [source.index(text) for text in ("Shard 3 disagrees.", "Few draws.", "A remark.")]
    assert places == sorted(places)
    page = Page(source)
    levels = ["".join(n.text) for n in page.all("span") if n.attributes.get("class") == "level"]
    assert levels == ["Error", "Warning", "Note"]
    assert "Look at its rows." in page.words
    assert "q = –; size = 7" in page.words


def test_no_findings_is_said(cases):
    assert "found nothing to report" in render(replace(cases["within"], findings=()))


def test_names_are_escaped(make_posterior):
    posterior = make_posterior(
        len(NASTY), 8, names=NASTY, findings=(Finding("note", "<i>", "<u>x</u>", "<s>"),)
    )
    posterior = replace(
        posterior,
        plan=replace(posterior.plan, combiner="<em><q>"),
        notes=("<small>",),
        versions={"<x>": "<y>"},
    )
    tags = {"script", "i", "u", "s", "em", "q", "small", "x", "y"}
    for source in (render(posterior), repr_html(posterior)):
        page = Page(source)
        assert not tags & {node.tag for node in page.nodes}
        assert set(NASTY) <= set(page.texts("th"))
        assert not any(node.path[-1] == "th" for node in page.all("b"))
    assert set(NASTY) <= set(Page(render(posterior)).texts("text")) | {NASTY[4]}  # too long for a figure


def test_summary_shows_as_many_digits_as_mean_something(cases):
    posterior = cases["within"]
    page = Page(render(posterior))
    row = [node for node in page.nodes if node.tag in ("th", "td") and "tbody" in node.path][:5]
    table = posterior.summary()
    assert 0.01 < table["sd"].iloc[0] < 0.0995, "two digits of the sd are then three decimals"
    cells = ["".join(node.text).rstrip("\u2007\u2008") for node in row]
    values = [table[column].iloc[0] for column in ("mean", "sd", "2.5%", "97.5%")]
    assert cells == ["beta[0]", *(f"{value:.3f}".replace("-", "−") for value in values)]


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "shards", "per_shard"), [(200, 20, 60), (4, 1000, 20)])
def test_large_runs_give_small_pages(dim, shards, per_shard, make_posterior):
    posterior = make_posterior(dim, shards, per_shard)
    source = render(posterior)
    assert len(source.encode()) < 2_000_000
    page = Page(source)
    names = set(page.texts("th"))
    assert {"beta[0]", "sigma"} <= names
    if dim == 200:
        assert set(posterior.names) <= names
        drawn = Counter(page.texts("text"))
        # Once in a forest plot, and once more in a marginal or a ridge plot.
        assert all(drawn[name] + drawn[f"{name} (unconstrained)"] >= 2 for name in posterior.names)
    else:
        assert "of 1,000 shards" in page.words


def test_what_is_needed_to_repeat_the_run_is_there(pages):
    page = Page(pages["within"])
    code = next(text for text in page.texts("code") if "shardmc.fit(" in text)
    for part in ("shards=12", "draws=1200", "seed=7", "shardmc.Recenter()"):
        assert part in code
    assert "0.10.2" in page.words
    assert "3.11.9" in page.words


@pytest.mark.slow
def test_the_call_of_a_formula_is_that_of_glm():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=900), "n": rng.integers(1, 5, 900).astype(float)})
    table["y"] = rng.binomial(table["n"].astype(int), 0.4)
    table.loc[:3, "x"] = np.nan
    options = {
        "family": "binomial(link=probit)",
        "trials": "n",
        "drop_missing": True,
        "shards": 3,
        "draws": 90,
    }
    posterior = shardmc.glm("y ~ x", table, **options, seed=np.int64(2), priors={"x": "normal(0, 1)"})
    text = call(posterior.plan, posterior.regression)
    again = eval(text, {"shardmc": shardmc, "data": table, "posterior": posterior})
    np.testing.assert_array_equal(again.theta, posterior.theta)
    assert again.plan == posterior.plan


def test_appended_rows_have_no_single_call():
    plan = Plan(rows=100, shards=3, draws=90, seed=1, combiner="Recenter()")
    assert call(plan) is not None
    assert call(replace(plan, appended_rows=10)) is None


def test_writes_where_it_is_told(cases, tmp_path):
    page = write_report(cases["one coordinate"], tmp_path / "page.html")
    assert page == tmp_path / "page.html"
    assert write_report(cases["one coordinate"], tmp_path) == tmp_path / "report.html"
    assert page.read_text(encoding="utf-8") == (tmp_path / "report.html").read_text(encoding="utf-8")
    with pytest.raises(RunError, match="folder that exists"):
        write_report(cases["one coordinate"], tmp_path / "nowhere" / "page.html")


@pytest.mark.parametrize("name", CASES)
def test_notebook_fragment(name, cases):
    source = repr_html(cases[name])
    page = Page(source)
    assert page.nodes[0].attributes["class"] == "shardmc"
    assert "beta[0]" in page.texts("th") or "sigma" in page.texts("th")
    assert not re.search(r"\b(nan|NaN|inf|None)\b", page.words)
    # A notebook's own elements keep their look.
    rules = re.findall(r"^([^\s{][^{]*)\{", "".join(page.all("style")[0].text), re.MULTILINE)
    assert all(part.strip().startswith(".shardmc") for rule in rules for part in rule.split(","))
