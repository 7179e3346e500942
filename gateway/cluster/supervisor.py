"""The process that runs the members of a cluster on this machine: ``python -P -m gateway.cluster.supervisor FOLDER``.

It reads what ``headgate cluster up`` left in the state folder, makes the links, starts gateway and ranks, listens on
the control socket, and leaves when it is told to, or when nobody of its members is left to come back. Its members die
with it, even if it is killed: see ``children``. One thread, one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from broker.errors import ConfigError, HeadgateError
from broker.interpreter import command
from gateway.cluster import control, state
from gateway.cluster.links import Links
from gateway.cluster.members import Process
from gateway.cluster.network import Network
from gateway.cluster.relays import Relays
from gateway.cluster.state import KEYS, LOGS, Saved

log = logging.getLogger("headgate")

LEAVE_S: Final = 3.0
"""How long the ranks may take to follow rank 0 before each is told to leave."""
STOP_S: Final = 10.0
"""How long all may take to drain and leave before they are killed."""
LOCK: Final = "lock"
URL: Final = "url"
"""File in the state folder: where the gateway listens."""
GATEWAY: Final = "gateway"
"""State folder of the gateway, in that of the cluster."""
READY_WEB: Final = "ready-web"
"""Socket on which the gateway says that it is ready."""
_INHERITED: Final = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "RUNTIME_DIRECTORY", "STATE_DIRECTORY"),
    *("FLUX_URI", "HEADGATE_URI", "HEADGATE_CERT", "HEADGATE_SERVER_KEY"),
)
"""Variables that are about whoever started us, and would mislead the members."""


class Supervisor:
    """The members of one cluster and what lies between them.

    Args:
        folder: the state folder.
        saved: what it says.
        listening: called once verbs are answered.
    """

    def __init__(self, folder: Path, saved: Saved, listening: Callable[[], object]) -> None:
        self._listening = listening
        self._folder = folder
        self._shape = saved.shape
        self._sockets = Path(saved.sockets)
        self._links: Links = (
            Network(saved.shape)
            if saved.engine == "namespaces"
            else Relays(saved.shape, self._sockets, self._rank_of)
        )
        self._members: list[Process] = []
        self._ranks: list[Process] = []
        self._gateway: Process | None = None
        self._leave = asyncio.Event()

    async def run(self) -> None:
        """Start everything, stay until told to leave, end everything."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._leave.set)
        try:
            await self._links.open()
            self._make()
            server = await control.serve(self._sockets / control.SOCKET, self._do)
            self._listening()
            for member in self._members:
                member.begin()
            await self._leave.wait()
            await self._stop()
            server.close()
        finally:
            await self._links.close()

    # -- the members ---------------------------------------------------------------------------

    def _make(self) -> None:
        for rank in self._shape.ranks():
            self._ranks.append(
                Process(
                    f"rank-{rank}",
                    rank,
                    self._broker(rank),
                    self._folder / LOGS / f"rank-{rank}.log",
                    f"local://{self._sockets}/local-{rank}",
                    self._sockets / f"ready-{rank}",
                    self._links.enter(rank),
                )
            )
        self._members = list(self._ranks)
        if self._shape.gateway:
            self._gateway = self._make_gateway()
            self._members.append(self._gateway)

    def _broker(self, rank: int) -> tuple[str, ...]:
        keys = self._folder / KEYS
        settings = [f"broker.rundir={_value(self._sockets)}"]
        if self._shape.nfp and rank == 0:
            settings += [
                f"nfp.base_dir={_value(self._folder / 'nfp')}",
                f"nfp.key_secret={_value(keys / 'nfp' / 'broker.key_secret')}",
                f"nfp.endpoint={_value(f'ipc://{self._sockets}/nfp')}",
            ]
        if self._shape.oslo and rank == 0:
            settings += [f"oslo.ipc_dir={_value(self._sockets / 'oslo')}", 'oslo.host=""']
        words = ["broker", "--config", str(keys / "broker.toml"), "--rank", str(rank)]
        return (*command("broker.cli.main"), *words, *_set(settings))

    def _make_gateway(self) -> Process:
        url = self._url()
        log, told = self._folder / LOGS / "gateway.log", self._sockets / READY_WEB
        return Process("gateway", None, self._gateway_at(url), log, url, told)

    def _url(self) -> str:
        return (self._folder / URL).read_text(encoding="utf-8")

    def _gateway_at(self, url: str) -> tuple[str, ...]:
        settings = [f"gateway.statedir={_value(self._folder / GATEWAY)}", "access.login_links=owner"]
        words = ["gateway", "--config", str(self._folder / KEYS / "gateway.toml"), "--listen", url]
        upstream = ["--upstream", f"local://{self._sockets}/local-0"]
        return (*command("broker.cli.main"), *words, *upstream, *_set(settings))

    def _rank_of(self, pid: int) -> int | None:
        return next((member.rank for member in self._ranks if member.pid == pid), None)

    async def _stop(self) -> None:
        """Gateway first, then rank 0, whom the others follow; who does not is told, who still does not is killed."""
        await self._links.cut(frozenset())
        if self._gateway is not None:
            self._gateway.tell(signal.SIGTERM)
        for member in self._ranks:
            member.resume()
        self._ranks[0].tell(signal.SIGTERM)
        for member in self._ranks[1:]:
            member.leave_unasked()
        await self._gone(LEAVE_S)
        for member in self._members:
            member.tell(signal.SIGTERM)
        await self._gone(STOP_S - LEAVE_S)
        for member in self._members:
            member.tell(signal.SIGKILL)
        await self._gone(None)

    async def _gone(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for member in self._members:
                    await member.gone()

    # -- what verbs ask for --------------------------------------------------------------------

    async def _do(self, words: dict[str, Any]) -> dict[str, Any]:
        verb = str(words.get("do"))
        if verb == "status":
            return {"members": [dataclasses.asdict(member.member()) for member in self._members]}
        if verb == "down":
            self._leave.set()  # the end of this process is the answer
            return {}
        if verb == "move" and self._gateway is not None:
            url = self._url()
            self._gateway.move(url, self._gateway_at(url))
            return {}
        if verb in ("partition", "heal"):
            await self._cut(_ranks(words.get("ranks")) if verb == "partition" else ())
            return {}
        if verb not in _ONE:
            raise ConfigError(f"do: saw {verb[:32]!r}, expected a verb")
        (rank,) = _ranks([words.get("rank")])
        _ONE[verb](self._ranks[self._shape.check(rank)], words)
        return {}

    async def _cut(self, ranks: Sequence[int]) -> None:
        apart = frozenset(self._shape.check(rank) for rank in ranks)
        await self._links.cut(apart)
        for member in self._ranks:
            member.partitioned = member.rank in apart
        log.info("partition: %s", " ".join(map(str, sorted(apart))) if apart else "none")


def _pause(member: Process, _words: dict[str, Any]) -> None:
    if not member.pause():
        raise HeadgateError(f"{member.name} does not run, so it cannot be paused")


def _kill(member: Process, words: dict[str, Any]) -> None:
    member.kill(stay=bool(words.get("stay")))


def _start(member: Process, _words: dict[str, Any]) -> None:
    member.begin()


def _resume(member: Process, _words: dict[str, Any]) -> None:
    member.resume()


_ONE: Final = {"kill": _kill, "start": _start, "pause": _pause, "resume": _resume}
"""Verb about one rank -> what it does."""


def _ranks(given: object) -> list[int]:
    if isinstance(given, list) and all(type(rank) is int for rank in given):
        return given
    raise ConfigError(f"rank: saw {str(given)[:64]}, expected numbers")


def _set(settings: Sequence[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def _value(value: object) -> str:
    """A text as TOML has it: whatever is in a path, it stays one text."""
    return json.dumps(str(value), ensure_ascii=False)


# ---------------------------------------------------------------- the process


def main(argv: Sequence[str]) -> int:
    """Run one supervisor, in the background once verbs are answered; returns the exit code."""
    told, tell = os.pipe()
    if os.fork():
        os.close(tell)
        return 0 if os.read(told, 1) else 1
    os.close(told)
    os.setsid()

    def listening() -> None:
        os.write(tell, b".")
        os.close(tell)

    return _run(Path(argv[0]), listening)


def _run(folder: Path, listening: Callable[[], object]) -> int:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    for name in _INHERITED:
        os.environ.pop(name, None)
    try:
        saved = state.load(folder)
        sockets = Path(saved.sockets)
        lock = _only(sockets)
        try:
            asyncio.run(Supervisor(folder, saved, listening).run())
        finally:
            shutil.rmtree(sockets, ignore_errors=True)
            os.close(lock)
    except (HeadgateError, OSError) as error:
        log.error("%s", error)
        return 1
    log.info("down")
    return 0


def _only(sockets: Path) -> int:
    """The folder of sockets, empty, and the lock that says it is ours.

    Raises:
        ConfigError: another supervisor has it, or it is not ours alone.
    """
    until = time.monotonic() + STOP_S
    while (lock := _locked(sockets)) is None:
        if time.monotonic() > until:
            raise ConfigError(f"{sockets}: another supervisor has it")
        time.sleep(0.1)
    for path in sockets.iterdir():
        if path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return lock


def _locked(sockets: Path) -> int | None:
    """The lock in the folder, which is made; None when somebody has it, or is removing both."""
    try:
        _above(sockets)
        sockets.mkdir(mode=0o700, exist_ok=True)
        seen = sockets.stat()
        if seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
            raise ConfigError(f"{sockets}: expected a folder of ours that nobody else may enter")
        lock = os.open(sockets / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), (sockets / LOCK).stat()):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None


def _above(sockets: Path) -> None:
    """Make the two folders above that of the sockets; who could rename what is in them could take its place.

    Raises:
        ConfigError: one of them is somebody else's.
    """
    for folder in (sockets.parent.parent, sockets.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = folder.lstat()
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid not in (os.geteuid(), 0):
            raise ConfigError(f"{folder}: expected a folder of ours; another $XDG_RUNTIME_DIR helps")
        if seen.st_uid == os.geteuid() and seen.st_mode & 0o022:
            folder.chmod(stat.S_IMODE(seen.st_mode) & ~0o022)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
