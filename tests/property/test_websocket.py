"""Our reader and our frames against wsproto, an implementation that shares no line with ours."""

import os

from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.frame_protocol import FrameProtocol, Opcode, ParseFailed

from gateway.websocket import frames
from gateway.websocket.reader import Reader

TEXTS = st.text(max_size=300)
BYTES = st.one_of(st.binary(max_size=300), st.integers(60_000, 70_000).map(bytes))
CONTROL = st.binary(max_size=125)
CUTS = st.lists(st.integers(1, 5000), max_size=40)
FRAGMENTS = st.lists(st.integers(0, 120), max_size=4)


def cut(data, sizes):
    """``data`` in pieces of these sizes, the rest at once."""
    at = 0
    for size in sizes:
        if at < len(data):
            yield data[at : at + size]
        at += size
    if at < len(data):
        yield data[at:]


def fragments(payload, sizes):
    parts, at = [], 0
    for size in sizes:
        parts.append(payload[at : at + size])
        at += size
    return [*parts, payload[at:]]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("text"), TEXTS, FRAGMENTS),
            st.tuples(st.just("bytes"), BYTES, FRAGMENTS),
            st.tuples(st.just("ping"), CONTROL, st.just([])),
            st.tuples(st.just("pong"), CONTROL, st.just([])),
        ),
        max_size=12,
    ),
    st.lists(CONTROL, max_size=4),
    st.one_of(st.none(), st.sampled_from((1000, 1001, 3000, 4999))),
    CUTS,
)
def test_what_wsproto_sends_is_what_we_read(messages, pings_between, close, cuts):
    peer = Connection(ConnectionType.CLIENT)
    sent, expected = b"", []
    for kind, payload, sizes in messages:
        if kind in ("ping", "pong"):
            sent += peer.send(Ping(payload) if kind == "ping" else Pong(payload))
            expected.append((frames.PING if kind == "ping" else frames.PONG, payload))
            continue
        parts = fragments(payload, sizes)
        make = TextMessage if kind == "text" else BytesMessage
        for number, part in enumerate(parts):
            sent += peer.send(make(part, message_finished=number == len(parts) - 1))
            if number < len(parts) - 1 and pings_between:
                sent += peer.send(Ping(pings_between[0]))
                expected.append((frames.PING, pings_between[0]))
        expected.append((frames.TEXT, payload.encode()) if kind == "text" else (frames.BINARY, payload))
    if close is not None:
        sent += peer.send(CloseConnection(close, "bye"))
        expected.append((frames.CLOSE, close.to_bytes(2, "big") + b"bye"))
    reader = Reader(1 << 20)
    assert [found for piece in cut(sent, cuts) for found in reader.feed(piece)] == expected
    assert reader.failure is None
    assert reader.pending_bytes == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("text"), TEXTS),
            st.tuples(st.just("bytes"), BYTES),
            st.tuples(st.just("ping"), CONTROL),
            st.tuples(st.just("pong"), CONTROL),
        ),
        max_size=12,
    ),
    st.one_of(st.none(), st.tuples(st.sampled_from((1000, 4002, 4999)), st.text(max_size=200))),
    CUTS,
)
def test_what_we_send_is_what_wsproto_reads(messages, close, cuts):
    make = {
        "text": lambda payload: frames.frame(frames.TEXT, payload.encode()),
        "bytes": lambda payload: frames.frame(frames.BINARY, payload),
        "ping": frames.ping,
        "pong": frames.pong,
    }
    sent = b"".join(make[kind](payload) for kind, payload in messages)
    expected = [(kind, payload) for kind, payload in messages]
    if close is not None:
        sent += frames.close(*close)
        expected.append(("close", (close[0], frames.cut(close[1]).decode())))
    assert list(read_by_wsproto(cut(sent, cuts), client=True)) == expected


def read_by_wsproto(pieces, *, client):
    """What wsproto makes of these pieces; ("failure", code) where it gives up."""
    peer = FrameProtocol(client=client, extensions=[])
    held = []
    try:
        for piece in pieces:
            peer.receive_bytes(piece)
            for found in peer.received_frames():
                if found.opcode is Opcode.CLOSE:
                    yield "close", (int(found.payload[0]), found.payload[1] or "")
                    return
                if found.opcode.iscontrol():
                    yield NAMES[found.opcode], bytes(found.payload)
                    continue
                held.append(found.payload)
                if found.message_finished:
                    yield NAMES[found.opcode], ("" if found.opcode is Opcode.TEXT else b"").join(held)
                    held = []
    except ParseFailed as error:
        yield "failure", int(error.code)


NAMES = {frames.TEXT: "text", frames.BINARY: "bytes", frames.PING: "ping", frames.PONG: "pong"}


def read_by_us(pieces):
    reader = Reader(1 << 20)
    for piece in pieces:
        for opcode, payload in reader.feed(piece):
            if opcode == frames.CLOSE:
                yield "close", frames.close_meaning(payload)
            else:
                yield NAMES[opcode], payload.decode() if opcode == frames.TEXT else payload
        if reader.failure is not None:
            yield "failure", reader.failure.code
            return


def frame(first, payload, is_masked, long):
    """Any frame, good or bad."""
    size = len(payload)
    form = max(long, 0 if size < 126 else 1)
    length = (bytes((size,)), b"\x7e" + size.to_bytes(2, "big"), b"\x7f" + size.to_bytes(8, "big"))[form]
    if not is_masked:
        return bytes((first,)) + length + payload
    mask = os.urandom(4)
    body = bytes(byte ^ mask[at & 3] for at, byte in enumerate(payload))
    return bytes((first, length[0] | 128)) + length[1:] + mask + body


FIRST = st.one_of(
    st.sampled_from((0x00, 0x80, 0x01, 0x02, 0x81, 0x82, 0x88, 0x89, 0x8A)),
    st.sampled_from((0x00, 0x80, 0x01, 0x02, 0x81, 0x82, 0x88, 0x89, 0x8A)),
    st.integers(0, 255),
)
PAYLOAD = st.one_of(
    st.binary(max_size=130),
    st.text(max_size=40).map(str.encode),
    st.sampled_from((0, 999, 1000, 1005, 1006, 1012, 1015, 2999, 3000, 5000)).map(
        lambda code: code.to_bytes(2, "big")
    ),
)
MOSTLY = (True,) * 9 + (False,)
ANY_FRAME = st.builds(frame, FIRST, PAYLOAD, st.sampled_from(MOSTLY), st.sampled_from((0,) * 9 + (1, 2)))


@given(st.lists(ANY_FRAME, min_size=1, max_size=8), CUTS)
def test_good_or_bad_we_agree_with_wsproto(parts, cuts):
    data = b"".join(parts)
    ours = list(read_by_us(cut(data, cuts)))
    theirs = list(read_by_wsproto(cut(data, cuts), client=False))
    assert ours == theirs
