"""A worker and a broker of ours: OPEN with features, results pushed until they are recorded, few messages."""

import asyncio
import json
import sys
import threading

import pytest

from broker.errors import ConfigError
from broker.nfp import bodies
from broker.nfp.names import Command, Dialect
from broker.nfp.worker import Worker, session
from broker.nfp.worker.store import StoredRun
from tests.tables import for_each
from tests.unit.nfp.peer.raw_broker import PATIENCE_S, RawBroker, until
from tests.unit.nfp.worker.rig import body, confirm, final, made, post, result, working


def run(story, **options):
    """Run ``story(broker, worker)`` with the worker at work."""

    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, **options)
            story.tasks(worker)
            async with working(worker, broker):
                await story(broker, worker)

    asyncio.run(main())


def story(tasks=lambda worker: None):
    """Mark a coroutine function as a story and say which tasks it adds."""

    def mark(function):
        function.tasks = tasks
        return function

    return mark


def test_open_says_what_the_worker_is_and_ready_comes_after_the_answer():
    async def main():
        with RawBroker() as broker:
            worker = made(broker, resources=["r1"], open_timeout_s=PATIENCE_S, jobs_at_a_time=3)
            worker.task(name="once", idempotent=False)(lambda: None)
            async with working(worker, broker, ready=False):
                name, offer = await broker.take_open()
                assert name == "w1"
                assert offer["features"] == ["recorded", "delete", "jobs"]
                assert (offer["credits"], offer["resources"], offer["jobs"]) == (3, ["r1"], {})
                assert offer["tasks"]["once"] == {"idempotent": False}
                assert offer["tasks"]["ping"] == {"idempotent": True}
                assert not worker.connected
                broker.answer_open("w1")
                assert (await broker.take_only(Command.READY)).service == "dummy"
                await until(lambda: worker.connected)
                assert worker.trouble == ""

    asyncio.run(main())


@pytest.mark.parametrize("task", ["ping", "aping"])
def test_a_short_job_costs_one_message(task, monkeypatch):
    monkeypatch.setattr(session, "ACCEPT_AFTER_S", PATIENCE_S)  # on a busy machine, too

    @story()
    async def one(broker, worker):
        post(broker, "u1", task, n=7, client=b"cli#3")
        packet = await broker.take_only(Command.RESPONSE)
        assert (packet.client, packet.uuid) == (b"cli#3", "u1")
        found = result(packet)
        assert found["result"] == {"n": 7}
        assert (found["failed"], found["errors"], found["status"]) == (False, [], "completed")
        assert (found["task"], found["juuid"], found["service"]) == (f"w1:{task}", "u1", "dummy")
        assert found["task_started"]
        assert found["task_completed"]

    run(one)


def test_a_long_job_that_may_be_run_twice_is_accepted_after_a_while():
    go = threading.Event()

    def tasks(worker):
        worker.task(name="long")(lambda: go.wait(PATIENCE_S))

    @story(tasks)
    async def one(broker, worker):
        post(broker, "u1", "long")
        accepted = await broker.take_only(Command.RESPONSE)
        assert accepted.status == 201
        assert body(accepted) == {"worker": "w1", "uuid": "u1", "status": "ACCEPTED", "service": "dummy"}
        go.set()
        assert result(await final(broker))["result"] is True

    run(one)


def test_a_task_that_must_not_be_run_twice_is_accepted_before_it_begins():
    begun = threading.Event()
    go = threading.Event()

    def tasks(worker):
        @worker.task(idempotent=False)
        def once():
            begun.set()
            go.wait(PATIENCE_S)

    @story(tasks)
    async def one(broker, worker):
        post(broker, "u1", "once")
        assert (await broker.take_only(Command.RESPONSE)).status == 201
        confirm(broker, "u1")
        await until(begun.is_set)
        post(broker, "u1", "once", client=b"c#2")  # again: answered, not run
        packet = await broker.take_only(Command.RESPONSE)
        assert (packet.status, packet.client) == (201, b"c#2")
        go.set()
        packet = await broker.take_only(Command.RESPONSE)
        assert packet.client == b"c#2"
        result(packet)

    run(one)


@pytest.mark.parametrize("slots", [1, 2])
def test_so_many_jobs_at_a_time_as_there_are_slots(slots):
    go = asyncio.Event()
    running = []

    def tasks(worker):
        @worker.task
        async def wait(number):
            running.append(number)
            await go.wait()

    @story(tasks)
    async def one(broker, worker):
        for number in range(4):
            post(broker, f"u{number}", "wait", number)
        await until(lambda: len(worker._session.jobs) == 4)
        assert running == list(range(slots))
        go.set()
        done = set()
        while len(done) < 4:
            packet = await broker.take_only(Command.RESPONSE)
            if packet.status == 200:
                done.add(packet.uuid)
        assert running == [0, 1, 2, 3]

    run(one, jobs_at_a_time=slots)


def test_exceptions_and_what_json_cannot_say_are_failed_results():
    def tasks(worker):
        @worker.task
        def boom():
            raise ValueError("the task is broken")

        @worker.task
        def leave():
            raise SystemExit(3)

        worker.task(name="strange")(lambda: object())
        worker.task(name="aleave")(_leaving)

    async def _leaving():
        raise asyncio.CancelledError

    @story(tasks)
    async def one(broker, worker):
        post(broker, "u1", "boom")
        found = result(await final(broker))
        assert (found["failed"], found["status"], found["result"]) == (True, "error", None)
        assert found["errors"][0].startswith("Traceback")
        assert found["errors"][0].rstrip().endswith("ValueError: the task is broken")
        assert "running.py" not in found["errors"][0]
        assert found["messages"] == ["ValueError: the task is broken"]
        for task, text in (
            ("leave", "SystemExit"),
            ("strange", "cannot be written as JSON"),
            ("aleave", "CancelledError"),
            ("nothing", "no task 'nothing', expected one of aleave, aping, boom"),
            ("", "names no task"),
        ):
            post(broker, f"u-{task}", task)
            found = result(await final(broker))
            assert found["failed"]
            assert text in found["errors"][0]
        post(broker, "u9", "ping", 1, 2, 3)
        assert "TypeError" in result(await final(broker))["errors"][0]

    run(one)


def test_results_are_offered_again_until_they_are_recorded():
    @story()
    async def one(broker, worker):
        post(broker, "u1", "ping")
        post(broker, "u2", "ping")
        for _ in range(2):
            result(await final(broker))
        confirm(broker, "u1", state=bodies.RECORDED)
        broker.say("w1", Command.DISCONNECT, service="dummy")
        await broker.take_only(Command.READY)
        assert broker.offers[-1]["jobs"] == {"u2": [1, "done"]}
        packet = await broker.take_only(Command.RESPONSE)
        assert packet.uuid == "u2"
        result(packet)
        post(broker, "u1", "ping", client=b"d#1")  # a broker that lost its store asks anew
        packet = await broker.take_only(Command.RESPONSE)
        assert (packet.uuid, packet.client) == ("u1", b"d#1")

    run(one)


def test_a_running_job_is_listed_in_open_and_its_result_comes_in_the_new_conversation():
    go = threading.Event()

    def tasks(worker):
        worker.task(name="long")(lambda: go.wait(PATIENCE_S))

    @story(tasks)
    async def one(broker, worker):
        post(broker, "u1", "long", client=b"c#4")
        assert (await broker.take_only(Command.RESPONSE)).status == 201
        broker.say("w1", Command.DISCONNECT, service="dummy")
        await broker.take_only(Command.READY)
        assert broker.offers[-1]["jobs"] == {"u1": [4, "running"]}
        go.set()
        packet = await broker.take_only(Command.RESPONSE)
        assert packet.client == b"c#4"
        result(packet)

    run(one)


def test_a_broker_killed_with_jobs_under_way_gets_every_result_when_it_is_back():
    go = threading.Event()

    def tasks(worker):
        worker.task(name="long")(lambda n: go.wait(PATIENCE_S) and n)

    async def main():
        broker = RawBroker(opens=True)
        worker = made(broker, jobs_at_a_time=4)
        tasks(worker)
        async with working(worker, broker):
            for number in range(4):
                post(broker, f"u{number}", "long", number)
            for _ in range(4):
                assert (await broker.take_only(Command.RESPONSE)).status == 201
            broker.close()
            await until(lambda: not worker.connected)
            go.set()
            await until(lambda: worker._session.done == 4)
            with broker.restarted(epoch="e2") as again:
                await again.take_only(Command.READY)
                assert again.offers[-1]["jobs"] == {f"u{number}": [1, "done"] for number in range(4)}
                got = {}
                for _ in range(4):
                    packet = await again.take_only(Command.RESPONSE)
                    got[packet.uuid] = result(packet)["result"]
                assert got == {f"u{number}": number for number in range(4)}

    asyncio.run(main())


def test_delete_ends_a_waiting_an_asynchronous_and_an_ordinary_job():
    go = threading.Event()
    seen = []

    def tasks(worker):
        @worker.task
        async def forever():
            await asyncio.Event().wait()

        @worker.task
        def patient(job):
            go.wait(PATIENCE_S)
            seen.append(job.cancelled)
            job.check()

        @worker.task
        def asking(job):
            job.ask("well?", timeout_s=PATIENCE_S)

    async def deleted(broker, uuid):
        broker.say("w1", Command.DELETE, client=b"c#1", uuid=uuid, body=b"{}")
        packet = await broker.take_only(Command.RESPONSE)
        while packet.status == 201:
            packet = await broker.take_only(Command.RESPONSE)
        assert packet.uuid == uuid
        found = result(packet, 417)
        assert found["failed"]
        assert "cancelled" in found["errors"][0]

    @story(tasks)
    async def one(broker, worker):
        post(broker, "u1", "forever")
        post(broker, "u2", "ping")
        await deleted(broker, "u2")
        await deleted(broker, "u1")
        post(broker, "u3", "patient")
        assert (await broker.take_only(Command.RESPONSE)).status == 201
        broker.say("w1", Command.DELETE, client=b"c#1", uuid="u3", body=b"{}")
        await until(lambda: worker._session.jobs.get("u3").cancelled)
        go.set()
        assert (await broker.take_only(Command.RESPONSE)).status == 417
        assert seen == [True]
        post(broker, "u4", "asking")
        assert (await broker.take(Command.RESPONSE))[1].command is Command.EVENT
        broker.say("w1", Command.DELETE, client=b"c#1", uuid="u4", body=b"{}")
        said = await broker.take_only(Command.EVENT, Command.RESPONSE)
        assert (body(said)["event_type"], body(said)["status"]) == ("input_response", "cancelled")
        assert (await broker.take_only(Command.RESPONSE)).status == 417
        broker.say("w1", Command.DELETE, client=b"c#1", uuid="unknown", body=b"{}")
        packet = await broker.take_only(Command.RESPONSE)
        assert (packet.status, packet.uuid) == (404, "unknown")
        post(broker, "u5", "ping")  # the slot is free
        result(await final(broker))

    run(one, jobs_at_a_time=1)


def test_get_and_management():
    @story()
    async def one(broker, worker):
        broker.say("w1", Command.GET, client=b"c#1", uuid="u0", body=b"{}")
        assert (await broker.take_only(Command.RESPONSE)).status == 404
        post(broker, "u1", "ping")
        first = await final(broker)
        broker.say("w1", Command.GET, client=b"e#1", uuid="u1", body=b"{}")
        again = await broker.take_only(Command.RESPONSE)
        assert (again.status, again.data, again.client) == (200, first.data, b"e#1")
        for task, key in (("show_broker", "keepalive_ms"), ("show_workers", 0), ("show_clients", 0)):
            broker.say("w1", Command.MMI, client=b"o#1", uuid=task, body=json.dumps({"task": task}).encode())
            said = body(await broker.take_only(Command.RESPONSE))
            assert said[key]
        assert said == [{"name": "c", "jobs": 1, "unfinished": 0}]
        broker.say("w1", Command.MMI, client=b"o#1", uuid="x", body=b'{"task":"fly"}')
        assert "no function 'fly'" in body(await broker.take_only(Command.RESPONSE))["error"]

    run(one)


@pytest.mark.parametrize("how", ["restart", "shutdown"])
def test_management_ends_a_worker(how):
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker)
            async with working(worker, broker) as running:
                broker.say(
                    "w1", Command.MMI, client=b"o#1", uuid="x", body=json.dumps({"task": how}).encode()
                )
                assert (await broker.take_only(Command.RESPONSE)).status == 200
                await broker.take_only(Command.DISCONNECT)
                assert await running == how

    asyncio.run(main())


def test_management_disconnects_and_the_worker_comes_back():
    @story()
    async def one(broker, worker):
        broker.say("w1", Command.MMI, client=b"o#1", uuid="x", body=b'{"task":"disconnect"}')
        assert (await broker.take_only(Command.RESPONSE)).status == 200
        await broker.take_only(Command.DISCONNECT)
        await broker.take_only(Command.READY)

    run(one)


def test_keepalives_are_sent_in_silence_and_a_silent_broker_is_left():
    async def main():
        with RawBroker(opens=True) as broker:
            broker.keepalive_ms, broker.multiplier = 20, 500
            worker = made(broker)
            async with working(worker, broker):
                for _ in range(3):
                    await broker.take_only(Command.KEEPALIVE)
                broker.say("w1", Command.KEEPALIVE, service="dummy")
                await until(lambda: worker._session.keepalives_received == 1)
                broker.multiplier = 3
                broker.say("w1", Command.DISCONNECT, service="dummy")
                await broker.take_only(Command.READY, Command.KEEPALIVE)
                await broker.take_only(Command.READY, Command.KEEPALIVE)  # 60 ms of silence later
                broker.multiplier = 500

    asyncio.run(main())


def test_the_one_byte_dialect_is_answered_in_kind():
    @story()
    async def one(broker, worker):
        from broker.nfp.targets import ANY

        broker.say(
            "w1",
            Command.POST,
            dialect=Dialect.SEED,
            service="dummy",
            target=ANY,
            uuid="u1",
            body=b'{"task":"ping"}',
        )
        packet = await broker.take_only(Command.RESPONSE)
        assert (packet.dialect, packet.service, packet.client) == (Dialect.SEED, "dummy", None)
        assert (packet.status, packet.status_text) == (200, "OK")

    run(one)


def test_a_job_whose_time_is_over_is_not_run_and_an_asynchronous_one_is_ended():
    def tasks(worker):
        @worker.task
        async def forever():
            await asyncio.Event().wait()

    @story(tasks)
    async def one(broker, worker):
        post(broker, "u1", "forever", timeout=0.1)
        post(broker, "u2", "ping", timeout=1e-6)
        for uuid in ("u2", "u1"):
            packet = await final(broker)
            assert packet.uuid == uuid
            found = result(packet)
            assert (found["failed"], found["status"]) == (True, "timeout")
            assert "took longer than its" in found["errors"][0]

    run(one)


def test_a_draining_worker_finishes_what_runs_and_then_says_goodbye():
    go = threading.Event()

    def tasks(worker):
        worker.task(name="long")(lambda: go.wait(PATIENCE_S))

    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker)
            tasks(worker)
            async with working(worker, broker) as running:
                post(broker, "u1", "long")
                assert (await broker.take_only(Command.RESPONSE)).status == 201
                worker.stop()
                await until(lambda: worker._session.draining)
                post(broker, "u2", "ping")  # too late: left to another worker
                go.set()
                packet = await broker.take_only(Command.RESPONSE)
                assert packet.uuid == "u1"
                result(packet)
                confirm(broker, "u1", state=bodies.RECORDED)
                goodbye = await broker.take_only(Command.DISCONNECT)
                assert goodbye.service == "dummy"
                assert await running == "shutdown"

    asyncio.run(main())


def test_a_drain_has_an_end_even_when_a_task_has_none():
    go = threading.Event()

    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, drain_s=0.1)
            worker.task(name="long")(lambda: go.wait(PATIENCE_S))
            async with working(worker, broker) as running:
                post(broker, "u1", "long")
                assert (await broker.take_only(Command.RESPONSE)).status == 201
                worker.stop()
                await broker.take_only(Command.DISCONNECT)
                assert await running == "shutdown"

    try:
        asyncio.run(main())
    finally:
        go.set()


def test_main_starts_anew_until_it_is_told_to_end(monkeypatch):
    lives = iter(["restart", "restart", "shutdown"])
    worker = Worker("dummy", name="w1")

    async def serve():
        return next(lives)

    monkeypatch.setattr(worker, "serve", serve)
    assert worker.main() == 0
    assert list(lives) == []


@for_each("name", ("stdout", "stderr"))
def test_main_leaves_its_callers_streams_as_they_are(monkeypatch, tmp_path, name):
    worker = Worker("dummy", name="w1")

    async def serve():
        seen.append(getattr(sys, name))
        return "shutdown"

    monkeypatch.setattr(worker, "serve", serve)
    with open(tmp_path / name, "w") as own:
        monkeypatch.setattr(sys, f"__{name}__", own)
        monkeypatch.setattr(sys, name, own)
        seen = []
        worker.main()
        assert [*seen, getattr(sys, name)] == [own, own]


def test_what_a_worker_says_of_itself_before_it_runs():
    worker = Worker("dummy", jobs_at_a_time=65)
    assert worker.name.startswith("dummy-")
    assert (worker.connected, worker.trouble) == (False, "not running")
    worker.stop()
    with pytest.raises(ConfigError, match="65 jobs at a time"):
        asyncio.run(worker.run())
    with pytest.raises(RuntimeError, match="does not run"):
        asyncio.run(worker.client())


def test_a_result_that_finds_the_outbox_full_behind_another_one_is_sent_too():
    @story()
    async def one(broker, worker):
        way = worker._session.channel
        send, full, room = way.send, [True], asyncio.Event()
        way.send = lambda packet: not (full[0] and packet.command is Command.RESPONSE) and send(packet)
        way.writable = room.wait
        for number, uuid in enumerate(("u1", "u2"), 1):  # the second ends while the first waits for room
            post(broker, uuid, "aping")
            await until(lambda number=number: len(worker._session.unrecorded) == number)
        full[0] = False
        room.set()
        assert [(await broker.take_only(Command.RESPONSE)).uuid for _ in range(2)] == ["u1", "u2"]

    run(one)


def test_a_known_job_that_is_deleted_while_its_result_is_looked_up_ends_once(tmp_path):
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, state_dir=tmp_path)
            async with working(worker, broker):
                jobs = worker._session
                looked, found = asyncio.Event(), asyncio.Event()

                async def find(uuid):
                    looked.set()
                    await found.wait()
                    return StoredRun(uuid, b"c#1", "dummy", "ping", b"{}", True, "done", 200, b'{"w1":{}}')

                jobs.store.state = lambda uuid: "done"
                jobs.store.find = find
                post(broker, "u1", "ping")
                await asyncio.wait_for(looked.wait(), PATIENCE_S)
                broker.say("w1", Command.DELETE, client=b"c#1", uuid="u1", body=b"{}")
                assert (await broker.take_only(Command.RESPONSE)).status == 417
                found.set()
                await until(lambda: not jobs.busy)
                assert jobs.open == 0

    asyncio.run(main())
