"""Seven brokers, a gateway, the wings and Redis in network namespaces: start, stop, kill, and whether all is well.

Every member runs as people start it, by its verb of ``headgate``. Nothing of it is left when the world is closed, nor
when the process that made it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Self

import broker.client
from broker.errors import HeadgateError
from tests.live.balancer import READY as BALANCES
from tests.netlab import NetLab
from tests.proof.layout import BALANCER, CLOCK_RANK, GATEWAYS, HOSTS, JOURNAL_RANK, PARENTS, RANKS, Party
from tests.proof.member import POLL_S, ROOT, Member, until
from tests.proof.papers import BALANCER_PORT, CLIENT_PORT, NFP_PORT, REDIS_PORT, WEB_PORT, Papers
from tests.proof.parties.party import Place
from tests.proof.record import Writer

HEADGATE: Final = (sys.executable, "-m", "broker.cli.main")
START_S: Final = 60.0
PROBE_S: Final = 1.5
STRAY_S: Final = 5.0
DISKS: Final = {"journal": (JOURNAL_RANK, "6m"), "nfp": (HOSTS["nfp"], "16m")}
"""Folder -> (host, size) of the small disks; each is seen on its own host only."""
FAKETIME: Final = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
)


def faketime() -> str:
    """The library that steps a process's clock; "" where it is not installed."""
    return next((path for path in FAKETIME if Path(path).exists()), "")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


class World:
    """Use as a context manager; `start` brings it up.

    Args:
        folder: of the run. log: the driver's. parties: the load.

    Attributes:
        members: brokers and what is beside them, by name. load: the parties.
    """

    def __init__(self, folder: Path, log: Writer, parties: tuple[Party, ...]) -> None:
        self.folder = folder
        self.log = log
        self.parties = {party.name: party for party in parties}
        self.place = Path(tempfile.mkdtemp(prefix="hgp-", dir="/tmp"))
        self.place.chmod(0o711)
        self.lab = NetLab(len(PARENTS))
        self.papers = Papers(self.place, self.lab, parties)
        self.members: dict[str, Member] = {}
        self.load: dict[str, Member] = {}

    def __enter__(self) -> Self:
        try:
            (self.folder / "logs").mkdir(parents=True, exist_ok=True)
            self.lab.__enter__()
            self.papers.write()
            for name, (host, size) in DISKS.items():
                (self.place / name).mkdir(mode=0o700)
                mount = [
                    "mount",
                    "-t",
                    "tmpfs",
                    "-o",
                    f"size={size},mode=700",
                    "none",
                    str(self.place / name),
                ]
                self.lab.run(host, mount, check=True, capture_output=True)
            for rank in RANKS:
                self._broker(rank)
            self._beside()
            for party in self.parties.values():
                self._party(party)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill what is left and remove it all."""
        self.lab.close()
        self.papers.remove()

    # -- who there is ------------------------------------------------------------------------------

    def _member(self, name: str, host: int, argv: list[str], marker: str = "", env: Any = None) -> Member:
        log = self.folder / "logs" / f"{name}.log"
        return Member(self.lab, name, host, argv, log, self.log, marker=marker, env=env)

    def _broker(self, rank: int) -> None:
        name = f"broker-{rank}"
        argv = [*HEADGATE, "broker", "--config", str(self.papers.broker_file), "--rank", str(rank)]
        argv += ["--journal", str(self.place / "journal")] if rank == JOURNAL_RANK else []
        env = self._clock(name) if rank == CLOCK_RANK else None
        self.members[name] = self._member(name, rank, argv, env=env)

    def _clock(self, name: str) -> dict[str, str]:
        """The environment of a process whose wall clock can be stepped; the monotonic one goes on, as it would."""
        library = faketime()
        if not library:
            return {}
        file = self.clock_file(name)
        file.write_text("+0\n")
        return {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # with it, waiting for a condition of a thread takes too long
        }

    def clock_file(self, name: str) -> Path:
        """What steps the clock of a member: seconds, with their sign."""
        return self.place / f"clock-{name}"

    def _beside(self) -> None:
        place, papers = self.place, self.papers

        def add(name: str, argv: list[str], marker: str, env: Any = None) -> None:
            self.members[name] = self._member(name, HOSTS[name], argv, marker, env)

        if shutil.which("redis-server"):
            words = ["--bind", papers.ip("redis"), "--port", str(REDIS_PORT), "--protected-mode", "no"]
            words += ["--save", "", "--appendonly", "no", "--dir", str(place)]
            add("redis", ["redis-server", *words], "eady to accept connections")
        for name, file in papers.gateway_files.items():
            add(name, [*HEADGATE, "gateway", "--config", str(file)], "https://")
        ways = [f"{name}={papers.ip(name)}:{WEB_PORT}" for name in GATEWAYS]
        add(BALANCER, [sys.executable, "-m", "tests.live.balancer", str(BALANCER_PORT), *ways], BALANCES)
        uri = f"local://{place}/run/local-{HOSTS['nfp']}"
        nfp = [*HEADGATE, "nfp", "broker", "--config", str(papers.nfp_file), "--uri", uri]
        add("nfp", nfp, "Ctrl-C", self._clock("nfp"))
        for name, other in (("oslo-1", "oslo-2"), ("oslo-2", "oslo-1")):
            words = ["--host", papers.ip(name), "--node", name, "--ipc-dir", str(place / name)]
            words += ["--curve-cert", str(papers.oslo_cert), "--set", "oslo.unlisted=user"]
            if "redis" in self.members:
                words += ["--redis", f"redis://{papers.ip('redis')}:{REDIS_PORT}/0"]
            else:
                words += ["--directory", f"tcp://{papers.ip(other)}:9500"]
            add(name, [*HEADGATE, "oslo", "proxy", *words], "Ctrl-C")

    def _party(self, party: Party) -> None:

        told = {"folder": str(self.folder), "party": party._asdict(), "place": self._place(party)._asdict()}
        told["place"]["folder"] = str(self.folder)
        argv = [sys.executable, "-m", "tests.proof.parties", json.dumps(told)]
        self.load[party.name] = self._member(party.name, party.host, argv)

    def _place(self, party: Party) -> Place:
        place, papers = str(self.place), self.papers
        state = f"{place}/state-{party.name}"
        if party.kind.startswith("nfp"):
            Path(state).mkdir(mode=0o700)
            return Place(
                "", f"tcp://{papers.ip('nfp')}:{NFP_PORT}", server_key=papers.nfp.public_key, state=state
            )
        if party.kind.startswith("oslo"):
            return Place("", f"{place}/{party.at}")
        if party.at in ("gateway", "gateways"):
            form = {"flux": "wss://{}", "page": "wss://{}/v1/ws", "http": "https://{}"}[party.kind]
            token, cert = papers.tokens[party.name], str(papers.gate)
            if party.at == "gateways":
                told = str(self.members[BALANCER].log.absolute())
                uri = form.format(f"127.0.0.1:{BALANCER_PORT}")
                return Place("", uri, cert=cert, token=token, balancer=told)
            return Place("", form.format(f"{papers.ip('gateway')}:{WEB_PORT}"), cert=cert, token=token)
        rank = int(party.at)
        if party.by == "curve":
            uri = f"tcp://{self.lab.ip(rank)}:{CLIENT_PORT}"
            cert = f"{place}/{party.name}.cert"
            return Place("", uri, cert=cert, server_key=f"{place}/rank-{rank}.cert")
        return Place("", f"local://{place}/run/local-{rank}")

    def who(self, name: str) -> Member:
        """A member or a party."""
        return self.members.get(name) or self.load[name]

    # -- up and down -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all members, and wait until everything is well.

        Raises:
            RuntimeError: it is not.
        """
        for member in self.members.values():
            member.start()
        end = time.monotonic() + START_S
        trouble = "nothing asked yet"
        while trouble:
            if time.monotonic() > end:
                raise RuntimeError(f"the world did not come up: {trouble}")
            await asyncio.sleep(POLL_S)
            trouble = await self.trouble()
        for name in self.members:
            self.log.member(name, "ready")

    async def stop(self) -> list[str]:
        """Tell all members to leave, wings first, the root last; returns who did not do so well."""
        bad = []
        order = [name for name in self.members if not name.startswith("broker-")]
        for names in (order, [f"broker-{rank}" for rank in reversed(RANKS)]):
            for name in names:
                self.members[name].send(signal.SIGCONT)
                self.members[name].told()
            for name in names:
                code = await self.members[name].gone()
                if code != 0:
                    bad.append(f"{name} left with {code}")
        return bad

    async def strays(self) -> list[str]:
        """Kill what the members have left behind on the hosts, after some time to leave; returns what it was."""
        await until(lambda: not self._on_hosts(), STRAY_S)
        left = self._on_hosts()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return list(left.values())

    def _on_hosts(self) -> dict[int, str]:
        """pid -> command of all processes in the network namespaces of the hosts but those that hold these."""
        holders = {process.pid for process in self.lab.hosts}
        spaces = {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in holders}
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                known = not entry.name.isdigit() or int(entry.name) in holders
                if not known and os.stat(entry / "ns/net").st_ino in spaces:
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(entry.name)] = words.strip()[:200]
        return found

    # -- whether all is well ------------------------------------------------------------------------

    async def trouble(self) -> str:
        """What is not well at present; "" when everything answers and the tree is whole."""
        for member in self.members.values():
            if not member.ready:
                return f"{member.name} is not ready"
        probes = [self._rank(rank) for rank in RANKS] + [self._gateway(name) for name in GATEWAYS]
        for name, outcome in zip(
            [*(f"broker-{rank}" for rank in RANKS), *GATEWAYS],
            await asyncio.gather(*probes, return_exceptions=True),
            strict=True,
        ):
            if isinstance(outcome, BaseException):
                return f"{name}: {type(outcome).__name__}: {outcome}"
            if outcome:
                return f"{name}: {outcome}"
        return ""

    async def _rank(self, rank: int) -> str:
        """A rank reaches the root, the root reaches it and holds the tree for whole."""
        async with asyncio.timeout(PROBE_S):
            try:
                async with broker.client.connect(self.uri(rank), retries=0) as h:
                    await h.rpc("broker.ping", {"seq": 1}, nodeid=0)
                    if rank:
                        return ""
                    for other in RANKS:
                        await h.rpc("broker.ping", {"seq": 1}, nodeid=other)
                    told = str((await h.rpc("overlay.health")).json()["status"])
                    return "" if told == "full" else f"the tree is {told}"
            except HeadgateError as error:
                return str(error)

    async def _gateway(self, name: str) -> str:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_unix_connection(f"{self.place}/{name}.sock")
            try:  # a gateway that is frozen takes the connection and says nothing
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n")
                status = await reader.readline()
            finally:
                writer.close()
            return "" if b" 200 " in status else status.decode().strip()

    def uri(self, rank: int) -> str:
        """Where local clients of a rank connect."""
        return f"local://{self.place}/run/local-{rank}"

    def verify_journal(self) -> str:
        """What ``headgate journal verify`` finds wrong on the small disk; "" when it is in order."""
        words = [*HEADGATE, "journal", "verify", str(self.place / "journal")]
        done = self.lab.run(JOURNAL_RANK, words, cwd=ROOT, env=_environment(), capture_output=True, text=True)
        return (
            ""
            if done.returncode == 0
            else f"exit code {done.returncode}: {done.stdout[-600:]}{done.stderr[-200:]}"
        )

    def missed(self) -> list[tuple[int, int, int]]:
        """(rank, first, last) of the event numbers that each broker's log calls lost."""
        found = []
        for rank in RANKS:
            for line in self.members[f"broker-{rank}"].lines():
                _, mark, numbers = line.partition(" lost events ")
                if mark:
                    first, _, last = numbers.partition("-")
                    found.append((rank, int(first), int(last)))
        return found
