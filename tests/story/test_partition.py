"""A tree of four hosts whose network is cut in two without a word, and heals.

rank 0 ── rank 1 ── rank 3
   └───── rank 2              the cut: 0, 2 | 1, 3
"""

import pytest

from broker.wire.message import event, request
from tests.conftest import OPTIONAL
from tests.live.brokers import eventually, tree_of_hosts
from tests.live.load import Caller, Provider, Publisher, Subscriber, numbered, stop_all
from tests.live.speaker import Speaker, provide, subscribe
from tests.netlab import NetLab

pytestmark = [pytest.mark.story, pytest.mark.timeout(240), pytest.mark.patient]

EHOSTUNREACH = 113
EXTRA = "[broker]\nheartbeat_period_s = 0.5\n[tree]\ntorpid_min_s = 0.5\ntorpid_max_s = 2.0\n"


@pytest.fixture
def lab():
    network = NetLab(4)
    try:
        network.__enter__()
    except (OSError, ValueError) as error:
        pytest.skip(f"{OPTIONAL} needs root or user namespaces, and iproute2: {error}")
    yield network
    network.close()


@pytest.mark.slow
def test_a_short_cut_loses_nothing(rundir, lab):
    """TCP repeats what did not arrive; calls and events wait and come once, in order."""
    with tree_of_hosts(rundir, lab, EXTRA) as running:
        uris = [rank.uri for rank in running.ranks]
        providers = [Provider(uris[3], "far"), Provider(uris[0], "near")]
        listeners = [Subscriber(uri, "", f"listener at rank {rank}") for rank, uri in enumerate(uris)]
        callers = [
            Caller(uris[0], "far", 1, 0, nodeid=3, rest_s=0.01),
            Caller(uris[3], "near", 2, 0, nodeid=0, rest_s=0.01),
        ]
        publishers = [Publisher(uris[rank], "load", rank, 0, burst=5, pause_s=0.02) for rank in (0, 3)]
        eventually(lambda: all(caller.done > 50 for caller in callers))
        lab.partition([0, 2], [1, 3])
        eventually(lambda: torpid(running), True, 15)
        stuck = [caller.done for caller in callers]
        lab.heal()
        eventually(
            lambda: all(now.done > before + 50 for now, before in zip(callers, stuck, strict=True)), True, 30
        )
        for party in (*callers, *publishers):
            party.stop()
        for party in (*callers, *publishers):
            party.finish()
        total = sum(publisher.sent for publisher in publishers)
        eventually(lambda: [listener.received for listener in listeners], [total] * 4, 20)
        stop_all([*listeners, *providers])
        assert all(provider.answered > 100 for provider in providers)


def torpid(running) -> bool:
    return any("unresponsive" in line for line in running.ranks[0].lines())


@pytest.mark.slow
def test_a_long_cut_answers_what_hangs_and_heals(rundir, lab):
    with tree_of_hosts(rundir, lab, EXTRA) as running:
        uris = [rank.uri for rank in running.ranks]
        steady = [Provider(uris[2], "upper"), Provider(uris[3], "lower")]
        unharmed = [
            Caller(uris[0], "upper", 1, 0, nodeid=2, rest_s=0.01),
            Caller(uris[3], "lower", 2, 0, rest_s=0.01),
        ]
        listener = Subscriber(uris[2], "")
        publisher = Publisher(uris[0], "load", 1, 0, burst=2, pause_s=0.02)
        with Speaker(uris[0]) as above, Speaker(uris[3]) as below:
            subscribe(below, "after")
            for end in (above, below):
                provide(end, "hang")
            above.tell(*(request("hang.x", nodeid=3, matchtag=tag) for tag in range(1, 11)))
            below.tell(*(request("hang.x", nodeid=0, matchtag=tag) for tag in range(1, 11)))
            for end in (above, below):
                assert [end.next().matchtag for _ in range(10)] == list(range(1, 11))  # all ten arrived
            lab.partition([0, 2], [1, 3])
            for end in (above, below):
                answers = [end.next(60) for _ in range(10)]
                assert [(one.matchtag, one.errnum) for one in answers] == [
                    (tag, EHOSTUNREACH) for tag in range(1, 11)
                ]
            assert (
                above.ask(request("broker.ping", b'{"seq":1}\0', nodeid=3, matchtag=50)).errnum
                == EHOSTUNREACH
            )
            lab.heal()
            running.wait_full(90)
            assert above.ask(request("broker.ping", b'{"seq":1}\0', nodeid=3, matchtag=51)).errnum == 0
            assert below.ask(request("broker.ping", b'{"seq":1}\0', nodeid=0, matchtag=52)).errnum == 0
            above.tell(*(event("after", numbered(9, number)) for number in range(5)))
            heard = [below.take(lambda message: message.topic == "after") for _ in range(5)]
            assert [message.payload for message in heard] == [numbered(9, number) for number in range(5)]
        publisher.stop()
        publisher.finish()
        eventually(lambda: listener.next.get(1), publisher.sent)
        stop_all([*unharmed, listener, *steady])
        assert all(caller.done > 100 for caller in unharmed)
