"""Whatever a run of the tests has started ends with it, even if it is killed with -9.

What a run starts inherits a mark in its environment. A guard in a session of its own waits for the end of the run and
then kills whoever bears the mark. This also reaches what a death signal (``PR_SET_PDEATHSIG``) in each child would not:
grandchildren, and daemons that have left on purpose. Nor does it strike when only the thread ends that started a child.
"""

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "RUN_OF_HEADGATE_TESTS"
GRACE_S = 1.0
"""What is left may take so long to end by itself: a JVM tidies up behind it."""
PATIENCE_S = 40.0
"""How long the guard looks for what is left; a supervisor may have brought somebody back."""


def begin() -> None:
    """Have this process guarded: a run of pytest, or one of its workers."""
    hear_interrupts()
    mark = f"{os.getpid()}-{secrets.token_hex(8)}"
    os.environ[MARK] = mark
    argv = [sys.executable, "-I", "-S", __file__, str(os.getpid()), mark]
    subprocess.run(argv, env={}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)


def hear_interrupts() -> None:
    """Let children hear SIGINT although a shell that started us in the background had it ignored.

    What is ignored stays so beyond ``exec``, what is caught becomes the default again.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: None)


def bearers(mark: str) -> Iterator[int]:
    """The processes that inherited ``mark``."""
    line = f"{MARK}={mark}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if line in (place / "environ").read_bytes().split(b"\0"):
                yield int(place.name)


def main(pid: int, mark: str) -> None:
    """Wait for the end of ``pid`` in the background, then end what it has left."""
    guarded = os.pidfd_open(pid)
    if os.fork():
        return
    os.setsid()
    os.chdir("/")
    os.dup2(0, 2)
    select.select([guarded], [], [])
    ended = time.monotonic()
    while (left := list(bearers(mark))) and (past := time.monotonic() - ended) < PATIENCE_S:
        for each in left if past > GRACE_S else ():
            with contextlib.suppress(OSError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
