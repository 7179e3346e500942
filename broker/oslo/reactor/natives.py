"""The interpreter's own primitives, in processes where eventlet has put green ones in their place, too.

The thread that owns the sockets is a real one. A green lock in it would switch greenlets of a thread that has none,
a green ``select`` has no epoll at all; and a lock that a real thread and greenlets share can stop both.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from time import monotonic
from types import ModuleType
from typing import Any, Final

__all__ = [
    "Bell",
    "allocate_lock",
    "monotonic",
    "new_epoll",
    "new_event",
    "start_thread",
    "thread_id",
    "threads_are_green",
]

_GREEN: Final = ("thread", "select", "os", "time", "socket")
"""What eventlet may have patched; of ``time`` only ``sleep``, so that the clock is always the real one."""


def _original(name: str) -> ModuleType:
    """Module ``name`` as it was before eventlet has patched it; as it is where nothing has."""
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and any(map(patcher.is_monkey_patched, _GREEN)):
        return patcher.original(name)  # type: ignore[no-any-return]
    return __import__(name)


# functions of the interpreter stay what they are, whatever eventlet puts into their modules afterwards
allocate_lock: Final[Callable[[], Any]] = _original("_thread").allocate_lock
"""A real lock: for a few instructions, or to wait in a thread that is not green."""
thread_id: Final[Callable[[], int]] = _original("_thread").get_ident
"""Of the real thread that calls."""
new_epoll: Final[Callable[[], Any]] = _original("select").epoll
"""A real epoll object."""


def threads_are_green() -> bool:
    """True when eventlet has patched threads: whoever waits must let the other greenlets run."""
    patcher = sys.modules.get("eventlet.patcher")
    return patcher is not None and bool(patcher.is_monkey_patched("thread"))


def start_thread(run: Any, name: str) -> Any:
    """Start a real daemon thread; returns its ``threading.Thread``."""
    thread = _original("threading").Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def new_event() -> Any:
    """A real ``threading.Event``, for threads of ``start_thread``."""
    return _original("threading").Event()


class Bell:
    """A descriptor that other threads wake a loop by. It is open as long as anybody holds this object.

    So a thread that is about to ring while the loop ends rings unheard, and never into a descriptor of the same number.
    """

    __slots__ = ("_close", "_ring", "fd")

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._close = os.close  # modules may be gone when the last one of a process ends
        self._ring = os.eventfd_write

    def __del__(self) -> None:
        if getattr(self, "_close", None) is not None:
            self._close(self.fd)

    def ring(self) -> None:
        """Make it readable; from any thread, from a signal handler, too."""
        self._ring(self.fd, 1)

    def quiet(self) -> None:
        """It is not readable any more; harmless when it was not."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
