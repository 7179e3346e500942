"""The process that runs the members of a cluster on this machine: ``python -P -m gateway.cluster.supervisor FOLDER``.

It reads what ``headgate cluster up`` left in the state folder, makes the links, starts gateway and ranks, listens on
the control socket, and leaves when it is told to; told twice, at once. Its members die with it, even if it is killed.
One thread, one event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from broker import interpreter
from broker.children import supervisor
from broker.children.supervisor import HURRY_S, Step
from broker.errors import ConfigError, HeadgateError
from broker.loglines import Stderr
from gateway.cluster import control, state
from gateway.cluster.members import Process
from gateway.cluster.relays import Relays
from gateway.cluster.state import KEYS, LOGS, Saved

log = logging.getLogger("headgate")

LEAVE_S: Final = 3.0
"""How long the ranks may take to follow rank 0 before each is told to leave."""
STOP_S: Final = 10.0
"""How long all may take to drain and leave before they are told to leave at once."""
LOCK: Final = "lock"
GATEWAY: Final = "gateway"
"""State folder of the gateway, in that of the cluster."""
READY_WEB: Final = "ready-web"
"""Socket on which the gateway says that it is ready."""
_INHERITED: Final = (
    "RUNTIME_DIRECTORY", "STATE_DIRECTORY", "FLUX_URI", "HEADGATE_URI", "HEADGATE_CERT", "HEADGATE_SERVER_KEY",
)  # fmt: skip
"""Variables that are about whoever started us, and would mislead the members."""


class Supervisor(supervisor.Supervisor):
    """The members of one cluster and the links between them.

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
        self._relays = Relays(saved.shape, self._sockets, self._rank_of)
        self._ranks = [self._broker(rank) for rank in saved.shape.ranks()]
        self._gateway = self._make_gateway(saved.url) if saved.shape.gateway else None
        self._members = [*self._ranks, *([self._gateway] if self._gateway else [])]
        super().__init__(self._members)

    async def run(self) -> None:
        """Start everything, stay until told to leave, end everything; at once when told again."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self.leave)
        try:
            await self._relays.open()
            server = await control.serve(self._sockets / control.SOCKET, self.do)
            self._listening()
            for member in self._members:
                member.start()
            await self.leaving.wait()
            await self._stop()
            server.close()
        finally:
            await self._relays.close()

    # -- the members ---------------------------------------------------------------------------

    def _broker(self, rank: int) -> Process:
        keys, sockets = self._folder / KEYS, self._sockets
        settings = [f"broker.rundir={_toml(sockets)}"]
        if self._shape.nfp and rank == 0:
            settings += [
                f"nfp.base_dir={_toml(self._folder / 'nfp')}",
                f"nfp.key_secret={_toml(keys / 'nfp' / 'broker.key_secret')}",
                f"nfp.endpoint={_toml(f'ipc://{sockets}/nfp')}",
            ]
        if self._shape.oslo and rank == 0:
            settings += [f"oslo.ipc_dir={_toml(sockets / 'oslo')}", 'oslo.host=""']
        words = ["broker", "--config", str(keys / "broker.toml"), "--rank", str(rank), *_set(settings)]
        return Process(
            f"rank-{rank}",
            rank,
            (*interpreter.command("broker.cli.main"), *words),
            self._folder / LOGS / f"rank-{rank}.log",
            f"local://{sockets}/local-{rank}",
            sockets / f"ready-{rank}",
        )

    def _make_gateway(self, url: str) -> Process:
        log, notify = self._folder / LOGS / "gateway.log", self._sockets / READY_WEB
        return Process("gateway", None, self._gateway_at(url), log, url, notify)

    def _gateway_at(self, url: str) -> tuple[str, ...]:
        settings = [f"gateway.statedir={_toml(self._folder / GATEWAY)}", "access.login_links=owner"]
        words = ["gateway", "--config", str(self._folder / KEYS / "gateway.toml"), "--listen", url]
        upstream = ["--upstream", f"local://{self._sockets}/local-0"]
        return (*interpreter.command("broker.cli.main"), *words, *upstream, *_set(settings))

    def _rank_of(self, pid: int) -> int | None:
        return next((member.rank for member in self._ranks if member.pid == pid), None)

    async def _stop(self) -> None:
        """Gateway and rank 0, whom the others follow; who does not is told, who still does not is killed."""
        self._relays.cut(frozenset())
        for member in self._ranks:
            member.resume()
            member.expect_end()
        first = [member for member in (self._gateway, self._ranks[0]) if member is not None]
        await self.end(
            self._members,
            Step(first, signal.SIGTERM, LEAVE_S),
            Step(self._members, signal.SIGTERM, STOP_S - LEAVE_S),
        )

    # -- what verbs ask for --------------------------------------------------------------------

    async def do(self, words: dict[str, Any]) -> dict[str, Any]:
        """Carry out one line of a verb, see ``control``.

        ``status`` answers with all members, ``down`` leaves (with ``at_once``: without drain), ``move`` starts the
        gateway where the state folder now says; ``kill`` (with ``stay``), ``start``, ``pause``, ``resume`` are about
        each of ``ranks``; ``partition`` cuts ``ranks`` off from all others, and without any heals.

        Raises:
            ConfigError: no such verb or rank. HeadgateError: it cannot be done.
        """
        verb, ranks = str(words.get("do")), _ranks(words.get("ranks", []))
        members = [self._ranks[self._shape.check(rank)] for rank in ranks]
        match verb:
            case "status":
                return {"members": [dataclasses.asdict(member.member()) for member in self._members]}
            case "down":
                self.leaving.set()  # the end of this process is the answer
                if words.get("at_once") is True:
                    self.leave()
            case "move" if self._gateway is not None:
                url = state.load(self._folder).url
                self._gateway.move(url, self._gateway_at(url))
            case "partition":
                self._partition(frozenset(ranks))
            case "kill" | "start" | "pause" | "resume":
                for member in members:
                    _do_one(verb, member, stay=words.get("stay") is True)
            case _:
                raise ConfigError(f"do: saw {verb[:32]!r}, expected a verb")
        return {}

    def _partition(self, apart: frozenset[int]) -> None:
        self._relays.cut(apart)
        for member in self._ranks:
            member.partitioned = member.rank in apart
        log.info("partition: %s", " ".join(map(str, sorted(apart))) if apart else "none")


def _do_one(verb: str, member: Process, *, stay: bool) -> None:
    if verb == "kill":
        member.kill(stay=stay)
    elif verb == "start":
        member.start()
    elif verb == "resume":
        member.resume()
    elif not member.pause():
        raise HeadgateError(f"{member.program.name} does not run, so it cannot be paused")


def _ranks(given: object) -> list[int]:
    if isinstance(given, list) and all(type(rank) is int for rank in given):
        return given
    raise ConfigError(f"ranks: saw {str(given)[:64]}, expected numbers")


def _set(settings: Sequence[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def _toml(value: object) -> str:
    """A text as TOML has it: whatever is in a path, it stays one text."""
    return json.dumps(str(value), ensure_ascii=False)


# ---------------------------------------------------------------- the process


def main(argv: Sequence[str]) -> int:
    """Run one supervisor, in the background once verbs are answered; returns the exit code."""
    read, write = os.pipe()
    if os.fork():
        os.close(write)
        return 0 if os.read(read, 1) else 1
    os.close(read)
    os.setsid()

    def listening() -> None:
        os.write(write, b".")
        os.close(write)

    return _run(Path(argv[0]), listening)


def _run(folder: Path, listening: Callable[[], object]) -> int:
    form = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    logging.basicConfig(level=logging.INFO, handlers=[Stderr(form)])
    for name in _INHERITED:
        os.environ.pop(name, None)
    try:
        saved = state.load(folder)
        sockets = Path(saved.sockets)
        lock = _own(sockets)
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


def _own(sockets: Path) -> int:
    """The folder of sockets, empty, and the lock that says it is ours.

    Raises:
        ConfigError: another supervisor has it, or it is not ours alone.
    """
    while True:
        _make_private(sockets)
        try:
            lock = state.lock_file(sockets / LOCK, STOP_S + HURRY_S)
            break
        except FileNotFoundError:
            continue  # whoever had it has removed it
    if lock is None:
        raise ConfigError(f"{sockets}: another supervisor has it")
    for path in sockets.iterdir():
        if path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return lock


def _make_private(sockets: Path) -> None:
    """Make the folder of sockets and the two above it; who could rename what is in those could take its place.

    Raises:
        ConfigError: others may enter it, or one of them is somebody else's.
    """
    for folder in (sockets.parent.parent, sockets.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = folder.lstat()
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid not in (os.geteuid(), 0):
            raise ConfigError(f"{folder}: expected a folder of ours; another $XDG_RUNTIME_DIR helps")
        if seen.st_uid == os.geteuid() and seen.st_mode & 0o022:
            folder.chmod(stat.S_IMODE(seen.st_mode) & ~0o022)
    sockets.mkdir(mode=0o700, exist_ok=True)
    seen = sockets.stat()
    if seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
        raise ConfigError(f"{sockets}: expected a folder of ours that nobody else may enter")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
