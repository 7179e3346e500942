"""Bytes on the left of each check are written by hand from RFC 3, not by the code under test."""

import errno

import pytest

from broker.errors import DecodeError, ProtocolError
from broker.wire import message as m
from broker.wire.decoding import decode, from_parts
from broker.wire.message import Message
from broker.wire.parts import encode_part, part_data, part_size, split_parts
from tests.tables import for_each

PROTO = "8e 01 {kind:02x} {flags:02x}  00 00 03 e8  00 00 00 02  00 00 00 03  00 00 00 07"


def proto(kind: int, flags: int) -> bytes:
    return bytes.fromhex(PROTO.format(kind=kind, flags=flags))


def encoded(text: str) -> Message:
    body = bytes.fromhex(text)
    return decode(body, 0, len(body))


# -- constructors ------------------------------------------------------------------------------------------


def test_request() -> None:
    message = m.request("kvs.get", b"{}\0", nodeid=3, matchtag=7, flags=m.STREAMING, userid=1000, rolemask=2)
    assert message.framed() == bytes.fromhex(
        "12 00 ee ff  00 00 00 22"  # magic in host order, length
        "00"  # delimiter
        "07 6b 76 73 2e 67 65 74"  # kvs.get
        "03 7b 7d 00"  # {} and NUL
        "14 8e 01 01 4b 00 00 03 e8 00 00 00 02 00 00 00 03 00 00 00 07"
    )
    assert (message.type, message.flags) == (m.REQUEST, m.TOPIC | m.PAYLOAD | m.ROUTE | m.STREAMING)
    assert (message.nodeid, message.matchtag, message.userid, message.rolemask) == (3, 7, 1000, 2)
    assert (message.topic, message.payload, message.routes) == ("kvs.get", b"{}\0", [])
    assert message.size == 0x22


def test_request_that_nobody_has_stamped() -> None:
    message = m.request("a")
    assert message.proto == bytes.fromhex("8e 01 01 09 ff ff ff ff 00 00 00 00 ff ff ff ff 00 00 00 00")
    assert message.payload is None


def test_empty_payload_is_a_payload() -> None:
    message = m.request("a", b"")
    assert message.flags & m.PAYLOAD
    assert message.payload == b""
    assert message.parts() == [b"", b"a", b"", message.proto]


def test_response_keeps_stack_topic_matchtag_and_flags() -> None:
    asked = m.request("a.b", b"x", matchtag=9, flags=m.STREAMING | m.USER1)
    asked.push_route(b"client")
    asked.push_route(b"broker")
    answer = m.response(asked, errnum=38, userid=0, rolemask=1)
    assert answer.parts() == [
        b"broker",
        b"client",
        b"",
        b"a.b",
        bytes.fromhex("8e 01 02 c9 00 00 00 00 00 00 00 01 00 00 00 26 00 00 00 09"),
    ]
    assert m.response(asked, b"y").payload == b"y"


def test_response_to_a_request_without_delimiter_has_one() -> None:
    bare = from_parts([b"a.b", proto(m.REQUEST, m.TOPIC)])
    assert bare.front == b""
    assert m.response(bare).parts()[0] == b""
    assert m.response(bare).flags & m.ROUTE


def test_event() -> None:
    message = m.event(b"heartbeat.pulse", sequence=5, flags=m.PRIVATE)
    assert message.parts() == [
        b"",
        b"heartbeat.pulse",
        bytes.fromhex("8e 01 04 29 ff ff ff ff 00 00 00 00 00 00 00 05 00 00 00 00"),
    ]
    assert message.sequence == 5


def test_control() -> None:
    assert m.control(1, 2).framed() == bytes.fromhex(
        "12 00 ee ff 00 00 00 16 00 14 8e 01 08 08 ff ff ff ff 00 00 00 00 00 00 00 01 00 00 00 02"
    )


# -- patches -----------------------------------------------------------------------------------------------


def test_routes_are_pushed_on_top() -> None:
    message = m.request("a")
    message.push_route(b"first")
    message.push_route(b"second")
    assert message.front == b"\x06second\x05first\x00"
    assert message.routes == [b"second", b"first"]


def test_pushing_a_route_adds_the_missing_delimiter_and_flag() -> None:
    message = from_parts([b"a", proto(m.REQUEST, m.TOPIC)])
    message.push_route(b"hop")
    assert message.parts() == [b"hop", b"", b"a", proto(m.REQUEST, m.TOPIC | m.ROUTE)]


def test_header_patches_touch_their_field_only() -> None:
    message = m.request("a", b"p", nodeid=3, matchtag=7, userid=1000, rolemask=2)
    message.set_credentials(0xFFFFFFFE, 0x80000001)
    message.set_aux1(0xFFFFFFFD)
    message.set_flags(message.flags | m.UPSTREAM)
    assert message.parts() == [
        b"",
        b"a",
        b"p",
        bytes.fromhex("8e 01 01 1b ff ff ff fe 80 00 00 01 ff ff ff fd 00 00 00 07"),
    ]


def test_a_copy_is_patched_alone() -> None:
    message = m.request("a")
    other = message.copy()
    assert other == message
    assert hash(other) == hash(message)
    other.set_aux1(5)
    assert other != message
    assert message.nodeid == m.NODEID_ANY
    assert message != "a"


def test_repr_shows_no_payload() -> None:
    text = repr(m.request("kvs.put", b"secret"))
    assert "kvs.put" in text
    assert "secret" not in text


@for_each("topic", ["a\0b", "a\0", b"\0a", "\ud83d", "a.\ud83d"])
def test_topic_that_no_message_holds(topic: str | bytes) -> None:
    for make in (m.request, m.event):
        with pytest.raises(ProtocolError) as caught:
            make(topic)
        assert caught.value.errno == errno.EPROTO


def test_topic_that_is_not_utf8_is_kept() -> None:
    message = m.request(b"\xff.a")
    assert message.topic == "\udcff.a"
    assert m.request(message.topic) == message


def test_framed_is_made_once() -> None:
    message = m.request("a")
    assert message.framed() is message.framed()
    assert message.framed()[8:] == message.encode()


# -- parts -------------------------------------------------------------------------------------------------


@for_each(
    ("size", "head"),
    [
        (0, "00"),
        (1, "01"),
        (254, "fe"),
        (255, "ff 00 00 00 ff"),
        (256, "ff 00 00 01 00"),
        (1 << 20, "ff 00 10 00 00"),
    ],
)
def test_size_of_a_part(size: int, head: str) -> None:
    data = bytes(size)
    part = encode_part(data)
    assert part == bytes.fromhex(head) + data
    assert encode_part(memoryview(data)) == part
    assert part_data(part) == data
    assert part_size(part) == len(data)
    assert split_parts(part) == [data]


def test_no_part_is_not_an_empty_part() -> None:
    assert part_data(b"") is None
    assert part_size(b"") == 0
    assert part_data(b"\x00") == b""


@for_each("body", ["01", "05 61", "ff", "ff 00 00 00", "ff 00 00 00 02 61", "00 ff ff ff ff ff"])
def test_part_that_runs_past_the_end(body: str) -> None:
    with pytest.raises(DecodeError):
        split_parts(bytes.fromhex(body))


# -- canonical form ----------------------------------------------------------------------------------------

CANONICAL = bytes.fromhex("03 68 6f 70 00 01 61 01 70 14") + proto(1, 0x0B)


@for_each(
    ("what", "body"),
    [
        ("canonical", "03 68 6f 70  00  01 61  01 70  14"),
        ("long form of the route", "ff 00 00 00 03 68 6f 70  00  01 61  01 70  14"),
        ("long form of the topic", "03 68 6f 70  00  ff 00 00 00 01 61  01 70  14"),
        ("long form of the payload", "03 68 6f 70  00  01 61  ff 00 00 00 01 70  14"),
        ("long form of the delimiter", "03 68 6f 70  ff 00 00 00 00  01 61  01 70  14"),
        ("long form of PROTO", "03 68 6f 70  00  01 61  01 70  ff 00 00 00 14"),
        (
            "long form of everything",
            "ff00000003 68 6f 70  ff00000000  ff00000001 61  ff00000001 70  ff 00 00 00 14",
        ),
        ("NUL at the end of route and topic", "04 68 6f 70 00  00  02 61 00  01 70  14"),
        ("NUL inside route and topic", "05 68 6f 70 00 78  00  03 61 00 62  01 70  14"),
        ("a route that is nothing but NUL", "01 00  03 68 6f 70  00  01 61  01 70  14"),
        ("a part nobody announced", "03 68 6f 70  00  01 61  01 70  05 65 78 74 72 61  14"),
        ("an empty part nobody announced", "03 68 6f 70  00  01 61  01 70  00  14"),
    ],
)
def test_what_is_decodable_becomes_canonical(what: str, body: str) -> None:
    assert encoded(body + proto(1, 0x0B).hex()).encode() == CANONICAL, what


@for_each("size", [*range(1, 30), *range(245, 260)])
@for_each("flags", [0x0B, 0x03, 0x02, 0x09])
def test_the_long_form_of_every_size_becomes_canonical(size: int, flags: int) -> None:
    """The fast way must not take a long form for a short part, wherever its end happens to fall."""
    parts = (
        [b"r" * size, b""] * bool(flags & 8) + [b"t" * size] * (flags & 1) + [b"p" * size] * bool(flags & 2)
    )
    parts.append(proto(1, flags))
    short = [encode_part(part) for part in parts]
    for at, part in enumerate(parts):
        long = b"\xff" + len(part).to_bytes(4, "big") + part
        body = b"".join([*short[:at], long, *short[at + 1 :]])
        assert decode(body, 0, len(body)).encode() == b"".join(short)


@for_each(
    ("flags", "left"),
    [
        (0x09, ["hop", "", "a"]),
        (0x08, ["hop", ""]),
        (0x01, ["hop"]),
        (0x00, []),
        (0x02, ["hop"]),
        (0x03, ["hop", ""]),
    ],
)
def test_parts_whose_flag_is_clear_are_dropped(flags: int, left: list[str]) -> None:
    """As deployed brokers read it: flags say how many parts there are, whatever stands in them."""
    message = encoded("03 68 6f 70  00  01 61  01 70  14" + proto(1, flags).hex())
    assert message.parts() == [part.encode() for part in left] + [proto(1, flags)]


@for_each("sizes", [(255,), (300, 36), (36, 255, 1)])
def test_routes_of_255_bytes_and_more(sizes: tuple[int, ...]) -> None:
    stack = [bytes([65 + at]) * size for at, size in enumerate(sizes)]
    message = from_parts([*stack, b"", b"a", proto(1, 0x09)])
    assert message.routes == stack
    body = message.encode()
    assert decode(body, 0, len(body)) == message


@for_each(
    ("parts", "why"),
    [
        ([], "PROTO"),
        ([b""], "PROTO"),
        ([b"a", proto(1, 1)[:19]], "20 bytes long, not 19"),
        ([b"a", proto(1, 1) + b"x"], "20 bytes long, not 21"),
        ([b"\x8f" + proto(1, 0)[1:]], "0x8f"),
        ([b"\x8e\x02" + proto(1, 0)[2:]], "version 2"),
        ([proto(0, 0)], "type 0"),
        ([proto(3, 0)], "type 3"),
        ([proto(16, 0)], "type 16"),
        ([proto(1, 1)], "TOPIC"),
        ([proto(1, 2)], "PAYLOAD"),
        ([b"a", proto(1, 3)], "PAYLOAD"),
        ([proto(1, 8)], "delimiter"),
        ([b"hop", proto(1, 8)], "delimiter"),
        ([b"", proto(1, 9)], "TOPIC"),
    ],
)
def test_parts_that_are_no_message(parts: list[bytes], why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        from_parts(parts)
    body = b"".join(encode_part(part) for part in parts)
    with pytest.raises(DecodeError):
        decode(body, 0, len(body))
