"""How a process that serves ends: which error means which exit code, and what is waited for instead of ending."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from broker import supervision
from broker.backoff import Backoff
from broker.errors import ConfigError, HeadgateError, NotReady, print_error

log = logging.getLogger("headgate")

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
"""The command line is wrong, as shells and argparse have it."""
TEMPFAIL: Final = 75
"""sysexits.h EX_TEMPFAIL: what stands in the way may pass by itself: a supervisor tries again."""
CONFIG: Final = 78
"""sysexits.h EX_CONFIG: a person has to change something: a supervisor need not try again."""
NOT_AGAIN: Final = frozenset((OK, USAGE, CONFIG))
"""After these whoever looks after a process of ours does not start it again: it was told to leave, or would end the
same way.
"""
AT_ONCE: Final = "HEADGATE_FAIL_AT_ONCE"
"""Environment: set by supervisors of ours, which start their processes again themselves, or tell who asked."""
_FIRST_S: Final = 0.5
_LONGEST_S: Final = 15.0
_TOLD_S: Final = 600.0
"""What is waited for is told again after so long."""
_ATTEMPT_S: Final = 60.0
"""How long the service manager is asked to wait for an attempt."""
_LEAVE: Final = frozenset({signal.SIGTERM, signal.SIGINT})


def code_of(error: BaseException) -> int:
    """The exit code of a process that ``error`` ended."""
    if isinstance(error, NotReady):
        return TEMPFAIL
    return CONFIG if isinstance(error, ConfigError) else FAILED


def in_words(code: int) -> str:
    """How a child ended, by its exit code, -N after signal N.

    >>> in_words(78), in_words(-9), in_words(-35)
    ('code 78', 'signal 9 (SIGKILL)', 'signal 35')
    """
    if code >= 0:
        return f"code {code}"
    names = {each.value: f" ({each.name})" for each in signal.Signals}  # most real-time signals have none
    return f"signal {-code}{names.get(-code, '')}"


def shell_code(code: int) -> int:
    """The exit code that tells of a child's, as shells have it: 128 + N after signal N.

    >>> shell_code(78), shell_code(-9)
    (78, 137)
    """
    return code if code >= 0 else 128 - code


def attended(who: str, attempt: Callable[[], int], *, part: str = "") -> int:
    """The exit code that ``attempt`` gives, or that of the error which ended it, told as a line of ``who``.

    Under a service manager that waits for ``READY=1`` what may pass by itself is waited for, and ``attempt`` called
    again: the service stays "starting". That is logged once, and seldom again.

    Args:
        who: the name that begins each line, such as ``headgate gateway``.
        attempt: runs until the process is told to leave; sets everything up by itself.
        part: stands before errors that no setting is the cause of, such as ``rank 3: ``.
    """
    pauses = Backoff(_FIRST_S, _LONGEST_S, _LONGEST_S, spread=False)
    said, told_at = "", 0.0
    while True:
        began = time.monotonic()
        try:
            return attempt()
        except NotReady as error:
            if not _is_awaited():
                print_error(f"{who}: {error}")
                return code_of(error)
            now = time.monotonic()
            if str(error) != said or now - told_at >= _TOLD_S:
                log.warning("cannot start yet: %s; goes on trying", error)
                said, told_at = str(error), now
            pause_s = pauses.after(now - began)
            supervision.notify(f"STATUS=cannot start yet: {error}", _extended(pause_s + _ATTEMPT_S))
            if not _wait(pause_s):
                return OK
        except HeadgateError as error:
            print_error(f"{who}: {'' if isinstance(error, ConfigError) else part}{error}")
            return code_of(error)


def _is_awaited() -> bool:
    return bool(os.environ.get("NOTIFY_SOCKET")) and not os.environ.get(AT_ONCE)


def _extended(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"


def _wait(seconds: float) -> bool:
    from broker.signals import take  # with ctypes, half a MiB: only a process that waits needs it

    before = signal.pthread_sigmask(signal.SIG_BLOCK, _LEAVE)
    try:
        return take(_LEAVE, seconds) is None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
