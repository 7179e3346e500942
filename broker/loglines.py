"""The log on stderr, in the form that its reader can take apart: people, systemd's journal, or a program.

A reader that does not read holds up no process: what does not fit between the two is dropped and counted (``outlet``).
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Final

from broker.flood import LINE_CHARS, TRACE_CHARS, FloodGate, shortened
from broker.outlet import Outlet, take_over

LOG_FORMAT: Final = "HEADGATE_LOG_FORMAT"
"""Environment: ``json`` makes each line of the log a JSON object; unset or ``text`` leaves it to be read by people."""
_JOURNAL_STREAM: Final = "JOURNAL_STREAM"
_SEVERITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""The levels of ``logging`` and those of syslog (sd-daemon(3)); what is less severe is debug, 7."""


def send_to_stderr(log: logging.Logger, name: str, level: str | int) -> None:
    """Send the lines of ``log`` to stderr and nowhere else, and those of all libraries in the same form.

    Floods of either are cut off (``flood``); further handlers of ``log`` see no more than stderr does.

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
    """A handler that writes to stderr and never waits for who reads it.

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
    """The form of our lines on stderr, by who reads them.

    - ``$HEADGATE_LOG_FORMAT`` is ``json``: an object a line with ``time`` (UTC, RFC 3339), ``level``, ``name``,
      ``text``, and ``trace`` where an exception is told.
    - stderr is systemd's journal (``$JOURNAL_STREAM``): ``<N>`` in front of each line, N the syslog level, and no time,
      which the journal has by itself.
    - else ``2026-01-31T12:00:00.000 headgate[NAME] INFO text``, local time.

    Args:
        name: who speaks: a rank, ``gateway``, ``nfp``.
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


def _severity(levelno: int) -> int:
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
        mark = f"<{_severity(record.levelno)}>"
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
