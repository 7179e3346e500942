"""Keeps a hostile or broken peer from filling the log: so many lines of a kind a second, each of so many characters.

A leaf like ``supervision``, which puts it in front of everything that a process writes, lines of libraries included.
"""

from __future__ import annotations

import logging

from broker.safe_text import text

LINES_PER_S = 10
"""Lines with the same template in one second; a person reads no more, and a retrying peer makes hundreds."""
TEMPLATES_MAX = 256
"""Templates remembered; the code has fewer, text made by others is no template."""
LINE_CHARS = 2048
"""Longest text of one line: a topic, a path or a name that a peer chose fits many times."""
TRACE_CHARS = 8192
"""Longest traceback: some eighty frames."""


class FloodGate(logging.Filter):
    """Lets the first ``LINES_PER_S`` lines of each kind through; the next second's first line tells of the rest.

    A kind is a template, or, where the text came without arguments, the line of the code that it came from: libraries
    such as asyncio put addresses into their texts before they log them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether ``record`` is written; its own time is the clock."""
        kind = text(record.msg) if record.args else f"{record.pathname}:{record.lineno}"
        since, count = self._seen.get(kind, (record.created, 0))
        if not 0 <= record.created - since < 1.0:
            held_back = count - LINES_PER_S
            if held_back > 0:
                record.msg = f"{text(record.msg)} (and {held_back} more of this kind)"
            since, count = record.created, 0
        if kind not in self._seen and len(self._seen) >= TEMPLATES_MAX:
            self._seen = {}
        self._seen[kind] = since, count + 1
        return count < LINES_PER_S


def shortened(text: str, most: int) -> str:
    """``text``, of which the middle is left out when it is longer: what is at the end of a traceback matters most.

    >>> shortened("a" * 30 + "b" * 30, 30)
    'aaaaaaaaaa [...] bbbbbbbbbbbbb'
    """
    if len(text) <= most:
        return text
    mark = " [...] "
    head = most // 3
    return text[:head] + mark + text[head + len(mark) - most :]
