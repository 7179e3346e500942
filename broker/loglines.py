"""The log on stderr, in the form that its reader can take apart: people, systemd's journal, or a program.

A reader that does not read holds up no process: what does not fit between the two is dropped and counted (``outlet``).
A hostile or broken peer does not fill the log: so many lines of a kind a second, each of so many characters
(``FloodGate``, which stands in front of everything that a process writes, lines of libraries included).
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Final

from broker.outlet import Outlet, take_over
from broker.safe_text import text

LINES_PER_S = 10
"""Lines with the same template in one second; a person reads no more, and a retrying peer makes hundreds."""
TEMPLATES_MAX = 256
"""Templates remembered; the code has fewer, text made by others is no template."""
LINE_CHARS = 2048
"""Longest text of one line: a topic, a path or a name that a peer chose fits many times."""
TRACE_CHARS = 8192
"""Longest traceback: some eighty frames."""
LOG_FORMAT: Final = "HEADGATE_LOG_FORMAT"
"""Environment: ``json`` makes each line of the log a JSON object; unset or ``text`` leaves it to be read by people."""
_JOURNAL_STREAM: Final = "JOURNAL_STREAM"
_SEVERITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""The levels of ``logging`` and those of syslog (sd-daemon(3)); what is less severe is debug, 7."""


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


def send_to_stderr(log: logging.Logger, name: str, level: str | int) -> None:
    """Send the lines of ``log`` to stderr and nowhere else, and those of all libraries in the same form.

    Floods of either are cut off (``FloodGate``); further handlers of ``log`` see no more than stderr does.

    Args:
        log: its handlers and filters are replaced.
        name: see ``formatter``.
        level: the least severe that counts: ``debug`` to ``critical``, or a number of ``logging``.
    """
    form, gate = formatter(name), FloodGate()
    take_over("stdout")  # what is said there once we serve, such as where, waits for nobody either
    log.handlers = [Stderr(form)]
    log.filters = [gate]
    log.setLevel(level.upper() if isinstance(level, str) else level)
    log.propagate = False
    # what the loop reports, such as an exception that nobody waited for, would else come in a form of its own
    libraries = Stderr(form)
    libraries.addFilter(gate)
    root = logging.getLogger()
    root.handlers = [*(each for each in root.handlers if not isinstance(each, Stderr)), libraries]


class Stderr(logging.StreamHandler[Any]):
    """A handler that writes to stderr and never waits for its reader.

    Args:
        form: of its lines.
    """

    def __init__(self, form: logging.Formatter) -> None:
        super().__init__(take_over("stderr", lambda lines: f"{form.format(_dropped(lines))}\n"))
        self.setFormatter(form)

    def flush(self) -> None:
        """After each line, as handlers do; what is written later is left to the end of the process."""
        if not isinstance(self.stream, Outlet):
            super().flush()


def _dropped(lines: int) -> logging.LogRecord:
    text = "%d lines were dropped here: nobody read this log"
    return logging.LogRecord("headgate", logging.WARNING, __file__, 0, text, (lines,), None)


def formatter(name: str) -> logging.Formatter:
    """The form of our lines on stderr, by their reader.

    - ``$HEADGATE_LOG_FORMAT`` is ``json``: an object a line with ``time`` (UTC, RFC 3339), ``level``, ``name``,
      ``text``, and ``trace`` where an exception is told.
    - stderr is systemd's journal (``$JOURNAL_STREAM``): ``<N>`` in front of each line, N the syslog level, and no time,
      which the journal has by itself.
    - else ``2026-01-31T12:00:00.000 headgate[NAME] INFO text``, local time.

    Args:
        name: of the part that logs: a rank, ``gateway``, ``nfp``.
    """
    if os.environ.get(LOG_FORMAT, "").lower() == "json":
        return _Json(name)
    form = f"headgate[{name.replace('%', '%%')}] %(levelname)s %(message)s"
    if _is_journal():
        return _Journal(form)
    return _Text(f"%(asctime)s.%(msecs)03d {form}", "%Y-%m-%dT%H:%M:%S")


def _is_journal() -> bool:
    """Whether stderr is the stream that systemd made for the journal (systemd.exec(5), ``$JOURNAL_STREAM``)."""
    given = os.environ.get(_JOURNAL_STREAM)
    if not given:
        return False
    try:
        seen = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # closed, or not a file
        return False
    return given == f"{seen.st_dev}:{seen.st_ino}"


def severity_of(levelno: int) -> int:
    """RFC 5424 severity (0 emergency to 7 debug) of a level of the standard library."""
    return next((severity for least, severity in _SEVERITIES if levelno >= least), 7)


class _Text(logging.Formatter):
    """Lines for people, and for what reads them: none is longer than it may be."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - a name of logging
        record.message = shortened(record.message, LINE_CHARS)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - a name of logging
        return shortened(super().formatException(ei), TRACE_CHARS)


class _Journal(_Text):
    """A syslog level in front of every line: to the journal each line is an entry."""

    def format(self, record: logging.LogRecord) -> str:
        mark = f"<{severity_of(record.levelno)}>"
        return "\n".join(mark + line for line in super().format(record).splitlines() or [""])


class _Json(_Text):
    """One JSON object a line."""

    def __init__(self, name: str) -> None:
        import json  # a broker needs it for nothing else

        super().__init__()
        self._name = name
        self._encode = json.dumps

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "name": self._name,
            "text": shortened(record.getMessage(), LINE_CHARS),
        }
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return self._encode(told, ensure_ascii=False)
