"""Memory of a process: what a burst took goes back to the system, and collections of garbage stay short.

By itself glibc's allocator returns what lies at the end only, and a dict keeps the room that it once needed: after a
flood of large messages a process would else keep hundreds of MiB of free pages. A leaf like ``supervision``.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Final, TypeVar

GROWN_BYTES: Final = 16 << 20
"""Free pages are looked for while the process is larger by so much than it has been."""
LOOK_S: Final = 1.0
REST_LOOKS: Final = 2, 256
"""How many looks that is not done again: from the first to the second, twice as many whenever it found nothing."""
FOUND_BYTES: Final = 1 << 20
"""Less than that is nothing."""
ROOM_BYTES: Final = 64 << 10
ENTRY_BYTES: Final = 512
"""Room of a dict, and for each of its entries, that is nothing: one that just grew has 200 bytes for each."""
GC_THRESHOLD: Final = (5_000, 2, 1_000)
"""A batch makes hundreds of messages, all of them gone at its end without any collection, so the young are looked at
seldom; but before they are many, and the middle generation, too: 60,000 objects, which peers that come in crowds soon
make, take 30 ms, in which nobody is served.
"""
KEPT_BYTES: Final = 64 << 20
"""Free pages at the end of the heap that a process keeps when it has seen a burst; half of it is the most that glibc
takes for what lies in the heap at all."""
OLD_OF_TRANSPORTS: Final = 20
"""In place of the last of them where asyncio has the sockets: each of its transports is a cycle, so every connection
leaves 1.3 KiB. So 40,000 of them are collected together, in a tenth of a second, and not two millions.
"""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def freeze(old: int = GC_THRESHOLD[2]) -> None:
    """Call once, when the process has started: what exists now lives as long as it, no collection looks at it again.

    ``old``: after so many collections of the middle generation the old one is looked at.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(*GC_THRESHOLD[:2], old)


def resident_bytes() -> int:
    """Resident memory of this process; 0 where ``/proc`` does not tell (proc(5), ``statm``)."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def give_back() -> None:
    """Let the allocator return every page that is free (malloc_trim(3)); nothing where it has no such function."""
    _allocator("malloc_trim", 0)


def keep() -> None:
    """Let the allocator keep free pages until ``give_back``: else it returns those of each large message at once, and
    to get them anew, zeroed, takes several times as long as to copy the message (mallopt(3)).
    """
    _allocator("mallopt", _M_TRIM_THRESHOLD, KEPT_BYTES)
    _allocator("mallopt", _M_MMAP_THRESHOLD, KEPT_BYTES // 2)


def _allocator(name: str, *values: int) -> None:
    import ctypes  # half a MiB, which a process without bursts does not need

    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*values)


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def compact(table: dict[_Key, _Value]) -> dict[_Key, _Value]:
    """``table``, or a copy of it where nearly all of its room is empty; to be asked whenever something was removed."""
    return dict(table) if sys.getsizeof(table) > ROOM_BYTES + ENTRY_BYTES * len(table) else table


class Trim:
    """Looks whether there is something to give back. ``look`` is to be called about once a second.

    Args:
        resident: bytes of the process. give_back: does it. keep: called at the first burst.
    """

    def __init__(
        self,
        resident: Callable[[], int] = resident_bytes,
        give_back: Callable[[], object] = give_back,
        keep: Callable[[], object] = keep,
    ) -> None:
        self._resident = resident
        self._give_back = give_back
        self._keep: Callable[[], object] | None = keep
        self._least = self._latest = 0
        self._rest = self._pause = 0

    def watch(self, call_later: Callable[..., object]) -> None:
        """Look now and, by ``call_later``, every second. It ends with the loop."""
        self.look()
        call_later(LOOK_S, self.watch, call_later)

    def look(self) -> None:
        """Give back what is free if the process is larger than it has been."""
        now = self._resident()
        self._least = min(self._least or now, now)
        if now <= self._least + GROWN_BYTES:
            return
        if now > self._latest + GROWN_BYTES:  # a burst, as it seems
            self._rest = self._pause = 0
        if self._rest:
            self._rest -= 1
            return
        if self._keep is not None:
            self._keep()
            self._keep = None
        self._give_back()
        self._latest = self._resident()
        first, last = REST_LOOKS
        found = now - self._latest >= FOUND_BYTES
        self._rest = self._pause = first if found else min(max(2 * self._pause, first), last)
