"""Blocked signals, taken one by one within a time (sigtimedwait(2)). A leaf.

``signal.sigtimedwait`` cannot be trusted: of a process that is stopped (SIGSTOP, a paused container, a machine that
sleeps) until the time is over, CPython returns whatever lies in the memory of a ``siginfo`` that nobody wrote.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

_SIGNAL_SET_BYTES: Final = 128
"""Size of ``sigset_t``, in glibc and in musl."""


class TakenSignal(NamedTuple):
    """A signal that came.

    Attributes:
        number: one of ``signal.Signals``.
        code: ``si_code``: who made it, such as 0 (kill(2)) or 128 (the kernel, for a terminal).
        pid: of its sender, or of the child that ended.
    """

    number: int
    code: int
    pid: int


class _Sender(ctypes.Union):
    _fields_ = [("pid", ctypes.c_int), ("aligned", ctypes.c_void_p), ("room", ctypes.c_byte * 128)]


class _SignalInfo(ctypes.Structure):
    _fields_ = [
        ("number", ctypes.c_int),
        ("errno", ctypes.c_int),
        ("code", ctypes.c_int),
        ("sender", _Sender),
    ]


class _TimeSpec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]


_libc = ctypes.CDLL(None, use_errno=True)


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
    wanted = (ctypes.c_byte * _SIGNAL_SET_BYTES)()
    for number in signals:
        _checked(_libc.sigaddset(wanted, number))
    info = _SignalInfo()
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        limit = None if until is None else ctypes.byref(_time_until(until))
        if _libc.sigtimedwait(wanted, ctypes.byref(info), limit) != -1:
            return TakenSignal(info.number, info.code, info.sender.pid)
        if ctypes.get_errno() == errno.EAGAIN:
            return None
        if ctypes.get_errno() != errno.EINTR:
            _checked(-1)


def _time_until(moment: float) -> _TimeSpec:
    left_ns = max(0, int((moment - time.monotonic()) * 1e9))
    return _TimeSpec(*divmod(left_ns, 1_000_000_000))


def _checked(result: int) -> None:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
