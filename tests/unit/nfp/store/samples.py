"""Operations, clocks and stores that the tests of this room share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from broker.nfp.jobs.closed_jobs import apply
from broker.nfp.jobs.model import Client, Job
from broker.nfp.names import Dialect
from broker.nfp.records import JobAdded, Snapshot, StoredJob
from broker.nfp.store import Store
from broker.nfp.store.events import Clock
from broker.nfp.targets import ANY, Target

PATIENCE_S = 40.0


def run(story: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await story

    return asyncio.run(bounded())


def job(
    uuid: str, body: bytes = b"{}", *, target: Target = ANY, ttl_s: float = 60.0, holder: str = "uid:7"
) -> JobAdded:
    return JobAdded(uuid, "svc", "task", target, body, b"\x00me\xff", Dialect.NORFAB, holder, 7, ttl_s)


class Clocks:
    """A machine whose clocks a test moves."""

    def __init__(self) -> None:
        self.wall_s = 1_700_000_000.0
        self.boot_s = 1000.0
        self.boot_id = "first"

    def passes(self, seconds: float) -> None:
        self.wall_s += seconds
        self.boot_s += seconds

    def reboots(self, down_s: float = 0.0) -> None:
        self.wall_s += down_s
        self.boot_s = 1.0
        self.boot_id += "+"

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.wall_s, lambda: self.boot_s, lambda: self.boot_id)


@contextlib.asynccontextmanager
async def opened(path: Path, **settings: Any) -> AsyncIterator[Store]:
    """A store whose snapshot is ``store.found``."""
    store = Store(path, asyncio.get_running_loop(), **settings)
    store.found = await store.open()
    try:
        yield store
    finally:
        await store.close()


async def write(path: Path, *operations: Any, **settings: Any) -> None:
    async with opened(path, **settings) as store:
        for op in operations:
            store.put(op)


async def whole(store: Store, found: Snapshot) -> Snapshot:
    """``found`` with all jobs in the order they were added, as if closed ones were not read later."""
    closed = [store.find_closed(closed.job.added.uuid) for closed in found.closed]
    jobs = {job.added.uuid: job for job in (*found.jobs, *closed)}
    order = await store.ask(
        lambda base: base.execute("SELECT uuid FROM events WHERE uuid IS NOT NULL ORDER BY seq").fetchall()
    )
    assert len(order) == len(jobs)
    return found._replace(jobs=tuple(jobs[uuid] for (uuid,) in order), closed=())


class PartSeen(NamedTuple):
    """What a dispatcher makes of a part; ``state`` is waiting, dispatched, accepted (not to be run again) or final."""

    part: str
    worker: str = ""
    attempt: int = 0
    state: str = "waiting"
    status: int = 0
    body: bytes = b""
    given: tuple[tuple[str, int], ...] = ()
    """Every worker it was ever given to, with the latest attempt there."""


def parts(stored: StoredJob) -> tuple[PartSeen, ...]:
    """What the events of a job make of its parts."""
    added = stored.added
    job = Job(added, Client(added.client, added.holder, "", added.dialect), None, 0.0)
    holders = apply(job, stored)
    seen = []
    for name, part in job.parts.items():
        given = tuple(part.given.items())
        holder = holders.get(name)
        if part.state == "final":
            seen.append(PartSeen(name, part.worker, 0, "final", part.status, part.body, given))
        elif holder is not None:
            state = "accepted" if holder.once else "dispatched"
            seen.append(PartSeen(name, holder.worker, holder.attempt, state, given=given))
        else:
            seen.append(PartSeen(name, given=given))
    return tuple(seen)


def owner(stored: StoredJob) -> str:
    """Whom a client was told of."""
    added = stored.added
    job = Job(added, Client(added.client, added.holder, "", added.dialect), None, 0.0)
    apply(job, stored)
    return job.owner


async def read(path: Path, **settings: Any) -> Snapshot:
    async with opened(path, **settings) as store:
        return await whole(store, store.found)


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition; the story's own time limit ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0.002)
