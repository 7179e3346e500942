"""``flux.v1``: whole frames, any number, both magic orders; control objects as text."""

import pytest

from broker.errors import DecodeError, MessageTooLarge
from broker.wire.framing import frame
from broker.wire.message import MAGIC_TEXT, event, request, response
from gateway.codecs import new_codec
from gateway.codecs.contract import RUN_BYTES
from gateway.events.run import Run
from tests.tables import for_each

ASKED = request("attr.get", b'{"name":"rank"}\0', matchtag=1)


def payload_of(data: bytes) -> list[tuple[int, bytes]]:
    """Opcode and payload of each frame a server wrote; the RFC's arithmetic once more, by hand."""
    found = []
    while data:
        first, size, at = data[0], data[1], 2
        assert first & 0x80, "fragmented"
        assert size < 128, "masked"
        if size == 126:
            size, at = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, at = int.from_bytes(data[2:10], "big"), 10
        found.append((first & 15, data[at : at + size]))
        assert len(found[-1][1]) == size
        data = data[at + size :]
    return found


def test_one_message_each_way():
    codec = new_codec("flux.v1")
    wire = codec.encode(ASKED)
    assert wire == bytes.fromhex(
        "8238"  # a binary WebSocket frame of 56 bytes
        "1200eeff 00000030"  # magic in deployed order, 48 bytes follow
        "00"  # delimiter of the empty route stack
        "08 617474722e676574"  # attr.get
        "10 7b226e616d65223a2272616e6b227d00"  # {"name":"rank"} and NUL
        "14 8e01010b ffffffff 00000000 ffffffff 00000001"
    )
    assert codec.decode(wire[2:], text=False) == [ASKED]


@for_each("size", [0, 1, 80, 125, 126, 300, 511, 512, 65000, 66000, 1 << 20])
def test_sizes_around_every_length_form(size):
    message = event("t", bytes(size))
    assert payload_of(new_codec("flux.v1").encode(message)) == [(2, message.framed())]


def test_several_messages_in_both_magic_orders():
    messages = [ASKED, event("a"), response(ASKED, b"x" * 300)]
    data = b"".join(
        frame(message, MAGIC_TEXT) if number % 2 else message.framed()
        for number, message in enumerate(messages)
    )
    assert new_codec("flux.v1").decode(data, text=False) == messages


@for_each(
    ("data", "said"),
    [
        (b"", "empty"),
        (ASKED.framed()[:-1], "ends inside frame 1"),
        (ASKED.framed() + ASKED.framed()[:3], "ends inside frame 2"),
        (b"GET / HTTP/1.1\r\n", "magic"),
        (ASKED.framed() + b"\0" * 30, "magic"),
    ],
)
def test_what_is_no_whole_frame_is_refused(data, said):
    with pytest.raises(DecodeError, match=said):
        new_codec("flux.v1").decode(data, text=False)


def without_its_topic(message):
    """Its flags announce a topic and a payload, and only the payload is there."""
    message = message.copy()
    message.topic_part = b""
    return message


def test_a_request_that_is_none_is_told_apart_from_what_nobody_could_answer():
    codec = new_codec("flux.v1")
    bad = frame(without_its_topic(ASKED))
    for _ in range(2):  # and what comes later is read
        before, refused, after = codec.decode(frame(ASKED) + bad + frame(ASKED, MAGIC_TEXT), text=False)
        assert (before, after) == (ASKED, ASKED)
        assert (refused.message.type, refused.message.matchtag, refused.message.topic) == (1, 1, "")
        assert refused.text.startswith("flux.v1: ")
    unanswerable = (
        without_its_topic(request("attr.get", b"{}\0")),
        without_its_topic(event("attr.get", b"{}\0", sequence=3)),
        without_its_topic(response(ASKED, b"{}\0")),
    )
    for each in unanswerable:
        with pytest.raises(DecodeError):
            codec.decode(frame(ASKED) + frame(each), text=False)


def test_a_frame_above_the_cap_is_refused_by_its_announcement():
    codec = new_codec("flux.v1", 2048)
    with pytest.raises(MessageTooLarge, match="2048"):
        codec.decode(event("t", bytes(4096)).framed(), text=False)


def test_text_is_one_control_object():
    codec = new_codec("flux.v1")
    assert codec.decode(b'{"type":"ping"}', text=True) == [{"type": "ping"}]
    with pytest.raises(DecodeError):
        codec.decode(ASKED.framed(), text=True)


def test_control_objects_leave_as_text():
    assert payload_of(new_codec("flux.v1").encode_control({"type": "pong"})) == [(1, b'{"type":"pong"}')]


def test_a_run_is_one_websocket_message_and_made_once():
    run = Run([event(f"n.{number}", b"x", sequence=number) for number in range(1, 40)])
    wire = new_codec("flux.v1").encode_run(run)
    assert payload_of(wire) == [(2, b"".join(message.framed() for message in run.messages))]
    assert new_codec("flux.v1").encode_run(run) is wire


def test_a_long_run_is_several_websocket_messages():
    run = Run([event("n", bytes(50_000), sequence=number) for number in range(12)])
    frames = payload_of(new_codec("flux.v1").encode_run(run))
    assert len(frames) > 1
    assert all(len(data) <= RUN_BYTES for _, data in frames)
    assert b"".join(data for _, data in frames) == b"".join(message.framed() for message in run.messages)


def test_one_event_above_the_join_limit_travels_alone():
    big = event("big", bytes(2 * RUN_BYTES))
    run = Run([event("small"), big, event("small")])
    assert [len(data) for _, data in payload_of(new_codec("flux.v1").encode_run(run))] == [
        len(event("small").framed()),
        len(big.framed()),
        len(event("small").framed()),
    ]
