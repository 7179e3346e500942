"""A worker with a store, over several lives: what is run again, what is not, what is sent again."""

import asyncio
import contextlib
import threading
import time

from broker.errors import HeadgateError
from broker.nfp import bodies
from broker.nfp.names import Command
from broker.nfp.worker.store import RunStore
from tests.unit.nfp.peer.raw_broker import PATIENCE_S, RawBroker, until
from tests.unit.nfp.worker.rig import body, confirm, final, made, post, result, working


@contextlib.asynccontextmanager
async def killed(worker, broker):
    """A life that ends without a word, with its jobs where they are."""
    running = asyncio.get_running_loop().create_task(worker.run())
    await broker.take_only(Command.READY)
    yield
    running.cancel()
    await asyncio.wait([running])


def test_a_task_that_must_not_be_run_twice_ends_with_an_error_and_another_is_the_brokers_again(tmp_path):
    runs = []
    go = threading.Event()

    def tasks(worker):
        @worker.task(idempotent=False)
        def once():
            runs.append("once")
            go.wait(PATIENCE_S)

        @worker.task
        def again():
            runs.append("again")
            return len(runs) > 2 or go.wait(PATIENCE_S)

    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, state_dir=tmp_path, jobs_at_a_time=2)
            tasks(worker)
            async with killed(worker, broker):
                post(broker, "u1", "once", client=b"c#5")
                post(broker, "u2", "again")
                assert {(await broker.take_only(Command.RESPONSE)).status for _ in range(2)} == {201}
                confirm(broker, "u1")
                await until(lambda: worker._session.store.state("u1") == "started" and len(runs) == 2)
                await until(lambda: worker._session.store.state("u2") == "started")
            worker = made(broker, state_dir=tmp_path, jobs_at_a_time=2)
            tasks(worker)
            async with working(worker, broker, ready=False):
                await broker.take_only(Command.READY, Command.DISCONNECT)
                held = broker.offers[-1]["jobs"]
                assert held == {"u1": [5, "done"]}
                post(broker, "u2", "again", client=b"c#2")
                got = {}
                while len(got) < 2:  # the first may come again before it is recorded
                    packet = await broker.take_only(Command.RESPONSE)
                    got[packet.uuid] = result(packet)
                assert "must not be run twice" in got["u1"]["errors"][0]
                assert (got["u2"]["result"], got["u2"]["failed"]) == (True, False)
                assert sorted(runs) == ["again", "again", "once"]

    try:
        asyncio.run(main())
    finally:
        go.set()


def test_results_survive_until_they_are_recorded_and_duplicates_are_answered_from_the_store(tmp_path):
    runs = []

    def tasks(worker):
        @worker.task
        def count():
            runs.append(1)
            return len(runs)

    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, state_dir=tmp_path)
            tasks(worker)
            async with killed(worker, broker):
                post(broker, "u1", "count")
                post(broker, "u2", "count")
                both = [await broker.take_only(Command.RESPONSE) for _ in range(2)]
                first = {packet.uuid: packet.data for packet in both}
                confirm(broker, "u1", state=bodies.RECORDED)
                await until(lambda: worker._session.store.state("u1") == "recorded")
            worker = made(broker, state_dir=tmp_path)
            tasks(worker)
            async with working(worker, broker, ready=False):
                await broker.take_only(Command.READY, Command.DISCONNECT)
                assert broker.offers[-1]["jobs"] == {"u2": [1, "done"]}
                packet = await broker.take_only(Command.RESPONSE)
                assert (packet.uuid, packet.data) == ("u2", first["u2"])
                post(broker, "u1", "count", client=b"d#1")
                packet = await broker.take_only(Command.RESPONSE)
                assert (packet.uuid, packet.data, packet.client) == ("u1", first["u1"], b"d#1")
                broker.say("w1", Command.GET, client=b"e#1", uuid="u2", body=b"{}")
                assert (await broker.take_only(Command.RESPONSE)).data == first["u2"]
                post(broker, "l1", "job_list")
                listed = result(await final(broker))["result"]
                assert {job["uuid"] for job in listed} == {"u1", "u2", "l1"}
                assert {job["client_address"] for job in listed} == {"c", "d"}  # without the attempt
                assert len(runs) == 2

    asyncio.run(main())


def test_a_cancelled_job_does_not_come_back(tmp_path):
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, state_dir=tmp_path)

            @worker.task
            async def forever():
                await asyncio.Event().wait()

            async with killed(worker, broker):
                post(broker, "u1", "forever")
                assert (await broker.take_only(Command.RESPONSE)).status == 201
                broker.say("w1", Command.DELETE, client=b"c#1", uuid="u1", body=b"{}")
                assert (await broker.take_only(Command.RESPONSE)).status == 417
                await until(lambda: worker._session.store.state("u1") == "cancelled")
            worker = made(broker, state_dir=tmp_path)
            async with working(worker, broker, ready=False):
                await broker.take_only(Command.READY, Command.DISCONNECT)
                assert broker.offers[-1]["jobs"] == {}

    asyncio.run(main())


def test_a_wall_clock_set_forward_ends_no_job(tmp_path, monkeypatch):
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, state_dir=tmp_path)

            worker.task(name="forever", idempotent=False)(lambda: "ran")

            async with killed(worker, broker):
                post(broker, "u1", "forever", timeout=60)
                assert (await broker.take_only(Command.RESPONSE)).status == 201
            now = time.time
            monkeypatch.setattr(time, "time", lambda: now() + 3600)
            worker = made(broker, state_dir=tmp_path)
            worker.task(name="forever")(lambda: "ran again")
            async with working(worker, broker, ready=False):
                await broker.take_only(Command.READY, Command.DISCONNECT)
                confirm(broker, "u1")
                assert result(await final(broker))["result"] == "ran again"

    asyncio.run(main())


def test_a_later_life_answers_under_the_latest_attempt(tmp_path):
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, state_dir=tmp_path)

            worker.task(name="forever", idempotent=False)(lambda: "ran")

            async with killed(worker, broker):
                for attempt in (b"c#1", b"c#2"):
                    post(broker, "u1", "forever", client=attempt)
                    packet = await broker.take_only(Command.RESPONSE)
                    assert (packet.status, packet.client) == (201, attempt)
            worker = made(broker, state_dir=tmp_path)
            worker.task(name="forever")(lambda: "ran again")
            async with working(worker, broker, ready=False):
                await broker.take_only(Command.READY, Command.DISCONNECT)
                assert broker.offers[-1]["jobs"] == {"u1": [2, "waiting"]}
                confirm(broker, "u1")
                assert (await broker.take_only(Command.RESPONSE)).client == b"c#2"

    asyncio.run(main())


def test_deployed_norfabs_jobs_are_taken_up_again(tmp_path):
    runs = []

    async def main():
        with RawBroker() as broker:
            for life in range(2):
                worker = made(broker, state_dir=tmp_path)

                @worker.task
                async def again(life=life):
                    runs.append(life)
                    if not life:
                        await asyncio.Event().wait()
                    return "done"

                async with contextlib.AsyncExitStack() as stack:
                    if life:
                        await stack.enter_async_context(working(worker, broker, ready=False))
                        await broker.take_only(Command.READY, Command.DISCONNECT, Command.EVENT)
                        seen = [body(await broker.take_only(Command.EVENT))["event_type"] for _ in range(2)]
                        assert seen == ["progress", "result_ready"]
                        broker.say("w1", Command.GET, client=b"cli", uuid="u1", body=b"{}")
                        assert result(await final(broker))["result"] == "done"
                    else:
                        await stack.enter_async_context(killed(worker, broker))
                        post(broker, "u1", "again", client=b"cli")
                        assert (await broker.take_only(Command.RESPONSE)).status == 201
                        await until(lambda: runs)
            assert runs == [0, 1]

    asyncio.run(main())


def test_a_disk_that_cannot_store_refuses_what_must_be_stored_and_runs_the_rest(monkeypatch):
    async def full(_store):
        raise HeadgateError("no space left on device")

    monkeypatch.setattr(RunStore, "durable", full)

    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker)
            ran = []
            worker.task(name="once", idempotent=False)(lambda: ran.append(1))
            async with working(worker, broker):
                post(broker, "u1", "once")
                packet = await broker.take_only(Command.RESPONSE)
                assert packet.status == 500
                assert "no space left" in body(packet)["w1"]["errors"][0]
                post(broker, "u2", "ping")
                result(await final(broker))
                assert ran == []

    asyncio.run(main())


def test_what_ended_is_shown_with_its_events_and_its_failure_in_a_later_life(tmp_path):
    async def ask(broker, uuid, task, /, **kwargs):
        post(broker, uuid, task, client=b"ada#1", **kwargs)
        packet = await broker.take_only(Command.RESPONSE, Command.EVENT)
        while (packet.uuid, packet.status, packet.command) != (uuid, 200, Command.RESPONSE):
            packet = await broker.take_only(Command.RESPONSE, Command.EVENT)
        confirm(broker, uuid, state=bodies.RECORDED)
        return result(packet)["result"]

    async def main():
        with RawBroker(opens=True) as broker:
            for life in range(2):
                worker = made(broker, state_dir=tmp_path)

                @worker.task
                async def copy(job):
                    job.progress("half of it")
                    raise OSError("no room")

                async with working(worker, broker, ready=False):
                    await broker.take_only(Command.READY, Command.DISCONNECT)
                    if life == 0:
                        await ask(broker, "u1", "copy")
                        store = worker._session.store
                        await until(lambda store=store: store.state("u1") == "recorded")
                        assert len(worker._session.jobs) == 0
                    rows = await ask(broker, f"list{life}", "job_list", task="copy")
                    details = await ask(broker, f"details{life}", "job_details", uuid="u1")
                    assert [(row["uuid"], row["status"]) for row in rows] == [("u1", "FAILED")]
                    assert (details["status"], details["client_address"]) == ("FAILED", "ada")
                    assert [event["message"] for event in details["job_events"]] == ["half of it"]
                    assert "no room" in details["result_data"]["w1"]["errors"][0]

    asyncio.run(main())


def test_a_job_that_was_recorded_is_answered_from_the_store_and_what_cannot_be_read_is_not_run_again(
    tmp_path,
):
    runs = []

    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, state_dir=tmp_path)
            worker.task(name="count")(lambda: runs.append(1))
            async with working(worker, broker):
                post(broker, "u1", "count")
                first = await final(broker)
                confirm(broker, "u1", state=bodies.RECORDED)
                await until(lambda: worker._session.store.state("u1") == "recorded")
                post(broker, "u1", "count")
                assert (await final(broker)).data == first.data
                await until(lambda: not worker._session.busy)
                confirm(broker, "u1", state=bodies.RECORDED)
                await until(lambda: len(worker._session.jobs) == 0)

                async def unreadable(_uuids):
                    raise HeadgateError("the disk is gone")

                worker._session.store.whole = unreadable
                post(broker, "u1", "count")
                assert "no result to be read" in result(await final(broker), 500)["errors"][0]
                broker.say(
                    "w1", Command.DELETE, client=b"c#1", uuid="u1", body=b"{}"
                )  # it is over: no answer
                post(broker, "u2", "ping")
                assert (await final(broker)).uuid == "u2"

    asyncio.run(main())
    assert runs == [1]


def test_what_must_not_run_twice_and_was_cancelled_is_not_run_when_it_comes_again(tmp_path):
    runs = []

    async def main():
        with RawBroker(opens=True) as broker:
            for life in range(2):
                worker = made(broker, state_dir=tmp_path)

                @worker.task(idempotent=False)
                async def once():
                    runs.append(1)
                    await asyncio.Event().wait()

                async with working(worker, broker, ready=False):
                    await broker.take_only(Command.READY, Command.DISCONNECT)
                    if life == 0:
                        post(broker, "u1", "once")
                        assert (await broker.take_only(Command.RESPONSE)).status == 201
                        confirm(broker, "u1")
                        await until(lambda: runs)
                        broker.say("w1", Command.DELETE, client=b"c#1", uuid="u1", body=b"{}")
                        assert (await broker.take_only(Command.RESPONSE)).status == 417
                    post(broker, "u1", "once", client=b"c#2")
                    assert "cancelled here before" in result(await final(broker), 417)["errors"][0]

    asyncio.run(main())
    assert runs == [1]
