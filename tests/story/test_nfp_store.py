"""The store of an NFP broker when its process is killed, when its disk is full, and when two want it."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys

import pytest

from broker.errors import ConfigError
from broker.nfp.names import Dialect
from broker.nfp.records import Dispatched, Finished, Forgotten, JobAdded
from broker.nfp.store import NotStored, Store
from broker.nfp.targets import ANY
from broker.nfp.worker.store import RunStore, StoredRun
from tests.unit.nfp.store.samples import parts, whole

pytestmark = pytest.mark.story

WRITER = """
import asyncio, sys
from broker.nfp.names import Dialect
from broker.nfp.records import Dispatched, Finished, Forgotten, JobAdded
from broker.nfp.store import Store
from broker.nfp.targets import ANY

async def main():
    first = int(sys.argv[2])
    told = {}
    def committed(number):
        done = [at for at in told if at <= number]
        if done:
            print(told[max(done)], flush=True)  # all jobs before this one are safe
        for at in done:
            del told[at]
    store = Store(sys.argv[1], asyncio.get_running_loop(), on_commit=committed)
    await store.open()
    job = first
    while True:
        for job in range(job, job + 7):
            uuid, body = f"{job:08}", job.to_bytes(4, "big") * 300
            store.put(JobAdded(uuid, "svc", "task", ANY, body, b"me", Dialect.NORFAB, "uid:1", 1, 60.0))
            store.put(Dispatched(uuid, "", "w", 1))
            store.put(Finished(uuid, "", "w", 1, 200, body, "done"))
            if job >= first + 300:
                store.put(Forgotten(f"{job - 300:08}"))
        job += 1
        told[store.position] = job
        store.commit()
        while store.position > store.committed + 1:
            await asyncio.sleep(0.0005)

asyncio.run(main())
"""


@contextlib.contextmanager
def writing(path, first: int):
    """A process that writes jobs from ``first`` on and says how far they are committed."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(first)], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.stdout.close()
        process.wait(10)


async def found(path):
    store = Store(path, asyncio.get_running_loop())
    snapshot = await whole(store, await store.open())
    await store.close()
    return snapshot


@pytest.mark.patient
def test_a_store_whose_process_is_killed_again_and_again(rundir):
    """Everything told as committed is there, whole; every job is there with all of its operations or not at all."""
    path = rundir / "nfp.db"
    dice = random.Random(7)
    first = 0
    for _round in range(4):
        with writing(path, first) as process:
            for _line in range(dice.randrange(1, 60)):
                committed = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            rest = (
                process.stdout.read().split()
            )  # what it said before it died; the last word may be cut short
            process.wait(10)
        committed = max([committed, *map(int, rest[:-1])])
        jobs = {int(job.added.uuid): job for job in asyncio.run(found(path)).jobs}
        last = max(jobs)
        assert last >= committed - 1
        mine = sorted(number for number in jobs if number >= first)
        assert mine == list(range(max(first, last - 299), last + 1)), "no gap, and nothing half forgotten"
        for number in mine:
            body = number.to_bytes(4, "big") * 300
            slot = parts(jobs[number])[0]
            assert (jobs[number].added.body, jobs[number].state) == (body, "done")
            assert (slot.state, slot.body) == ("final", body)
        first = last + 1


def test_two_processes_at_one_store(rundir):
    path = rundir / "nfp.db"

    async def refused() -> str:
        store = Store(path, asyncio.get_running_loop())
        try:
            await store.open()
        except ConfigError as error:
            return str(error)
        await store.close()
        return ""

    with writing(path, 0) as process:
        process.stdout.readline()
        said = asyncio.run(refused())
        assert said == (
            f"{path}: process {process.pid} uses this broker store, expected nobody; end it, or choose another file"
        )
        process.stdout.readline()  # it goes on
    assert asyncio.run(refused()) == "", "the lock of a killed process is gone"
    with writing(path, 1_000_000) as process:
        assert int(process.stdout.readline()) > 1_000_000


# -- a disk that fills up -------------------------------------------------------------------------


@pytest.fixture
def small(rundir):
    """A file system of two MiB."""
    if os.getuid() != 0:
        pytest.skip("optional: needs root to mount a small file system")
    place = rundir / "state"
    place.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("optional: needs the right to mount a small file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place) -> None:
    with (place / "filler").open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):  # full, for this size
                while file.write(bytes(size)) == size:
                    pass


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def job(number: int) -> JobAdded:
    body = number.to_bytes(4, "big") * 1000
    return JobAdded(f"{number:08}", "svc", "task", ANY, body, b"me", Dialect.NORFAB, "uid:1", 1, 60.0)


def test_a_disk_that_fills_up_under_a_broker(small):
    """New jobs are refused with the reason, what belongs to old ones waits, and all is well once there is room."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        refused = []

        def sift(text, operations):
            new = {op.uuid for op in operations if isinstance(op, JobAdded)}
            refused.extend((uuid, text) for uuid in sorted(new))
            return [op for op in operations if getattr(op, "uuid", "") not in new]

        store = Store(small / "nfp.db", loop, on_failed=sift, retry_s=0.05)
        await store.open()
        for number in range(10):
            store.put(job(number))
        await store.durable()
        fill(small)
        number = 10
        while not refused:  # the file has room of its own for a while
            store.put(job(number))
            number += 1
            with contextlib.suppress(NotStored):
                await store.durable()
        kept = number - 1
        assert store.broken == f"{small}/nfp.db: no space left on its disk (database or disk is full)"
        assert refused == [(f"{kept:08}", store.broken)]
        for old in range(kept):
            store.put(Dispatched(f"{old:08}", "", "w", 1))
            store.put(Finished(f"{old:08}", "", "w", 1, 200, bytes(3000)))
        store.commit()
        with pytest.raises(NotStored, match="no space left"):
            await store.durable()
        stored = await store.ask(lambda base: base.execute("SELECT count(uuid) FROM events").fetchone()[0])
        assert stored == kept, "what is stored can still be read"
        await asyncio.sleep(0.2)  # some attempts in vain
        assert store.broken
        position = store.position
        (small / "filler").unlink()
        await until(lambda: store.committed >= position)
        assert store.broken == ""
        store.put(job(number))
        await store.durable()
        assert await store.close() == 0
        snapshot = await found(small / "nfp.db")
        assert [row.added for row in snapshot.jobs] == [*map(job, range(kept)), job(number)]
        states = [[(slot.state, slot.body) for slot in parts(row)] for row in snapshot.jobs]
        assert states == [[("final", bytes(3000))]] * kept + [[]]

    asyncio.run(asyncio.wait_for(story(), 40))


def test_a_broker_that_ends_or_starts_on_a_full_disk(small):
    async def story() -> None:
        loop = asyncio.get_running_loop()
        path = small / "nfp.db"
        store = Store(path, loop, retry_s=0.05)
        await store.open()
        store.put(job(0))
        await store.durable()
        fill(small)
        number = 1
        while not store.broken:
            store.put(job(number))
            number += 1
            with contextlib.suppress(NotStored):
                await store.durable()
        assert await store.close() == 1, "one more attempt, then the end"
        with pytest.raises(ConfigError, match=r"nfp\.db: "):
            await Store(path, loop).open()
        (small / "filler").unlink()
        assert [row.added for row in (await found(path)).jobs] == [job(old) for old in range(number - 1)]

    asyncio.run(asyncio.wait_for(story(), 40))


@pytest.mark.patient
def test_room_that_is_freed_on_a_full_disk_is_used_again(small):
    """A -wal file that takes the last room is emptied into what forgotten jobs have left free."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        store = Store(small / "nfp.db", loop)
        await store.open()
        for number in range(60):
            store.put(job(number))
        await store.close()
        store = Store(small / "nfp.db", loop)
        await store.open()
        for number in range(20):
            store.put(Forgotten(f"{number:08}"))
        await store.durable()
        fuller = 0
        for number in range(60, 1500):  # six MiB in all
            store.put(job(number))
            store.put(Finished(f"{number:08}", "", "", 0, 408, b"", "expired"))
            store.put(Forgotten(f"{number - 40:08}"))
            await store.durable()
            fuller = max(fuller, (small / "nfp.db-wal").stat().st_size)
        assert fuller > 1_000_000, "the disk was full, more than once"
        assert await store.close() == 0
        assert len((await found(small / "nfp.db")).jobs) == 40

    asyncio.run(asyncio.wait_for(story(), 40))


@pytest.mark.patient
def test_a_disk_that_fills_up_under_a_worker(small):
    async def story() -> None:
        store = RunStore(small / "w1.db")
        await store.open()
        fill(small)
        number = 0
        error = None
        while error is None:
            store.accepted(StoredRun(str(number), b"me#1", "svc", "task", bytes(4000), True))
            number += 1
            try:
                await store.durable()
            except NotStored as caught:
                error = caught
        assert "no space left on its disk" in str(error)
        store.drop(str(number - 1))  # refused; the broker gives it to another
        (small / "filler").unlink()
        await until(lambda: not store.broken)
        await store.close()
        store = RunStore(small / "w1.db")
        assert [kept.uuid for kept in await store.load()] == [str(old) for old in range(number - 1)]
        await store.close()

    asyncio.run(asyncio.wait_for(story(), 40))


def test_a_copy_taken_by_a_backup_program_is_whole(rundir):
    """``sqlite3 .backup`` may read while a broker writes."""
    path = rundir / "nfp.db"
    with writing(path, 0) as process:
        for _line in range(20):
            process.stdout.readline()
        source = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        copy = sqlite3.connect(rundir / "copy.db")
        source.backup(copy)
        source.close()
        copy.close()
        process.stdout.readline()
    shutil.move(rundir / "copy.db", rundir / "restored.db")
    jobs = asyncio.run(found(rundir / "restored.db")).jobs
    assert jobs
    assert {(row.state, parts(row)[0].state) for row in jobs} == {("done", "final")}
