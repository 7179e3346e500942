"""Each hostile vector at a live socket ends as captured, with three deliberate differences, and disturbs nobody."""

import os
import time
from contextlib import ExitStack

import pytest

from broker.wire.message import TYPE_NAMES, Message
from tests.live.brokers import one_broker
from tests.live.speaker import Closed, Speaker
from tests.tables import for_each
from tests.vectors import Hostile, excluded, malformed

ALIVE_S = 0.3
"""How long connections that must stay open are watched for strays; the answer to a ping proves that each lives."""
ENDS = {"connection-closed": "closed", "answered": "answered", "ignored": "ignored"}
DIFFERENT = {
    "magic-big-endian": "answered",
    "zero-length-frame": "closed",
    "topic-svc245": "answered",
}
"""RFC 3 writes this magic; a broker must not end because of a frame; a long topic deserves an answer."""
PONG = {"type": "response", "topic": "broker.ping", "errnum": 0, "matchtag": 1}
REPLIES = {
    "magic-big-endian": [PONG],
    "topic-svc245": [{"type": "response", "topic": "t" * 245 + ".a", "errnum": 38, "matchtag": 1}],
}


@pytest.fixture(scope="module")
def broker(module_rundir):
    with one_broker(module_rundir) as running:
        yield running


@pytest.fixture(scope="module")
def innocent(broker):
    """A connection that all vectors pass by."""
    with Speaker(broker.uri) as other:
        yield other


def brief(message: Message) -> dict:
    return {
        "type": TYPE_NAMES[message.type],
        "topic": message.topic,
        "errnum": message.errnum,
        "matchtag": message.matchtag,
    }


def captured(vector: Hostile) -> list[dict]:
    return [{name: reply[name] for name in PONG} for reply in vector.replies]


def end_of(vector: Hostile) -> str:
    return DIFFERENT.get(vector.case) or ENDS[vector.deployed]


@for_each("vector", malformed, ids=lambda vector: vector.case)
def test_vectors(vector, broker, innocent):
    assert innocent.ping() == 0
    with Speaker(broker.uri) as hostile:
        hostile.send(vector.data)
        if end_of(vector) == "closed":
            assert hostile.ended()
            assert hostile.seen == []
        else:
            replies = REPLIES.get(vector.case) or captured(vector)
            assert [brief(hostile.next()) for _ in replies] == replies
            assert hostile.ping() == 0
    assert innocent.ping() == 0
    assert innocent.seen == []


def test_who_stays_hears_nothing_more(broker):
    with ExitStack() as stack:
        staying = [
            (vector, stack.enter_context(Speaker(broker.uri)))
            for vector in malformed()
            if end_of(vector) != "closed"
        ]
        for vector, hostile in staying:
            hostile.send(vector.data)
        time.sleep(ALIVE_S)
        wrong = {}
        for vector, hostile in staying:
            try:
                hostile.ping()
                seen = [brief(message) for message in hostile.seen]
            except Closed:
                seen = ["closed"]
            if seen != (REPLIES.get(vector.case) or captured(vector)):
                wrong[vector.case] = seen
    assert wrong == {}


def test_the_differences_are_the_ones_on_record():
    cases = {vector.case: vector for vector in malformed()}
    assert all(ENDS.get(cases[case].deployed) != end for case, end in DIFFERENT.items())
    assert {case for _file, case in excluded("malformed")} <= set(DIFFERENT)


@for_each("vector", malformed, ids=lambda vector: vector.case)
def test_what_came_before_a_bad_frame_is_answered(vector, broker):
    ping = bytes.fromhex(
        "1200eeff0000002d000b62726f6b65722e70696e670a7b22736571223a317d00148e01010bffffffff00000000ffffffff0000002a"
    )
    with Speaker(broker.uri) as hostile:
        hostile.send(ping + vector.data)
        seen = hostile.take(lambda message: message.matchtag == 42)
        assert (seen.topic, seen.errnum) == ("broker.ping", 0)


def test_a_truncated_frame_is_waited_for(broker, innocent):
    """A frame without its end is no error: the rest may come."""
    with Speaker(broker.uri) as slow:
        slow.send(b"\x12\x00\xee\xff\x00\x00\x00\x2d\x00\x0b")
        with pytest.raises(TimeoutError):
            slow.receive(ALIVE_S)
        assert innocent.ping() == 0


@pytest.mark.parametrize("announced", [2**32 - 1, 256 * 2**20 + 1], ids=["4 GiB", "one over the cap"])
def test_an_announced_length_above_the_cap_ends_the_link(announced, broker, innocent):
    before = broker.rss_kib()
    with Speaker(broker.uri) as hostile:
        hostile.send(b"\x12\x00\xee\xff" + announced.to_bytes(4, "big") + bytes(1000))
        assert hostile.ended()
    assert innocent.ping() == 0
    assert broker.rss_kib() - before < 8 << 10


def test_announcing_much_and_sending_little_costs_little(broker, innocent):
    before = broker.rss_kib()
    liars = [Speaker(broker.uri) for _ in range(50)]
    for liar in liars:
        liar.send(b"\x12\x00\xee\xff" + (200 << 20).to_bytes(4, "big") + bytes(100))
    assert innocent.ping() == 0
    assert broker.rss_kib() - before < 16 << 10
    for liar in liars:
        liar.close()
    assert innocent.ping() == 0


def test_the_greeting_comes_before_anything_is_said(broker):
    with Speaker(broker.uri) as client:
        assert client.greeting == b"\0"


def test_a_guest_who_is_not_allowed_is_told_eperm(broker):
    if os.getuid() != 0:
        pytest.skip("optional: needs root to connect as another user")
    with pytest.raises(Closed, match="x01"):
        Speaker(broker.uri, 65534)
