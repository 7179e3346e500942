"""Jobs of a client, at a broker that pushes results and at one that has to be asked."""

import asyncio

import pytest

from broker.errors import ConfigError, HeadgateError, LinkClosed
from broker.nfp.client import JobCancelled, JobFailed, JobTimeout, Limits, NfpClient, TaskFailed
from broker.nfp.names import Command
from tests.tables import for_each
from tests.unit.nfp.client.fake_broker import FakeBroker
from tests.unit.nfp.client.running import SOON, WITHIN_S, run


def test_run_returns_every_workers_result(broker):
    results = run(lambda c: c.run("dummy", "ping", kwargs={"n": 3}), broker)
    assert {worker: result["result"] for worker, result in results.items()} == {"w1": 3, "w2": 3}


def test_a_timeout_that_no_broker_could_be_told_is_refused(ours):
    async def work(client):
        for odd in (float("nan"), float("inf")):
            with pytest.raises(ValueError, match="finite"):
                await client.submit("dummy", "ping", timeout_s=odd)
            with pytest.raises(ValueError, match="finite"):
                await client.attach("1", service="dummy", timeout_s=odd)

    run(work, ours)


def test_run_with_any_one_and_several_names(broker):
    async def work(client):
        return [
            set(await client.run("dummy", "ping", target=target))
            for target in ("any", "w2", ["w2", "w1"], "w1,w2")
        ]

    assert run(work, broker) == [{"w1"}, {"w2"}, {"w1", "w2"}, {"w1", "w2"}]


def test_a_pushing_broker_is_never_asked_for_results(ours):
    run(lambda c: c.run("dummy", "ping"), ours)
    assert [seen[0] for seen in ours.seen] == ["OPEN", "POST"]


def test_the_body_of_a_post(ours):
    run(lambda c: c.run("dummy", "ping", args=[1], kwargs={"n": 2}, timeout_s=9), ours)
    assert ours.seen[1][3] == b'{"task":"ping","kwargs":{"n":2},"args":[1],"timeout":9}'


def test_many_jobs_at_once(broker):
    async def work(client):
        jobs = [await client.submit("dummy", "ping", kwargs={"n": n}) for n in range(100)]
        return [(await job)["w1"]["result"] for job in jobs]

    assert run(work, broker, limits=Limits(at_broker_msgs=20)) == list(range(100))


def test_no_more_jobs_are_given_to_the_broker_than_it_takes(ours):
    async def work(client):
        jobs = [await client.submit("dummy", "never", target="any") for _ in range(30)]
        await asyncio.to_thread(ours.wait_for, lambda b: len(b.jobs) == 10)
        first = next(iter(ours.jobs))
        ours.do(lambda: ours.finish(first, "w1", 1))
        await asyncio.to_thread(ours.wait_for, lambda b: len(b.jobs) == 11)
        return sum(job.done for job in jobs)

    assert run(work, ours, limits=Limits(at_broker_msgs=10)) == 1


def test_too_many_unfinished_jobs_are_refused(ours):
    async def work(client):
        await client.submit("dummy", "never")
        await client.submit("dummy", "never")

    with pytest.raises(HeadgateError, match="unfinished"):
        run(work, ours, limits=Limits(jobs=1))


def test_a_failed_task_is_a_result_unless_checked(broker):
    results = run(lambda c: c.run("dummy", "fail", target="w1"), broker)
    assert results["w1"]["failed"]
    with pytest.raises(TaskFailed, match=r"w1: ValueError: no \(and 1 more\)") as caught:
        run(lambda c: c.run("dummy", "fail", check=True), broker)
    assert set(caught.value.failed) == {"w1", "w2"}
    assert caught.value.results["w1"]["failed"]


def test_events_of_a_job(broker):
    async def work(client):
        job = await client.submit("dummy", "ping", target="any")
        await job
        return [event async for event in job.events()]

    events = run(work, broker)
    told = [(one.kind, one.worker, one.message) for one in events if one.kind != "result_ready"]
    late = [("dispatched", "", "w1"), ("accepted", "w1", "")]
    assert sorted(told[:2]) == sorted(late)
    assert told[2:] == [("progress", "w1", "starting"), ("finished", "w1", "")]


def test_events_are_bounded_and_what_is_lost_is_counted(ours):
    async def work(client):
        job = await client.submit("dummy", "never", target="any", uuid="u")
        reader = job.events()
        await asyncio.to_thread(ours.wait_for, lambda b: "u" in b.jobs)

        def session():
            for number in range(50):
                ours.event("u", "w1", "progress", f"step {number}")
            ours.finish("u", "w1", 1)

        ours.do(session)
        await job
        return [event.message async for event in reader], reader.lost

    messages, lost = run(work, ours, limits=Limits(events_msgs=5))
    assert messages == ["step 46", "step 47", "step 48", "step 49", ""]
    assert lost > 40


def test_an_input_request_is_answered(broker):
    async def work(client):
        job = await client.submit("dummy", "ask", target="w2")
        async for event in job.events():
            if event.input_id:
                assert job.status == "waiting"
                assert event.question == "really?"
                await job.answer(event.input_id, "yes")
        return await job

    assert run(work, broker)["w2"]["result"] == "yes"
    assert broker.inputs == {"w2": {"input_id": "q-w2", "value": "yes", "cancel": False, "metadata": {}}}


def test_a_stream(broker):
    async def work(client):
        job = await client.submit("dummy", "stream", kwargs={"chunks": 4}, target="any")
        chunks = [chunk async for chunk in job.stream]
        return chunks, await job

    chunks, results = run(work, broker)
    assert chunks == [bytes([number]) * 10 for number in range(4)]
    assert results["w1"]["result"] == 4


def test_a_stream_that_nobody_reads_is_bounded(ours):
    async def work(client):
        job = await client.submit("dummy", "stream", kwargs={"chunks": 9}, target="any")
        await job
        found = []
        with pytest.raises(HeadgateError, match="wait for a reader"):
            async for chunk in job.stream:
                found.append(chunk)
        return len(found)

    assert run(work, ours, limits=Limits(stream_bytes=35)) == 3


def test_a_result_that_comes_twice_counts_once(ours):
    async def work(client):
        job = await client.submit("dummy", "never", uuid="u")
        await asyncio.to_thread(ours.wait_for, lambda b: "u" in b.jobs)

        def finish():
            ours.finish("u", "w1", 1)
            ours.finish("u", "w1", 2)
            ours.finish("u", "w2", 3)

        ours.do(finish)
        results = await job
        return results["w1"]["result"], job.outcome.duplicates

    assert run(work, ours) == (1, 1)


# -- when nothing comes ------------------------------------------------------------------------------


def test_a_post_without_an_answer_is_sent_again_under_its_uuid(broker):
    broker.ignore = 2
    run(lambda c: c.run("dummy", "ping"), broker)
    posts = [seen for seen in broker.seen if seen[0] == "POST"]
    assert len(posts) == 3
    assert len({(uuid, data) for _command, uuid, _names, data in posts}) == 1


def test_a_job_that_nothing_is_heard_of_is_asked_for(norfab):
    async def work(client):
        job = await client.submit("dummy", "never", target="any", uuid="u")
        await asyncio.to_thread(norfab.wait_for, lambda b: b.count("GET") >= 2)
        norfab.do(lambda: norfab.jobs["u"]["results"].update(w1={"w1": {"result": 1}}))
        return await job

    assert run(work, norfab) == {"w1": {"result": 1}}
    assert {names for command, _uuid, names, _data in norfab.seen if command == "GET"} == {("w1",)}


def test_the_deadline(broker):
    async def work(client):
        await client.wait_connected()  # what follows is about a broker that has the job
        await client.run("dummy", "never", timeout_s=0.4)

    with pytest.raises(JobTimeout, match=r"dummy.never\): nothing final within 0.4 s; no result of w1, w2"):
        run(work, broker)


def test_the_deadline_keeps_what_came(ours):
    async def work(client):
        job = await client.submit("dummy", "never", timeout_s=0.3, uuid="u")
        await asyncio.to_thread(ours.wait_for, lambda b: "u" in b.jobs)
        ours.do(lambda: ours.finish("u", "w1", 1))
        await job.wait()
        return job

    job = run(work, ours)
    assert job.status == "expired"
    assert isinstance(job.error, TimeoutError)
    assert set(job.error.results) == {"w1"}


def test_waiting_less_long_than_the_job(ours):
    async def work(client):
        job = await client.submit("dummy", "never")
        with pytest.raises(TimeoutError):
            await job.result(timeout_s=0.05)
        return job.status

    assert run(work, ours) in ("new", "dispatched", "started")


def test_no_worker_at_a_broker_that_queues(ours):
    async def work(client):
        job = await client.submit("later", "ping", uuid="u")
        await asyncio.to_thread(ours.wait_for, lambda b: "u" in b.jobs)
        while job.status == "new":
            await asyncio.sleep(0.005)
        queued = job.status

        def worker_comes():
            ours.jobs["u"]["workers"] = ["x"]
            ours.send(ours.jobs["u"]["client"], Command.RESPONSE, "u", 202, {"workers": ["x"]}, "later")
            ours._run("u", "x")

        ours.do(worker_comes)
        return queued, set(await job)

    assert run(work, ours) == ("queued", {"x"})


def test_no_worker_at_a_broker_that_does_not(norfab):
    with pytest.raises(JobFailed, match="failed to target workers") as caught:
        run(lambda c: c.run("later", "ping"), norfab)
    assert caught.value.status == 400


def test_a_worker_that_is_away_does_not_fail_a_job_that_it_has(norfab):
    async def work(client):
        job = await client.submit("dummy", "never", target="any", uuid="u")
        await asyncio.to_thread(norfab.wait_for, lambda b: b.count("GET") >= 1)

        def away():
            said = {"workers": None, "status": "FAILED", "errors": ["failed to target workers"]}
            norfab.send(norfab.jobs["u"]["client"], Command.RESPONSE, "u", 400, said)
            norfab.finish("u", "w1", 1)

        norfab.do(away)
        return await job

    assert run(work, norfab)["w1"]["result"] == 1


def test_a_worker_that_never_got_the_job_is_given_it_again(norfab):
    async def work(client):
        job = await client.submit("dummy", "never", uuid="u")
        await asyncio.to_thread(norfab.wait_for, lambda b: b.count("GET") >= 1)

        def unknown():
            said = {"worker": "w2", "status": "JOB NOT FOUND"}
            norfab.send(norfab.jobs["u"]["client"], Command.RESPONSE, "u", 404, said)

        norfab.do(unknown)
        await asyncio.to_thread(norfab.wait_for, lambda b: b.count("POST") == 2)

        def finish():
            for worker in ("w1", "w2"):
                norfab.jobs["u"]["results"][worker] = {worker: {"result": worker}}

        norfab.do(finish)
        return await job

    assert set(run(work, norfab)) == {"w1", "w2"}
    assert [names for command, _uuid, names, _data in norfab.seen if command == "POST"] == ["all", ("w2",)]


@pytest.mark.parametrize(
    ("status", "word", "kind", "state"),
    [
        (408, "EXPIRED", JobTimeout, "expired"),
        (408, "FAILED", JobFailed, "failed"),  # its worker was lost, and it must not run again
        (417, "CANCELLED", JobCancelled, "cancelled"),
        (500, "FAILED", JobFailed, "failed"),
    ],
)
def test_errors_of_the_broker(ours, status, word, kind, state):
    async def work(client):
        job = await client.submit("dummy", "never", uuid="u")
        await asyncio.to_thread(ours.wait_for, lambda b: "u" in b.jobs)
        said = {"error": "why", "status": word}
        ours.do(lambda: ours.send(ours.jobs["u"]["client"], Command.RESPONSE, "u", status, said))
        with pytest.raises(kind) as caught:
            await job
        assert kind is JobCancelled or str(caught.value) == "why"
        assert kind is not JobFailed or caught.value.status == status
        return job.status

    assert run(work, ours) == state


def test_a_part_that_failed_is_told_before_one_whose_time_was_over(ours):
    """As the broker says it: nothing hides a task that failed."""

    async def work(client):
        job = await client.submit("dummy", "never", uuid="u")
        await asyncio.to_thread(ours.wait_for, lambda b: "u" in b.jobs)

        def fail():
            for worker, status in (("w1", 408), ("w2", 500)):
                said = {"error": f"{status}", "worker": worker}
                ours.send(ours.jobs["u"]["client"], Command.RESPONSE, "u", status, said)

        ours.do(fail)
        with pytest.raises(JobFailed, match="w2: 500"):
            await job
        return job.status

    assert run(work, ours) == "failed"


def test_an_error_of_one_of_several_workers_waits_for_the_others(ours):
    async def work(client):
        job = await client.submit("dummy", "never", uuid="u")
        await asyncio.to_thread(ours.wait_for, lambda b: "u" in b.jobs)

        def lost():
            said = {"error": "the worker is gone", "target": "w1", "workers": None, "status": "FAILED"}
            ours.send(ours.jobs["u"]["client"], Command.RESPONSE, "u", 408, said)
            ours.finish("u", "w2", 2)

        ours.do(lost)
        with pytest.raises(JobFailed, match="w1: the worker is gone") as caught:
            await job
        return caught.value.results

    assert set(run(work, ours)) == {"w2"}


# -- leaving ----------------------------------------------------------------------------------------


def test_leaving_tells_whoever_waits(ours):
    async def work():
        async with NfpClient("c", broker=ours.endpoint) as client:
            job = await client.submit("dummy", "never")
            waiting = asyncio.gather(job.result(), return_exceptions=True)
            await asyncio.sleep(0)
        return (await waiting)[0]

    assert isinstance(asyncio.run(work()), LinkClosed)


# -- the broker goes and comes -------------------------------------------------------------------------


def test_unfinished_jobs_are_posted_again_to_a_broker_that_forgot_them(ours):
    async def work(client):
        jobs = [await client.submit("dummy", "never", uuid=f"u{n}") for n in range(5)]
        await asyncio.to_thread(ours.wait_for, lambda b: len(b.jobs) == 5)

        def forget():
            ours.jobs.clear()
            ours.epoch = "e2"

        ours.do(forget)
        client._channel.reopen("test")
        await asyncio.to_thread(ours.wait_for, lambda b: len(b.jobs) == 5)

        def finish():
            for uuid in list(ours.jobs):
                for worker in ("w1", "w2"):
                    ours.finish(uuid, worker, uuid)

        ours.do(finish)
        return [(await job)["w2"]["result"] for job in jobs]

    assert run(work, ours) == [f"u{n}" for n in range(5)]


def test_results_that_came_while_away_are_told_again(ours):
    async def work(client):
        job = await client.submit("dummy", "never", uuid="u")
        await asyncio.to_thread(ours.wait_for, lambda b: "u" in b.jobs)

        def lost_result():
            ours.jobs["u"]["client"] = b"nobody"
            ours.finish("u", "w1", 1)
            ours.finish("u", "w2", 2)

        ours.do(lost_result)
        client._channel.reopen("test")
        return {worker: result["result"] for worker, result in (await job).items()}

    assert run(work, ours) == {"w1": 1, "w2": 2}


def test_at_deployed_norfab_what_workers_have_is_asked_for_after_a_reconnect(norfab):
    async def work(client):
        job = await client.submit("dummy", "never", target="any", uuid="u")
        await asyncio.to_thread(norfab.wait_for, lambda b: "u" in b.jobs)
        while not job.workers:
            await asyncio.sleep(0.005)
        norfab.do(lambda: norfab.jobs["u"]["results"].update(w1={"w1": {"result": 1}}))
        client._channel.reopen("test")
        return await job

    assert run(work, norfab, limits=Limits(poll_s=60)) == {"w1": {"result": 1}}
    assert norfab.count("POST") == 1


def test_a_broker_that_took_a_job_over_is_told_of_its_deadline(ours):
    async def work(client):
        job = await client.submit("dummy", "never", uuid="u", timeout_s=1.0)
        await asyncio.to_thread(ours.wait_for, lambda b: "u" in b.jobs)
        ours.do(lambda: (ours.jobs.clear(), setattr(ours, "epoch", "e2")))
        client._channel.reopen("test")
        await job.wait()
        await asyncio.to_thread(ours.wait_for, lambda b: b.count("DELETE") == 1)
        return job.status

    assert run(work, ours) == "expired"
    assert ours.count("POST") == 2


def test_the_next_broker_of_the_list_takes_over(ours):
    second = FakeBroker(push=True, epoch="other")

    async def work():
        brokers = [ours.endpoint, second.endpoint]
        async with (
            asyncio.timeout(WITHIN_S),
            NfpClient("c", broker=brokers, failover_s=0.3, limits=SOON) as client,
        ):
            jobs = [await client.submit("dummy", "never", target="any") for _ in range(3)]
            await asyncio.to_thread(ours.wait_for, lambda b: len(b.jobs) == 3)
            ours.close()
            await asyncio.to_thread(second.wait_for, lambda b: len(b.jobs) == 3)

            def finish():
                for uuid in list(second.jobs):
                    second.finish(uuid, "w1", "here")

            second.do(finish)
            return [(await job)["w1"]["result"] for job in jobs]

    with second:
        assert asyncio.run(work()) == ["here"] * 3
    assert set(ours.jobs) == set(second.jobs)


def test_jobs_wait_for_a_broker_that_is_not_there_yet():
    fake = FakeBroker(push=True)
    endpoint = fake.endpoint
    fake._socket.unbind(endpoint)

    async def work():
        async with asyncio.timeout(WITHIN_S), NfpClient("c", broker=endpoint) as client:
            job = await client.submit("dummy", "ping", target="any")
            with pytest.raises(HeadgateError, match=r"not connected within 0\.05 s"):
                await client.wait_connected(0.05)
            fake.do(lambda: fake._socket.bind(endpoint))
            return await job

    with fake:
        assert set(asyncio.run(work())) == {"w1"}


# -- attaching ---------------------------------------------------------------------------------------


def test_attach_to_a_job_of_somebody_else(ours):
    async def work(client):
        await (await client.submit("dummy", "ping", uuid="u"))
        async with NfpClient("other", broker=ours.endpoint) as other:
            job = await other.attach("u")
            return job.service, job.task, set(await job)

    assert run(work, ours) == ("dummy", "ping", {"w1", "w2"})


def test_a_running_job_of_somebody_else_is_asked_for(ours):
    async def work(client):
        await (await client.submit("dummy", "never", uuid="u", target="w1")).accepted()
        async with NfpClient("other", broker=ours.endpoint, limits=Limits(poll_attached_s=0.1)) as other:
            job = await other.attach("u")
            await asyncio.to_thread(ours.wait_for, lambda b: b.count("GET") >= 2)
            ours.do(lambda: ours.jobs["u"]["results"].update(w1={"w1": {"result": 1}}))
            return await job

    assert run(work, ours) == {"w1": {"result": 1}}


def test_attach_to_an_unknown_job(ours):
    with pytest.raises(HeadgateError, match="is not known"):
        run(lambda c: c.attach("nobody"), ours)


def test_a_known_uuid_is_the_same_job(ours):
    async def work(client):
        job = await client.submit("dummy", "never", uuid="u")
        return (await client.submit("dummy", "never", uuid="u")) is job and (await client.attach("u")) is job

    assert run(work, ours)
    assert ours.count("POST") <= 1


@for_each(
    ("service", "target"),
    [
        *(("", "all"), ("x" * 300, "all"), ("\udcff", "all")),
        *(("x", each) for each in ("", [], "[]", ["\udcff"], ["w1", "w\0"], ["w" * 300])),
    ],
)
def test_what_cannot_be_sent_is_refused_here_and_keeps_nothing_else_back(ours, service, target):
    async def work(client):
        with pytest.raises(ConfigError):
            await client.submit(service, "t", target=target)
        return await client.run("dummy", "ping", target="w1")

    assert set(run(work, ours)) == {"w1"}
