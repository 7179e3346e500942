"""What this process uses, in the form deployed NorFab's monitoring reads."""

from __future__ import annotations

import os
import resource
import threading
import time
from typing import Any, Final

_FRESH_S: Final = 1.0
"""Asked again within this, the same figures are told: counting sockets costs a walk over all of them."""
_LISTED_MAX: Final = 20_000
"""Descriptors looked at; with more the number of sockets is not told."""


class ProcessFigures:
    """CPU, memory, descriptors and threads; figures the system does not tell are null."""

    def __init__(self) -> None:
        self._told: dict[str, Any] = {}
        self._told_at = 0.0
        self._cpu_s = _cpu_s()
        self._cpu_at = time.monotonic()
        self._percent = 0.0

    def read(self, uptime_s: float) -> dict[str, Any]:
        """Keys as in deployed NorFab's ``get_stats``; CPU is the share of one processor since the last reading."""
        now = time.monotonic()
        if not self._told or now - self._told_at >= _FRESH_S:
            self._told = {
                "cpu_percent": self._cpu(now),
                "memory_rss_mbyte": _rss_mbyte(),
                "uptime_seconds": 0,
                "open_file_descriptors": None,
                "tcp_sockets": None,
                "threads": _threads(),
            }
            descriptors = _descriptors()
            if descriptors is not None:
                self._told["open_file_descriptors"] = len(descriptors)
                self._told["tcp_sockets"] = _tcp_sockets(descriptors)
            self._told_at = now
        return {**self._told, "uptime_seconds": int(uptime_s)}

    def _cpu(self, now: float) -> float:
        used = _cpu_s()
        if now > self._cpu_at:
            self._percent = round(100.0 * (used - self._cpu_s) / (now - self._cpu_at), 1)
        self._cpu_s, self._cpu_at = used, now
        return max(0.0, self._percent)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _rss_mbyte() -> float:
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            pages = int(statm.read().split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 3)
    except (OSError, ValueError, IndexError):
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 3)  # the most it ever was


def _threads() -> int:
    """Libraries' threads counted in, where the system tells them."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def _descriptors() -> list[str] | None:
    try:
        return os.listdir("/proc/self/fd")
    except OSError:
        return None


def _tcp_sockets(descriptors: list[str]) -> int | None:
    if len(descriptors) > _LISTED_MAX:
        return None
    try:
        known = _tcp_inodes()
    except (OSError, IndexError):
        return None
    count = 0
    for descriptor in descriptors:
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue  # closed meanwhile
        count += target.startswith("socket:[") and target[8:-1] in known
    return count


def _tcp_inodes() -> set[str]:
    """Inodes of all TCP sockets of this network namespace."""
    found: set[str] = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        if os.path.exists(table):
            with open(table, encoding="ascii") as lines:
                next(lines, None)  # the heading
                found.update(line.split()[9] for line in lines)
    return found
