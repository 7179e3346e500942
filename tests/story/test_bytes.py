"""However the bytes of a stream are cut, the broker sees the same messages."""

import hashlib

import pytest

from broker.wire.message import MAGIC_TEXT, RESPONSE, event, request
from broker.wire.payload import decode_json, encode_json
from tests.live.brokers import one_broker
from tests.live.load import Provider, numbered
from tests.live.speaker import Speaker, subscribe
from tests.tables import for_each

pytestmark = pytest.mark.story


@pytest.fixture(scope="module")
def broker(module_rundir):
    with one_broker(module_rundir) as running:
        yield running


def ping(tag: int, pad: int = 0) -> bytes:
    return request("broker.ping", encode_json({"seq": tag, "pad": "p" * pad}), matchtag=tag).framed()


def test_one_byte_at_a_time(broker):
    with Speaker(broker.uri) as client, Speaker(broker.uri) as other:
        for tag in (1, 2):
            for index, byte in enumerate(ping(tag)):
                client.send(bytes((byte,)))
                if index % 10 == 0:
                    assert other.ping() == 0
            assert client.next().matchtag == tag


def test_two_messages_in_one_write_and_one_in_two(broker):
    both = ping(1) + ping(2)
    with Speaker(broker.uri) as client:
        client.send(both)
        assert [client.next().matchtag for _ in range(2)] == [1, 2]
        for cut in (1, 4, 8, 9, len(both) // 2 - 1, len(both) // 2 + 1, len(both) - 1):
            client.send(both[:cut])
            client.send(both[cut:])
            assert [client.next().matchtag for _ in range(2)] == [1, 2]


@for_each("pad", [200, 255, 256, 70_000, 1_000_000])
def test_pings_of_any_size_come_back_whole(broker, pad):
    with Speaker(broker.uri) as client:
        client.send(ping(1, pad))
        answer = client.next()
        assert decode_json(answer.payload)["pad"] == "p" * pad


def test_large_and_small_messages_keep_their_order(broker):
    with Speaker(broker.uri) as client:
        client.send(b"".join(ping(tag, 1_000_000 if tag % 5 == 0 else 10) for tag in range(1, 21)))
        assert [client.next().matchtag for _ in range(20)] == list(range(1, 21))


@for_each("size", [70_000, 1_000_000, 15 << 20])
def test_bulk_through_a_service_and_an_event(broker, size):
    payload = numbered(1, 0) + hashlib.sha256(str(size).encode()).digest() * (size // 32)
    provider = Provider(broker.uri, "bulk")
    with Speaker(broker.uri) as caller, Speaker(broker.uri) as listener:
        subscribe(listener, "bulk")
        answer = caller.ask(request("bulk.echo", payload, matchtag=1), 30)
        assert (answer.type, answer.errnum) == (RESPONSE, 0)
        assert answer.payload == payload
        caller.tell(event("bulk.event", payload))
        assert listener.next(30).payload == payload
    provider.stop()
    provider.finish()


def test_the_magic_of_the_text_is_answered_in_kind(broker):
    with Speaker(broker.uri) as client:
        client.send(MAGIC_TEXT + ping(7)[4:])
        client.sock.settimeout(10)
        assert client.sock.recv(4) == MAGIC_TEXT
