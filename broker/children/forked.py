"""A process that goes on from here without exec: it shares what has been loaded, and costs milliseconds.

It has a session of its own, so that a Ctrl-C at the terminal is its parent's to deal with, ends when its parent does,
however that ends, and prints to stderr. Threads of the parent are not there in it; what the parent has open is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from typing import Final, NoReturn

from broker import supervision
from broker.endings import FAILED
from broker.errors import print_error

_DEFAULT: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)


class Forked:
    """One process, made when this is; what a keeper uses of ``subprocess.Popen``, under the same names.

    Args:
        name: stands before the line about an error that ends it. work: what it does; returns its exit code.
        environ: further variables. follow: the signal that it gets when this process ends.

    Attributes:
        pid: its id. returncode: None while it lives, then its exit code, -N after signal N.
    """

    def __init__(
        self, name: str, work: Callable[[], int], environ: Mapping[str, str], follow: signal.Signals
    ) -> None:
        self.returncode: int | None = None
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or both processes would write what is in it
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become(name, work, environ, parent, follow)

    def poll(self) -> int | None:
        """Its ``returncode``, which is looked for."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        """Its ``returncode``, which is waited for."""
        code = self._reap(0)
        assert code is not None
        return code

    def _reap(self, options: int) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, options))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it; nothing once it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)  # a child that was not waited for: the pid is still its own

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _become(
    name: str, work: Callable[[], int], environ: Mapping[str, str], parent: int, follow: signal.Signals
) -> NoReturn:
    code = FAILED
    try:
        _detach(parent, follow)
        os.environ.update(environ)
        code = work()
    except BaseException as error:
        print_error(f"headgate: {name}: {type(error).__name__}: {error}")
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # nobody reads it: else this would go on as the parent does
                stream.flush()
        os._exit(code)  # its parent's own exit handlers are not its to run


def _detach(parent: int, follow: signal.Signals) -> None:
    """Leave the terminal and its signals, end with the parent, keep nothing of its input, output and event loop."""
    os.setsid()
    supervision.disown()  # a service manager looks after the parent
    supervision.following(parent, follow)()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    if isinstance(sys.stdout, TextIOWrapper):  # a line is there as it is printed, however this one ends
        sys.stdout.reconfigure(line_buffering=True)
    signal.set_wakeup_fd(-1)
    asyncio._set_running_loop(None)  # before Python 3.12 a fork leaves it to who forks
    for number in _DEFAULT:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
