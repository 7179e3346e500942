"""The jobs of a worker on disk."""

import asyncio
import contextlib
import sqlite3

import pytest

from broker.errors import ConfigError
from broker.nfp.contract import NotStored
from broker.nfp.store.peers import KEEP_UNSETTLED_S, Retention
from broker.nfp.worker.store import RunStore, StoredRun
from tests.unit.nfp.store.samples import Clocks, run, until, write


@contextlib.asynccontextmanager
async def opened(path, **settings):
    store = RunStore(path, **settings)
    store.found = await store.load()
    try:
        yield store
    finally:
        await store.close()


def kept(uuid, body=b"{}", **changes):
    return StoredRun(uuid, b"me#1", "svc", "ping", body, True)._replace(**changes)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "w1.db"


@pytest.fixture
def clocks():
    return Clocks()


def test_what_comes_back_after_a_restart(path, clocks):
    async def story():
        async with opened(path, clock=clocks.clock) as store:
            assert store.found == []
            for uuid in ("accepted", "started", "done", "recorded", "cancelled"):
                assert store.accepted(kept(uuid, uuid.encode()))
            await store.durable()
            clocks.passes(1)
            for uuid in ("started", "done", "recorded", "cancelled"):
                store.started(uuid)
            await store.durable()
            clocks.passes(1)
            for uuid in ("done", "recorded"):
                store.done(kept(uuid, status=200, result=b"result of " + uuid.encode()))
            store.recorded(["recorded", "accepted", "unknown"])
            store.cancelled("cancelled")
        came = clocks.wall_s - 2
        async with opened(path, clock=clocks.clock) as store:
            assert store.found == [
                kept("accepted", b"accepted", received_s=came, age_s=2),
                kept("started", b"started", state="started", received_s=came, started_s=came + 1, age_s=2),
                kept(
                    "done", b"done", state="done", status=200, result=b"result of done", received_s=came,
                    started_s=came + 1, ended_s=came + 2, age_s=2,
                ),
            ]  # fmt: skip
            assert store.state("recorded") == "recorded"
            assert (await store.find("recorded")).result == b"result of recorded"
            assert (await store.find("cancelled")).state == "cancelled"
            listed = store.listing(3)
            assert [(job.uuid, job.body, job.result) for job in listed] == [
                ("cancelled", b"", b""), ("recorded", b"", b""), ("done", b"", b""),
            ]  # fmt: skip

    run(story())


def test_a_step_of_the_wall_clock_makes_no_job_older(path, clocks):
    async def story():
        async with opened(path, clock=clocks.clock) as store:
            store.accepted(kept("u"))
        clocks.passes(5)
        clocks.wall_s += 1e6
        async with opened(path, clock=clocks.clock) as store:
            assert [job.age_s for job in store.found] == [5]
            assert (await store.find("u")).age_s == 5

    run(story())


def test_a_uuid_is_accepted_once(path):
    async def story():
        async with opened(path) as store:
            assert store.accepted(kept("u", b"first"))
            assert not store.accepted(kept("u", b"second"))
            await store.durable()
            assert (await store.find("u")).body == b"first"
        async with opened(path) as store:
            assert not store.accepted(kept("u", b"third"))
            store.drop("u")
            assert store.accepted(kept("u", b"fourth", client=None, idempotent=False))
        async with opened(path) as store:
            assert [(job.body, job.client, job.idempotent) for job in store.found] == [
                (b"fourth", None, False)
            ]

    run(story())


def test_what_is_over_stays_as_it_is(path):
    async def story():
        async with opened(path) as store:
            store.done(kept("quick", b"body", status=200, result=b"first"))  # never put before
            store.done(kept("quick", status=500, result=b"second"))
            store.started("quick")
            store.cancelled("quick")
            store.accepted(kept("off"))
            store.cancelled("off")
            store.done(kept("off", status=200, result=b"late"))
            store.recorded(["off"])
            store.started("unknown")
            store.cancelled("unknown")
            assert (store.state("quick"), store.state("off"), store.state("unknown")) == (
                "done",
                "cancelled",
                "",
            )
        async with opened(path) as store:
            assert [(job.uuid, job.body, job.status, job.result) for job in store.found] == [
                ("quick", b"body", 200, b"first")
            ]

    run(story())


def test_another_attempt_changes_the_address(path):
    async def story():
        async with opened(path) as store:
            store.accepted(kept("u"))
            store.readdressed("u", b"me#2")
            store.readdressed("unknown", b"me#2")
        async with opened(path) as store:
            assert [(job.client, job.state) for job in store.found] == [(b"me#2", "accepted")]

    run(story())


def test_it_is_written_without_being_asked(path):
    """Nobody awaits ``durable`` behind ``started`` or ``recorded``."""

    async def story():
        async with opened(path) as store:
            store.accepted(kept("u"))
            store.started("u")
            other = sqlite3.connect(path)
            await until(lambda: other.execute("SELECT kind FROM events").fetchall() == [("",), ("started",)])
            other.close()

    run(story())


def test_retention_by_time(path, clocks):
    async def story():
        async with opened(path, clock=clocks.clock, retention=Retention(keep_s=100)) as store:
            for uuid in ("settled", "unconfirmed", "open"):
                store.accepted(kept(uuid))
            store.done(kept("settled", status=200, result=b"r"))
            store.recorded(["settled"])
            await store.durable()
            clocks.passes(50)
            store.done(kept("unconfirmed", status=200, result=b"r"))
            await store.durable()
            clocks.passes(60)
            store.accepted(kept("new"))
            store.done(kept("new"))
            assert await store.find("settled") is None
            assert store.accepted(kept("settled", b"again")), "it is not known any more"
            clocks.wall_s += 1e6
            assert (await store.find("unconfirmed")).result == b"r"
        clocks.passes(KEEP_UNSETTLED_S - 30)
        async with opened(path, clock=clocks.clock, retention=Retention(keep_s=100)) as store:
            assert [job.uuid for job in store.found] == ["open", "new", "settled"]

    run(story())


@pytest.mark.parametrize("keep_s", [0.0, 100.0, KEEP_UNSETTLED_S])
def test_a_result_that_no_broker_has_recorded_stays_however_short_results_are_kept(path, clocks, keep_s):
    async def story():
        async with opened(path, clock=clocks.clock, retention=Retention(keep_s=keep_s)) as store:
            store.done(kept("u", status=200, result=b"r"))
            await store.durable()
            clocks.passes(KEEP_UNSETTLED_S - 1)
            store.done(kept("other", status=200, result=b"r"))
            assert (await store.find("u")).result == b"r"
        async with opened(path, clock=clocks.clock, retention=Retention(keep_s=keep_s)) as store:
            assert [job.uuid for job in store.found] == ["u", "other"]
            store.recorded(["other"])
            assert store.state("other") == ("" if not keep_s else "recorded")
            await store.durable()
            clocks.passes(2)
            store.done(kept("third", status=200, result=b"r"))
            assert store.state("u") == ""

    run(story())


def test_retention_goes_on_while_nothing_happens(path, clocks, monkeypatch):
    monkeypatch.setattr("broker.nfp.store.peers.SWEEP_MIN_S", 0.01)

    async def story():
        async with opened(path, clock=clocks.clock, retention=Retention(keep_s=0.1)) as store:
            store.accepted(kept("u"))
            store.cancelled("u")
            assert store.state("u") == "cancelled"
            await store.durable()
            clocks.passes(1)
            await until(lambda: store.state("u") == "")
            await store.durable()
        base = sqlite3.connect(path)
        assert base.execute("SELECT count(*) FROM events").fetchone() == (0,)
        base.close()

    run(story())


@pytest.mark.parametrize("persistent", [True, False])
def test_retention_by_bytes_and_number(path, persistent):
    limits = Retention(keep_bytes=10_000, keep_jobs=4)

    async def story():
        async with opened(path if persistent else None, retention=limits) as store:
            store.accepted(kept("open", bytes(9000)))
            for number in range(3):
                store.done(kept(f"done{number}", b"", status=200, result=bytes(300)))
            store.recorded(["done1"])
            assert [job.uuid for job in store.listing(9)] == ["done2", "done1", "done0", "open"]
            store.done(kept("large", b"", status=200, result=bytes(300)))
            assert store.state("done1") == "", "what is recorded goes first"
            assert store.state("done0") == "done"
            store.done(kept("larger", b"", status=200, result=bytes(400)))
            assert store.state("done0") == "", "then the oldest result that nobody confirmed"
            for number in range(9):
                store.done(kept(f"small{number}", b"", status=200))
            assert [job.uuid for job in store.listing(9)] == [
                "small8",
                "small7",
                "small6",
                "small5",
                "open",
            ]
            store.accepted(kept("beyond", bytes(9000)))
            store.done(kept("last", b""))
            assert {job.uuid for job in store.listing(9)} == {"beyond", "open"}, "what has not ended stays"
            if persistent:
                await store.durable()
        if persistent:
            async with opened(path, retention=limits) as store:
                assert [job.uuid for job in store.found] == ["open", "beyond"]

    run(story())


def test_in_memory_nothing_survives(path):
    async def story():
        async with opened(None) as store:
            store.accepted(kept("u", b"body"))
            await store.durable()
            store.done(kept("u", status=200, result=b"result"))
            found = await store.find("u")
            assert (found.body, found.result, store.broken) == (b"body", b"result", "")
            store.drop("u")
            assert await store.find("u") is None
        assert not path.exists()

    run(story())


def test_a_disk_that_fails_is_told(path):
    told = []

    async def story():
        async with opened(path, broken=told.append) as store:
            store.accepted(kept("before", b"body"))
            await store.durable()
            apply = store._apply_group

            def full(connection, operations):
                raise sqlite3.OperationalError("database or disk is full")

            store._apply_group = full
            store._retry_s = 0.05
            store.accepted(kept("u"))
            with pytest.raises(NotStored, match="disk is full"):
                await store.durable()
            assert "disk is full" in store.broken
            assert told == [store.broken]
            assert (await store.find("before")).body == b"body"
            store.drop("u")
            store._apply_group = apply
            await until(lambda: not store.broken)
        async with opened(path) as store:
            assert [job.uuid for job in store.found] == ["before"]

    run(story())


def test_a_store_of_another_kind_is_refused(path):
    run(write(path))

    async def story():
        with pytest.raises(ConfigError, match="a database, but no worker store of Headgate"):
            await RunStore(path).open()
        store = RunStore(path.with_name("mine.db"))
        await store.open()
        with pytest.raises(ConfigError, match="this worker store is open in this very process already"):
            await RunStore(path.with_name("mine.db")).open()
        await store.close()

    run(story())


def test_many_jobs_in_one_turn_are_one_commit(path):
    async def story():
        async with opened(path) as store:
            for number in range(500):
                store.accepted(kept(str(number), bytes(1000)))
            await asyncio.gather(*(store.durable() for _ in range(5)))
            assert store.committed == 1
        async with opened(path) as store:
            assert [job.uuid for job in store.found] == [str(number) for number in range(500)]

    run(story())


def test_many_bodies_in_one_group(path):
    async def story():
        async with opened(path) as store:
            for number in range(20):
                store.accepted(kept(str(number), bytes([number]) * (number * 100)))
            store.drop("7")
        async with opened(path) as store:
            expected = [
                (str(number), bytes([number]) * (number * 100)) for number in range(20) if number != 7
            ]
            assert [(job.uuid, job.body) for job in store.found] == expected

    run(story())
