"""A peer that does not read costs its own queue and nobody else's time."""

import pytest

from broker.wire.message import EVENT, event, request
from broker.wire.payload import encode_json
from tests.live.brokers import eventually, one_broker
from tests.live.load import Caller, Provider, Publisher, Subscriber, is_closed, numbered, stop_all
from tests.live.speaker import Speaker, subscribe

pytestmark = pytest.mark.story

SMALL_CAPS = """
[limits]
response_cap_bytes = 2097152
outbox_high_bytes = 262144
"""
KIB = b"x" * 1024


@pytest.fixture
def broker(rundir):
    with one_broker(rundir, SMALL_CAPS) as running:
        yield running


def ask_and_never_read(client: Speaker, mib: int) -> None:
    """Pings whose answers amount to so many MiB, until the broker takes no more."""
    ping = request("broker.ping", encode_json({"pad": "p" * 4096}), matchtag=1).framed()
    client.sock.settimeout(2)
    try:
        for _ in range(mib * 256):
            client.send(ping)
    except OSError:
        return  # disconnected, or not read any more


def test_responses_nobody_reads_end_at_the_cap_and_ten_others_notice_nothing(broker):
    provider = Provider(broker.uri, "calm")
    others = [Caller(broker.uri, "calm", who, 0, window=8) for who in range(10)]
    before = broker.rss_kib()
    with Speaker(broker.uri) as deaf:
        ask_and_never_read(deaf, 16)
        eventually(lambda: any("cap is 2097152" in line for line in broker.lines()))
    grown = broker.rss_kib() - before
    stop_all([*others, provider])
    assert all(caller.done > 20 for caller in others)
    assert provider.answered == sum(caller.done for caller in others)
    assert grown < 32 << 10


def flood(publisher: Speaker, count: int) -> None:
    for number in range(count):
        publisher.tell(event("flood", numbered(1, number) + KIB))
        if number % 64 == 63:
            assert publisher.ping() == 0


@pytest.mark.patient
def test_a_subscriber_that_does_not_read_is_disconnected(broker):
    reader = Subscriber(broker.uri, "flood")
    with Speaker(broker.uri) as publisher, Speaker(broker.uri) as deaf:
        subscribe(deaf, "flood")
        flood(publisher, 4000)
        eventually(lambda: reader.received, 4000)
        reader.stop()
        reader.finish()
        seen = 0
        while not is_closed(deaf):  # what the socket held is still there
            seen = len(deaf.seen)
        assert 0 < seen < 4000
        assert [message.aux1 for message in deaf.seen] == sorted(message.aux1 for message in deaf.seen)


def test_with_policy_drop_it_stays_and_misses_events(rundir):
    with one_broker(rundir, SMALL_CAPS + 'event_policy = "drop"\n') as running:
        reader = Subscriber(running.uri, "flood")
        with Speaker(running.uri) as publisher, Speaker(running.uri) as deaf:
            subscribe(deaf, "flood")
            flood(publisher, 4000)
            eventually(lambda: reader.received, 4000)
            reader.stop()
            reader.finish()
            assert deaf.ping() == 0
            got = [message.sequence for message in deaf.seen if message.type == EVENT]
            assert 0 < len(got) < 4000
            assert got == sorted(set(got))
            publisher.tell(event("flood", numbered(1, 4000)))
            late = deaf.take(lambda message: message.type == EVENT and message.sequence > got[-1])
            assert late.payload == numbered(1, 4000)


@pytest.mark.patient
def test_a_provider_that_does_not_read_is_disconnected_and_its_callers_are_answered(rundir):
    with one_broker(rundir, SMALL_CAPS + "stall_s = 1.0\n") as running:
        calm = Provider(running.uri, "calm")
        other = Caller(running.uri, "calm", 1, 0, window=8)
        with Speaker(running.uri) as stuck, Speaker(running.uri) as caller:
            assert (
                stuck.ask(request("service.add", encode_json({"service": "stuck"}), matchtag=1)).errnum == 0
            )
            caller.tell(*(request("stuck.x", KIB, matchtag=tag) for tag in range(1, 1001)))
            errnums = [caller.next(20).errnum for _ in range(1000)]
            assert set(errnums) <= {113, 11, 38}, set(errnums)  # the last ones found it gone
            assert 113 in errnums
            assert caller.ping() == 0
        stop_all([other, calm])
        assert other.done > 20


def test_publishers_and_callers_beside_a_deaf_peer_keep_their_order(broker):
    provider = Provider(broker.uri, "busy")
    with Speaker(broker.uri) as deaf:
        subscribe(deaf, "load")
        listeners = [Subscriber(broker.uri, "load", f"listener {number}") for number in range(5)]
        callers = [Caller(broker.uri, "busy", who, 300) for who in range(5)]
        publishers = [Publisher(broker.uri, f"load.{who}", who, 400) for who in range(3)]
        for party in (*callers, *publishers):
            party.finish()
        eventually(lambda: [listener.received for listener in listeners], [1200] * 5)
    stop_all([*listeners, provider])
