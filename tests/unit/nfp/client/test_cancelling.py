"""Jobs that are not wanted any more, also while the broker is away."""

import asyncio

import pytest

from broker.nfp.client import JobCancelled, Limits, NfpClient
from tests.unit.nfp.client.fake_broker import FakeBroker
from tests.unit.nfp.client.running import run


def test_cancel(ours):
    async def work(client):
        job = await client.submit("dummy", "never", uuid="u")
        await asyncio.to_thread(ours.wait_for, lambda b: "u" in b.jobs)
        assert await job.cancel()
        with pytest.raises(JobCancelled):
            await job
        return job.status, await job.cancel()

    assert run(work, ours) == ("cancelled", False)
    assert ours.count("DELETE") == 1


def test_cancel_where_nobody_answers(norfab):
    async def work(client):
        job = await client.submit("dummy", "never", uuid="u")
        await asyncio.to_thread(norfab.wait_for, lambda b: "u" in b.jobs)
        return await job.cancel(), job.status

    assert run(work, norfab, limits=Limits(answer_s=0.1)) == (False, "cancelled")


async def away_with_a_job(client, first):
    """A job that the broker has, and the broker is gone."""
    job = await client.submit("dummy", "never", uuid="u")
    await asyncio.to_thread(first.wait_for, lambda b: "u" in b.jobs)
    await job.accepted()
    first.close()
    while client.is_connected:
        await asyncio.sleep(0.005)
    return job


async def back(first):
    """The broker at its place again, with the jobs it had."""
    second = FakeBroker(push=True, endpoint=first.endpoint)
    second.jobs = first.jobs
    return second


def test_a_job_cancelled_while_the_broker_is_away_is_deleted_once_it_is_back():
    first = FakeBroker(push=True)

    async def work(client):
        job = await away_with_a_job(client, first)
        cancelling = asyncio.gather(job.cancel())
        await asyncio.sleep(0)
        with await back(first) as second:
            return (await cancelling)[0], job.status, [seen[:2] for seen in second.seen]

    with first:
        told, status, seen = run(work, first)
    assert (told, status) == (True, "cancelled")
    assert seen == [("OPEN", ""), ("DELETE", "u")]


@pytest.mark.parametrize("how", ["cancel", "abandon"])
def test_a_cancelled_job_that_nobody_waits_for_any_more_is_deleted_once_the_broker_is_back(how):
    first = FakeBroker(push=True)

    async def work(client):
        job = await away_with_a_job(client, first)
        if how == "cancel":
            assert not await job.cancel()
        else:
            job.give_up()
        assert job.status == "cancelled"
        with await back(first) as second:
            await asyncio.to_thread(second.wait_for, lambda b: b.count("DELETE"))
            return [seen[:2] for seen in second.seen]

    with first:
        assert run(work, first, limits=Limits(answer_s=0.05)) == [("OPEN", ""), ("DELETE", "u")]


def test_a_cancellation_whose_answer_was_lost_is_sent_again_and_the_job_is_not(ours):
    delete, ours._delete = ours._delete, lambda client, packet: None

    async def work(client):
        job = await client.submit("dummy", "never", uuid="u")
        await asyncio.to_thread(ours.wait_for, lambda b: "u" in b.jobs)
        cancelling = asyncio.gather(job.cancel())
        await asyncio.to_thread(ours.wait_for, lambda b: b.count("DELETE"))
        ours._delete = delete
        client._channel.reopen("for a test")
        return await cancelling

    assert run(work, ours) == [True]
    assert [ours.count(command) for command in ("POST", "DELETE")] == [1, 2]


def test_a_post_without_an_answer_is_not_sent_again_behind_its_cancellation(ours):
    ours.ignore = 99

    async def work(client):
        job = await client.submit("dummy", "never", uuid="u")
        await asyncio.to_thread(ours.wait_for, lambda b: b.count("POST"))
        ours._delete = lambda client, packet: None
        return await job.cancel()

    assert not run(work, ours, limits=Limits(resend_s=0.05, answer_s=0.2))
    commands = [seen[0] for seen in ours.seen]
    assert commands[commands.index("DELETE") :] == ["DELETE"]


def test_a_job_that_was_never_sent_is_cancelled_at_once():
    async def main():
        async with NfpClient("c", broker="tcp://127.0.0.1:1") as client:
            job = await client.submit("dummy", "never")
            return await job.cancel(), job.status

    assert asyncio.run(main()) == (True, "cancelled")


def test_a_run_that_is_not_awaited_any_more_is_cancelled(ours):
    async def work(client):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.run("dummy", "never")
        await asyncio.to_thread(ours.wait_for, lambda b: b.count("DELETE") == 1)

    run(work, ours)
