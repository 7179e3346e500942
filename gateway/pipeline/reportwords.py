"""Values of a report as words and figures for people (pure)."""

from __future__ import annotations

import errno
import re
from typing import Any, Final

NOT_SAID: Final = "-"
UNKNOWN_USER: Final = 2**32 - 1
RESOLVED_NS: Final = 100_000
"""A batch of messages is dated as one: what takes less is not told apart."""
BRIEF: Final = 29
"""Characters of a name in a table."""
BRIEF_TOPIC: Final = 48
"""Those of a topic, which is what most rows are about."""
UUID: Final = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def text(value: Any) -> str:
    """A value as it is, or that there is none."""
    return NOT_SAID if value is None or value == "" else str(value)


def error(value: int | None) -> str:
    """An error number by its name."""
    return NOT_SAID if value is None else errno.errorcode.get(value, str(value))


def user(value: int | None) -> str:
    """A user id, where somebody is known."""
    return "unknown" if value is None or value == UNKNOWN_USER else str(value)


def rate(value: float) -> str:
    """Per second.

    >>> rate(0), rate(1.25), rate(12345)
    ('0', '1.2', '12k')
    """
    return "0" if value == 0 else f"{value:.1f}" if value < 9.95 else short(value)


def short(value: float) -> str:
    """Thousands as k, millions as M."""
    for least, unit, form in ((1e6, 1e6, "{:.1f}M"), (1e4, 1e3, "{:.0f}k"), (1e3, 1e3, "{:.1f}k")):
        if value >= least:
            return form.format(value / unit)
    return f"{value:g}" if value < 10 else f"{value:.0f}"


def size(value: float) -> str:
    """Bytes with a unit."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= unit:
            return f"{value / unit:.1f} {name}" if value < 10 * unit else f"{value / unit:.0f} {name}"
    return f"{value:.0f} B"


def duration(ns: float) -> str:
    """Nanoseconds as ms or s; a request and its answer that were recorded together have no time between them.

    >>> duration(0), duration(99_999), duration(420_000), duration(12e6), duration(1.3e9)
    ('< 0.1 ms', '< 0.1 ms', '0.42 ms', '12 ms', '1.3 s')
    """
    if ns < RESOLVED_NS:
        return f"< {RESOLVED_NS / 1e6:g} ms"
    ms = ns / 1e6
    if ms < 9.95:
        return f"{ms:.2f} ms" if ms < 1 else f"{ms:.1f} ms"
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def mark(ns: float) -> str:
    """The same on an axis, which begins at nothing.

    >>> mark(0), mark(250_000)
    ('0', '0.25 ms')
    """
    return "0" if ns == 0 else f"{ns / 1e6:g} ms" if ns < RESOLVED_NS else duration(ns)


def brief(value: Any, most: int = BRIEF) -> str:
    """A name short enough for a table: of a UUID its begin, of any other long one its begin and its end.

    >>> brief("0f1f0f8f-74ef-4854-aeb6-9f5a77e6d55d"), brief("web-2"), brief(None)
    ('0f1f0f8f…', 'web-2', '-')
    >>> brief("local:///run/user/1000/headgate/local-0#39")
    'local:///…headgate/local-0#39'
    """
    words = text(value)
    if UUID.fullmatch(words):
        return f"{words[:8]}…"
    return words if len(words) <= most else f"{words[: most // 3]}…{words[most // 3 + 1 - most :]}"


def span(seconds: float) -> str:
    """How long a step is.

    >>> span(10), span(300), span(7200)
    ('10 s', '5 min', '2 h')
    """
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"


def age(seconds: float) -> str:
    """How long ago.

    >>> age(90), age(7300)
    ('90 s', '2 h')
    """
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
