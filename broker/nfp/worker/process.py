"""What the operating system says of this process, in the fields deployed NorFab's ``get_stats`` has."""

from __future__ import annotations

import os
import time
from typing import Any

_started = time.monotonic()


class Process:
    """This process; ``cpu_percent`` is that since the last look."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._cpu_s = time.process_time()

    def stats(self) -> dict[str, Any]:
        """``cpu_percent`` of one core, ``memory_rss_mbyte``, ``uptime_seconds`` and counts; None: not known here."""
        now, cpu_s = time.monotonic(), time.process_time()
        percent = 100 * (cpu_s - self._cpu_s) / max(now - self._looked, 1e-3)
        self._looked, self._cpu_s = now, cpu_s
        return {
            "cpu_percent": round(percent, 1),
            "memory_rss_mbyte": _resident_mbyte(),
            "uptime_seconds": int(now - _started),
            "open_file_descriptors": _entries("/proc/self/fd"),
            "tcp_sockets": _tcp_sockets(),
            "threads": _entries("/proc/self/task") or 1,
        }


def _resident_mbyte() -> float:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 3)


def _entries(folder: str) -> int | None:
    try:
        return len(os.listdir(folder))
    except OSError:
        return None


def _tcp_sockets() -> int | None:
    """Sockets of ours that the kernel lists as TCP."""
    try:
        ours = {os.readlink(entry.path)[8:-1] for entry in os.scandir("/proc/self/fd") if _is_socket(entry)}
        count = 0
        for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
            with open(table, encoding="ascii") as file:
                count += sum(line.split()[9] in ours for line in file.readlines()[1:])
    except (OSError, IndexError):
        return None
    return count


def _is_socket(entry: os.DirEntry[str]) -> bool:
    try:
        return os.readlink(entry.path).startswith("socket:[")
    except OSError:
        return False
