"""The command that ``headgate start`` runs: its environment, its signals, its end."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from broker.endings import shell_code
from broker.errors import print_error
from broker.signals import take

BLOCKED: Final = frozenset(
    {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTTOU}
)
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
    """One child process, in the foreground of our terminal if we are.

    Args:
        words: the program and its arguments.
        environ: its whole environment.
    """

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        self._words = list(words)
        self._environ = environ
        self._pid = 0
        self._insist: list[tuple[float, int]] = []

    def run(self, others_ended: Callable[[], object]) -> int:
        """Start it and wait for its end; returns its exit code, 128 + N when signal N ended it.

        Args:
            others_ended: called after each SIGCHLD: a rank may have died, too.
        """
        try:
            program = self._program()
            self._pid = os.posix_spawn(program, self._words, self._environ, setsigmask=(), setsigdef=BLOCKED)
        except OSError as error:
            print_error(f"headgate start: {self._words[0]}: {error.strerror}")
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        try:
            return self._until_ended(others_ended)
        finally:
            _take_terminal_back()

    def _program(self) -> str:
        """The file to run, looked for on the path that the command itself will have."""
        word = self._words[0]
        found = word if os.sep in word else shutil.which(word, path=self._environ.get("PATH"))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), word)
        return found

    def _until_ended(self, others_ended: Callable[[], object]) -> int:
        while True:
            came = take(AWAITED, self._insist[0][0] - time.monotonic() if self._insist else None)
            if came is None:
                os.kill(self._pid, self._insist.pop(0)[1])
            elif came.number == signal.SIGCHLD:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    return shell_code(os.waitstatus_to_exitcode(status))
                others_ended()
            elif came.code != _FROM_KERNEL:
                self._pass_on(came.number)

    def _pass_on(self, number: int) -> None:
        os.kill(self._pid, number)
        if number in _DEADLY and not self._insist:
            now = time.monotonic()
            self._insist = [(now + after, follows) for after, follows in INSIST]


def _take_terminal_back() -> None:
    """An interactive shell that was killed has left the terminal to a process group that is gone."""
    try:
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            os.tcsetpgrp(0, os.getpgrp())
    except OSError:
        return  # not our controlling terminal: nothing to take back
