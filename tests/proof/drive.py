"""One run: world up, load on, schedule played, quiet, load off, baseline looked at. Leaves a folder to be judged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from tests.proof.faults import KINDS, Failed
from tests.proof.layout import HOSTS, JOURNAL_RANK, PARENTS, parties
from tests.proof.member import Member, until
from tests.proof.record import DRIVER, Writer, path_of, read_file
from tests.proof.schedule import KINDS as ALL_KINDS
from tests.proof.schedule import Fault, Schedule
from tests.proof.world import World, faketime

RECOVER_S: Final = 45.0
"""Behind the last fault everything has to be well within this: a lost peer is noticed after 25 s at the latest."""
CONNECT_S: Final = 30.0
DRAIN_S: Final = 60.0
"""How long what was sent may take to be answered once no more is sent."""
QUIET_S: Final = 3.0
"""Between the end of the load and the last look at everybody."""
BEAT_S: Final = 0.1
STALL_S: Final = 1.0
"""A heart beat of the driver that is late by so much says that the machine stood still."""
TRACES: Final = ("Traceback (most recent call last)", "Task exception was never retrieved")


class Impossible(Exception):
    """This machine cannot do it: no namespaces, no iproute2 …; the text says what is missing."""


def kinds() -> tuple[str, ...]:
    """The kinds of faults that this machine can do, for `schedule.make`."""
    missing = set() if faketime() else {"clock"}
    missing |= set() if find_spec("broker.node.reload") else {"key"}
    missing |= set() if shutil.which("redis-server") else {"directory"}
    return tuple(kind for kind in ALL_KINDS if kind not in missing)


def run(schedule: Schedule, folder: Path, *, say: Callable[[str], None] = lambda _text: None) -> list[str]:
    """Play a schedule; write the logs of `tests.proof.record` into ``folder``, what members said into ``folder/logs``.

    Args:
        schedule: what happens when. It is also written, as ``schedule.json``.
        folder: made if it is not there; must hold no earlier run.
        say: told what happens, a line each, for people.

    Returns:
        What the driver itself saw go wrong, besides what the logs say: a member that ended by itself, did not come back
        or did not leave in time, a traceback in its log. Empty when all was well.

    Raises:
        Impossible: before anything was started.
        FileExistsError: the folder holds a run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.jsonl")):
        raise FileExistsError(f"{folder} holds a run already")
    needed = [name for name in ("ip", "nsenter", "unshare", "setpriv", "mount") if shutil.which(name) is None]
    if needed:
        raise Impossible(f"programs are missing: {', '.join(needed)}")
    (folder / "schedule.json").write_text(schedule.to_json())
    everybody = tuple(
        party for party in parties() if os.geteuid() == 0 or party.userid is None or party.by != "unix"
    )
    with Writer(folder, DRIVER) as log:
        try:
            world = World(folder, log, everybody)
            world.__enter__()
        except OSError as error:
            raise Impossible(f"no network namespaces: {error}") from error
        try:
            return asyncio.run(Run(world, schedule, log, say).play())
        finally:
            world.close()


class Run:
    """One run of one world."""

    def __init__(self, world: World, schedule: Schedule, log: Writer, say: Callable[[str], None]) -> None:
        self.world, self.schedule, self.log = world, schedule, log
        self.problems: list[str] = []
        self.began = 0.0
        self._say = say
        self._held: dict[str, asyncio.Lock] = {}
        self._playing = 0
        self._calm_since = 0.0

    def problem(self, text: str) -> None:
        """Something is wrong that the logs of the parties may not show."""
        self.problems.append(text)
        self.log.note(text, problem=True)
        self._say(f"problem: {text}")

    async def play(self) -> list[str]:
        """All of it."""
        world, plan = self.world, self.schedule
        self.log.world(PARENTS, HOSTS, seed=plan.seed, seconds=plan.seconds, tells=True)
        loop = asyncio.get_running_loop()
        beside = [loop.create_task(self._beat()), loop.create_task(self._watch())]
        with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
            playing = asyncio.current_task()
            assert playing is not None
            loop.add_signal_handler(signal.SIGTERM, playing.cancel)  # so that nothing is left of the world
        try:
            await world.start()
            self._say("the world is up")
            self._look("before")
            await self._load_on()
            await self._faults()
            await self._load_off()
            await asyncio.sleep(QUIET_S)
            if trouble := await self._well(RECOVER_S):
                self.problem(f"at the end: {trouble}")
            self._look("after")
            self._keep_jobs()
            for text in await world.stop():
                self.problem(text)
            if text := world.verify_journal():
                self.problem(f"the journal of rank {JOURNAL_RANK}: {text}")
            for text in await world.strays():
                self.problem(f"left behind: {text}")
        except RuntimeError as error:
            self.problem(str(error))
        finally:
            for task in beside:
                task.cancel()
        self._read_logs()
        return self.problems

    # -- beside everything ---------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Notice when the machine stands still."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(BEAT_S)
            late_s = time.monotonic() - last - BEAT_S
            if late_s > STALL_S:
                self.log.stall(late_s)
            last = time.monotonic()

    async def _watch(self) -> None:
        """Notice who ends although nobody told it to."""
        while True:
            for member in (*self.world.members.values(), *self.world.load.values()):
                code = member.lapsed()
                if code is not None:
                    self.problem(
                        f"{member.name} ended by itself with {code}: {' | '.join(member.lines()[-2:])}"
                    )
            await asyncio.sleep(BEAT_S)

    def _look(self, when: str) -> None:
        """What every member uses."""
        for member in self.world.members.values():
            if member.alive:
                rss_kib, fds, threads = member.figures()
                self.log.baseline(when, member.name, rss_kib, fds, threads, pid=member.pid)

    # -- load ------------------------------------------------------------------------------------------

    async def _load_on(self) -> None:
        for member in self.world.load.values():
            member.start()
        missing = set(self.world.parties)
        if not await until(lambda: not self._unconnected(missing), CONNECT_S):
            self.problem(f"not connected within {CONNECT_S:g} s: {', '.join(sorted(missing))}")
        self.began = self._calm_since = time.monotonic()
        self.log.load(True)
        self._say("load is on")

    def _unconnected(self, missing: set[str]) -> bool:
        """Take those out of ``missing`` that have a connection; whether some are left."""
        for name in list(missing):
            path = path_of(self.world.folder, name)
            if path.exists() and any(line["ev"] == "up" for line in read_file(path)):
                missing.discard(name)
        return bool(missing)

    async def _load_off(self) -> None:
        """First nobody sends any more and everybody waits for answers; then everybody leaves."""
        left_s = self.began + self.schedule.seconds - time.monotonic()
        await asyncio.sleep(max(0.0, left_s))
        self.log.load(False)
        load = list(self.world.load.values())
        for member in load:
            member.send(signal.SIGUSR1)
        if not await until(lambda: all(self._drained(member) for member in load), DRAIN_S):
            late = [member.name for member in load if not self._drained(member)]
            self.problem(f"still waiting for answers after {DRAIN_S:g} s: {', '.join(late)}")
        for member in load:
            member.told()
        for member in load:
            code = await member.gone()
            if code != 0:
                self.problem(f"{member.name} left with {code}: {' | '.join(member.lines()[-2:])}")
        self._say("load is off")

    def _drained(self, member: Member) -> bool:
        return not member.alive or member.said("drained")

    # -- faults ----------------------------------------------------------------------------------------

    async def _faults(self) -> None:
        await asyncio.gather(*(self._fault(fault) for fault in self.schedule.faults))

    async def _fault(self, fault: Fault) -> None:
        """One fault; it waits for the end of an earlier one that holds the same and takes longer than planned."""
        await asyncio.sleep(max(0.0, self.began + fault.at_s - time.monotonic()))
        locks = [self._held.setdefault(name, asyncio.Lock()) for name in sorted(fault.holds)]
        for lock in locks:
            await lock.acquire()
        try:
            await self._played(fault)
        finally:
            for lock in locks:
                lock.release()

    async def _played(self, fault: Fault) -> None:
        kind = KINDS[fault.kind]
        touched = {"members": fault.members, "ranks": fault.ranks, "links": fault.links}
        self._say(f"fault {fault}")
        self.log.fault(True, fault.kind, **touched, number=fault.number, options=json.dumps(fault.options))
        self._playing += 1
        began = time.monotonic()
        try:
            await kind.apply(self.world, fault)
            await asyncio.sleep(max(0.0, began + fault.lasts_s - time.monotonic()))
            await kind.revert(self.world, fault)
        except Failed as error:
            self.problem(f"fault {fault}: {error}")
        finally:
            self._playing -= 1
            self._calm_since = time.monotonic()
        reverted = time.monotonic()
        if trouble := await self._well(RECOVER_S):
            self.problem(f"fault {fault}: not well after {RECOVER_S:g} s without faults: {trouble}")
        took_s = round(time.monotonic() - reverted, 2)
        settle_s = kind.settle_s if any(touched.values()) else 0.0
        self.log.fault(
            False, fault.kind, **touched, settle_s=settle_s, number=fault.number, recovered_s=took_s
        )
        self._say(f"fault {fault.number} is over, all was well {took_s:.1f} s later")

    async def _well(self, seconds: float) -> str:
        """Wait until all is well; what is not, when no fault was there for so long and it is still not."""
        while trouble := await self.world.trouble():
            if self._playing == 0 and time.monotonic() > self._calm_since + seconds:
                return trouble
            await asyncio.sleep(0.2)
        return ""

    # -- afterwards ------------------------------------------------------------------------------------

    def _keep_jobs(self) -> None:
        """What NFP's store says of every job, read with SQLite alone. The disk is seen on its own host only."""
        there, here = self.world.place / "nfp", self.world.folder / "nfp.db"
        for suffix in ("", "-wal"):
            copy = [
                "sh",
                "-c",
                'test ! -e "$0" || cp "$0" "$1"',
                f"{there}/nfp.db{suffix}",
                f"{here}{suffix}",
            ]
            self.world.lab.run(HOSTS["nfp"], copy, check=True)
        with contextlib.closing(sqlite3.connect(here)) as store:
            for uuid, data in store.execute(_RESULTS):
                _part, worker, _attempt, status, _closes = msgspec.msgpack.decode(data)
                self.log.job_recorded(uuid, status, worker=worker or None)

    def _read_logs(self) -> None:
        """What the members said themselves: events that brokers missed, and faults of programs."""
        for rank, first, last in self.world.missed():
            self.log.events_lost(rank, first, last)
        for member in (*self.world.members.values(), *self.world.load.values()):
            found = [line for line in member.lines() if any(trace in line for trace in TRACES)]
            if found:
                self.problem(f"{len(found)} tracebacks in {member.log}")


_RESULTS: Final = """
SELECT job.uuid, event.data FROM events event JOIN events job ON job.seq = event.seq >> 24 << 24
WHERE event.kind = 'Finished' ORDER BY event.seq
"""
