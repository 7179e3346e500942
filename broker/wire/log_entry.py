"""Log entries as deployed Flux writes and reads them (``log.append``, ``log.dmesg``).

An entry is RFC 5424 text, ``<PRI>1 TIMESTAMP HOSTNAME APP PROCID - - TEXT``, without a NUL. Two things differ from the
RFC: PRI is severity * 8 + facility, and HOSTNAME is the rank.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

from broker.errors import ProtocolError

LINE_MAX_BYTES: Final = 2048
"""Longest entry kept; deployed clients cut theirs at this length."""
APP_CHARS_MAX: Final = 48
"""Longest name of a program: APP-NAME of RFC 5424."""
SEVERITIES: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
"""Names by severity, 0 to 7, as syslog and deployed clients have them."""

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
        """As people read it: the program, the severity, the rank, the text.

        >>> compose(6, 3, "broker", 4711, "state run", 0.0).short()
        'broker.info[3]: state run'
        """
        words = self.line.decode("utf-8", "replace").split(" ", 7)
        app, text = (words + [""] * 8)[3], (words + [""] * 8)[7]
        return f"{app}.{SEVERITIES[self.severity]}[{self.host}]: {text}"


def severity_number(severity: int | str) -> int:
    """The number of a severity given by number or name.

    Raises:
        ProtocolError: EINVAL; no such severity.

    >>> severity_number("warning"), severity_number(7)
    (4, 7)
    """
    if severity in SEVERITIES:
        return SEVERITIES.index(severity)
    if isinstance(severity, int) and 0 <= severity < len(SEVERITIES):
        return severity
    raise ProtocolError(f"severity {severity!r}: expected 0 to 7 or one of {', '.join(SEVERITIES)}", 22)


def parse(payload: bytes | None) -> Entry | None:
    """The entry of a payload with or without NUL; None when it is no RFC 5424 text."""
    line = (payload or b"").partition(b"\0")[0][:LINE_MAX_BYTES]
    match = _HEAD.match(line)
    if match is None:
        return None
    return Entry(int(match[1]) >> 3 & 7, match[2].decode("utf-8", "replace"), line)


def compose(severity: int, rank: int, app: str, pid: int, text: str, wall: float) -> Entry:
    """An entry written now: ``wall`` is seconds since 1970.

    It is one line: line ends and NULs of ``text`` become spaces. ``app`` loses its blanks and is cut to
    ``APP_CHARS_MAX``; the whole is cut to ``LINE_MAX_BYTES``.

    >>> compose(6, 0, "my app", 7, "hello", 1_767_312_000.0).line
    b'<48>1 2026-01-02T00:00:00.000000Z 0 myapp 7 - - hello'
    """
    name = "".join(char for char in app if char.isprintable() and not char.isspace())[:APP_CHARS_MAX] or "-"
    stamp = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    words = " ".join(text.replace("\0", " ").splitlines()).rstrip()
    line = f"<{severity << 3}>1 {stamp} {rank} {name} {pid} - - {words}"
    # half a surrogate pair, as of a file name that is no UTF-8, is written as "?": a log line never fails
    return Entry(severity, str(rank), line.encode("utf-8", "replace")[:LINE_MAX_BYTES])
