"""The process that runs the members of a cluster on this machine: ``python -P -m gateway.cluster.supervisor FOLDER``.

It reads what ``headgate cluster up`` left in the state folder, makes the links, listens on the control socket, starts
gateway and ranks, and says on its output, one line as on the control socket, when all are up, or why not. It leaves
when it is told to; told twice, at once. Its members die with it, even if it is killed. One thread, one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from broker import interpreter
from broker.children.supervisor import HURRY_S
from broker.endpoints import Endpoint
from broker.errors import ConfigError, HeadgateError
from broker.listening import bind
from broker.local.rundir import Rundir
from broker.local.tree import STOP_S, Tree
from broker.loglines import Stderr
from gateway.cluster import control, state
from gateway.cluster.files import GATEWAY_PORT
from gateway.cluster.members import RESTARTS, Process
from gateway.cluster.relays import Relays
from gateway.cluster.state import KEYS, LOGS, Saved

log = logging.getLogger("headgate")

PORTS: Final = 20
"""Ports that are tried for the gateway, from its usual one on."""
PORT_TRIES: Final = 3
"""How often the gateway is started until it has listened once: others may be faster to take the port that was free."""
TAIL_BYTES: Final = 4096
"""Where the last line of a log is looked for."""
GATEWAY: Final = "gateway"
"""State folder of the gateway, in that of the cluster."""
READY_WEB: Final = "ready-web"
"""Socket on which the gateway says that it is ready."""
_INHERITED: Final = (
    "RUNTIME_DIRECTORY", "STATE_DIRECTORY", "FLUX_URI", "HEADGATE_URI", "HEADGATE_CERT", "HEADGATE_SERVER_KEY",
)  # fmt: skip
"""Variables that are about whoever started us, and would mislead the members."""


class Supervisor(Tree):
    """The members of one cluster and the links between them.

    Args:
        folder: the state folder.
        saved: what it says.
        say: gets the answer to whoever makes the cluster, see ``control``: it is up, or why not.
    """

    def __init__(self, folder: Path, saved: Saved, say: Callable[[dict[str, Any]], object]) -> None:
        self._say = say
        self._folder = folder
        self._shape = saved.shape
        self._sockets = Path(saved.sockets)
        self._relays = Relays(saved.shape, self._sockets, self._rank_of)
        self._ranks = [self._broker(rank) for rank in saved.shape.ranks()]
        self._gateway = [self._make_gateway()] if saved.shape.gateway else []
        super().__init__(self._ranks, self._ranks[0], self._gateway)
        self._members = [*self._ranks, *self._gateway]

    async def run(self) -> None:
        """Start everything, say whether it is up, stay until told to leave, end everything; at once when told again."""
        self.on_signals()
        try:
            await self._relays.open()
            server = await control.serve(self._sockets / control.SOCKET, self.do)
            self.begin()
            self._say(await self._up())
            await self.leaving.wait()
            await self.down()
            server.close()
        finally:
            await self._relays.close()

    async def _up(self) -> dict[str, Any]:
        """What is said once all are up, or when that fails."""
        try:
            await self.join()
        except TimeoutError as error:
            return control.refusal(TimeoutError(f"{error}; `headgate cluster logs RANK` may tell why"))
        if lost := self.lost():
            name, why = lost[0].program.name, lost[0].why or "has ended"
            line = last_line(self._folder / LOGS / f"{name}.log")
            return control.refusal(HeadgateError(f"{name}: {why}" + (f": {line}" if line else "")))
        if self.leaving.is_set():
            return control.refusal(HeadgateError("the supervisor was told to leave"))
        return {"ok": True}

    async def down(self) -> None:
        """Have all leave, those that are frozen or cut off, too."""
        self._relays.cut(frozenset())
        for rank in self._ranks:
            rank.resume()
        await super().down()

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
            lambda: (*interpreter.command("broker.cli.main"), *words),
            self._folder / LOGS / f"rank-{rank}.log",
            f"local://{sockets}/local-{rank}",
            sockets / f"ready-{rank}",
        )

    def _make_gateway(self) -> Process:
        log, notify = self._folder / LOGS / f"{GATEWAY}.log", self._sockets / READY_WEB
        restarts = dataclasses.replace(RESTARTS, ends_max=PORT_TRIES)
        return Process(GATEWAY, None, self._gateway_words, log, "", notify, restarts)

    def _gateway_words(self) -> Sequence[str]:
        """Its command line, at a port that is free, until it has listened at one."""
        (gateway,) = self._gateway
        if not gateway.was_ready:
            # where many begin at the same time, the next of the usual ports would be taken, too
            gateway.uri = free_url(usual=not gateway.restarts)
        settings = [f"gateway.statedir={_toml(self._folder / GATEWAY)}", "access.login_links=owner"]
        words = ["gateway", "--config", str(self._folder / KEYS / "gateway.toml"), "--listen", gateway.uri]
        upstream = ["--upstream", f"local://{self._sockets}/local-0"]
        return (*interpreter.command("broker.cli.main"), *words, *upstream, *_set(settings))

    def _rank_of(self, pid: int) -> int | None:
        return next((member.rank for member in self._ranks if member.pid == pid), None)

    # -- what verbs ask for --------------------------------------------------------------------

    async def do(self, words: dict[str, Any]) -> dict[str, Any]:
        """Carry out one line of a verb, see ``control``.

        ``status`` answers with all members, ``down`` leaves (with ``at_once``: without drain); ``kill`` (with
        ``stay``), ``start``, ``pause``, ``resume`` are about each of ``ranks``; ``partition`` cuts ``ranks`` off from
        all others, and without any heals.

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
    """Run one supervisor; returns the exit code."""
    folder = Path(argv[0])
    form = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    logging.basicConfig(level=logging.INFO, handlers=[Stderr(form)])
    for name in _INHERITED:
        os.environ.pop(name, None)
    try:
        saved = state.load(folder)
        sockets = Path(saved.sockets)
        rundir = _own(sockets)
        try:
            asyncio.run(Supervisor(folder, saved, _say).run())
        finally:
            rundir.remove()
    except (HeadgateError, OSError) as error:
        log.error("%s", error)
        _say(control.refusal(HeadgateError(f"the supervisor could not start: {error}")))
        return 1
    log.info("down")
    return 0


def _say(answer: dict[str, Any]) -> None:
    """Answer whoever has started us, and let its output go; harmless when nobody is there any more."""
    with contextlib.suppress(OSError):
        os.write(1, msgspec.json.encode(answer) + b"\n")
    os.dup2(2, 1)


def free_url(usual: bool = True) -> str:
    """The first of the gateway's usual ports on the loopback that nobody listens on, else any; any if not ``usual``.

    Raises:
        ConfigError: there is none.
    """
    first = Endpoint("tcp", "127.0.0.1", GATEWAY_PORT)
    try:
        sock, place = bind(first, ports=PORTS) if usual else bind(first._replace(port=0))
    except ConfigError:
        sock, place = bind(first._replace(port=0))
    sock.close()
    return f"http://127.0.0.1:{place.port}"


def last_line(path: Path) -> str:
    """The last line that is not empty; "" without one."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _own(sockets: Path) -> Rundir:
    """The folder of sockets, empty, and ours as long as we run. Nobody else may write to the two above it: who could
    rename what is in those could take its place.

    Raises:
        ConfigError: another supervisor has it, others may enter it, or one of them is somebody else's.
    """
    for folder in (sockets.parent.parent, sockets.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = folder.lstat()
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid not in (os.geteuid(), 0):
            raise ConfigError(f"{folder}: expected a folder of ours; another $XDG_RUNTIME_DIR helps")
        if seen.st_uid == os.geteuid() and seen.st_mode & 0o022:
            folder.chmod(stat.S_IMODE(seen.st_mode) & ~0o022)
    return Rundir(str(sockets), own=True, wait_s=STOP_S + HURRY_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
