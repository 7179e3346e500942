"""The jobs of a client on disk."""

import asyncio
import contextlib

import pytest

from broker.nfp.client.job import Submission
from broker.nfp.client.store import ClientStore, StoredJob, StoredResult
from broker.nfp.store.peers import Retention
from broker.nfp.targets import ALL, ANY, Target
from tests.unit.nfp.store.samples import Clocks, run


@contextlib.asynccontextmanager
async def opened(path, **settings):
    store = ClientStore(path, "me", **settings)
    await store.open()
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


def submission(uuid, *, target=ANY, body=b"", timeout_s=60.0):
    return Submission(uuid, "svc", "ping", target, body, timeout_s, 0.0)


def stored(found):
    """A job that was found, without the time of this process in it."""
    return found._replace(submission=found.submission._replace(deadline=0.0))


def left_s(found):
    """What is left of the time of a job that was just found."""
    return pytest.approx(found.submission.deadline - asyncio.get_running_loop().time(), abs=0.5)


def test_what_a_client_waits_for_survives_its_end(path, clocks):
    first = submission("a", target=Target("list", ("w1", "w2")), body=b"body")

    async def story():
        async with opened(path, clock=clocks.clock) as store:
            assert await store.unfinished() == []
            await store.add(first)
            await store.add(submission("a", body=b"another one of this id"))
            store.keep_result("a", "w1", 200, b"one")
            store.keep_result("a", "w1", 500, b"again")
            store.keep_result("a", "", 408, b"nameless", "expired")
            store.keep_workers("a", ("w1",))
            store.keep_workers("a", ("w1", "w2"))
            await store.add(submission("b", target=ALL))
            store.end("b", "failed", "it did not work")
            store.end("b", "done")
            for change in (
                lambda: store.keep_result("x", "w", 200, b""),
                lambda: store.keep_workers("x", ("w",)),
                lambda: store.end("x", "done"),
            ):
                change()  # of a job that is not here
        clocks.passes(20)
        clocks.wall_s -= 3600
        async with opened(path, clock=clocks.clock) as store:
            results = {"w1": StoredResult(200, b"one"), "": StoredResult(408, b"nameless", "expired")}
            expected = StoredJob(first, "open", results, ("w1", "w2"))
            (found,) = await store.unfinished()
            assert left_s(found) == 40.0
            assert stored(found) == expected
            ended = await store.find("b")
            assert (ended.state, ended.error, ended.submission.target) == ("failed", "it did not work", ALL)
            assert (store.state("a"), store.state("b"), store.state("x")) == ("open", "failed", "")
            assert await store.find("x") is None
            clocks.passes(100)
            assert left_s(await store.find("a")) == 0.0
            assert await store.unfinished() == []
            assert store.state("a") == "expired"
        async with opened(path, clock=clocks.clock) as store:
            assert await store.unfinished() == []

    run(story())


def test_a_wall_clock_that_is_set_back_over_a_reboot_extends_no_deadline(path, clocks):
    async def story():
        async with opened(path, clock=clocks.clock) as store:
            await store.add(submission("a"))
            clocks.passes(50)
            store.keep_workers("a", ("w",))
        clocks.reboots(down_s=-86400)
        async with opened(path, clock=clocks.clock) as store:
            assert [left_s(job) for job in await store.unfinished()] == [10.0]

    run(story())


def test_what_has_ended_is_kept_for_a_while(path, clocks):
    async def story():
        retention = Retention(keep_s=100, keep_jobs=3)
        async with opened(path, clock=clocks.clock, retention=retention) as store:
            for number in range(6):
                uuid = str(number)
                await store.add(submission(uuid, body=b"body", timeout_s=600.0))
                store.keep_result(uuid, "w", 200, b"result")
                if number:
                    store.end(uuid, "done")
                clocks.passes(10)
            assert [uuid for uuid in "012345" if store.state(uuid)] == ["0", "3", "4", "5"]
            assert (await store.find("3")).results == {"w": StoredResult(200, b"result")}
            clocks.passes(85)
            await store.add(submission("6"))
            store.end("6", "cancelled")
            assert [uuid for uuid in "0123456" if store.state(uuid)] == ["0", "5", "6"]
            assert [job.submission.uuid for job in await store.unfinished()] == ["0"]

    run(story())


def test_workers_that_replace_each_other_take_no_room(path):
    async def story():
        async with opened(path, retention=Retention(keep_bytes=5000)) as store:
            await store.add(submission("old"))
            store.end("old", "done")
            await store.add(submission("a"))
            for number in range(100):
                store.keep_workers("a", ("w" * 1000, str(number)))
            await store.add(submission("b"))
            store.end("b", "done")
            assert store.state("old") == "done"
        assert path.stat().st_size < 100_000

    run(story())
