"""When a task may be entered: what an earlier life left, what must not be run twice, what waits for a slot."""

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import threading

import pytest

from broker.errors import HeadgateError
from broker.nfp import bodies
from broker.nfp.frames import Packet
from broker.nfp.names import Command, Dialect, Sender
from tests.unit.nfp.peer.raw_broker import PATIENCE_S, RawBroker, until
from tests.unit.nfp.worker.rig import body, confirm, final, made, post, result, working
from tests.unit.nfp.worker.test_lives import killed


def delete(broker, uuid, said=b"{}", client=b"c#1"):
    broker.say("w1", Command.DELETE, client=client, uuid=uuid, body=said)


async def settled(broker, worker):
    """Everything that was said to the worker before is done: it answers what was asked last."""
    broker.say("w1", Command.GET, client=b"c#1", uuid="nobody", body=b"{}")
    packet = await broker.take_only(Command.RESPONSE, Command.KEEPALIVE)
    assert (packet.uuid, packet.status) == ("nobody", 404)
    await asyncio.sleep(0)
    assert worker._session.open >= 0


def counted(worker, runs, *, idempotent=True):
    @worker.task(idempotent=idempotent)
    async def count():
        runs.append(1)
        return len(runs)

    @worker.task(idempotent=idempotent)
    async def forever():
        runs.append(1)
        await asyncio.Event().wait()


async def left_over(broker, tmp_path, runs):
    """A life that ended before its job was confirmed, and the worker of the next one."""
    worker = made(broker, state_dir=tmp_path)
    counted(worker, runs, idempotent=False)
    async with killed(worker, broker):
        post(broker, "u1", "count")
        assert (await broker.take_only(Command.RESPONSE)).status == 201
    assert runs == []
    worker = made(broker, state_dir=tmp_path)
    counted(worker, runs, idempotent=False)
    return worker


@pytest.mark.parametrize("word", ["confirmed", "given anew", "deleted", "none"])
def test_what_an_earlier_life_left_waits_for_the_brokers_word(tmp_path, word):
    async def main():
        runs = []
        with RawBroker(opens=True) as broker:
            worker = await left_over(broker, tmp_path, runs)
            async with working(worker, broker, ready=False):
                await broker.take_only(Command.READY, Command.DISCONNECT)
                assert broker.offers[-1]["jobs"] == {"u1": [1, "waiting"]}
                await settled(broker, worker)
                assert runs == []
                if word == "given anew":
                    post(broker, "u1", "count", client=b"c#2")
                    packet = await broker.take_only(Command.RESPONSE)
                    assert (packet.status, packet.client) == (201, b"c#2")
                if word == "deleted":
                    delete(broker, "u1")
                    assert (await broker.take_only(Command.RESPONSE)).status == 417
                elif word != "none":
                    confirm(broker, "u1")
                    packet = await broker.take_only(Command.RESPONSE)
                    assert result(packet)["result"] == 1
                await settled(broker, worker)
                assert len(runs) == (word in ("confirmed", "given anew"))

    asyncio.run(main())


def test_what_had_begun_and_may_be_run_twice_is_the_brokers_again(tmp_path):
    async def main():
        runs = []
        with RawBroker(opens=True) as broker:
            worker = made(broker, state_dir=tmp_path)
            counted(worker, runs)
            async with killed(worker, broker):
                post(broker, "u1", "forever")
                assert (await broker.take_only(Command.RESPONSE)).status == 201
                await until(lambda: worker._session.store.state("u1") == "started")
            worker = made(broker, state_dir=tmp_path)
            counted(worker, runs)
            async with working(worker, broker, ready=False):
                await broker.take_only(Command.READY, Command.DISCONNECT)
                assert broker.offers[-1]["jobs"] == {}
                assert worker._session.store.state("u1") == ""
                await settled(broker, worker)
                assert runs == [1]

    asyncio.run(main())


def test_what_nobody_confirms_ends_at_its_deadline(tmp_path):
    async def main():
        runs = []
        with RawBroker(opens=True) as broker:
            worker = await left_over(broker, tmp_path, runs)
            async with working(worker, broker, ready=False):
                await broker.take_only(Command.READY, Command.DISCONNECT)
                worker._session.jobs["u1"].timer._run()  # its time is over
                packet = await broker.take_only(Command.RESPONSE)
                assert "no broker said" in result(packet, 408)["errors"][0]
                assert (runs, worker._session.open) == ([], 0)

    asyncio.run(main())


def test_what_deployed_norfab_gave_goes_on_by_itself_and_what_we_gave_does_not(tmp_path):
    async def main():
        runs = []
        with RawBroker(opens=True) as broker:
            worker = await left_over(broker, tmp_path, runs)
            broker.opens = False
            worker.open_timeout_s = 0.05
            async with working(worker, broker):
                await asyncio.sleep(0.05)
                assert runs == []
        with RawBroker() as broker:
            worker = made(broker, state_dir=tmp_path / "2")
            counted(worker, runs)
            async with killed(worker, broker):
                post(broker, "u1", "forever", client=b"c")
                await broker.take_only(Command.RESPONSE, Command.KEEPALIVE)
                await until(lambda: runs)
            runs.clear()
            worker = made(broker, state_dir=tmp_path / "2")
            counted(worker, runs)
            async with working(worker, broker, ready=False):
                await until(lambda: runs)

    asyncio.run(main())


def test_what_waits_for_a_slot_when_the_connection_is_lost_is_held_back_too():
    async def main():
        runs = []
        go = asyncio.Event()
        with RawBroker(opens=True) as broker:
            worker = made(broker, jobs_at_a_time=1)
            counted(worker, runs)

            @worker.task
            async def wait():
                await go.wait()

            async with working(worker, broker):
                post(broker, "u1", "wait")
                post(broker, "u2", "count")
                assert (await broker.take_only(Command.RESPONSE)).uuid == "u1"
                await until(lambda: worker._session._waiting)
                broker.say("w1", Command.DISCONNECT, service="dummy")
                await broker.take_only(Command.READY)
                assert broker.offers[-1]["jobs"] == {"u1": [1, "running"], "u2": [1, "waiting"]}
                go.set()
                assert (await final(broker)).uuid == "u1"
                await settled(broker, worker)
                assert runs == []
                confirm(broker, "u2")
                assert (await final(broker)).uuid == "u2"
                assert runs == [1]

    asyncio.run(main())


# -- what must not be run twice -------------------------------------------------------------------


def test_what_must_not_be_run_twice_begins_when_it_is_confirmed_and_on_disk(tmp_path):
    async def main():
        seen = []
        with RawBroker(opens=True) as broker:
            worker = made(broker, state_dir=tmp_path)

            @worker.task(idempotent=False)
            def once():
                with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
                    seen.extend(connection.execute("SELECT kind FROM events WHERE uuid IS NULL").fetchall())

            async with working(worker, broker):
                (file,) = tmp_path.rglob("*.db")
                post(broker, "u1", "once")
                assert (await broker.take_only(Command.RESPONSE)).status == 201
                await settled(broker, worker)
                assert seen == []
                confirm(broker, "u1")
                assert result(await final(broker))["failed"] is False
                assert seen == [("started",)]

    asyncio.run(main())


@pytest.mark.parametrize("word", ["deleted", "lost and confirmed"])
def test_what_must_not_be_run_twice_and_waits_for_the_word(word):
    async def main():
        runs = []
        with RawBroker(opens=True) as broker:
            worker = made(broker)
            counted(worker, runs, idempotent=False)
            async with working(worker, broker):
                post(broker, "u1", "count")
                assert (await broker.take_only(Command.RESPONSE)).status == 201
                if word == "deleted":
                    delete(broker, "u1")
                    assert (await broker.take_only(Command.RESPONSE)).status == 417
                else:
                    broker.say("w1", Command.DISCONNECT, service="dummy")
                    await broker.take_only(Command.READY)
                    assert broker.offers[-1]["jobs"] == {"u1": [1, "waiting"]}
                    confirm(broker, "u1")
                    assert (await final(broker)).uuid == "u1"
                assert len(runs) == (word != "deleted")
                assert worker._session.open == 0

    asyncio.run(main())


SUICIDE = """
import asyncio, os, sys
from broker.nfp.worker import Worker

worker = Worker("dummy", name="w1", broker=sys.argv[1], state_dir=sys.argv[2], files=False)

@worker.task(idempotent=False)
def die():
    with open(os.path.join(sys.argv[2], "runs"), "a") as file:
        file.write("run\\n")
    os._exit(9)

worker.main()
"""


def test_a_task_that_kills_its_process_at_once_is_entered_once(tmp_path):
    async def main():
        with RawBroker(opens=True) as broker:
            argv = [sys.executable, "-c", SUICIDE, broker.endpoint, str(tmp_path)]
            process = subprocess.Popen(argv)  # noqa: ASYNC220 - it takes a moment
            try:
                await broker.take_only(Command.READY, Command.DISCONNECT)
                post(broker, "u1", "die")
                assert (await broker.take_only(Command.RESPONSE)).status == 201
                confirm(broker, "u1")
                assert await asyncio.to_thread(process.wait, PATIENCE_S) == 9
            finally:
                process.kill()
                process.wait()
            runs = []
            for _life in range(2):
                worker = made(broker, state_dir=tmp_path)
                worker.task(name="die", idempotent=False)(lambda: runs.append(1))
                async with working(worker, broker, ready=False):
                    # the life before may have sent its result again
                    await broker.take_only(Command.READY, Command.DISCONNECT, Command.RESPONSE)
                    confirm(broker, "u1")
                    packet = await broker.take_only(Command.RESPONSE)
                    assert "must not be run twice" in result(packet)["errors"][0]
            assert runs == []
            assert (tmp_path / "runs").read_text() == "run\n"

    asyncio.run(main())


# -- 201, and what waits for a slot ---------------------------------------------------------------


def test_201_means_that_a_job_runs_and_what_does_not_is_given_back():
    async def main():
        runs = []
        go = threading.Event()
        with RawBroker(opens=True) as broker:
            worker = made(broker, jobs_at_a_time=1)
            counted(worker, runs)

            @worker.task
            def hang():
                go.wait(PATIENCE_S)

            async with working(worker, broker):
                post(broker, "u1", "hang")
                post(broker, "u2", "count")
                packet = await broker.take_only(Command.RESPONSE)
                assert (packet.uuid, packet.status) == ("u1", 201)
                delete(broker, "u1", bodies.UNBEGUN)
                packet = await broker.take_only(Command.RESPONSE)
                assert (packet.uuid, packet.status, body(packet)["status"]) == ("u1", 201, "ACCEPTED")
                delete(broker, "u2", bodies.UNBEGUN)
                packet = await broker.take_only(Command.RESPONSE)
                assert (packet.uuid, packet.status) == ("u2", 404)
                assert worker._session.open == 1
                go.set()
                assert (await final(broker)).uuid == "u1"
                await settled(broker, worker)
                assert runs == []

    asyncio.run(main())


@pytest.mark.parametrize("recorded", [False, True])
def test_what_was_stopped_for_somebody_else_runs_when_it_is_given_again(tmp_path, recorded):
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, state_dir=tmp_path)
            inside = asyncio.Event()

            @worker.task
            async def wait(last=False):
                inside.set()
                await asyncio.sleep(0 if last else PATIENCE_S)
                return "ran"

            async with working(worker, broker):
                post(broker, "u1", "wait")
                await inside.wait()
                delete(broker, "u1")
                assert (await final(broker)).status == 417
                if recorded:
                    confirm(broker, "u1", state=bodies.RECORDED)
                post(broker, "u1", "wait", client=b"c#3", last=True)
                assert (await final(broker)).status == 200

    asyncio.run(main())


def test_what_must_not_be_run_twice_and_was_taken_back_before_it_began_runs_when_it_is_given_again(tmp_path):
    runs = []

    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, state_dir=tmp_path)
            counted(worker, runs, idempotent=False)
            async with working(worker, broker):
                post(broker, "u1", "count")
                assert (await broker.take_only(Command.RESPONSE)).status == 201
                delete(broker, "u1")
                assert (await broker.take_only(Command.RESPONSE)).status == 417
                assert runs == []
                post(broker, "u1", "count", client=b"c#2")
                assert (await broker.take_only(Command.RESPONSE)).status == 201
                confirm(broker, "u1")
                assert result(await final(broker))["result"] == 1

    asyncio.run(main())


@pytest.mark.parametrize("wanted", [True, False])
def test_what_was_stopped_and_still_runs_is_run_again_when_it_has_ended(wanted):
    async def main():
        runs, go = [], threading.Event()
        with RawBroker(opens=True) as broker:
            worker = made(broker, jobs_at_a_time=1)

            @worker.task
            def hang():
                runs.append(1)
                go.wait(PATIENCE_S)
                return "ran"

            async with working(worker, broker):
                post(broker, "u1", "hang")
                assert (await broker.take_only(Command.RESPONSE)).status == 201
                delete(broker, "u1")
                post(broker, "u1", "hang", client=b"c#3")
                if not wanted:
                    delete(broker, "u1", client=b"c#3")
                    packet = await broker.take_only(Command.RESPONSE)
                    assert (packet.status, packet.client) == (404, b"c#3")
                await settled(broker, worker)
                go.set()
                packet = await final(broker)
                assert (packet.status, packet.client) == (417, b"c#1")
                if wanted:
                    packet = await final(broker)
                    assert (packet.status, packet.client) == (200, b"c#3")
                await settled(broker, worker)
                assert len(runs) == 1 + wanted
                assert worker._session.open == 0

    asyncio.run(main())


class Broken(HeadgateError):
    pass


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_store_that_breaks_while_a_job_waits_costs_one_answer(tmp_path, idempotent, monkeypatch):
    """A job that must not be run twice is refused once and not run; another one is run all the same."""

    async def main():
        runs = []
        go = asyncio.Event()
        with RawBroker(opens=True) as broker:
            worker = made(broker, state_dir=tmp_path, jobs_at_a_time=1)
            counted(worker, runs, idempotent=idempotent)

            @worker.task
            async def wait():
                await go.wait()

            async with working(worker, broker):
                post(broker, "u1", "wait")
                post(broker, "u2", "count")
                assert (await broker.take_only(Command.RESPONSE)).uuid == "u1"

                async def durable():
                    raise Broken("the disk is full")

                monkeypatch.setattr(worker._session.store, "durable", durable)
                go.set()
                assert (await final(broker)).uuid == "u1"
                packet = await final(broker)
                assert packet.uuid == "u2"
                if idempotent:
                    assert result(packet)["result"] == 1
                else:
                    assert "cannot store the job" in json.dumps(result(packet, 500)["errors"])
                await settled(broker, worker)
                assert len(runs) == idempotent
                assert worker._session.open == 0

    asyncio.run(main())


@pytest.mark.parametrize("word", ["confirmed", "deleted", "nothing"])
def test_a_connection_that_is_lost_while_the_disk_writes_takes_the_brokers_word_with_it(tmp_path, word):
    runs = []

    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, state_dir=tmp_path)
            counted(worker, runs, idempotent=False)
            async with working(worker, broker):
                store = worker._session.store
                durable, asked, written = store.durable, asyncio.Event(), asyncio.Event()
                post(broker, "u1", "count")
                assert (await broker.take_only(Command.RESPONSE)).status == 201

                async def slow():
                    asked.set()
                    await written.wait()
                    await durable()

                store.durable = slow
                confirm(broker, "u1")
                await asyncio.wait_for(asked.wait(), PATIENCE_S)
                broker.say("w1", Command.DISCONNECT, service="dummy", body=b"")
                await broker.take_only(Command.READY)
                assert broker.offers[-1]["jobs"] == {"u1": [1, "waiting"]}
                written.set()
                await settled(broker, worker)
                assert runs == []
                if word == "confirmed":
                    confirm(broker, "u1")
                    assert result(await final(broker))["result"] == 1
                elif word == "deleted":
                    delete(broker, "u1")
                    assert (await broker.take_only(Command.RESPONSE)).status == 417

    asyncio.run(main())
    assert runs == ([1] if word == "confirmed" else [])


def test_an_ordinary_task_that_is_cancelled_while_its_files_come_is_not_entered():
    runs = []

    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker)
            worker.task(name="read")(runs.append)
            async with working(worker, broker):
                jobs, asked, come = worker._session, asyncio.Event(), asyncio.Event()

                async def slow(_task, args, kwargs):
                    asked.set()
                    await come.wait()
                    return args, kwargs

                jobs.localise = slow
                post(broker, "u1", "read", "x")
                await asyncio.wait_for(asked.wait(), PATIENCE_S)
                delete(broker, "u1")
                await until(lambda: all(job.cancelled for job in worker._session.jobs.values()))
                come.set()
                packet = await final(broker)
                assert (packet.uuid, packet.status) == ("u1", 417)

    asyncio.run(main())
    assert runs == []


@pytest.mark.parametrize("turns", range(8))
def test_a_job_that_is_deleted_at_any_moment_leaves_its_slot_and_the_store(tmp_path, turns):
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, state_dir=tmp_path)
            counted(worker, [])
            async with working(worker, broker):
                jobs = worker._session
                jobs.accept_after_s = 0.0
                about = {"dialect": Dialect.NORFAB, "uuid": "u1", "client": b"c#1"}
                jobs.on_packet(Packet(Sender.BROKER, Command.POST, body=b'{"task": "forever"}', **about))
                for _ in range(turns):
                    await asyncio.sleep(0)
                jobs.on_packet(Packet(Sender.BROKER, Command.DELETE, body=b"{}", **about))
                async with asyncio.timeout(PATIENCE_S):
                    while jobs.running or jobs.busy:
                        await asyncio.sleep(0.01)
                return jobs.store.state("u1")

    assert asyncio.run(main()) in ("", "cancelled")
