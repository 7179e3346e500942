"""The jobs of a client on disk."""

import contextlib

import pytest

from broker.nfp.client.store import ClientStore, Result, StoredJob
from broker.nfp.store.shelf import Retention
from broker.nfp.targets import ALL, ANY, Target
from tests.unit.nfp.store.samples import Clocks, run


@contextlib.asynccontextmanager
async def opened(path, **settings):
    store = ClientStore(path, **settings)
    store.found = await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "me.db"


@pytest.fixture
def clocks():
    return Clocks()


def test_what_a_client_waits_for_survives_its_end(path, clocks):
    async def story():
        async with opened(path, clock=clocks.clock) as store:
            assert store.found == []
            assert store.submitted("a", "svc", "ping", Target("list", ("w1", "w2")), b"body", 60.0)
            assert not store.submitted("a", "other", "pong", ANY, b"", 1.0)
            store.result("a", "w1", 200, b"one")
            store.result("a", "w1", 500, b"again")
            store.result("a", "", 408, b"nameless")
            store.event("a", b"first")
            store.event("a", b"latest")
            store.submitted("b", "svc", "ping", ALL, b"", 60.0)
            store.closed("b", "failed", "it did not work")
            store.closed("b", "done")
            for change in (
                lambda: store.result("x", "w", 200, b""),
                lambda: store.event("x", b""),
                lambda: store.closed("x", "done"),
            ):
                change()  # of a job that is not here
        submitted = clocks.wall_s
        clocks.passes(20)
        clocks.wall_s -= 3600
        async with opened(path, clock=clocks.clock) as store:
            expected = StoredJob(
                "a", "svc", "ping", Target("list", ("w1", "w2")), b"body", 60.0, 40.0, "open", submitted,
                {"w1": Result(200, b"one"), "": Result(408, b"nameless")}, b"latest",
            )  # fmt: skip
            assert store.found == [expected]
            assert await store.unfinished() == [expected]
            ended = await store.find("b")
            assert (ended.state, ended.error, ended.target) == ("failed", "it did not work", ALL)
            assert (store.state("a"), store.state("b"), store.state("x")) == ("open", "failed", "")
            assert await store.find("x") is None
            clocks.passes(100)
            assert (await store.find("a")).left_s == 0.0
            store.closed("a", "expired")
            assert await store.unfinished() == []
            store.forget("a")
            assert store.state("a") == ""
        async with opened(path, clock=clocks.clock) as store:
            assert store.found == []

    run(story())


def test_a_wall_clock_that_is_set_back_over_a_reboot_extends_no_deadline(path, clocks):
    async def story():
        async with opened(path, clock=clocks.clock) as store:
            store.submitted("a", "svc", "ping", ANY, b"", 60.0)
            clocks.passes(50)
            store.event("a", b"{}")
        clocks.reboots(down_s=-86400)
        async with opened(path, clock=clocks.clock) as store:
            assert [job.left_s for job in store.found] == [10.0]

    run(story())


@pytest.mark.parametrize("persistent", [True, False])
def test_what_has_ended_is_kept_for_a_while(path, clocks, persistent):
    async def story():
        async with opened(
            path if persistent else None, clock=clocks.clock, retention=Retention(keep_s=100, keep_jobs=3)
        ) as store:
            for number in range(6):
                uuid = str(number)
                store.submitted(uuid, "svc", "ping", ANY, b"body", 60.0)
                store.result(uuid, "w", 200, b"result")
                if number:
                    store.closed(uuid, "done")
                clocks.passes(10)
            assert [uuid for uuid in "012345" if store.state(uuid)] == ["0", "3", "4", "5"]
            assert (await store.find("3")).results == {"w": Result(200, b"result")}
            clocks.passes(85)
            store.submitted("6", "svc", "ping", ANY, b"body", 60.0)
            store.closed("6", "cancelled")
            assert [uuid for uuid in "0123456" if store.state(uuid)] == ["0", "5", "6"]
            assert [job.uuid for job in await store.unfinished()] == ["0"]
            await store.durable()

    run(story())


def test_events_that_replace_each_other_take_no_room(path):
    async def story():
        async with opened(path, retention=Retention(keep_bytes=5000)) as store:
            store.submitted("old", "svc", "ping", ANY, b"", 60.0)
            store.closed("old", "done")
            store.submitted("a", "svc", "ping", ANY, b"", 60.0)
            for number in range(100):
                store.event("a", bytes(1000) + bytes([number]))
            store.submitted("b", "svc", "ping", ANY, b"", 60.0)
            store.closed("b", "done")
            assert store.state("old") == "done"
        assert path.stat().st_size < 100_000

    run(story())
