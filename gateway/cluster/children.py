"""Child processes of the supervisor: each dies with it, whatever happens, and is waited for without a thread.

The supervisor has one thread and starts no other, so that what runs between fork and exec is safe; the ends of
children are told by descriptors (pidfd_open(2)), which need neither a thread nor a handler of SIGCHLD.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
"""Loaded before any fork."""


def spawn(
    argv: Sequence[str], log: Path, enter: Callable[[], None] | None, **environ: str
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, its output appended to ``log``.

    Args:
        argv: its command line.
        log: made with mode 0600.
        enter: runs in it first.
        environ: variables it has besides ours.

    Raises:
        OSError: it cannot be started. SubprocessError: ``enter`` raised.
    """
    supervisor = os.getpid()

    def begin() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a frozen process follows no milder one
        if os.getppid() != supervisor:
            os._exit(1)  # it ended before we could ask to be told
        if enter is not None:
            enter()

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            env=os.environ | environ,
            preexec_fn=begin,  # noqa: PLW1509 - one thread, see above
        )
    finally:
        os.close(descriptor)


async def ended(process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> int:
    """Wait for the end of a child; returns its exit code, negative the signal that ended it."""
    if (code := process.poll()) is not None:
        return code
    gone = loop.create_future()
    descriptor = os.pidfd_open(process.pid)

    def over() -> None:
        if not gone.done():
            gone.set_result(None)

    loop.add_reader(descriptor, over)
    try:
        await gone
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return process.wait()
