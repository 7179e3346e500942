"""A worker and a broker like deployed NorFab's: no OPEN, 201, events, and results when they are asked for."""

import asyncio
import threading

from broker.nfp.names import Command
from tests.unit.nfp.peer.raw_broker import PATIENCE_S, RawBroker, until
from tests.unit.nfp.worker.rig import body, final, made, post, result, working


def run(story, **options):
    async def main():
        with RawBroker() as broker:
            worker = made(broker, **options)
            async with working(worker, broker):
                await story(broker, worker)

    asyncio.run(main())


def get(broker, uuid, client=b"cli-1"):
    broker.say("w1", Command.GET, client=client, uuid=uuid, body=b"{}")


async def accepted_and_started(broker):
    accepted = await broker.take_only(Command.RESPONSE)
    assert accepted.status == 201
    starting = body(await broker.take_only(Command.EVENT))
    assert (starting["event_type"], starting["message"], starting["status"]) == (
        "progress",
        "starting",
        "running",
    )
    return accepted, starting


def test_the_messages_of_one_job():
    async def story(broker, worker):
        post(broker, "u1", "ping", n=2, client=b"cli-1")
        accepted, starting = await accepted_and_started(broker)
        assert body(accepted)["status"] == "ACCEPTED"
        assert starting["timestamp"][2] == starting["timestamp"][6] == "-"
        ready = await broker.take_only(Command.EVENT)
        assert (ready.client, ready.uuid) == (b"cli-1", "u1")
        assert body(ready)["event_type"] == "result_ready"
        assert list(body(ready)) == [
            "worker",
            "service",
            "uuid",
            "event_type",
            "message",
            "task",
            "status",
            "resource",
            "severity",
            "timestamp",
        ]
        get(broker, "u1")
        found = result(await final(broker))
        assert found["result"] == {"n": 2}
        assert list(found) == [
            "result",
            "failed",
            "errors",
            "task",
            "messages",
            "juuid",
            "resources",
            "resources_failed",
            "status",
            "task_started",
            "task_completed",
            "service",
            "diff",
            "dry_run",
        ]
        get(broker, "unknown")
        packet = await broker.take_only(Command.RESPONSE)
        assert (packet.status, body(packet)["status"]) == (404, "JOB NOT FOUND")

    run(story)


def test_progress_questions_inputs_and_streams_of_an_ordinary_task():
    async def story(broker, worker):
        @worker.task
        def talk(job):
            job.progress("half", resource="r1", severity="WARNING", percent=50)
            answer = job.ask("who?", default="nobody", timeout_s=PATIENCE_S, kind="name")
            job.stream(b"\0\1")
            offset = job.next_offset(PATIENCE_S)
            job.stream(b"at %d" % offset)
            job.resources.append("r1")
            job.resources_failed.append("r2")
            job.messages.append("a message")
            job.diff = {"a": 1}
            job.fail("one thing failed")
            return [answer, job.received(PATIENCE_S), job.next_offset(0.01)]

        worker._session.tasks["talk"] = worker.tasks["talk"]
        post(broker, "u1", "talk", client=b"cli-1")
        await accepted_and_started(broker)
        half = body(await broker.take_only(Command.EVENT))
        assert (half["message"], half["resource"], half["severity"]) == ("half", ["r1"], "WARNING")
        assert half["extras"] == {"percent": 50}
        question = body(await broker.take_only(Command.EVENT))
        asked = question["extras"]["input_request"]
        assert (question["event_type"], question["status"]) == ("input_request", "waiting_client_input")
        assert (asked["question"], asked["default"], asked["metadata"]) == (
            "who?",
            "nobody",
            {"kind": "name"},
        )
        assert question["timeout"] == asked["timeout"] == PATIENCE_S
        get(broker, "u1")
        waiting = await broker.take_only(Command.RESPONSE)
        assert waiting.status == 102
        assert body(waiting)["input_request"] == asked
        put = b'{"input_id":"%s","value":"me","metadata":{}}'
        broker.say("w1", Command.PUT, client=b"cli-1", uuid="u1", body=put % b"another")
        broker.say("w1", Command.PUT, client=b"cli-1", uuid="u1", body=put % asked["id"].encode())
        response = body(await broker.take_only(Command.EVENT))
        assert (response["event_type"], response["status"]) == ("input_response", "received")
        assert (await broker.take_only(Command.STREAM)).data == b"\0\1"
        broker.say("w1", Command.PUT, client=b"cli-1", uuid="u1", body=b'{"offset":42}')
        assert (await broker.take_only(Command.STREAM)).data == b"at 42"
        broker.say("w1", Command.PUT, client=b"cli-1", uuid="u1", body=b"not JSON")
        assert body(await broker.take_only(Command.EVENT))["event_type"] == "result_ready"
        get(broker, "u1")
        found = result(await final(broker))
        assert found["result"][0] == "me"
        assert found["result"][2] is None
        assert (found["resources"], found["resources_failed"]) == (["r1"], ["r2"])
        assert (found["messages"], found["diff"]) == (["a message"], {"a": 1})
        assert (found["failed"], found["errors"], found["status"]) == (True, ["one thing failed"], "failed")

    run(story)


def test_questions_of_an_asynchronous_task_answered_refused_and_left_alone():
    async def story(broker, worker):
        @worker.task
        async def talk(job, timeout):
            return await job.ask("who?", timeout_s=timeout)

        worker._session.tasks["talk"] = worker.tasks["talk"]
        for uuid, said, timeout, status in (
            ("u1", {"value": 5}, PATIENCE_S, "received"),
            ("u2", {"cancel": True}, PATIENCE_S, "cancelled"),
            ("u3", None, 0.05, "timeout"),
        ):
            post(broker, uuid, "talk", timeout, client=b"cli-1")
            await accepted_and_started(broker)
            asked = body(await broker.take_only(Command.EVENT))["extras"]["input_request"]
            if said is not None:
                import json

                put = json.dumps({"input_id": asked["id"], **said}).encode()
                broker.say("w1", Command.PUT, client=b"cli-1", uuid=uuid, body=put)
            response = body(await broker.take_only(Command.EVENT))
            assert (response["event_type"], response["status"]) == ("input_response", status)
            assert body(await broker.take_only(Command.EVENT))["event_type"] == "result_ready"
            get(broker, uuid)
            found = result(await final(broker))
            if status == "received":
                assert found["result"] == 5
            else:
                assert found["failed"]
                assert "who?" in found["errors"][0]

    run(story)


def test_a_running_job_is_pending_and_a_result_not_fetched_is_announced_again():
    go = threading.Event()

    async def story(broker, worker):
        worker.task(name="long")(lambda: go.wait(PATIENCE_S))
        worker._session.tasks["long"] = worker.tasks["long"]
        post(broker, "u1", "long", client=b"cli-1")
        post(broker, "u2", "ping", client=b"cli-1")
        assert (await broker.take_only(Command.RESPONSE, Command.EVENT)).status == 201
        assert (await broker.take_only(Command.RESPONSE, Command.EVENT)).status == 201
        for uuid, state in (("u1", "STARTED"), ("u2", "PENDING")):
            get(broker, uuid)
            packet = await broker.take_only(Command.RESPONSE, Command.EVENT)
            assert (packet.status, body(packet)["status"]) == (300, state)
        go.set()
        await until(lambda: worker._session.done == 2)
        get(broker, "u1")
        result(await broker.take_only(Command.RESPONSE, Command.EVENT))
        broker.sock.send_multipart([b"w1", b"", b"NFPB01", b"dummy", b"0x03"])  # as NorFab spells DISCONNECT
        await broker.take_only(Command.READY, Command.EVENT)
        again = await broker.take_only(Command.EVENT)
        assert (again.uuid, body(again)["event_type"]) == ("u2", "result_ready")

    run(story, jobs_at_a_time=1)


def test_an_open_question_is_asked_again_in_a_new_conversation():
    async def story(broker, worker):
        @worker.task
        async def talk(job):
            return await job.ask("who?", timeout_s=PATIENCE_S)

        worker._session.tasks["talk"] = worker.tasks["talk"]
        post(broker, "u1", "talk", client=b"cli-1")
        await accepted_and_started(broker)
        first = body(await broker.take_only(Command.EVENT))
        broker.say("w1", Command.DISCONNECT, service="dummy")
        await broker.take_only(Command.READY)
        again = body(await broker.take_only(Command.EVENT))
        assert again["extras"] == first["extras"]

    run(story)


def test_a_leaving_worker_lets_its_last_results_be_fetched():
    async def main():
        with RawBroker() as broker:
            worker = made(broker)
            async with working(worker, broker) as running:
                post(broker, "u1", "ping", client=b"cli-1")
                await accepted_and_started(broker)
                ready = await broker.take_only(Command.EVENT)
                assert body(ready)["event_type"] == "result_ready"
                worker.stop()
                await until(lambda: worker._session.draining)
                get(broker, "u1")
                result(await final(broker))
                goodbye = await broker.take_only(Command.DISCONNECT)
                assert goodbye.body is None
                assert await running == "shutdown"

    asyncio.run(main())


def test_built_in_tasks():
    async def story(broker, worker):
        numbers = iter(range(100))

        async def ask(task, /, *args, **kwargs):
            uuid = f"b{next(numbers)}"
            post(broker, uuid, task, *args, client=b"cli-1", **kwargs)
            await until(lambda: (job := worker._session.jobs.get(uuid)) and job.ended)
            get(broker, uuid)
            packet = await broker.take_only(Command.RESPONSE, Command.EVENT)
            while packet.status == 201:
                packet = await broker.take_only(Command.RESPONSE, Command.EVENT)
            return result(packet)

        assert (await ask("list_tasks", brief=True))["result"] == [
            "aping",
            "delete_fetched_files",
            "echo",
            "get_inventory",
            "get_logs",
            "get_stats",
            "get_version",
            "get_watchdog_configuration",
            "get_worker_status",
            "jinja2_render_templates",
            "job_details",
            "job_list",
            "list_tasks",
            "ping",
        ]
        [schema] = (await ask("list_tasks", name="ping"))["result"]
        assert schema["inputSchema"] == {
            "type": "object",
            "properties": {"n": {"title": "n", "default": 1}},
        }
        assert (await ask("list_tasks", name="absent"))["failed"]
        said = (await ask("echo", x=1))["result"]
        assert (said["kwargs"], said["client_address"], said["task"]) == ({"x": 1}, "cli-1", "echo")
        assert "no way" in (await ask("echo", raise_error="no way"))["errors"][0]
        assert (await ask("get_inventory"))["result"] == {}
        assert (await ask("get_worker_status"))["result"]["name"] == "w1"
        stats = (await ask("get_stats"))["result"]
        assert stats["process"]["memory_rss_mbyte"] > 1
        assert stats["running_jobs"] == 1
        assert stats["jobs"]["jobs_by_status"]["FAILED"] == 2
        assert set((await ask("get_version"))["result"]) >= {"python", "platform", "headgate"}
        jobs = (await ask("job_list", task="echo"))["result"]
        assert [job["status"] for job in jobs] == ["FAILED", "COMPLETED"]
        details = (await ask("job_details", uuid=jobs[1]["uuid"]))["result"]
        assert details["kwargs"] == {"x": 1}
        assert details["result_data"]["w1"]["result"]["kwargs"] == {"x": 1}
        assert (await ask("job_details", uuid="absent"))["failed"]
        assert (await ask("run_shell_cmd", command="true"))["failed"]

    run(story)
