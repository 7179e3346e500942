"""Any message through any subprotocol and back, and any bytes into one: equal, or refused in our own words."""

import contextlib
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.errors import DecodeError, MessageTooLarge
from broker.wire import message as wire
from broker.wire.decoding import from_parts
from broker.wire.message import CONTROL, EVENT, REQUEST, RESPONSE, Message
from gateway.codecs import CODECS, new_codec
from gateway.codecs.contract import Refused
from gateway.events.run import Run

WORD = st.one_of(st.sampled_from((0, 1, 0x7FFFFFFF, 0xFFFFFFFD, 0xFFFFFFFF)), st.integers(0, 0xFFFFFFFD))
SIZES = st.sampled_from(
    (0, 1, 19, 20, 21, 80, 125, 126, 254, 255, 256, 479, 480, 481, 65_490, 65_536, 300_000)
)
HOP = st.one_of(st.binary(min_size=1, max_size=40), SIZES.map(bytes)).map(
    lambda data: data.replace(b"\0", b"h")[:300] or b"h"
)
TEXT = st.one_of(st.text(max_size=40), st.text(alphabet='"\\{}[]:,\n\t ä\U0001f9ea01', max_size=20))
TOPIC = st.one_of(
    TEXT.map(lambda text: text.encode()),
    st.binary(max_size=30),
    SIZES.map(lambda size: b"t" * min(size, 300)),
).map(lambda data: data.replace(b"\0", b"."))
JSON = st.dictionaries(
    st.text(max_size=8),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), st.lists, max_leaves=6),
    max_size=4,
)
PAYLOAD = st.one_of(
    st.none(),
    st.binary(max_size=60),
    SIZES.map(bytes),
    SIZES.map(lambda size: b"x" * size + b"\0"),
    TEXT.map(lambda text: text.encode() + b"\0"),
    JSON.map(lambda value: json.dumps(value).encode() + b"\0"),
    JSON.map(lambda value: json.dumps(value, ensure_ascii=False).encode()),
    JSON.map(lambda value: json.dumps(value, indent=1).encode()[:-1] + b"\0"),
)
FLAGS = st.integers(0, 255).map(lambda bits: bits & ~(wire.TOPIC | wire.PAYLOAD) | wire.ROUTE)


@st.composite
def messages(draw: st.DrawFn, kinds: tuple[int, ...] = (REQUEST, RESPONSE, EVENT, CONTROL)) -> Message:
    """A canonical message; nodeid 0xFFFFFFFE is never encoded, and an event's second word is unused (RFC 3)."""
    kind, flags = draw(st.sampled_from(kinds)), draw(FLAGS)
    parts = [*draw(st.lists(HOP, max_size=4)), b""]
    payload = draw(PAYLOAD)
    if kind != CONTROL or draw(st.booleans()):
        parts.append(draw(TOPIC))
        flags |= wire.TOPIC
    if payload is not None:
        parts.append(payload)
        flags |= wire.PAYLOAD
    words = [draw(WORD), draw(WORD), draw(WORD), 0 if kind == EVENT else draw(WORD)]
    proto = bytes((0x8E, 1, kind, flags)) + b"".join(word.to_bytes(4, "big") for word in words)
    return from_parts([*parts, proto])


def unframed(data: bytes) -> list[tuple[bytes, bool]]:
    """Payload of each WebSocket message that a server wrote, and whether it is text."""
    found = []
    while data:
        first, size, at = data[0], data[1], 2
        if size >= 126:
            at = 4 if size == 126 else 10
            size = int.from_bytes(data[2:at], "big")
        found.append((data[at : at + size], first == 0x81))
        data = data[at + size :]
    return found


def through(name: str, written: bytes) -> list[Message]:
    """What a fresh codec reads of what another wrote."""
    codec = new_codec(name, 1 << 28)
    for data, text in unframed(codec.greeting):
        assert codec.decode(data, text) == []
    return [item for data, text in unframed(written) for item in codec.decode(data, text)]


@given(st.sampled_from(sorted(CODECS)), messages())
def test_one_message(name, message):
    assert through(name, new_codec(name).encode(message)) == [message]


RUNS = (st.sampled_from(sorted(CODECS)), st.lists(messages((EVENT,)), min_size=1, max_size=6))


@pytest.mark.patient
@given(*RUNS)
def test_many_runs(name, events):
    test_a_run.hypothesis.inner_test(name, events)


@given(*RUNS)
def test_a_run(name, events):
    run = Run(events)
    assert through(name, new_codec(name).encode_run(run)) == events
    assert all(form for form in run.forms.values())


@given(st.lists(messages(), min_size=1, max_size=5))
def test_the_json_view_is_json(sent):
    for message in sent:
        ((text, _),) = unframed(new_codec("flux.v1.json").encode(message))
        obj = json.loads(text)
        assert sum(key in obj for key in ("payload", "text", "data", "error")) == (
            message.payload is not None
        )
        assert len(obj.get("routes", ())) == len(message.routes)


@given(
    st.sampled_from(sorted(CODECS)), st.lists(st.tuples(st.binary(max_size=80), st.booleans()), max_size=6)
)
@example("ZWS2.0", [(b"\0", False), (b"\0", False)])
@example("flux.v1.json", [(b'{"type":"event","topic":"t","payload":{"a":"\xff"}}', True)])
def test_any_bytes_are_taken_or_refused(name, arrivals):
    codec = new_codec(name, 64)
    with contextlib.suppress(DecodeError, MessageTooLarge):
        for data, text in arrivals:
            for item in codec.decode(data, text):
                assert isinstance(item, Message | dict)


KEYS = st.sampled_from(
    (
        "type",
        "topic",
        "topic_data",
        "matchtag",
        "nodeid",
        "errnum",
        "sequence",
        "flags",
        "routes",
        "payload",
        "text",
        "data",
        "error",
        "userid",
        "rolemask",
        "token",
    )
)
VALUES = st.one_of(
    st.sampled_from(
        ("request", "response", "event", "control", "auth", "ping", "", "YQ==", "6162", ["streaming"])
    ),
    st.integers(-1, 2**33),
    st.none(),
    st.text(max_size=5),
    st.lists(st.text(max_size=3), max_size=2),
    JSON,
)


@given(
    st.dictionaries(KEYS, VALUES, max_size=6), st.sampled_from(("request", "response", "event", "control"))
)
def test_any_object_is_taken_or_refused(fields, kind):
    codec = new_codec("flux.v1.json")
    with contextlib.suppress(DecodeError):
        for item in codec.decode(json.dumps({"type": kind} | fields).encode(), text=True):
            assert isinstance(item, dict | Refused) or through("flux.v1.json", codec.encode(item)) == [item]
