"""What the size limits allow passes, at its real size: blobs, one event to many, answers faster than anybody reads."""

import asyncio

import pytest

import broker.client
from tests.live.brokers import one_broker

pytestmark = pytest.mark.story

BLOB = 70 << 20
"""More than the cap of an outbox, less than an owner may send."""
EVENT = 16 << 20
LISTENERS = 40
"""So many times the event is more than the budget of a broker."""


@pytest.fixture(scope="module")
def uri(module_rundir):
    with one_broker(module_rundir) as running:
        yield running.uri
        assert not [line for line in running.lines() if "disconnected" in line or "ERROR" in line]


def told(script):
    async def main():
        async with asyncio.timeout(50):
            await script()

    asyncio.run(main())


@pytest.mark.patient
def test_blobs_there_and_back(uri):
    async def script():
        async with broker.client.connect(uri) as provider, broker.client.connect(uri) as caller:
            async with provider.service("blob", {"echo": lambda request: request.payload}):
                calls = (caller.rpc("blob.echo", bytes([number]) * BLOB) for number in range(2))
                for number, answer in enumerate(await asyncio.gather(*calls)):
                    assert answer.payload == bytes([number]) * BLOB
            assert (provider.ended, caller.ended) == (None, None)

    told(script)


@pytest.mark.patient
def test_seven_thousand_calls_at_once_with_answers_of_ten_kilobytes(uri):
    """As the README shows a service: nothing in it knows how full its link is."""

    async def answer(request):
        await asyncio.sleep(0)
        return bytes(10_000)

    async def script():
        async with broker.client.connect(uri) as provider, broker.client.connect(uri) as caller:
            async with provider.service("ten", {"kb": answer}):
                answers = await asyncio.gather(*(caller.rpc("ten.kb") for _ in range(7000)))
                assert {len(each.payload) for each in answers} == {10_000}
            assert provider.ended is None

    told(script)


@pytest.mark.patient
def test_one_large_event_ends_nobody(uri):
    async def listen(handle, ready):
        async with handle.subscribe("news") as events:
            ready.release()
            return len((await anext(events)).payload)

    async def script():
        handles = [await broker.client.connect(uri) for _ in range(LISTENERS)]
        ready = asyncio.Semaphore(0)
        async with asyncio.TaskGroup() as group:
            hearing = [group.create_task(listen(handle, ready)) for handle in handles]
            for _ in handles:
                await ready.acquire()
            handles[0].publish_nowait("news", bytes(EVENT))
        assert [task.result() for task in hearing] == [EVENT] * LISTENERS
        assert all(handle.ended is None for handle in handles)
        for handle in handles:
            await handle.close()

    told(script)
