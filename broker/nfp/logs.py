"""The latest log records of a process, in memory, for ``get_logs`` of a broker or a worker."""

from __future__ import annotations

import logging
from collections import deque
from datetime import UTC, datetime
from typing import Any, Final

from broker.safe_text import about, text

RECORDS_MAX: Final = 2000
"""Records held."""
TEXT_MAX: Final = 2000
"""Characters of one record: with ``RECORDS_MAX`` a few megabytes at worst."""
LAST_DEFAULT: Final = 100
"""Records told when ``last`` is not given, as deployed NorFab does."""


class LogBuffer(logging.Handler):
    """A handler that holds the latest records.

    Args:
        name, role: what the records call this broker or worker.
        records_max: held at most.

    Install it on the logger that all of ours are below: ``logging.getLogger("headgate").addHandler(buffer)``.
    """

    def __init__(
        self, name: str = "NFPBroker", records_max: int = RECORDS_MAX, *, role: str = "broker"
    ) -> None:
        super().__init__()
        self._name = name
        self._role = role
        self._records: deque[dict[str, Any]] = deque(maxlen=records_max)

    def emit(self, record: logging.LogRecord) -> None:
        """Hold ``record``; never raises."""
        try:
            self._records.append(self._line(record))
        except Exception:
            self.handleError(record)

    def _line(self, record: logging.LogRecord) -> dict[str, Any]:
        try:
            said = text(record.getMessage())
        except Exception as error:  # arguments that do not fit the text, or will not be told
            said = f"{text(record.msg)} ({about(error)})"
        stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return {
            "ts": stamp.replace("+00:00", "Z"),
            "level": text(record.levelname),
            "logger": text(record.name),
            "message": said if len(said) <= TEXT_MAX else said[:TEXT_MAX] + "...",
            "role": self._role,
            "name": self._name,
        }

    def read(
        self,
        *,
        last: int = LAST_DEFAULT,
        level: str = "",
        logger: str = "",
        since: str = "",
        until: str = "",
    ) -> list[dict[str, Any]]:
        """Records, oldest first.

        Args:
            last: the latest so many of those that match; 0: all.
            level: exactly this one, in any case; "": all.
            logger: exactly this one, or all below it; "": all.
            since: ISO 8601 in UTC, itself included, compared as text (a date is before all of its day); "": open.
            until: likewise.

        Raises:
            ValueError: there is no such level.
        """
        if level and level.upper() not in logging.getLevelNamesMapping():
            raise ValueError(f"level {level[:64]!r}, expected DEBUG, INFO, WARNING, ERROR or CRITICAL")
        wanted = [
            record
            for record in tuple(self._records)
            if (not level or record["level"] == level.upper())
            and (not logger or record["logger"] == logger or record["logger"].startswith(logger + "."))
            and (not since or record["ts"] >= since)
            and (not until or record["ts"] <= until)
        ]
        return wanted[-last:] if last > 0 else wanted
