"""Log entries as deployed Flux writes them, and the ring that holds the last of them.

An entry is RFC 5424 text: ``<PRI>1 TIMESTAMP HOSTNAME APP PROCID - - TEXT``. Two things differ from the RFC: PRI is
severity * 8 + facility, and HOSTNAME is the rank.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

LINE_MAX_BYTES: Final = 2048
"""Longest entry kept; deployed clients cut theirs at this length."""

SEVERITIES: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
"""What deployed clients call them."""

_HEAD = re.compile(rb"<([0-9]{1,3})>1 [^ ]+ ([^ ]+) ")


class Entry(NamedTuple):
    """One log entry."""

    severity: int
    """0 emergency to 7 debug."""
    host: str
    """The rank that wrote it, as text."""
    line: bytes
    """All of it, without NUL."""

    def short(self) -> str:
        """As people read it: who says it, how severe it is, the rank, the text.

        >>> compose(6, 3, "broker", 4711, "state run", 0.0).short()
        'broker.info[3]: state run'
        """
        words = self.line.decode("utf-8", "replace").split(" ", 7)
        app, text = (words + [""] * 8)[3], (words + [""] * 8)[7]
        return f"{app}.{SEVERITIES[self.severity]}[{self.host}]: {text}"


def parse(payload: bytes | None) -> Entry | None:
    """The entry of a payload with or without NUL; None when it is no RFC 5424 text."""
    line = (payload or b"").partition(b"\0")[0][:LINE_MAX_BYTES]
    match = _HEAD.match(line)
    if match is None:
        return None
    return Entry(int(match[1]) >> 3 & 7, match[2].decode("utf-8", "replace"), line)


def compose(severity: int, rank: int, app: str, pid: int, text: str, wall: float) -> Entry:
    """An entry of the broker's own; ``wall`` is seconds since 1970. Line ends and NULs become spaces."""
    stamp = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    words = " ".join(text.replace("\0", " ").splitlines())
    line = f"<{severity * 8}>1 {stamp} {rank} {app} {pid} - - {words}"
    return Entry(severity, str(rank), line.encode("utf-8", "replace")[:LINE_MAX_BYTES])


class Ring:
    """The last ``entries`` entries; 0 keeps none.

    Attributes:
        count: entries since start, kept or not; ``clear`` does not change it.
    """

    def __init__(self, entries: int) -> None:
        self._lines: deque[bytes] = deque(maxlen=entries)
        self.count: int = 0

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._lines)

    def append(self, entry: Entry) -> None:
        """Keep one more; the oldest goes when the ring is full."""
        self._lines.append(entry.line)
        self.count += 1

    def clear(self) -> None:
        """Empty the ring; the count goes on."""
        self._lines.clear()
