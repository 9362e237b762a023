"""Quotes in CSV files: one that is never closed would swallow the rows after it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

_MOST = 1 << 22  # bytes of one entry
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_QUOTE, _NEW_LINE, _RETURN = b'"\n\r'


@dataclass(frozen=True)
class UnclosedQuoteError(ValueError):
    """An entry starts with a quote and does not end with one."""

    line: int
    """Where it starts, counted from 1."""


def find_line_breaks(blocks: Iterator[bytes], delimiter: str) -> bool:
    r"""Whether a quoted entry may hold a line break. An UnclosedQuoteError for a quote that is not closed.

    A quote opens an entry only at its start, and closes it only at its end; inside, quotes are doubled. Other quotes
    are text.

    >>> find_line_breaks(iter([b'x,note\n1,"a ""b"" c"\n2,5" pipe\n']), ",")
    False
    >>> find_line_breaks(iter([b'x,note\n1,"a\nb"\n']), ",")
    True
    >>> find_line_breaks(iter([b'x,note\n1,"a\n2,b\n']), ",")
    Traceback (most recent call last):
    shardmc.data.quotes.UnclosedQuoteError: 2
    """
    scanner = _Scanner(delimiter)
    for number, block in enumerate(blocks):
        scanner.add(block.removeprefix(_BYTE_ORDER_MARK) if number == 0 else block)
    scanner.add(b"\n")
    scanner.finish()
    return scanner.line_breaks


@final
class _Scanner:
    """Follows quotes through a file, block by block."""

    def __init__(self, delimiter: str) -> None:
        end = f"[{delimiter}\r\n]"
        self._is_end = np.zeros(256, bool)
        self._is_end[list(f"{delimiter}\r\n".encode())] = True
        self._complete = re.compile(
            rf'(?:[^"]++|(?<={end})"(?:[^"]++|"")*+"(?= *+{end})|(?<!{end})")*+'.encode()
        )
        self._line_break = re.compile(rf'(?<={end})"(?:[^"\r\n]++|"")*+[\r\n]'.encode())
        self._open = re.compile(rb'"(?:[^"]++|"")*+"? *+\Z')
        self._line = 1
        self._text = b"\n"  # the last byte that is done, and what follows it
        self.line_breaks = False

    def add(self, block: bytes) -> None:
        text = self._text + block
        done = len(text)
        if b'"' in text:
            done = self._whole_lines(text) or self._entries(text)
        self._line += text.count(b"\n", 1, done)
        # The byte before shows whether a quote comes first in an entry.
        self._text = text[done - 1 :]

    def finish(self) -> None:
        if len(self._text) > 1:
            raise UnclosedQuoteError(self._line)

    def _whole_lines(self, text: bytes) -> int:
        """Where the last line ends, if quotes open and close in turn; otherwise 0. This is the usual case, and fast."""
        done = text.rfind(b"\n") + 1
        codes = np.frombuffer(text, np.uint8, done)
        quotes = 1 + np.flatnonzero(codes[1:] == _QUOTE)
        if len(quotes) % 2 or not len(quotes):
            return 0
        opening, closing = quotes[0::2], quotes[1::2]
        doubled = closing[:-1] + 1 == opening[1:]
        starts, stops = self._is_end[codes[opening - 1]], self._is_end[codes[closing + 1]]
        if not (starts[0] and (starts[1:] | doubled).all() and stops[-1] and (stops[:-1] | doubled).all()):
            return 0
        if not self.line_breaks:
            lines = np.flatnonzero((codes == _NEW_LINE) | (codes == _RETURN))
            self.line_breaks = bool(
                (np.searchsorted(lines, opening) != np.searchsorted(lines, closing)).any()
            )
        return done

    def _entries(self, text: bytes) -> int:
        """Where a quote opens an entry that is not complete, or the end."""
        match = self._complete.match(text, 1)
        assert match is not None
        done = match.end()
        self.line_breaks = self.line_breaks or self._line_break.search(text, 0, done) is not None
        if len(text) - done > _MOST or (done < len(text) and self._open.match(text, done) is None):
            raise UnclosedQuoteError(self._line + text.count(b"\n", 1, done))
        return done
