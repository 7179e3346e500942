"""What a broker or a worker reports of itself, in the form deployed NorFab's monitoring reads: what the system says of
its process, the versions of packages, its latest log records.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from broker.memory import resident_bytes
from broker.safe_text import about, text

FRESH_S: Final = 1.0
"""Asked again within this, the same figures are told."""
SHARE: Final = 100
"""Reading them takes at most one part in so many of the time: counting sockets is a walk over all of them, and who
asks gets older figures rather than make a loop with others to serve stand still."""
_LISTED_MAX: Final = 4096
"""Descriptors looked at; with more the number of TCP sockets is not told."""
_TABLES: Final = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
RECORDS_MAX: Final = 2000
"""Records held."""
TEXT_MAX: Final = 2000
"""Characters of one record: with ``RECORDS_MAX`` a few megabytes at worst."""
LAST_DEFAULT: Final = 100
"""Records told when ``last`` is not given, as deployed NorFab does."""


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of ``packages``; "" for those that are not installed."""
    found = dict.fromkeys(packages, "")
    for package in found:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


class ProcessStats:
    """CPU, memory, descriptors and threads; figures the system does not tell are null."""

    def __init__(self) -> None:
        self._told: dict[str, Any] = {}
        self._stale_at = self._began = self._cpu_at = time.monotonic()
        self._cpu_s = _cpu_s()

    def read(self, uptime_s: float | None = None) -> dict[str, Any]:
        """Keys as in deployed NorFab's ``get_stats``; CPU is the share of one processor since the last reading.

        ``uptime_s`` None: since this object was made.
        """
        now = time.monotonic()
        if now >= self._stale_at:
            self._told = self._fresh(now)
            done = time.monotonic()
            self._stale_at = done + max(FRESH_S, SHARE * (done - now))
        return {**self._told, "uptime_seconds": int(now - self._began if uptime_s is None else uptime_s)}

    def _fresh(self, now: float) -> dict[str, Any]:
        descriptors = _listed("/proc/self/fd")
        return {
            "cpu_percent": self._cpu(now),
            "memory_rss_mbyte": _rss_mbyte(),
            "uptime_seconds": 0,
            "open_file_descriptors": None if descriptors is None else len(descriptors),
            "tcp_sockets": None if descriptors is None else _tcp_sockets(descriptors),
            "threads": len(_listed("/proc/self/task") or threading.enumerate()),  # of libraries, too
        }

    def _cpu(self, now: float) -> float:
        used = _cpu_s()
        percent = 100.0 * (used - self._cpu_s) / max(now - self._cpu_at, 1e-3)
        self._cpu_s, self._cpu_at = used, now
        return max(0.0, round(percent, 1))


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _rss_mbyte() -> float:
    most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # that it ever was
    return round((resident_bytes() or most_bytes) / (1 << 20), 3)


def _listed(folder: str) -> list[str] | None:
    try:
        return os.listdir(folder)
    except OSError:
        return None


def _tcp_sockets(descriptors: list[str]) -> int | None:
    """How many of the descriptors are in the tables of TCP sockets of this network namespace."""
    tables = [table for table in _TABLES if table.exists()]  # IPv6 may be off
    if len(descriptors) > _LISTED_MAX or not tables:
        return None
    try:
        lines = [line for table in tables for line in table.read_text("ascii").splitlines()[1:]]
    except OSError:
        return None
    sockets = {f"socket:[{line.split()[9]}]" for line in lines}
    count = 0
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # closed meanwhile
            count += os.readlink(f"/proc/self/fd/{descriptor}") in sockets
    return count


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
