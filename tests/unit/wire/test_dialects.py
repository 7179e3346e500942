"""Golden bytes of each dialect, written by hand from its text's grammar, and what is special to each."""

import pytest

from broker.errors import ConfigError, DecodeError, Untranslatable
from broker.wire import message as m
from broker.wire.decoding import from_parts
from broker.wire.dialects import NAMES, dialect
from broker.wire.framing import Splitter
from broker.wire.message import Message
from tests.tables import for_each

DEPLOYED = dialect("flux1")
TEXT = dialect("flux1", strict=True)
REVISED = dialect("cmb1rev")
FIRST = dialect("cmb1")
CRED = "00 00 03 e8  00 00 00 02"  # userid 1000, rolemask USER
UNSTAMPED = "ff ff ff ff  00 00 00 00"


def golden(*parts: bytes | str) -> list[bytes]:
    """Parts; text is hexadecimal."""
    return [bytes.fromhex(part) if isinstance(part, str) else part for part in parts]


def proto(kind: int, flags: int, words: str = "ff ff ff ff  00 00 00 01", cred: str = CRED) -> bytes:
    return bytes.fromhex(f"8e 01 {kind:02x} {flags:02x} {cred} {words}")


# -- registry ----------------------------------------------------------------------------------------------


def test_names() -> None:
    assert NAMES == ("flux1", "cmb1rev", "cmb1")
    for name in NAMES:
        assert dialect(name).name == name
        assert not dialect(name).strict
    assert TEXT.strict
    assert [name for name in NAMES if dialect(name).native] == ["flux1"]
    assert not TEXT.native


@for_each(("name", "strict"), [("zmtp", False), ("", False), ("cmb1", True), ("cmb1rev", True)])
def test_there_is_no_other(name: str, strict: bool) -> None:
    with pytest.raises(ConfigError, match="no dialect"):
        dialect(name, strict)


# -- the same message in four forms ------------------------------------------------------------------------

HOP = b"7d9cf2a5-4b0e-4fd7-9dd9-1c2a0f1a7c60"


def request() -> Message:
    message = m.request("kvs.get", b'{"key":"a"}\0', matchtag=1, userid=1000, rolemask=2)
    message.push_route(HOP)
    return message


def response() -> Message:
    return m.response(request(), errnum=38, userid=1000, rolemask=2)


def event() -> Message:
    return m.event("hb.pulse", b"raw", sequence=5, userid=1000, rolemask=2)


REQUESTS = [
    (DEPLOYED, golden(HOP, "", b"kvs.get", b'{"key":"a"}\0', proto(1, 0x0B))),
    (TEXT, golden(HOP + b"\0", "", b"kvs.get\0", b'{"key":"a"}\0', proto(1, 0x0B))),
    (REVISED, golden(HOP, "", b"kvs.get", b'{"key":"a"}\0', proto(1, 0x0B))),
    (FIRST, golden(HOP, "", b"kvs.get", b'{"key":"a"}', proto(1, 0x0F))),
]
RESPONSES = [
    (DEPLOYED, golden(HOP, "", b"kvs.get", proto(2, 0x09, "00 00 00 26 00 00 00 01"))),
    (TEXT, golden(HOP + b"\0", "", b"kvs.get\0", proto(2, 0x09, "00 00 00 26 00 00 00 01"))),
    (REVISED, golden(HOP, "", b"kvs.get", proto(2, 0x09, "00 00 00 26 00 00 00 01"))),
    (FIRST, golden(HOP, "", b"kvs.get", proto(2, 0x09, "00 00 00 26 00 00 00 01"))),
]
EVENTS = [
    (DEPLOYED, golden("", b"hb.pulse", b"raw", proto(4, 0x0B, "00 00 00 05 00 00 00 00"))),
    (TEXT, golden(b"hb.pulse\0", b"raw", proto(4, 0x03, "00 00 00 05 00 00 00 00"))),
    (REVISED, golden(b"hb.pulse", b"raw", proto(4, 0x03, "00 00 00 05 00 00 00 00"))),
    (FIRST, golden(b"hb.pulse", b"raw", proto(4, 0x03, "00 00 00 05 00 00 00 00"))),
]
ALIVE = [
    (DEPLOYED, golden("", proto(8, 0x08, "00 00 00 00 00 00 00 02", UNSTAMPED))),
    (TEXT, golden(proto(8, 0x00, "00 00 00 00 00 00 00 02", UNSTAMPED))),
    (REVISED, golden(proto(8, 0x00, "00 00 00 00 00 00 00 02", UNSTAMPED))),
    (FIRST, golden(proto(8, 0x00, "00 00 00 00 00 00 00 02", UNSTAMPED))),
]
GOLDEN = [
    (make, spoken, parts)
    for make, forms in (
        (request, REQUESTS),
        (response, RESPONSES),
        (event, EVENTS),
        (lambda: m.control(0, 2), ALIVE),
    )
    for spoken, parts in forms
]


@for_each(("make", "spoken", "parts"), GOLDEN)
def test_golden_parts(make, spoken, parts: list[bytes]) -> None:
    message = make()
    assert spoken.encode(message) == parts
    assert message == make(), "encode must leave the message alone"
    assert spoken.decode(parts) == message


def test_golden_frame_of_the_text() -> None:
    """The framed request of the text's figure: FF EE 00 12, sizes, NUL-terminated strings."""
    message = m.request("a.b", b"p", matchtag=1, userid=1000, rolemask=2)
    message.push_route(b"hop")
    framed = bytes.fromhex(
        "ff ee 00 12  00 00 00 22"
        "04 68 6f 70 00"  # hop
        "00"  # delimiter
        "04 61 2e 62 00"  # a.b
        "01 70"  # p
        "14 8e 01 01 0b 00 00 03 e8 00 00 00 02 ff ff ff ff 00 00 00 01"
    )
    assert TEXT.frame(message) == framed
    assert Splitter().feed(framed) == [message]
    assert DEPLOYED.frame(message) == message.framed()


@for_each("size", [0, 253, 254, 255, 256, 70_000])
def test_sizes_of_the_text_count_the_nul(size: int) -> None:
    message = m.request(b"t" * size, b"p" * size)
    framed = TEXT.frame(message)
    assert int.from_bytes(framed[4:8], "big") == len(framed) - 8
    assert Splitter().feed(framed) == [message]


@for_each("spoken", [REVISED, FIRST])
def test_older_dialects_have_no_stream_form(spoken) -> None:
    with pytest.raises(Untranslatable, match="ZeroMQ only"):
        spoken.frame(request())


# -- the form of the house ---------------------------------------------------------------------------------


@for_each("spoken", [TEXT, REVISED, FIRST])
def test_a_missing_delimiter_is_added(spoken) -> None:
    message = spoken.decode(golden(b"kvs.get", proto(1, 0x01)))
    assert message.parts() == golden("", b"kvs.get", proto(1, 0x09))


@for_each("spoken", [TEXT, REVISED, FIRST])
def test_control_is_stripped_to_proto(spoken) -> None:
    parts = golden(b"id", "", b"topic", b"payload", proto(8, 0x0B, "00 00 00 00 00 00 00 00"))
    assert spoken.decode(parts).parts() == golden("", proto(8, 0x08, "00 00 00 00 00 00 00 00"))


@for_each("spoken", [TEXT, REVISED, FIRST])
def test_routes_left_over_on_events_are_not_written(spoken) -> None:
    message = event()
    message.push_route(HOP)
    assert spoken.encode(message) == spoken.encode(event())


@for_each("spoken", [TEXT, REVISED, FIRST])
def test_the_unused_word_of_an_event_is_zero(spoken) -> None:
    message = from_parts(golden("", b"a", proto(4, 0x09, "00 00 00 05 00 00 03 78")))
    assert message.aux2 == 888
    assert spoken.encode(message)[-1] == proto(4, 0x01, "00 00 00 05 00 00 00 00")


@for_each("spoken", [TEXT, REVISED, FIRST])
def test_bytes_that_are_no_message(spoken) -> None:
    for parts in ([], [b""], [b"\0" * 20], [proto(3, 0)], [proto(1, 8)], [proto(1, 1)]):
        with pytest.raises(DecodeError):
            spoken.decode(parts)


# -- identities --------------------------------------------------------------------------------------------


@for_each("spoken", [REVISED, FIRST])
@for_each(
    "identity",
    [
        b"\x00\x6b\x8b\x45\x67",
        b"\0",
        b"%",
        b"%00",
        b"%25",
        b"%2500",
        b"a\0%b",
        b"\xff" * 255,
        b"\0" * 255,
        b"plain",
    ],
)
def test_any_identity_comes_back_as_it_was(spoken, identity: bytes) -> None:
    """Identities made up by libzmq begin with NUL; a response has to find its way back to them."""
    asked = spoken.decode(golden(identity, b"outer", "", b"a", proto(1, 0x09)))
    assert len(asked.routes) == 2
    assert b"\0" not in b"".join(asked.routes)
    assert from_parts(asked.parts()) == asked
    assert spoken.encode(m.response(asked))[:3] == [identity, b"outer", b""]


@for_each("spoken", [REVISED, FIRST])
@for_each("hop", [b"100%", b"%41", b"%0"])
def test_a_hop_that_would_come_back_as_another_is_refused(spoken, hop: bytes) -> None:
    message = m.request("a")
    message.push_route(hop)
    with pytest.raises(Untranslatable, match="route"):
        spoken.encode(message)


# -- first CMB1: the JSON flag -----------------------------------------------------------------------------


@for_each(
    ("payload", "flags", "inside"),
    [
        (b'{"a":1}', 0x0F, b'{"a":1}\0'),
        (b'{"a":1}\0', 0x0F, b'{"a":1}\0'),
        (b'{"a":1}\0\0junk', 0x0F, b'{"a":1}\0'),
        (b"{}", 0x0F, b"{}\0"),
        (b"no json", 0x0F, b"no json\0"),
        (b"", 0x0F, b"\0"),
        (b'{"a":1}', 0x0B, b'{"a":1}'),
        (b"\0raw\0", 0x0B, b"\0raw\0"),
        (b"", 0x0B, b""),
    ],
)
def test_marked_payloads_gain_their_nul(payload: bytes, flags: int, inside: bytes) -> None:
    message = FIRST.decode(golden("", b"a", payload, proto(1, flags)))
    assert message.payload == inside
    assert message.flags == 0x0B


def test_a_mark_without_payload_means_nothing() -> None:
    assert FIRST.decode(golden("", b"a", proto(1, 0x0D))).parts() == golden("", b"a", proto(1, 0x09))


@for_each(
    ("inside", "payload", "flags"),
    [
        (b'{"a":1}\0', b'{"a":1}', 0x0F),
        (b"{}\0", b"{}", 0x0F),
        (b"[1]\0", b"[1]\0", 0x0B),
        (b"No service matching a is registered\0", b"No service matching a is registered\0", 0x0B),
        (b'{"a":1}', b'{"a":1}', 0x0B),
        (b'{"a":1}\0\0', b'{"a":1}\0\0', 0x0B),
        (b'{"a":\0', b'{"a":\0', 0x0B),
        (b"", b"", 0x0B),
    ],
)
def test_payloads_that_obey_the_conventions_are_marked(inside: bytes, payload: bytes, flags: int) -> None:
    assert FIRST.encode(m.request("a", inside, matchtag=1, userid=1000, rolemask=2)) == golden(
        "", b"a", payload, proto(1, flags)
    )


def test_long_json_is_marked_too() -> None:
    text = b'{"a":"' + b"x" * 100_000 + b'"}'
    message = m.request("a", text + b"\0")
    parts = FIRST.encode(message)
    assert parts[2] == text
    assert FIRST.decode(parts) == message


# -- revision ----------------------------------------------------------------------------------------------


def test_flags_of_the_revision() -> None:
    """noresponse, upstream, private and streaming stand where Flux v1 has them."""
    message = m.request(
        "a", flags=m.NORESPONSE | m.UPSTREAM | m.PRIVATE | m.STREAMING, matchtag=1, userid=1000, rolemask=2
    )
    parts = golden("", b"a", proto(1, 0x7D))
    assert REVISED.encode(message) == parts
    assert REVISED.decode(parts) == message


@for_each("spoken", [REVISED, FIRST])
@for_each("errnum", ["00 00 00 01", "00 00 00 02", "ff ff ff ff"])
def test_a_keepalive_with_an_errnum_never_becomes_control(spoken, errnum: str) -> None:
    """Taken for a control type, 2 would be DISCONNECT."""
    with pytest.raises(Untranslatable, match="errnum"):
        spoken.decode([proto(8, 0, errnum + " 00 00 00 00")])
