"""What a process says to the one that looks after it, systemd or a container engine: a leaf that every room may use.

``notify`` and ``announce`` speak sd_notify(3), ``watch`` keeps a watchdog quiet for as long as a loop turns,
``disown`` takes both from a child, ``raise_descriptor_limit`` asks for all that is allowed, ``name_process`` tells
ps(1) who this is. Without a manager (no ``$NOTIFY_SOCKET``) nothing is said. ``on_signals`` is how a process
leaves, at once when it is told twice, ``start_again`` how it begins anew. For who looks
after others (``children``) there are ``following`` and ``environ_of_child``.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

_NOTIFY_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG_USEC: Final = "WATCHDOG_USEC"
_WATCHDOG_PID: Final = "WATCHDOG_PID"
_SAID_TO_US: Final = (_NOTIFY_SOCKET, _WATCHDOG_USEC, _WATCHDOG_PID)
"""What a service manager says to one process alone."""
_PR_SET_PDEATHSIG: Final = 1

TABLE_FDS: Final = 16_384
"""Room in the kernel's table of descriptors, 8 bytes for each."""
RETRY_S: Final = 0.1
"""A manager whose queue is full is told again after so long."""

CallLater = Callable[..., object]
"""``call_later(seconds, function, *arguments)``, as event loops have it."""


def name_process(name: str) -> None:
    """Be ``name`` (15 bytes of it) in the process list; nothing where the system has no such thing."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(name[:15])


# ---------------------------------------------------------------- the service manager


def notify(*lines: str) -> bool:
    """Tell the service manager ``lines`` such as ``STATUS=well``, in one datagram (sd_notify(3)).

    Nothing without ``$NOTIFY_SOCKET``, and nothing when the manager does not listen or its queue is full: a process
    never waits for its manager. False when the queue is full: it may be told later.
    """
    address = os.environ.get(_NOTIFY_SOCKET)
    if not address or not lines:
        return True
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), address)
    except BlockingIOError:
        return False
    except (OSError, ValueError):  # nobody there, or no address of a socket
        pass
    return True


def announce(call_later: CallLater, *lines: str) -> None:
    """``notify`` of what must not get lost: a manager that never hears ``READY=1`` ends a process that is well.

    While its queue is full, as it can be when a machine starts all of its services, it is told again by ``call_later``.
    """
    if not notify(*lines):
        call_later(RETRY_S, announce, call_later, *lines)


def watchdog_s() -> float | None:
    """Seconds from one ``WATCHDOG=1`` to the next: half of ``$WATCHDOG_USEC``, as sd_watchdog_enabled(3) advises.

    None: nobody waits for it, or for that of another process (``$WATCHDOG_PID``).
    """
    owner = os.environ.get(_WATCHDOG_PID)
    if owner and owner != str(os.getpid()):
        return None
    text = os.environ.get(_WATCHDOG_USEC, "")
    if not (text.isascii() and text.isdecimal()) or int(text) == 0:
        return None
    return int(text) / 2e6


def watch(call_later: CallLater) -> None:
    """Say ``WATCHDOG=1`` now and, by ``call_later``, again and again: a loop that no longer turns misses the next one.

    Nothing when no watchdog waits for this process. It ends with the loop.
    """
    pause_s = watchdog_s()
    if pause_s is not None:
        call_later(pause_s if notify("WATCHDOG=1") else min(pause_s, RETRY_S), watch, call_later)


def leaving(seconds: float) -> None:
    """Tell the service manager that this process drains and leaves within ``seconds``, so that it waits for so long."""
    notify("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")


def disown() -> None:
    """Let this process, a child of the one that is looked after, never speak for it."""
    for name in _SAID_TO_US:
        os.environ.pop(name, None)


def environ_of_child(**more: str) -> dict[str, str]:
    """The variables of this process for a child of it, without what its manager said to it alone, and ``more``."""
    return {name: value for name, value in os.environ.items() if name not in _SAID_TO_US} | more


# ---------------------------------------------------------------- looking after others


def following(parent: int, number: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """What a child calls, as its ``preexec_fn`` may be, to get signal ``number`` when ``parent`` ends, however it ends;
    it leaves with code 1 when that process (0: not known) has ended already.
    """
    import ctypes  # half a MiB, which a process without children does not need

    prctl = ctypes.CDLL(None).prctl

    def follow() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if parent and os.getppid() != parent:
            os._exit(1)  # it ended before we could ask to be told

    return follow


# ---------------------------------------------------------------- signals


def on_signals(loop: Any, leave: Callable[[str], object], at_once: Callable[[], object]) -> list[str]:
    """Let SIGTERM and SIGINT call ``leave`` with the first one's name, ``at_once`` for each further one, until the loop
    is closed. Returns the list to which the names of those that come are appended.
    """
    told: list[str] = []

    def signalled(name: str) -> None:
        told.append(name)
        if len(told) > 1:
            at_once()
        else:
            leave(name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number.name)
    return told


def start_again() -> None:
    """Execute the command line of this process once more; returns only when that fails, which is logged."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - our own command line
    except OSError:
        logging.getLogger("headgate").exception("cannot start again")


# ---------------------------------------------------------------- descriptors


def raise_descriptor_limit() -> None:
    """Let this process open as many descriptors as the system lets it: each connection needs one.

    The usual soft limit, 1024, is kept low for programs that use select(2), as none of ours does (systemd.exec(5)).

    The kernel's table of them is made large enough for ``TABLE_FDS`` now: later, when there are threads, each time that
    it is doubled stops the process for 10 to 20 ms.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        with open(os.devnull) as any_file:
            os.close(fcntl.fcntl(any_file, fcntl.F_DUPFD_CLOEXEC, min(hard, TABLE_FDS) - 1))
