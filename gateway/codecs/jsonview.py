"""Subprotocol ``flux.v1.json``: one JSON object a Flux message, or an array of them, in text WebSocket messages.

::

    {"type":"request","topic":"attr.get","matchtag":1,"nodeid":0,"flags":["streaming"],"payload":{"name":"rank"}}

Nothing of a message is lost but the difference between an empty route stack and none. The payload has exactly one
of these forms, chosen by its bytes::

    "payload"  a JSON object and one NUL; embedded as it came, never parsed and written again
    "text"     UTF-8 and one NUL; "error" in a response with errnum
    "data"     anything else: base64

What is no message ends the connection, but for requests and responses whose type and matchtag can be read: the first
are answered EPROTO, and instead of the second whoever waits for them gets EPROTO.
"""

from __future__ import annotations

import errno
import json
import re
from base64 import b64encode
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from broker.errors import DecodeError, ProtocolError
from broker.identity import USERID_UNKNOWN
from broker.nesting import NESTED_MAX, check
from broker.wire import message as wire
from broker.wire.message import CONTROL, DELIMITER, EVENT, NODEID_ANY, REQUEST, RESPONSE, Message
from broker.wire.parts import encode_part, part_data
from broker.wire.payload import encode_reason, encode_text, is_json_object
from gateway import notices
from gateway.codecs import control
from gateway.codecs.contract import RUN_BYTES, Control, Refused
from gateway.websocket.frames import TEXT, frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.events.run import Run
    from gateway.notices import Notice

NAME: Final = "flux.v1.json"

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Nodeid = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Hop = Annotated[str, Meta(pattern="^([0-9a-f]{2})+$")]
FlagName = Literal["noresponse", "upstream", "private", "streaming", "user1"]

FLAGS: Final[dict[str, int]] = {
    "noresponse": wire.NORESPONSE,
    "upstream": wire.UPSTREAM,
    "private": wire.PRIVATE,
    "streaming": wire.STREAMING,
    "user1": wire.USER1,
}
"""Flag names and their bits; TOPIC, PAYLOAD and ROUTE follow from the fields that are there."""
_FLAG_TEXTS: Final = [
    "".join((',"flags":[', ",".join(f'"{name}"' for name, bit in FLAGS.items() if bits & bit), "]")).encode()
    if bits & sum(FLAGS.values())
    else b""
    for bits in range(256)
]
_HEAD = Struct(">BBBBBIII")
_WORD = Struct(">I")


class _Flux(msgspec.Struct, tag_field="type", forbid_unknown_fields=True, frozen=True):
    """Fields that every message may have."""

    topic: str | UnsetType = UNSET
    topic_data: bytes | UnsetType = UNSET
    flags: tuple[FlagName, ...] = ()
    userid: U32 = USERID_UNKNOWN
    rolemask: U32 = 0
    routes: tuple[Hop, ...] = ()
    payload: Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    data: bytes | UnsetType = UNSET


class Request(_Flux, tag="request", frozen=True):
    """A request (RFC 3)."""

    nodeid: Nodeid = NODEID_ANY
    matchtag: U32 = 0


class Response(_Flux, tag="response", frozen=True):
    """A response (RFC 3)."""

    errnum: U32 = 0
    matchtag: U32 = 0
    error: str | UnsetType = UNSET


class Event(_Flux, tag="event", frozen=True):
    """An event (RFC 3)."""

    sequence: U32 = 0


class ControlMessage(_Flux, tag="control", frozen=True):
    """A control message (RFC 3): for direct peers only; the gateway ignores it."""

    kind: U32 = 0
    status: U32 = 0


_Any: TypeAlias = Request | Response | Event | ControlMessage | control.ClientControl
_decoder = msgspec.json.Decoder(_Any | list[_Any])
_json = msgspec.json.Encoder()


class JsonCodec:
    """``flux.v1.json`` on one connection.

    Args:
        max_bytes: unused: the WebSocket reader caps the text already, and the message in it is smaller.
    """

    __slots__ = ("greeting", "name")

    def __init__(self, max_bytes: int) -> None:
        self.name: str = NAME
        self.greeting: bytes = b""

    def decode(self, data: bytes, text: bool) -> Sequence[Message | Control | Refused]:
        """See ``Codec.decode``: one object, or an array of them."""
        if not text:
            raise DecodeError(f"{NAME}: WebSocket messages are text, this one is binary")
        try:
            return decode(data)
        except DecodeError as wrong:
            return _one_by_one(data, wrong)

    def encode(self, message: Message) -> bytes:
        """See ``Codec.encode``."""
        return frame(TEXT, encode(message))

    def encode_run(self, run: Run) -> bytes:
        """See ``Codec.encode_run``: several events as one array, or several arrays above ``RUN_BYTES``."""
        form = run.forms.get(NAME)
        if form is None:
            form = run.forms[NAME] = _joined(run)
        return form

    def encode_control(self, obj: Notice) -> bytes | None:
        """See ``Codec.encode_control``."""
        return frame(TEXT, notices.encode(obj))


# -- JSON to messages ----------------------------------------------------------------------------


def decode(data: bytes) -> Sequence[Message | Control]:
    """The messages and control objects of one JSON text, in order; at least one.

    Raises:
        DecodeError: the text says which field, and what was expected there.
    """
    try:
        found = _read(data, data.lstrip().startswith(b"["))
    except ValueError as error:
        raise DecodeError(f"{NAME}: {control.reason_of(error, data)}") from error
    if not isinstance(found, list):
        return [_made(found)]
    if not found:
        raise DecodeError(f"{NAME}: an empty array holds no message")
    return [_made(each) for each in found]


def _read(data: bytes, array: bool) -> Any:
    if not data.isascii():
        data.decode()  # embedded JSON is skipped, not decoded: it might hold anything
    if len(data) > NESTED_MAX:
        check(data, NESTED_MAX + 1 + array)  # of a payload, inside its message
    return _decoder.decode(data)


def _made(obj: Any) -> Message | Control:
    if not isinstance(obj, _Flux):
        return control.plain(obj)
    try:
        return _message(obj)
    except ProtocolError as error:
        kind = type(obj).__struct_config__.tag
        raise DecodeError(f"{NAME}: {kind}: {error}") from error


def _one_by_one(data: bytes, wrong: DecodeError) -> list[Message | Control | Refused]:
    """What ``data`` holds, with at least one thing in it that is no message.

    Raises:
        DecodeError: nobody could be told so.
    """
    text = data.decode("utf-8", "replace").strip()
    if not text.startswith("["):
        return [_refused(_front_of(text), wrong)]
    parts = _split(text)
    if not all(part.startswith("{") for part in parts) or not parts:
        raise wrong
    items: list[Message | Control | Refused] = []
    for part in parts:
        try:
            items += decode(part.encode("utf-8", "replace"))
        except DecodeError as error:
            items.append(_refused(_front_of(part), error))
    return items


def _split(text: str) -> list[str]:
    """The texts of what a JSON array holds; none where that cannot be told, or where they are many."""
    found: list[str] = []
    begin = 1
    try:
        while len(found) < SPLIT:
            begin = _end_of_space(text, begin)
            end = _scanner.raw_decode(text, begin)[1]
            found.append(text[begin:end])
            begin = _end_of_space(text, end) + 1
            if text[begin - 1] != ",":
                return found if text[begin - 1 :] == "]" else []
    except (ValueError, RecursionError, IndexError):
        pass
    return []


def _end_of_space(text: str, at: int) -> int:
    return at + len(text[at:]) - len(text[at:].lstrip()) if text[at : at + 1].isspace() else at


def _front_of(text: str) -> dict[str, Any]:
    """What can be read of an object that is no message: all of it, or what is simple and in front of the rest."""
    front = _SIMPLE.match(text)
    for attempt in (text, front[0].rstrip(" \t\r\n,") + "}") if front is not None else ():
        try:
            found = _scanner.decode(attempt)
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else {}
    return {}


def _refused(front: dict[str, Any], wrong: DecodeError) -> Message | Refused:
    """The refusal of a request; of a response the one that its caller gets instead.

    Raises:
        DecodeError: type or matchtag is not there.
    """
    head: dict[str, Any] = {
        name: front[name] for name in ("type", "matchtag", "routes", "flags") if name in front
    }
    if head.get("type") == "request":
        head.pop("routes", None)  # a client's are never used
    topic = front.get("topic")
    head["topic"] = _sendable(topic) if isinstance(topic, str) else ""
    for kept in (head, {name: value for name, value in head.items() if name != "flags"}):
        try:
            obj = msgspec.convert(kept, Request | Response)
            message = _message(obj)
        except (ValueError, ProtocolError):
            continue
        if not message.aux2:
            break
        if isinstance(obj, Request):
            return Refused(message, str(wrong))
        return wire.response(message, encode_reason(str(wrong)), errnum=errno.EPROTO)
    raise wrong


def _sendable(topic: str) -> str:
    """As much of a topic as any message could carry."""
    return topic.partition("\0")[0].encode("utf-8", "replace").decode()


SPLIT: Final = 64
"""As many messages of one array are looked at one by one when one of them is none."""
_scanner: Final = json.JSONDecoder(strict=False)
"""Takes halves of characters, and what is nested deeper, within what Python can."""
_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SIMPLE: Final = re.compile(
    rf"\s*\{{(?:\s*{_STRING}\s*:\s*(?:{_STRING}|[-+.\w]++|\[[^\[\]{{}}]*+\])\s*(?:,|(?=\}})))*+", re.DOTALL
)
"""The beginning of an object, as far as the values of its members are no objects."""


def _message(obj: _Flux) -> Message:
    flags = wire.ROUTE
    for name in obj.flags:
        flags |= FLAGS[name]
    topic = _topic(obj)
    if topic is not None:
        flags |= wire.TOPIC
    payload = _payload(obj)
    if payload is not None:
        flags |= wire.PAYLOAD
    kind, first, second = _words(obj)
    return Message(
        _front(obj.routes),
        b"" if topic is None else encode_part(topic),
        b"" if payload is None else encode_part(payload),
        _HEAD.pack(20, 0x8E, 1, kind, flags, obj.userid, obj.rolemask, first),
        _WORD.pack(second),
    )


def _words(obj: _Flux) -> tuple[int, int, int]:
    """Message type and the two words that depend on it."""
    if isinstance(obj, Request):
        if obj.nodeid == wire.NODEID_UPSTREAM:
            raise ProtocolError('nodeid 4294967294 is no rank: use nodeid of the rank to skip and "upstream"')
        return REQUEST, obj.nodeid, obj.matchtag
    if isinstance(obj, Response):
        return RESPONSE, obj.errnum, obj.matchtag
    if isinstance(obj, Event):
        return EVENT, obj.sequence, 0
    assert isinstance(obj, ControlMessage)
    return CONTROL, obj.kind, obj.status


def _front(routes: tuple[str, ...]) -> bytes:
    if not routes:
        return DELIMITER
    hops = [bytes.fromhex(hop) for hop in routes]
    if any(0 in hop for hop in hops):
        raise ProtocolError('"routes": a hop holds a NUL')
    return b"".join((*map(encode_part, hops), DELIMITER))


def _topic(obj: _Flux) -> bytes | None:
    topic: bytes | None = None
    if isinstance(obj.topic, str):
        topic = obj.topic.encode()
    if isinstance(obj.topic_data, bytes):
        if topic is not None:
            raise ProtocolError('either "topic" or "topic_data"')
        topic = obj.topic_data
    if topic is None and not isinstance(obj, ControlMessage):
        raise ProtocolError('field "topic" is missing')
    if topic is not None and 0 in topic:
        raise ProtocolError('"topic" holds a NUL')
    return topic


def _payload(obj: _Flux) -> bytes | None:
    error = obj.error if isinstance(obj, Response) else UNSET
    forms = [form for form in (obj.payload, obj.text, obj.data, error) if form is not UNSET]
    if not forms:
        return None
    if len(forms) > 1:
        raise ProtocolError('at most one of "payload", "text", "data" and "error"')
    form = forms[0]
    if form is error and not (isinstance(obj, Response) and obj.errnum):
        raise ProtocolError('"error" needs "errnum"')
    if isinstance(form, Raw):
        if not bytes(form).startswith(b"{"):
            raise ProtocolError('"payload" is a JSON object; a string goes into "text", bytes into "data"')
        return bytes(form) + b"\0"
    return encode_text(form) if isinstance(form, str) else form


# -- messages to JSON ----------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """The JSON text of ``message``."""
    head = message.head
    kind, flags = head[3], head[4]
    first = message.aux1
    out = [_OPENINGS[kind], _topic_text(message.topic_part)]
    if kind == EVENT:
        out.append(b',"sequence":%d' % first)
    elif kind == CONTROL:
        out.append(b',"kind":%d,"status":%d' % (first, message.aux2))
    else:
        out.append(b',"matchtag":%d' % message.aux2)
        if kind == REQUEST and first != NODEID_ANY:
            out.append(b',"nodeid":%d' % first)
        elif kind == RESPONSE and first:
            out.append(b',"errnum":%d' % first)
    out.append(_FLAG_TEXTS[flags])
    out.append(_stamp_text(head[5:13]))
    if len(message.front) > 1:
        out.append(
            b',"routes":[' + b",".join([b'"%b"' % hop.hex().encode() for hop in message.routes]) + b"]"
        )
    data = part_data(message.payload_part)
    if data is not None:
        out.append(_payload_text(bytes(data), kind == RESPONSE and first != 0))
    out.append(b"}")
    return b"".join(out)


_OPENINGS: Final = {kind: b'{"type":"%b"' % name.encode() for kind, name in wire.TYPE_NAMES.items()}


@lru_cache(1024)
def _topic_text(topic_part: bytes) -> bytes:
    data = part_data(topic_part)
    if data is None:
        return b""
    try:
        return b',"topic":' + _json.encode(bytes(data).decode())
    except UnicodeDecodeError:
        return b',"topic_data":"%b"' % b64encode(data)


@lru_cache(1024)
def _stamp_text(stamp: bytes) -> bytes:
    userid, rolemask = _WORD.unpack(stamp[:4])[0], _WORD.unpack(stamp[4:])[0]
    if userid == USERID_UNKNOWN and not rolemask:
        return b""
    return b',"userid":%d,"rolemask":%d' % (userid, rolemask)


def _payload_text(data: bytes, failed: bool) -> bytes:
    if is_json_object(data):
        return b',"payload":' + data[:-1]
    if data.find(0) == len(data) - 1 and data:
        try:
            text = _json.encode(data[:-1].decode())
        except UnicodeDecodeError:
            return b',"data":"%b"' % b64encode(data)
        return (b',"error":' if failed else b',"text":') + text
    return b',"data":"%b"' % b64encode(data)


def _joined(run: Run) -> bytes:
    """All events of ``run``: an object each, several in one array."""
    out: list[bytes] = []
    texts: list[bytes] = []
    size = 0
    for message in run.messages:
        text = encode(message)
        if texts and size + len(text) > RUN_BYTES:
            out.append(_array(texts))
            texts, size = [], 0
        texts.append(text)
        size += len(text)
    return b"".join((*out, _array(texts)))


def _array(texts: list[bytes]) -> bytes:
    return frame(TEXT, texts[0] if len(texts) == 1 else b"[" + b",".join(texts) + b"]")
