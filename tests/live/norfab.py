"""Deployed NorFab as separate processes: its broker, its workers, its clients, from an environment of its own.

NorFab pins its requirements with ``==``, so it cannot share an environment with ours: ``make interop`` makes
``.venv-norfab`` beside ``.venv``; ``NORFAB_PYTHON`` names another interpreter that has it.
"""

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SIDE = Path(__file__).with_name("norfab_side.py")
START_S = 40.0
ANSWER_S = 150.0
LEAVE_S = 8.0


def norfab_python() -> str:
    """The interpreter that has NorFab; without one the test is skipped, which CI does not accept."""
    python = os.environ.get("NORFAB_PYTHON") or str(ROOT / ".venv-norfab" / "bin" / "python")
    if not Path(python).exists():
        pytest.skip("no NorFab: `make interop` installs it into .venv-norfab")
    return python


class Side:
    """One process of NorFab; ``ready`` is what it said when it was."""

    def __init__(self, *words: str | Path, log: Path) -> None:
        self.log = log
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                # -P: this folder has a file named norfab, too
                [norfab_python(), "-P", str(SIDE), *map(str, words)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.ready = self._next(START_S)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _next(self, seconds: float) -> dict[str, Any]:
        while True:
            line = self._lines.get(timeout=seconds)
            if line is None:
                raise AssertionError(f"NorFab ended: {self.log.read_text()[-3000:]}")
            if line.startswith("{"):
                return json.loads(line)

    def tell(self, **words: Any) -> None:
        """Give a client a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def told(self, seconds: float = ANSWER_S) -> Any:
        """The answer to the oldest command."""
        answer = self._next(seconds)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]

    def ask(self, seconds: float = ANSWER_S, **words: Any) -> Any:
        """Give a client a command and wait for its answer."""
        self.tell(**words)
        return self.told(seconds)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """As if the machine had lost power."""
        self.process.kill()
        self.process.wait(LEAVE_S)

    def close(self) -> None:
        """Ask it to leave, insist after a while."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._reader.join(LEAVE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class NorFab:
    """Processes of NorFab in ``folder``, ended together."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sides: list[Side] = []

    def _start(self, kind: str, *words: str | Path) -> Side:
        side = Side(kind, *words, log=self.folder / f"norfab-{len(self._sides)}-{kind}.log")
        self._sides.append(side)
        return side

    def _home(self, name: str) -> Path:
        home = self.folder / "norfab" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def broker(
        self,
        endpoint: str,
        *,
        keepalive_ms: int = 2500,
        multiplier: int = 6,
        workers: dict[str, Any] | None = None,
    ) -> Side:
        """The real broker; ``ready["key"]`` is its public key. ``workers`` is its inventory of them."""
        home = self._home("broker")
        return self._start(
            "broker", endpoint, home, str(keepalive_ms), str(multiplier), json.dumps(workers or {})
        )

    def worker(self, endpoint: str, key: str, name: str, service: str = "dummy") -> Side:
        """A worker with the tasks of ``norfab_side.DummyWorker``."""
        return self._start("worker", endpoint, self._home(name), key, name, service)

    def files(self, endpoint: str, key: str, name: str, shared: Path) -> Side:
        """NorFab's own file sharing worker, serving ``shared``."""
        return self._start("files", endpoint, self._home(name), key, name, shared)

    def client(self, endpoint: str, key: str, name: str) -> Side:
        """A client that takes commands."""
        return self._start("client", endpoint, self._home(name), key, name)

    def close(self) -> None:
        for side in reversed(self._sides):
            side.close()


@contextmanager
def norfab(folder: Path) -> Iterator[NorFab]:
    """NorFab for the length of a ``with`` block; skipped where it is not installed."""
    norfab_python()
    processes = NorFab(folder)
    try:
        yield processes
    finally:
        processes.close()
