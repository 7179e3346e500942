"""A child that goes on from here without exec: it shares what has been loaded, and costs milliseconds.

Theory of operation. It is forked before any event loop, thread or database exists. It writes one byte into a pipe once
it can be used; the pipe's end without that byte means that it died. It has a session of its own, so that a Ctrl-C at
the terminal is its parent's to deal with, and ends when its parent does, however that ends.

Concurrency: one thread, no event loop.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from broker import supervision
from broker.endings import FAILED, in_words
from broker.errors import print_error
from broker.signals import take

HURRY_S: Final = 3.0
"""How long it may take to leave at once, before a child is killed."""
APART_S: Final = 0.1
"""Between two signals to a child at least: of one that still waits for the child the kernel makes no second."""
_AGAIN: Final = frozenset((signal.SIGINT, signal.SIGTERM))
_READY: Final = b"r"
_DEFAULT: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)

Work = Callable[[Callable[[], None]], int]
"""What a child does: it is given what to call once it can be used, and returns its exit code."""


class Forked:
    """One child; made, it runs.

    Args:
        who: begins the line about an error that ends it, such as ``headgate: rank 3``. work: what it does.

    Attributes:
        pid: of the process. ready: it can be used. code: None while it lives, then its exit code, -N after signal N.
    """

    def __init__(self, who: str, work: Work) -> None:
        self.ready = False
        self.code: int | None = None
        self._pipe, pipe = os.pipe2(os.O_CLOEXEC)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become(who, work, pipe, parent)
        os.close(pipe)

    def send_signal(self, number: signal.Signals) -> None:
        """Signal it; nothing once it has ended."""
        if self.code is None:
            os.kill(self.pid, number)  # a child that was not waited for: the pid is still its own

    def reap(self, options: int = os.WNOHANG) -> bool:
        """Take in its end; False while it lives. ``options`` of waitpid(2): 0 waits for it."""
        if self.code is None and (ended := os.waitpid(self.pid, options))[0]:
            self.code = os.waitstatus_to_exitcode(ended[1])
            self._hang_up()
        return self.code is not None

    @property
    def why(self) -> str:
        """How it ended, such as ``ended with signal 9 (SIGKILL)``; "" while it lives."""
        return "" if self.code is None else f"ended with {in_words(self.code)}"

    def fileno(self) -> int:
        """Of the pipe on which it says that it is ready; -1 once it has, or nobody waits for it."""
        return self._pipe

    def listen(self) -> None:
        """Its pipe is readable: it is ready, or it is dead."""
        self.ready = os.read(self._pipe, 1) == _READY
        self._hang_up()
        if not self.ready:
            self.reap(0)

    def _hang_up(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def until_ready(children: Sequence[Forked], seconds: float) -> bool:
    """Wait at most ``seconds``; returns whether all are ready. Returns at once when one has died before it was."""
    pending = {child.fileno(): child for child in children if child.fileno() >= 0}
    poll = select.poll()
    for pipe in pending:
        poll.register(pipe, select.POLLIN)
    deadline = time.monotonic() + seconds
    while pending and all(child.code is None for child in children):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        for pipe, _events in poll.poll(left * 1000):
            poll.unregister(pipe)
            pending.pop(pipe).listen()
    return all(child.ready and child.code is None for child in children)


def until_ended(
    children: Sequence[Forked], seconds: float, meanwhile: Callable[[], object] = lambda: None
) -> bool:
    """Wait at most ``seconds`` for the ends of all; whether this process was told meanwhile to end at once.

    SIGCHLD has to be blocked. SIGTERM and SIGINT tell so where they are blocked, but those that a child has sent.
    ``meanwhile`` is called several times a second.
    """
    told = _AGAIN & signal.pthread_sigmask(signal.SIG_BLOCK, ())
    deadline = time.monotonic() + seconds
    while (alive := [child.pid for child in children if not child.reap()]) and deadline > time.monotonic():
        meanwhile()
        came = take({signal.SIGCHLD, *told}, min(deadline - time.monotonic(), 0.2))
        if came is not None and came.number in told and came.pid not in alive:
            return True
    return False


def end(children: Sequence[Forked], seconds: float, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Have all leave: they have ``seconds``, are told to leave at once, and killed at last; see ``until_ended``."""
    for patience_s in (max(seconds, APART_S), HURRY_S):
        for child in children:
            child.send_signal(signal.SIGTERM)
        until_ended(children, patience_s, meanwhile)
    for child in children:
        child.send_signal(signal.SIGKILL)
        child.reap(0)


def _become(who: str, work: Work, pipe: int, parent: int) -> NoReturn:
    """Turn this forked process into the child."""
    code = FAILED
    try:
        _detach(parent)

        def tell() -> None:
            with contextlib.suppress(BrokenPipeError):  # nobody waits any more
                os.write(pipe, _READY)
            os.close(pipe)

        code = work(tell)
    except BaseException as error:
        print_error(f"{who}: {type(error).__name__}: {error}")
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # nobody reads it: else this would go on as the parent does
                stream.flush()
        os._exit(code)  # its parent's own exit handlers are not its to run


def _detach(parent: int) -> None:
    """Leave the terminal and its signals, end with the parent, keep nothing of its input and output."""
    os.setsid()
    supervision.disown()  # a service manager looks after the parent
    supervision.following(parent)()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    for number in _DEFAULT:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
