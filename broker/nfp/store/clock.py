"""Time that a store counts ages with: it never goes back, and a restart takes it up where it was.

A wall clock may be set while a broker runs or while it is down; a deadline must not move further away by that. So what
is stored is ``StoreClock.now()``: seconds since the store was made. Within one boot of the machine it advances with the
kernel's boot clock, also over restarts and kills of the process, whatever the wall clock does. Over a reboot, or on
another machine, only the wall clock can tell how long nobody counted: a negative difference counts as nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""  # unknown: every restart counts as a reboot


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock(NamedTuple):
    """The clocks of the machine; tests bring their own."""

    wall: Callable[[], float] = time.time
    """Seconds since 1970, may step."""
    boot: Callable[[], float] = _boot_s
    """Seconds since the machine was booted, never step."""
    boot_id: Callable[[], str] = _boot_id
    """Differs from boot to boot; "" when unknown."""


TABLE: Final = """
CREATE TABLE clock (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    at REAL NOT NULL, wall REAL NOT NULL, boot REAL NOT NULL, boot_id TEXT NOT NULL);
INSERT INTO clock VALUES (1, 0, 0, 0, '-');
"""
"""When the last commit was, on every clock; part of each store's schema."""


class Moment(NamedTuple):
    """Now, on every clock; a row of ``TABLE``."""

    at: float
    wall: float
    boot: float
    boot_id: str


class StoreClock:
    """See the module; ``load`` comes first."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._boot_id = self._clock.boot_id()
        self._base = 0.0
        self._started = self._clock.boot()

    def load(self, connection: sqlite3.Connection) -> None:
        """Go on where the last commit was."""
        row = connection.execute("SELECT at, wall, boot, boot_id FROM clock").fetchone()
        last = Moment(*row)
        self._started = self._clock.boot()
        if last.boot_id == "-":
            elapsed = 0.0
        elif last.boot_id == self._boot_id != "":
            elapsed = self._started - last.boot
        else:
            elapsed = self._clock.wall() - last.wall
        self._base = last.at + max(0.0, elapsed)

    def now(self) -> float:
        """Seconds since the store was made."""
        return self._base + max(0.0, self._clock.boot() - self._started)

    def save(self, connection: sqlite3.Connection) -> Moment:
        """Write down when this commit is, and return it."""
        boot = self._clock.boot()
        at = self._base + max(0.0, boot - self._started)
        moment = Moment(at, self._clock.wall(), boot, self._boot_id)
        connection.execute("UPDATE clock SET at = ?, wall = ?, boot = ?, boot_id = ?", moment)
        return moment
