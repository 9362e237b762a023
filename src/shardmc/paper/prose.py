"""The text that goes with a result, kept as Markdown beside the code."""

from __future__ import annotations

from importlib.resources import files


def prose(name: str) -> tuple[str, ...]:
    """The paragraphs of `text/NAME.md`.

    >>> prose("theorem-1")[0][:18]
    'Rows are geometric'
    """
    text = files("shardmc.paper").joinpath("text", f"{name}.md").read_text("utf-8")
    return tuple(" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip())
