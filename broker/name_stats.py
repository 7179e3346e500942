"""Rate, errors and duration of what has a name, such as a method, the topic of an event or a task; pure, bounded.

The caller that counts passes the time, by a clock that nobody sets. Names that nobody has proven to be there are few,
for anybody can make up names; what has no figures of its own is counted together as ``OTHER``.
"""

# compiled: mypyc

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Any, Final

NAMES_MAX: Final = 256
"""Names with figures of their own in one table."""
UNPROVEN_MAX: Final = 64
"""Of these, names that may be made up."""
NAME_MAX_BYTES: Final = 255
"""A longer name has no figures of its own."""
ERRNOS_MAX: Final = 32
"""Distinct errnos of a name; the rest are counted together as 0."""
OTHER: Final = "other"
BOUNDS_NS: Final = tuple(int(2 ** (14 + step / 2)) for step in range(45))
"""Upper bounds of the latency buckets in ns, two an octave from 16 us to 69 s; one more bucket has no bound."""
TEXT_MAX: Final = 200
_ID: Final = re.compile(
    r"(?<![^.\-_])(?:[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{16,}|\d{4,})(?![^.\-_])", re.IGNORECASE
)
"""What names one thing of many in a topic: a UUID, a long hexadecimal or decimal number."""


def grouped(topic: str) -> str:
    """A topic without the ids in it.

    >>> grouped("nfp.job.0b4fdc51-7a0e-4b6e-9a51-3c1d5f0c2a77.progress"), grouped("kvs.get")
    ('nfp.job.*.progress', 'kvs.get')
    """
    return _ID.sub("*", topic)


def readable(name: str) -> str:
    r"""``name``; ``OTHER`` where it is long, or cannot be printed.

    >>> readable("kvs.get"), readable("kvs.get\x1b[2J"), readable("x" * 256)
    ('kvs.get', 'other', 'other')
    """
    return name if len(name) <= NAME_MAX_BYTES and name.isprintable() else OTHER


def name_of(topic: bytes) -> str:
    r"""The name that a topic is counted as: ``readable``, and ``grouped``.

    >>> name_of(b"job.12345678.end"), name_of(b"kvs.get\x1b[2J")
    ('job.*.end', 'other')
    """
    return grouped(readable(topic.decode("utf-8", "replace"))) if len(topic) <= NAME_MAX_BYTES else OTHER


class NameStats:
    """Figures of one name since they were begun, or cleared.

    Attributes:
        calls: calls, or messages. open: of those, not answered yet.
        errors: errno -> calls that ended with it.
        buckets: how many took as long as ``BOUNDS_NS`` says. total_ns: how long all of them took.
        proven: it is known that the name is not made up.
        last_errno, last_text, last_userid, last_ns: of the newest error: what it says, whose call, when; 0: none.
    """

    __slots__ = (
        "_bucket",
        "_bucket_ns",
        "buckets",
        "calls",
        "errors",
        "last_errno",
        "last_ns",
        "last_text",
        "last_userid",
        "open",
        "proven",
        "total_ns",
    )

    def __init__(self) -> None:
        self.open: int = 0
        self.proven: bool = False
        self._bucket: int = 0
        self._bucket_ns: int = 0
        self.clear()

    def clear(self) -> None:
        """Start at zero; what is open stays open."""
        self.calls: int = 0
        self.errors: dict[int, int] = {}
        self.buckets: list[int] = [0] * (len(BOUNDS_NS) + 1)
        self.total_ns: int = 0
        self.last_errno: int = 0
        self.last_text: str = ""
        self.last_userid: int = 0
        self.last_ns: int = 0

    def took(self, ns: int) -> None:
        """One of them was answered after so long."""
        self.total_ns += ns
        # those that were asked in one batch and answered in one took equally long: the bucket is looked for once
        if ns != self._bucket_ns:
            self._bucket_ns = ns
            self._bucket = bisect_left(BOUNDS_NS, ns)
        self.buckets[self._bucket] += 1

    def failed(self, errnum: int, text: str, userid: int, now_ns: int) -> None:
        """A call of ``userid`` ended with an error."""
        kept = errnum if errnum in self.errors or len(self.errors) < ERRNOS_MAX else 0
        self.errors[kept] = self.errors.get(kept, 0) + 1
        self.last_errno = errnum
        self.last_text = text[:TEXT_MAX]
        self.last_userid = userid
        self.last_ns = now_ns

    def told(self, now_ns: int, wall: float) -> dict[str, Any]:
        """JSON-ready; the newest error under ``last_error`` with its ``time``, None where there is none.

        Args:
            now_ns: the time by the clock of the room that counts.
            wall: the same in seconds since 1970.
        """
        return {
            "calls": self.calls,
            "open": self.open,
            "errors": {str(errnum): count for errnum, count in self.errors.items()},
            "total_ns": self.total_ns,
            "buckets": self.buckets if any(self.buckets) else [],
            "last_error": {
                "errnum": self.last_errno,
                "text": self.last_text,
                "userid": self.last_userid,
                "time": wall - (now_ns - self.last_ns) / 1e9,
            }
            if self.last_ns
            else None,
        }


class StatsTable:
    """Figures by name.

    Args:
        names_max: names with figures of their own. unproven_max: of these, names that may be made up.

    Attributes:
        by_name: the figures; those of ``OTHER`` are one more than ``names_max``.
    """

    __slots__ = ("_names_max", "_unproven", "_unproven_max", "by_name")

    def __init__(self, names_max: int = NAMES_MAX, unproven_max: int = UNPROVEN_MAX) -> None:
        self.by_name: dict[str, NameStats] = {}
        self._names_max: int = names_max
        self._unproven_max: int = unproven_max
        self._unproven: set[str] = set()

    def of(self, name: str) -> NameStats:
        """Where ``name``, which may be made up, is counted."""
        stats = self.by_name.get(name)
        if stats is None:
            if len(self._unproven) < self._unproven_max and len(self.by_name) < self._names_max:
                self._unproven.add(name)
            else:
                name = OTHER
            stats = self.by_name.setdefault(name, NameStats())
        return stats

    def proven(self, name: str) -> NameStats:
        """Where ``name``, which is not made up, is counted: it has figures of its own while there is room."""
        if name == OTHER or (name not in self.by_name and len(self.by_name) >= self._names_max):
            return self.by_name.setdefault(OTHER, NameStats())
        stats = self.by_name.setdefault(name, NameStats())
        stats.proven = True
        self._unproven.discard(name)
        return stats

    def has(self, stats: NameStats) -> bool:
        """Whether they are those of one name, and not of the others."""
        return stats is not self.by_name.get(OTHER)

    def clear(self) -> None:
        """Start at zero, and forget the names of which nothing is open."""
        for name in [name for name, stats in self.by_name.items() if not stats.open]:
            del self.by_name[name]
        self._unproven &= set(self.by_name)
        for stats in self.by_name.values():
            stats.clear()

    def told(self, now_ns: int, wall: float) -> dict[str, dict[str, Any]]:
        """JSON-ready, by name; see ``NameStats.told``."""
        return {name: stats.told(now_ns, wall) for name, stats in sorted(self.by_name.items())}
