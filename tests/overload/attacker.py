"""The process that makes the loads, so that they cost the victims' clocks nothing.

It is told the place in its argument and a load a line on stdin (``NAME SECONDS SEED``), says ``begun`` when it begins
and ``done CHUNKS`` when all its connections are closed again.
"""

import contextlib
import os
import select
import subprocess
import sys
import traceback
from pathlib import Path

import msgspec

from tests.overload.ground import Ground, Place
from tests.overload.table import TABLE, way_of

GRACE_S = 30.0
"""A load may take so much longer than it was told: it ends what it has begun."""


class Stuck(Exception):
    """The attacker did not do as it was told."""


class Attacker:
    """The process, from outside."""

    def __init__(self, place: Place, log: Path) -> None:
        argv = [sys.executable, "-m", "tests.overload.attacker", msgspec.json.encode(place).decode()]
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, bufsize=0
            )
        self._log = log

    def begin(self, name: str, seconds: float, seed: int) -> None:
        """Begin; returns when it has begun."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name} {seconds} {seed}\n".encode())
        assert self._said(GRACE_S) == ["begun"]

    def end(self, seconds: float) -> int:
        """Wait for the end; how many chunks were sent."""
        word, sent = self._said(seconds + GRACE_S)
        assert word == "done"
        return int(sent)

    def _said(self, patience_s: float) -> list[str]:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], patience_s)
        words = self.process.stdout.readline().decode().split() if ready else []
        if not words:
            raise Stuck(f"the attacker says nothing: {self._log.read_text()[-2000:]}")
        return words

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def main(place: Place) -> None:
    """Do what stdin says."""
    with contextlib.suppress(OSError):
        os.nice(1)  # a little: the victims' clocks belong to nobody's load
    for told in sys.stdin:
        name, seconds, seed = told.split()
        print("begun", flush=True)
        sent = 0
        with Ground(place, way_of(name), float(seconds), int(seed)) as ground:
            try:
                TABLE[name](ground)
            except Exception:
                traceback.print_exc()
                raise
            sent = ground.sent
        print("done", sent, flush=True)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Place))
