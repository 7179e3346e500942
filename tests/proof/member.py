"""One process of a world: a broker, something beside one, or a party. It is started again under the same name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.netlab import NetLab
from tests.proof.record import Writer

ROOT: Final = Path(__file__).resolve().parents[2]
LEAVE_S: Final = 25.0
POLL_S: Final = 0.05


class Member:
    """One process.

    Args:
        lab: where. host: on which host. argv, env: what. log: the file of its lines.
        say: told ``started`` and ``exited``.
        marker: a text that says it is ready.
    """

    def __init__(
        self,
        lab: NetLab,
        name: str,
        host: int,
        argv: list[str],
        log: Path,
        say: Writer,
        *,
        marker: str = "",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.host, self.argv, self.log, self.marker = name, host, argv, log, marker
        self._lab, self._say = lab, say
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self._begun_at = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.wanted = False
        self.frozen = False

    def start(self) -> None:
        """Start it; returns at once."""
        self.wanted = True
        with self.log.open("ab") as log:
            self._begun_at = log.tell()
            self.process = self._lab.popen(
                self.host,
                self.argv,
                env=self._env,
                cwd=str(ROOT),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._say.member(self.name, "started", pid=self.process.pid)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def lines(self) -> list[str]:
        """All that it ever said."""
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []

    def said(self, text: str) -> bool:
        """Whether it has said so since it was started."""
        with self.log.open("rb") as log:
            log.seek(self._begun_at)
            return text.encode() in log.read()

    @property
    def ready(self) -> bool:
        return self.alive and (not self.marker or self.said(self.marker))

    def send(self, number: int) -> None:
        """Send a signal to the process itself; nothing when it has ended."""
        if self.alive:
            os.kill(self.pid, number)
            self.frozen = (
                self.frozen if number not in (signal.SIGSTOP, signal.SIGCONT) else number == signal.SIGSTOP
            )

    def kill(self) -> None:
        """SIGKILL to the process alone: what it started has to notice by itself."""
        self.wanted = False
        self.send(signal.SIGKILL)
        self._ended()

    def _ended(self) -> int:
        assert self.process is not None
        code = self.process.wait()
        self.frozen = False
        with contextlib.suppress(ValueError):  # its pid may be somebody else's from now on
            self._lab.procs.remove(self.process)
        self._say.member(self.name, "exited", code, pid=self.process.pid)
        return code

    def told(self, number: int = signal.SIGTERM) -> None:
        """It is meant to leave."""
        self.wanted = False
        self.send(number)

    async def gone(self, seconds: float = LEAVE_S) -> int | None:
        """Wait for its end after `told`; its exit code, or None when it had to be killed."""
        if self.process is None or self.process.returncode is not None:
            return 0 if self.process is None else self.process.returncode
        left = await until(lambda: not self.alive, seconds)
        if not left:
            self.send(signal.SIGKILL)
        code = self._ended()
        return code if left else None

    def lapsed(self) -> int | None:
        """Its exit code when it has ended although it was wanted; once."""
        if self.wanted and not self.alive:
            self.wanted = False
            return self._ended()
        return None

    def figures(self) -> tuple[int, int, int]:
        """(resident KiB, open descriptors, threads)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        told = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        fds = len(os.listdir(f"/proc/{self.pid}/fd"))
        return int(told["VmRSS"].split()[0]), fds, int(told["Threads"])


async def until(true: Callable[[], object], seconds: float) -> bool:
    """Wait until something is so; False when it is not within ``seconds``."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() >= end:
            return False
        await asyncio.sleep(POLL_S)
    return True
