"""Greeting, frames, commands and metadata, byte by byte (ZeroMQ RFC 37)."""

import pytest

from broker.errors import DecodeError, MessageTooLarge, ProtocolError
from broker.transport.zeromq.connection import Connection, State
from broker.transport.zeromq.frames import (
    COMMAND,
    MORE,
    FrameReader,
    Mismatch,
    check_greeting,
    command,
    error,
    greeting,
    head_of,
    pack_metadata,
    reason_of,
    split_command,
    unpack_metadata,
)
from broker.transport.zeromq.mechanisms import Null
from tests.tables import for_each
from tests.unit.transport.zmtp import PARENT

GREETING = bytes.fromhex("ff 00000000 00000000 7f 03 01") + b"CURVE".ljust(20, b"\0") + b"\x01" + bytes(31)


def test_greeting():
    """RFC 37, "The Greeting": signature, version 3.1, mechanism, as-server, filler."""
    assert greeting(b"CURVE", as_server=True) == GREETING
    assert greeting(b"NULL", as_server=False)[12:33] == b"NULL".ljust(21, b"\0")
    for size in range(65):  # any part of it may be there
        check_greeting(GREETING[:size], b"CURVE")


@for_each(
    ("what", "data", "kind"),
    [
        ("HTTP", b"GET / HTTP/1.1\r\n", DecodeError),
        ("a first byte that is no signature", b"\x00" + GREETING[1:], DecodeError),
        ("a signature that ends otherwise", GREETING[:9] + b"\x7e" + GREETING[10:], DecodeError),
        ("ZMTP 2.0", GREETING[:10] + b"\x01\x05", Mismatch),
        ("ZMTP 1.0, whose signature is a length", b"\xff" + bytes(8) + b"\x01\x00", Mismatch),
        ("another mechanism", GREETING.replace(b"CURVE", b"PLAIN"), Mismatch),
        ("a mechanism that begins as ours", GREETING.replace(b"CURVE\0", b"CURVES"), Mismatch),
    ],
)
def test_greetings_that_are_refused(what, data, kind):
    with pytest.raises(kind):
        check_greeting(data, b"CURVE")


@for_each(
    ("what", "data"),
    [
        ("3.0, which libzmq 4.0 says", GREETING[:11] + b"\x00" + GREETING[12:]),
        ("a newer minor", GREETING[:11] + b"\x09" + GREETING[12:]),
        ("a newer major, which falls back to ours", GREETING[:10] + b"\x04\x00" + GREETING[12:]),
        ("as-server 0, as libzmq's servers say", GREETING[:32] + b"\x00" + GREETING[33:]),
        ("padding that is not zero", b"\xff" + b"\x01" * 8 + GREETING[9:]),
        ("filler that is not zero", GREETING[:33] + b"\x07" * 31),
    ],
)
def test_greetings_that_are_not(what, data):
    check_greeting(data, b"CURVE")


def frames_of(data, cap=1000):
    out = []
    FrameReader(cap).feed(data, out)
    return out


def test_frames():
    """RFC 37, "Framing": short and long sizes, and a long form for a short body."""
    assert frames_of(b"\x00\x00") == [(0, b"")]
    assert frames_of(b"\x01\x01a\x00\x02bc") == [(MORE, b"a"), (0, b"bc")]
    assert frames_of(b"\x04\x02\x01x") == [(COMMAND, b"\x01x")]
    assert frames_of(b"\x02" + (3).to_bytes(8, "big") + b"abc") == [(0, b"abc")]
    assert frames_of(b"\x06" + (2).to_bytes(8, "big") + b"\x01x") == [(COMMAND, b"\x01x")]
    for size in (0, 1, 255, 256, 999):
        assert frames_of(head_of(size, MORE) + bytes(size)) == [(MORE, bytes(size))]
    assert len(head_of(255)) == 2
    assert len(head_of(256)) == 9


@for_each(
    ("what", "data", "kind"),
    [
        ("a reserved bit", b"\x08\x00", DecodeError),
        ("the highest bit", b"\x80\x00", DecodeError),
        ("a command that goes on", b"\x05\x00", DecodeError),
        ("one byte too many", head_of(1001), MessageTooLarge),
        ("an announced TiB", head_of(1 << 40), MessageTooLarge),
        ("a size with the sign bit", b"\x02" + b"\xff" * 8, MessageTooLarge),
    ],
)
def test_frames_that_are_refused(what, data, kind):
    """At once: nothing of the body has come. What stands in front of it counts."""
    reader, out = FrameReader(1000), []
    with pytest.raises(kind):
        reader.feed(b"\x00\x01a" + data, out)
    assert out == [(0, b"a")]


def test_nothing_is_allocated_on_announcement():
    reader = FrameReader(1 << 30)
    reader.feed(head_of(1 << 30) + b"abc", [])
    assert reader.pending_bytes == 12


def test_commands():
    """RFC 37, "Commands": a size of one byte, a name, the rest."""
    assert split_command(b"\x05READYabc") == (b"READY", b"abc")
    assert split_command(b"\x01a") == (b"a", b"")
    assert command(b"\x04PING\x00\x00") == b"\x04\x07\x04PING\x00\x00"
    for bad in (b"", b"\x00", b"\x00abc", b"\x05READ", b"\xffabc"):
        with pytest.raises(DecodeError):
            split_command(bad)


def test_metadata():
    """RFC 37, "Metadata": case of names does not matter, values may be empty, of several the last counts."""
    packed = pack_metadata({b"Socket-Type": b"DEALER", b"Identity": b""})
    assert packed == b"\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
    assert unpack_metadata(packed) == {b"socket-type": b"DEALER", b"identity": b""}
    assert unpack_metadata(b"") == {}
    assert unpack_metadata(b"\x01A\x00\x00\x00\x01x\x01a\x00\x00\x00\x01y") == {b"a": b"y"}
    for cut in range(1, len(packed)):
        if cut != packed.index(b"\x08"):
            with pytest.raises(DecodeError):
                unpack_metadata(packed[:cut])
    for bad in (b"\x00\x00\x00\x00\x00", b"\x01a\xff\xff\xff\xffx", b"\xffabc"):
        with pytest.raises(DecodeError):
            unpack_metadata(bad)


def test_error():
    """RFC 37: ERROR has a reason of one byte's length; libzmq says a status code of ZAP (RFC 27)."""
    assert error(b"400") == b"\x05ERROR\x03400"
    assert reason_of(b"\x03400") == "400"
    assert reason_of(b"\x00") == ""
    for bad in (b"", b"\x0340", b"\x024000"):
        with pytest.raises(DecodeError):
            reason_of(bad)


# -- what a peer says about itself ---------------------------------------------------------------


@for_each(
    ("what", "properties", "expected"),
    [
        ("a type that we do not join", {b"Socket-Type": b"PUB"}, "type b'PUB'"),
        ("no type", {}, "type b''"),
        (
            "an identity beyond 255 bytes",
            {b"Socket-Type": b"DEALER", b"Identity": b"i" * 256},
            "identity of 256",
        ),
    ],
)
def test_peers_that_are_refused(what, properties, expected):
    server = Connection(Null(PARENT, as_server=True))
    server.feed(Connection(Null(properties, as_server=False)).take_owed())
    server.feed(command(b"\x05READY" + pack_metadata(properties)))
    assert expected in str(server.failure)


def test_what_comes_before_the_handshake_is_over_is_bounded():
    for data in (command(b"\x05READY" + bytes(5000)), head_of(1 << 40, COMMAND), b"\x00\x01a", b"\x01\x01a"):
        server = Connection(Null(PARENT, as_server=True))
        server.feed(greeting(b"NULL", as_server=False))
        server.feed(data)
        assert isinstance(server.failure, ProtocolError)
        assert server.state is State.HANDSHAKE


@for_each(
    ("what", "body"),
    [
        ("another command", b"\x05HELLO"),
        ("ERROR, which only servers say", b"\x05ERROR\x03400"),
        ("READY in lower case", b"\x05ready"),
    ],
)
def test_a_null_server_wants_ready(what, body):
    server = Connection(Null(PARENT, as_server=True))
    server.feed(greeting(b"NULL", as_server=False) + command(body))
    assert "expected READY" in str(server.failure)
