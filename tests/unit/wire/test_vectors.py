"""What was captured decodes to what the capture says and is written back byte for byte."""

import hashlib
import json

from broker.errors import ProtocolError
from broker.wire.decoding import from_parts
from broker.wire.framing import Splitter
from broker.wire.message import CONTROL, EVENT, REQUEST, RESPONSE, TYPE_NAMES, Message
from broker.wire.payload import decode_json
from tests.tables import for_each
from tests.vectors import Captured, Hostile, excluded, local, malformed, tbon

FLAG_NAMES = ("topic", "payload", "noresponse", "route", "upstream", "private", "streaming", "user1")
WORDS = {
    REQUEST: ("nodeid", "matchtag"),
    RESPONSE: ("errnum", "matchtag"),
    EVENT: ("sequence", "unused"),
    CONTROL: ("control_type", "control_status"),
}


def seen(message: Message, decoded: dict) -> dict:
    """What the message says about each key of the record."""
    first, second = WORDS[message.type]
    payload = message.payload
    said = {
        "type": TYPE_NAMES[message.type],
        "flags": message.flags,
        "flag_names": [name for bit, name in enumerate(FLAG_NAMES) if message.flags >> bit & 1],
        "userid": message.userid,
        "rolemask": message.rolemask,
        "routes": [route.decode() for route in message.routes],
        "topic": message.topic,
        "delimiter": message.front != b"",
        first: message.aux1,
        second: message.aux2,
        "payload_len": 0 if payload is None else len(payload),
        "payload_truncated": True,
    }
    if "payload_hex" in decoded:
        said["payload_hex"] = (payload or b"").hex()
    if "payload_json" in decoded:
        said["payload_json"] = (
            decode_json(payload) if payload and payload[-1:] == b"\0" else json.loads(payload or b"")
        )
    return said


def check_record(record: Captured, message: Message) -> None:
    said = seen(message, record.decoded)
    assert {key: said[key] for key in record.decoded} == record.decoded


def only(data: bytes) -> Message:
    splitter = Splitter()
    messages = splitter.feed(data)
    assert splitter.failure is None
    assert splitter.pending_bytes == 0
    (message,) = messages
    return message


@for_each("record", local(), ids=lambda record: f"{record.place}-{record.case}")
def test_local_frame(record: Captured) -> None:
    message = only(record.frame)
    if ("flux-local.jsonl", record.case) in excluded("reencode"):
        assert message.framed() != record.frame
        record = record._replace(decoded=record.decoded | {"topic": record.decoded["topic"].rstrip("\0")})
        check_record(record, message)
        return
    check_record(record, message)
    assert message.framed() == record.frame
    parts = message.parts()
    assert [own if part is None else part for own, part in zip(parts, record.parts, strict=True)] == parts
    if record.digests:
        assert [(len(part), hashlib.sha256(part).hexdigest()) for part in parts] == record.digests


def test_captures_hold_long_parts() -> None:
    assert any(record.digests for record in local())


@for_each("record", tbon(), ids=lambda record: record.place)
def test_tbon_parts(record: Captured) -> None:
    parts = [part for part in record.parts if part is not None]
    message = from_parts(parts)
    check_record(record, message)
    assert message.parts() == parts
    assert only(message.framed()) == message


@for_each("hostile", malformed(), ids=lambda hostile: hostile.case)
def test_malformed(hostile: Hostile) -> None:
    """Where the deployed broker closes, the stream fails; all else are messages, whatever they mean."""
    splitter = Splitter(16 << 20)
    messages = splitter.feed(hostile.data)
    closed = hostile.deployed not in ("answered", "ignored")
    if ("flux-local-malformed.jsonl", hostile.case) in excluded("malformed"):
        closed = not closed
    if closed:
        assert isinstance(splitter.failure, ProtocolError)
        assert messages == []
    else:
        assert splitter.failure is None
        assert len(messages) == max(1, len(hostile.replies))
        assert splitter.pending_bytes == 0
        for message in messages:
            assert only(message.framed()) == message


@for_each(("check", "known"), [("reencode", local()), ("malformed", malformed())])
def test_exclusions_name_existing_cases_and_say_why(check: str, known: list) -> None:
    cases = {record.case for record in known}
    for (_file, case), reason in excluded(check).items():
        assert case in cases
        assert len(reason) > 40
