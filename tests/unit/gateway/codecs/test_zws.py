"""``ZWS2.0``: what RFC 45 says of frames, routing ids and commands, byte by byte."""

import pytest

from broker.errors import DecodeError, MessageTooLarge
from broker.wire import message as wire
from broker.wire.message import event, request, response
from broker.wire.payload import decode_json
from gateway.codecs import choose, new_codec, zws
from gateway.events.run import Run
from tests.tables import for_each
from tests.unit.gateway.codecs.test_binary import payload_of

ASKED = request("attr.get", b'{"name":"rank"}\0', matchtag=1)


def greeted(name="ZWS2.0", max_bytes=1 << 20):
    codec = new_codec(name, max_bytes)
    hello = b"\0" if name == "ZWS2.0" else b"\x02\x05READY"
    assert codec.decode(hello, text=False) == []
    return codec


def sent(codec, parts):
    """What the codec makes of a message whose parts arrive one after another."""
    found = []
    for number, part in enumerate(parts):
        found += codec.decode((b"\0" if number == len(parts) - 1 else b"\1") + part, text=False)
    return found


def test_the_gateway_says_its_empty_routing_id_first():
    assert new_codec("ZWS2.0").greeting == bytes.fromhex("82 01 00")


def test_a_request_in_parts():
    assert sent(greeted(), [b"", b"attr.get", b'{"name":"rank"}\0', ASKED.proto]) == [ASKED]


def test_a_response_in_parts():
    answer = response(ASKED, b"{}\0")
    assert payload_of(greeted().encode(answer)) == [
        (2, b"\1"),
        (2, b"\1attr.get"),
        (2, b"\1{}\0"),
        (2, b"\0" + answer.proto),
    ]


def test_routing_ids_up_to_255_bytes_and_of_one_part():
    for hello in (b"\0", b"\0me", b"\0" + bytes(255)):
        assert new_codec("ZWS2.0").decode(hello, text=False) == []
    for hello in (b"\0" + bytes(256), b"\1", b"\1me"):
        with pytest.raises(DecodeError, match="routing id"):
            new_codec("ZWS2.0").decode(hello, text=False)


@for_each("data", [b"", b"\3", b"\4x", b"\xff"])
def test_flag_bytes_that_are_none(data):
    with pytest.raises(DecodeError, match="flag byte"):
        greeted().decode(data, text=False)


def test_text_is_refused():
    with pytest.raises(DecodeError, match="binary"):
        greeted().decode(b"\0", text=True)


def test_no_commands_without_mechanism():
    with pytest.raises(DecodeError, match="no commands"):
        greeted().decode(b"\x02\x04PING\0\0", text=False)


def test_parts_that_are_no_flux_message():
    with pytest.raises(DecodeError, match="PROTO"):
        sent(greeted(), [b"hello"])


def test_bytes_and_parts_of_a_message_are_bounded():
    codec = greeted(max_bytes=1000)
    with pytest.raises(MessageTooLarge, match="1000 bytes"):
        for _ in range(3):
            codec.decode(b"\1" + bytes(400), text=False)
    codec = greeted()
    with pytest.raises(MessageTooLarge, match="512 parts"):
        for _ in range(zws.MAX_PARTS + 1):
            codec.decode(b"\1", text=False)


def test_the_bound_is_per_message():
    codec = greeted(max_bytes=1000)
    for _ in range(5):
        assert len(sent(codec, [b"", b"t", bytes(600), event("t", b"x").proto])) == 1


def test_a_sub_socket_subscribes_and_gets_events_that_begin_with_their_topic():
    codec = greeted()
    (asked,) = codec.decode(b"\0\1job.", text=False)
    assert (asked.topic, decode_json(asked.payload), asked.flags & wire.NORESPONSE) == (
        "event.subscribe",
        {"topic": "job."},
        wire.NORESPONSE,
    )
    (asked,) = codec.decode(b"\0\0job.", text=False)
    assert asked.topic == "event.unsubscribe"
    heard = event("job.new", b"{}\0", sequence=3)
    frames = payload_of(codec.encode(heard))
    assert [data for _, data in frames[:2]] == [b"\1job.new", b"\1{}\0"]
    proto = frames[2][1][1:]
    assert proto[3] & wire.ROUTE == 0
    assert proto[:3] + proto[4:] == heard.proto[:3] + heard.proto[4:]
    assert heard.routes == []
    assert heard.flags & wire.ROUTE, "the shared message was changed"


def test_a_sub_socket_gets_no_answers_to_what_it_did_not_ask_as_a_request():
    codec = greeted()
    (asked,) = codec.decode(b"\0\1job.", text=False)
    assert codec.encode(response(asked)) == b""
    assert codec.encode(response(ASKED)) != b""
    assert greeted().encode(response(asked)) != b""


def test_a_subscription_that_is_no_utf8():
    with pytest.raises(DecodeError, match="UTF-8"):
        greeted().decode(b"\0\1\xff", text=False)


def test_runs_are_made_once_per_kind_of_socket():
    dealer, sub = greeted(), greeted()
    sub.decode(b"\0\1", text=False)
    run = Run([event("a", sequence=1), event("b", sequence=2)])
    assert dealer.encode_run(run) == b"".join(dealer.encode(message) for message in run.messages)
    assert sub.encode_run(run) == b"".join(sub.encode(message) for message in run.messages)
    assert dealer.encode_run(run) != sub.encode_run(run)
    assert greeted().encode_run(run) is dealer.encode_run(run)


def test_there_is_no_place_for_control_objects():
    assert greeted().encode_control({"type": "welcome"}) is None


def test_null_begins_with_ready():
    codec = new_codec("ZWS2.0/NULL")
    assert payload_of(codec.greeting) == [(2, b"\x02\x05READY\x0bSocket-Type\0\0\0\x06ROUTER")]
    assert codec.decode(b"\x02\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0", text=False) == []
    assert sent(codec, [b"", b"attr.get", b'{"name":"rank"}\0', ASKED.proto]) == [ASKED]


def test_null_ping_and_pong():
    codec = greeted("ZWS2.0/NULL")
    assert codec.decode(b"\x02\x04PING\0\x0aabc", text=False) == [{"type": "ping"}]
    assert payload_of(codec.encode_control({"type": "pong"})) == [(2, b"\x02\x04PONGabc")]
    assert codec.encode_control({"type": "welcome"}) is None
    assert codec.decode(b"\x02\x06FUTURE", text=False) == []


@for_each(
    ("data", "said"),
    [
        (b"\0", "before the READY"),
        (b"\x02\x04PING\0\0", "before READY"),
        (b"\x02\x05ERROR\x02no", "ERROR"),
        (b"\x02", "without a name"),
        (b"\x02\x09READY", "without a name"),
    ],
)
def test_null_handshakes_that_are_none(data, said):
    with pytest.raises(DecodeError, match=said):
        new_codec("ZWS2.0/NULL").decode(data, text=False)


def test_the_choice_follows_the_order_of_the_offer():
    assert choose(["ZWS2.0/NULL", "ZWS2.0"]) == "ZWS2.0/NULL"
    assert choose(["x", "flux.v1"]) == "flux.v1"
    assert choose(["ZWS1.0", "flux"]) is None
    with pytest.raises(KeyError):
        new_codec("flux")
