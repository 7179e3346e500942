"""How deep JSON may be nested: the same on every interpreter, and for every reader of what others wrote."""

from __future__ import annotations

import contextlib
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import DecodeError, ProtocolError, RpcError
from broker.nesting import _LONG, NESTED_MAX, _opens, check, read_json
from broker.nfp import bodies, opening, targets
from broker.nfp.jobs import told
from broker.nfp.management import event_bus
from broker.oslo.directory import wire
from broker.oslo.names import LISTENER_CHARS
from broker.oslo.proxy import journal, registration
from broker.oslo.service import notifications, topics
from broker.transport.websocket.codec import of_status
from broker.wire import payload
from broker.wire.message import event
from gateway.codecs import control, jsonview
from gateway.identity import fetching
from tests.tables import for_each

pytestmark = pytest.mark.interpreter


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def taken(read, *refusals):
    """``read`` as a question: does it take this text?"""

    def asked(text: bytes) -> bool:
        try:
            return read(text) is not False
        except refusals:
            return False

    return asked


def refused_upgrade(text: bytes) -> bool:
    return str(of_status("a", 503, text)).endswith(": 503 no room")


READERS = {
    "a payload": (taken(lambda t: payload.decode_json(t + b"\0"), ProtocolError), b'{"a":', b"}"),
    "is it a payload": (lambda t: payload.is_json_object(t + b"\0"), b'{"a":', b"}"),
    "why an upgrade is refused": (refused_upgrade, b'{"text":"no room","more":', b"}"),
    "nfp: what to dispatch": (lambda t: bodies.read_head(t).task == "t", b'{"task":"t","args":', b"}"),
    "nfp: a request": (lambda t: bodies.read_request(t).task == "t", b'{"task":"t","args":', b"}"),
    "nfp: an event": (lambda t: bodies.event_kind(t) == "e", b'{"event_type":"e","more":', b"}"),
    "nfp: a verdict": (bodies.says_failed, b'{"w":{"failed":true,"result":', b"}}"),
    "nfp: one of many results": (lambda t: b"base64" not in bodies.aggregate({"w": t}), b'{"w":', b"}"),
    "nfp: an opening": (lambda t: opening.read_object(t) != {}, b'{"a":', b"}"),
    "nfp: an event for management": (lambda t: event_bus._spoken(t, "") is not None, b"[", b"]"),
    "nfp: between dialects": (lambda t: isinstance(told._readable(t), list), b"[", b"]"),
    "nfp: several targets": (lambda t: targets.parse(t.decode()) is not None, b'["w",', b"]"),
    "oslo: an opening": (
        taken(lambda t: registration.read_opening([t]), registration.CannotOpen),
        b'{"listener":"%s","records":[["x","t","","%s"]],"more":' % ((b"a" * LISTENER_CHARS,) * 2),
        b"}",
    ),
    "oslo: from the directory": (
        taken(lambda t: wire.decode([wire._HEADS[wire.DirectoryKind.ALIVE], t]), wire.Malformed), b'{"more":', b"}",
    ),
    "oslo: names in a request": (lambda t: journal.named(t) != {}, b'{"message":{"method":"m","args":', b"}}"),
    "oslo: a notification": (
        lambda t: notifications.content(notifications.HeardNotification("x", "y", "info", t)) is not None,
        b'{"message":{"event_type":"e","more":', b"}}",
    ),
    "oslo: a reply": (taken(topics.result_of, RpcError), b'{"result":', b"}"),
    "web: a message": (
        taken(jsonview.decode, DecodeError), b'{"type":"request","topic":"a","matchtag":1,"payload":{"a":', b"}}",
    ),
    "web: several messages": (
        taken(jsonview.decode, DecodeError), b'[{"type":"request","topic":"a","matchtag":1,"payload":{"a":', b"}}]",
    ),
    "web: what providers answer": (taken(fetching.object_of, ValueError), b'{"keys":[],"more":', b"}"),
}  # fmt: skip
"""Reader -> does it take a text; what stands before and behind the part that is nested."""
WRAPPED = {"web: a message": 1, "web: several messages": 2}
"""What they wrap a payload in comes on top."""
NEVER = {"nfp: several targets"}
"""They take nothing nested at all."""


@for_each("name", READERS)
def test_every_reader_takes_what_is_nested_up_to_the_limit(name):
    takes, before, after = READERS[name]
    room = NESTED_MAX + WRAPPED.get(name, 0) - open_in(before)
    assert takes(before + nested(room) + after) is (name not in NEVER)
    assert not takes(before + nested(room + 1) + after)
    assert not takes(before + nested(100_000) + after)
    for levels in (
        NESTED_MAX + 1,
        985,
        1000,
        1023,
        1024,
        100_000,
    ):  # what is never closed can be deep and short
        assert not takes(before + b"[" * levels)
        assert not takes(b"[" * levels)


def open_in(before: bytes) -> int:
    return before.count(b"{") + before.count(b"[") - before.count(b"]")


def test_what_nobody_could_read_is_not_written():
    value: dict = {}
    for _ in range(NESTED_MAX - 1):
        value = {"a": value}
    assert payload.decode_json(payload.encode_json(value)) == value
    with pytest.raises(ProtocolError, match="nested deeper"):
        payload.encode_json({"a": value})


def test_control_objects_hold_nothing_nested():
    for text in (
        nested(NESTED_MAX),
        nested(NESTED_MAX + 1),
        b'{"type":"auth","token":' + nested(100_000) + b"}",
    ):
        with pytest.raises(DecodeError):
            control.decode(text)


def test_bodies_of_oslo_messaging():
    serialization = pytest.importorskip(
        "broker.oslo.driver.serialization", reason="optional: oslo.messaging is not installed"
    )
    around = b'{"ctxt":{},"message":%s}'
    deep = nested(NESTED_MAX - 2).decode()
    request = serialization.read_request(around % b'{"method":"m","args":%s}' % deep.encode())
    assert request.message["args"] == json.loads(deep)
    with pytest.raises(serialization.Unreadable, match=f"nested deeper than {NESTED_MAX}"):
        serialization.read_request(around % b'{"method":"m","args":[%s]}' % deep.encode())
    for levels, taken in ((NESTED_MAX, True), (NESTED_MAX + 1, False), (100_000, False)):
        inner = {"oslo.version": "2.0", "oslo.message": '{"a":' + nested(levels - 1).decode() + "}"}
        text = around % json.dumps(inner).encode()
        if taken:
            assert serialization.read_request(text).message.keys() == {"a"}
            continue
        with pytest.raises(serialization.Unreadable, match="nested deeper"):
            serialization.read_request(text)


# ---------------------------------------------------------------- the check itself


@for_each("kind", [bytes, bytearray, memoryview, bytes.decode])
def test_every_kind_of_text(kind):
    assert read_json(kind(nested(NESTED_MAX)))
    with pytest.raises(msgspec.DecodeError, match=f"nested deeper than {NESTED_MAX}"):
        read_json(kind(nested(NESTED_MAX + 1)))


@for_each("bracket", [b"[", b"{"])
def test_long_text_is_looked_into_when_it_opens_many(bracket):
    long = b'"%b"' % (b" " * 2 * _LONG)
    assert not _opens(long + bracket * NESTED_MAX, NESTED_MAX)
    assert _opens(long + b"[" + bracket * NESTED_MAX, NESTED_MAX)
    check(b"[%b,%b]" % (long, b",".join([b"{}"] * NESTED_MAX)))
    with pytest.raises(msgspec.DecodeError):
        check(b"[%b,%b]" % (long, nested(NESTED_MAX)))


def test_what_is_short_is_not_looked_into():
    check(b"[" * NESTED_MAX)  # no JSON: for whoever reads it to say
    check(b'{"a":"' + b"[" * 2 * NESTED_MAX + b'"}')


@for_each("levels", [NESTED_MAX + 1, 985, 1010, 1024, 4000])
def test_an_event_with_a_payload_that_is_never_closed_reaches_who_reads_json(levels):
    """Its subscribers see that it is no JSON; none of their links is at stake."""
    seen = jsonview.encode(event("a.b", b'{"a":' + b"[" * levels + b"\0"))
    assert b'"text":"{' in seen


@settings(max_examples=settings.default.max_examples * 3 // 10)  # each is a tree
@given(
    st.recursive(
        st.none() | st.integers() | st.text('[]{}"\\ab\n'),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text('[]{}"\\a', max_size=4), inner, max_size=3)
        ),
        max_leaves=30,
    ),
    st.booleans(),
)
def test_brackets_in_strings_do_not_count(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    deep = depth(value)
    check(text, deep)
    if deep:
        with pytest.raises(msgspec.DecodeError):
            check(text, deep - 1)


def depth(value) -> int:
    if not isinstance(value, list | dict):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


@given(st.binary(max_size=40), st.integers(0, 6))
def test_text_that_is_no_json_is_for_its_reader(text, most):
    with contextlib.suppress(msgspec.DecodeError):
        check(text, most)
