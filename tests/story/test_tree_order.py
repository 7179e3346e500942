"""Between all ranks of a tree nothing is lost, repeated or out of order, batched or not."""

import asyncio
import contextlib
import itertools

import pytest

import broker.client
from broker.client import blocking
from broker.identity import Role
from broker.transport.link import Options
from tests.live.brokers import eventually, tree
from tests.live.gateways import gateway_process
from tests.live.load import Caller, Provider, Publisher, Subscriber, stop_all

pytestmark = pytest.mark.story

SIZE = 4
EVENTS = 300


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param("batch = true", id="batched", marks=pytest.mark.smoke),
        pytest.param("batch = false", id="plain", marks=pytest.mark.patient),
    ],
)
def test_calls_between_all_ranks_and_events_of_all_to_all(rundir, setting):
    with tree(rundir, SIZE, f"[tree]\n{setting}\n") as running:
        uris = [rank.uri for rank in running.ranks]
        providers = [Provider(uri, "echo") for uri in uris]
        listeners = [Subscriber(uri, "", f"listener at rank {rank}") for rank, uri in enumerate(uris)]
        callers = [
            Caller(
                uris[origin],
                "echo",
                origin * SIZE + target,
                200,
                nodeid=target,
                pad=3000 if origin == 3 else 0,
            )
            for origin, target in itertools.permutations(range(SIZE), 2)
        ]
        publishers = [Publisher(uri, f"load.{who}", who, EVENTS) for who, uri in enumerate(uris)]
        for party in (*callers, *publishers):
            party.finish()
        eventually(lambda: [listener.received for listener in listeners], [SIZE * EVENTS] * SIZE)
        stop_all([*listeners, *providers])
        assert [provider.answered for provider in providers] == [200 * (SIZE - 1)] * SIZE


@pytest.mark.patient
def test_a_large_message_does_not_overtake_or_delay_for_good(rundir):
    with tree(rundir, SIZE) as running:
        provider = Provider(running.ranks[3].uri, "echo")
        small = Caller(running.ranks[0].uri, "echo", 1, 300, nodeid=3)
        large = Caller(running.ranks[0].uri, "echo", 2, 20, window=1, nodeid=3, pad=1 << 20)
        small.finish()
        large.finish()
        stop_all([provider])


@pytest.mark.patient
def test_what_is_called_after_a_publication_comes_after_its_event(rundir):
    """From any rank, by any client, at any rank."""
    with tree(rundir, SIZE) as running, gateway_process(rundir, running.ranks[3].uri) as gateway:
        uris = [rank.uri for rank in running.ranks]
        web = Options(extra={"token": gateway.tokens["ada"]})

        async def script():
            async with contextlib.AsyncExitStack() as stack:
                handles = [await stack.enter_async_context(broker.client.connect(uri)) for uri in uris]
                browser = await stack.enter_async_context(broker.client.connect(gateway.ws, options=web))
                names = []
                for number, handle in enumerate((*handles, browser)):
                    events = await stack.enter_async_context(handle.subscribe("change."))
                    names.append(f"svc{number}")
                    await handle.serve(names[-1], {"seen": (latest(events), Role.USER)})
                for turn in range(20):
                    for number, handle in enumerate((*handles, browser)):
                        topic = f"change.{turn}.{number}"
                        await handle.publish(topic, delivered=True)
                        for rank, name in zip((0, 1, 2, 3, 3), names, strict=True):
                            said = (await handle.rpc(f"{name}.seen", nodeid=rank)).json()
                            assert said == {"topic": topic}, (number, name)
                await asyncio.to_thread(from_a_thread, uris[3], names[3])

        asyncio.run(script())


def from_a_thread(uri, name):
    with blocking.connect(uri) as h:
        h.publish("change.last", delivered=True)
        assert h.rpc(f"{name}.seen").json() == {"topic": "change.last"}


def latest(events):
    """A method that tells the newest event which had come when it was called."""
    last = {"topic": ""}

    async def seen(request):
        while events.ready:
            last["topic"] = (await anext(events)).topic
        return dict(last)

    return seen
