"""Blocked signals, taken one by one, within a time or by an event loop: signalfd(2). A leaf.

``signal.sigtimedwait`` cannot be trusted: of a process that is stopped (SIGSTOP, a paused container, a machine that
sleeps) until the time is over, CPython returns whatever lies in the memory of a ``siginfo`` that nobody wrote. And
handlers of an event loop are not told who has sent a signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

_SIGNAL_SET_BYTES: Final = 128
"""Size of ``sigset_t``, in glibc and in musl."""
_TAKEN: Final = Struct("IiiI112x")
"""``struct signalfd_siginfo``: number, errno, code, pid; what follows is not looked at."""


class TakenSignal(NamedTuple):
    """A signal that came.

    Attributes:
        number: one of ``signal.Signals``.
        code: ``si_code``: its origin, such as 0 (kill(2)) or 128 (the kernel, for a terminal).
        pid: of its sender, or of the child that ended.
    """

    number: int
    code: int
    pid: int


_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def opened(signals: Iterable[int]) -> Iterator[int]:
    """A descriptor that is readable while one of ``signals``, which all threads of this process have blocked, is
    pending; ``read`` takes it.

    Raises:
        OSError: a number is none of a signal.
    """
    wanted = (ctypes.c_byte * _SIGNAL_SET_BYTES)()
    for number in signals:
        _checked(_libc.sigaddset(wanted, number))
    fd = _checked(_libc.signalfd(-1, wanted, os.O_NONBLOCK | os.O_CLOEXEC))  # SFD_NONBLOCK, SFD_CLOEXEC
    try:
        yield fd
    finally:
        os.close(fd)


def read(fd: int) -> TakenSignal | None:
    """The next signal of a descriptor of ``opened``, which is pending no more; None when there is none."""
    try:
        number, _errno, code, pid = _TAKEN.unpack(os.read(fd, _TAKEN.size))
    except BlockingIOError:
        return None
    return TakenSignal(number, code, pid)


def take(signals: Iterable[int], seconds: float | None) -> TakenSignal | None:
    """Wait for a signal that all threads of this process have blocked.

    Args:
        signals: which ones.
        seconds: the longest wait; 0 or less only looks, None has no end.

    Returns:
        The signal, which is pending no more; None when none came in time.

    Raises:
        OSError: a number is none of a signal.
    """
    with opened(signals) as fd:
        waiting = select.poll()
        waiting.register(fd, select.POLLIN)
        waiting.poll(None if seconds is None else max(0.0, seconds * 1000))
        return read(fd)


def _checked(result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
