"""A command in the foreground of the terminal: its environment, its signals, its end."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from broker import supervision
from broker.endings import shell_code
from broker.errors import print_error
from broker.signals import TakenSignal

BLOCKED: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTTOU})
"""Signals the launcher takes one by one; SIGTTOU so that it may take the terminal back from a killed shell."""
AWAITED: Final = BLOCKED - {signal.SIGTTOU}
_FROM_KERNEL: Final = 0x80
"""``si_code`` of a signal that the terminal made: every process in its foreground has got it."""
_DEADLY: Final = (signal.SIGTERM, signal.SIGHUP)
INSIST: Final = ((2.0, signal.SIGHUP), (5.0, signal.SIGKILL))
"""Seconds after the first deadly signal, what follows it: interactive shells ignore SIGTERM."""
NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126


def environment(uri: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the command: where the broker is, and ``headgate`` itself on the path."""
    extended = {**environ, **where(uri)}
    path = environ.get("PATH", os.defpath)
    if shutil.which("headgate", path=path) is None and (own := own_directory()):
        extended["PATH"] = f"{path}{os.pathsep}{own}"
    return extended


def where(uri: str) -> dict[str, str]:
    """The variables that name the broker at ``uri``."""
    return {"FLUX_URI": uri, "HEADGATE_URI": uri}


def own_directory() -> str:
    """Where the command ``headgate`` of this installation is, beside its Python if there; "" when it has none."""
    beside = [str(Path(file).parent.absolute()) for file in (sys.executable, sys.argv[0])]
    found = shutil.which("headgate", path=os.pathsep.join(beside))
    return str(Path(found).parent) if found else ""


class Command:
    """One child process, in the foreground of our terminal if we are. It gets SIGHUP when we are killed, as it would
    when its terminal is gone: interactive shells ignore SIGTERM.

    Args:
        words: the program and its arguments.
        environ: its whole environment.
        descriptors: how many it may open, soft and hard: as many as whoever started us allows. We may have asked for
            more, and programs that use select(2) take no more than 1024.
    """

    def __init__(
        self, words: Sequence[str], environ: Mapping[str, str], descriptors: tuple[int, int]
    ) -> None:
        self._words = list(words)
        self._environ = environ
        self._descriptors = descriptors
        self._process: subprocess.Popen[bytes] | None = None
        self._insist: list[asyncio.TimerHandle] = []

    async def run(self) -> int:
        """Start it and wait for its end; returns its exit code, 128 + N when signal N ended it."""
        try:
            process = self._process = self._spawn(supervision.following(os.getpid(), signal.SIGHUP))
        except OSError as error:
            print_error(f"headgate start: {self._words[0]}: {error.strerror}")
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        fd = os.pidfd_open(process.pid)
        loop.add_reader(fd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)
            for timer in self._insist:
                timer.cancel()
            _take_terminal_back()
        return shell_code(process.wait())

    def _spawn(self, follow: Callable[[], None]) -> subprocess.Popen[bytes]:
        def begin() -> None:
            for number in BLOCKED:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            resource.setrlimit(resource.RLIMIT_NOFILE, self._descriptors)
            follow()

        return subprocess.Popen(
            self._words,
            executable=self._program(),
            env=self._environ,
            close_fds=False,  # what whoever started us has opened for it
            preexec_fn=begin,  # noqa: PLW1509 - it imports nothing, and there are no threads
        )

    def _program(self) -> str:
        """The file to run, looked for on the path that the command itself will have."""
        word = self._words[0]
        found = word if os.sep in word else shutil.which(word, path=self._environ.get("PATH"))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), word)
        return found

    def hear(self, came: TakenSignal) -> None:
        """Take in a signal to the launcher: one that the terminal made has reached the command by itself."""
        if came.code == _FROM_KERNEL or self._process is None:
            return
        self._process.send_signal(came.number)
        if came.number in _DEADLY and not self._insist:
            later = asyncio.get_running_loop().call_later
            self._insist = [later(after, self._process.send_signal, follows) for after, follows in INSIST]


def _take_terminal_back() -> None:
    """An interactive shell that was killed has left the terminal to a process group that is gone."""
    try:
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            os.tcsetpgrp(0, os.getpgrp())
    except OSError:
        return  # not our controlling terminal: nothing to take back
