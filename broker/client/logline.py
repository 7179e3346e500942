"""The text that ``log.append`` takes: RFC 5424 in the form that deployed brokers write and read.

``<PRI>1 TIME RANK APP PID - - TEXT`` without a NUL; PRI is the severity in bits 3 and up, where RFC 5424
has the facility.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Final

from broker.errors import ProtocolError

SEVERITIES: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
"""Names by severity, 0 to 7, as syslog has them."""


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


def log_line(severity: int | str, text: str, *, when: datetime, rank: int, app: str, pid: int) -> bytes:
    """One line for ``log.append``; ``when`` is in UTC, ``app`` is cut to 48 characters without blanks.

    Raises:
        ProtocolError: EINVAL; no such severity.

    >>> from datetime import UTC, datetime
    >>> log_line("info", "hello", when=datetime(2026, 1, 2, tzinfo=UTC), rank=0, app="me", pid=7)
    b'<48>1 2026-01-02T00:00:00.000000Z 0 me 7 - - hello'
    """
    name = "".join(c for c in app if c.isprintable() and not c.isspace())[:48] or "-"
    stamp = when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    line = f"<{severity_number(severity) << 3}>1 {stamp} {rank} {name} {pid} - - {text.rstrip()}"
    return line.replace("\0", " ").encode("utf-8", "surrogateescape")


def own_line(severity: int | str, text: str, rank: int, app: str | None) -> bytes:
    """A line that this process writes now; ``app`` None is this program's name.

    Raises:
        ProtocolError: EINVAL; no such severity.
    """
    name = app or PurePath(sys.argv[0]).name
    return log_line(severity, text, when=datetime.now(UTC), rank=rank, app=name, pid=os.getpid())
