"""What is submitted to services that take no jobs: one question by MMI, never sent again."""

import asyncio

import pytest

from broker.errors import LinkBroken, LinkClosed
from broker.nfp.client import JobCancelled, JobFailed, JobTimeout
from broker.nfp.names import ASKED_BY_MMI
from tests.unit.nfp.client.running import run


def commands(broker):
    return {seen[0] for seen in broker.seen} - {"OPEN"}


def test_the_answer_is_the_result(broker):
    told = run(lambda c: c.run("sid.service.broker", "get_inventory", kwargs={"name": "w1"}), broker)
    assert told == {"broker": {"hosts": ["w1"]}}
    assert commands(broker) == {"MMI"}
    assert broker.count("MMI") == 1


def test_workers_answer_by_name(ours):
    ours._answer = lambda *_: (200, {"w1": [], "w2": {"status": "restarting"}})
    told = run(lambda c: c.run("mmi.service.worker", "restart", target=["w1", "w2"]), ours)
    assert told == {"w1": [], "w2": {"status": "restarting"}}
    assert [seen[2] for seen in ours.seen if seen[0] == "MMI"] == [("w1", "w2")]


def test_an_error_ends_the_job(ours):
    with pytest.raises(JobFailed, match=r"mmi\.service\.broker: no task 'nonsense'") as caught:
        run(lambda c: c.run("mmi.service.broker", "nonsense"), ours)
    assert caught.value.status == 400


@pytest.mark.parametrize("service", sorted(ASKED_BY_MMI))
def test_it_is_not_sent_again_when_the_answer_is_lost(service, broker):
    broker._mmi = lambda client, packet: None

    async def work(client):
        job = await client.submit(service, "restart")
        await asyncio.to_thread(broker.wait_for, lambda b: b.count("MMI") == 1)
        client._channel.reopen("for a test")
        await job.wait()
        await client.wait_connected()
        await asyncio.gather(client.mmi("show_workers", timeout_s=0.15), return_exceptions=True)
        return job

    job = run(work, broker)
    assert isinstance(job.error, LinkBroken)
    assert "lost before the answer; it may have been done, and is not asked again" in str(job.error)
    assert job.status == "failed"
    tasks = [seen[3] for seen in broker.seen if b"restart" in seen[3]]
    assert len(tasks) == 1
    assert commands(broker) == {"MMI"}


def test_it_is_kept_nowhere(ours, tmp_path):
    ours._mmi = lambda client, packet: None

    async def work(client):
        await client.submit("mmi.service.broker", "shutdown")
        await asyncio.to_thread(ours.wait_for, lambda b: b.count("MMI") == 1)

    run(work, ours, state_dir=tmp_path)
    assert run(lambda c: c.unfinished(), ours, state_dir=tmp_path) == []


def test_the_same_id_is_the_same_question(ours):
    async def work(client):
        one = await client.submit("mmi.service.broker", "show_workers", uuid="u")
        assert await client.submit("mmi.service.broker", "show_workers", uuid="u") is one
        return await one

    assert len(run(work, ours)["broker"]) == 4
    assert [seen[1] for seen in ours.seen if seen[0] == "MMI"] == ["u"]


def test_nobody_has_to_wait_for_the_answer(ours):
    ours._mmi = lambda client, packet: None

    async def work(client):
        late = await client.submit("mmi.service.broker", "show_workers", timeout_s=0.1)
        left = await client.submit("mmi.service.broker", "show_workers")
        open_ = await client.submit("mmi.service.broker", "show_workers")
        waiting = asyncio.get_running_loop().create_task(client.run("mmi.service.broker", "show_workers"))
        await asyncio.to_thread(ours.wait_for, lambda b: b.count("MMI") == 4)
        assert not await left.cancel()
        waiting.cancel()
        await asyncio.wait([waiting])
        with pytest.raises(LinkClosed, match="no connection"):
            open_.put(1)
        await late.wait()
        return late, left, open_

    late, left, open_ = run(work, ours)
    assert isinstance(late.error, JobTimeout)
    assert isinstance(left.error, JobCancelled)
    assert isinstance(open_.error, LinkClosed)
    assert ours.count("DELETE") == 0
