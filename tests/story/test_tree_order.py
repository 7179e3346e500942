"""Between all ranks of a tree nothing is lost, repeated or out of order, batched or not."""

import itertools

import pytest

from tests.live.brokers import eventually, tree
from tests.live.load import Caller, Provider, Publisher, Subscriber, stop_all

pytestmark = pytest.mark.story

SIZE = 4
EVENTS = 300


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param("true", id="batched", marks=pytest.mark.smoke),
        pytest.param("false", id="plain", marks=pytest.mark.patient),
    ],
)
def test_calls_between_all_ranks_and_events_of_all_to_all(rundir, batch):
    with tree(rundir, SIZE, f"[tree]\nbatch = {batch}\n") as running:
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
