"""A process that has one of our locks, and none of our code, which takes half a second to load."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HOLDS = """
import fcntl, os, sys
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print(os.getpid(), file=file, flush=True)
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """Have ``lock`` held by another process, which is killed at the end."""
    words = [sys.executable, "-S", "-c", HOLDS, str(lock)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()
