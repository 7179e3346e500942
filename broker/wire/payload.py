"""Payload norms: NUL-terminated strings and JSON objects (RFC 3, "Payload Conventions").

::

    string   its bytes, then one NUL
    JSON     one object (RFC 7159), compact, UTF-8 not escaped, then one NUL

As deployed software does, what follows the first NUL is ignored, unknown keys are the handler's business, a
doubled key means its last value, and every breach is one error: EPROTO. Payloads that follow no norm are
bytes and need nothing of this file (``log.append`` sends text without NUL; ``any_text`` reads both).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from broker.errors import ProtocolError, RpcError
from broker.nesting import NESTED_MAX, check

Payload: TypeAlias = Mapping[str, Any] | str | bytes | None
"""The forms of a payload that programs hand over: a JSON object, a text, raw bytes, or none at all."""

HALF: Final = "half of a character (a surrogate without its other one)"
_PAIR: Final = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..", re.DOTALL)
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")

T = TypeVar("T")
_encoder = msgspec.json.Encoder()
_object = msgspec.json.Decoder(dict[str, Any])
_syntax = msgspec.json.Decoder(msgspec.Raw)


def encode(value: Payload) -> bytes | None:
    r"""The payload bytes of ``value``: JSON and text in UTF-8 with one NUL, bytes as they are.

    Raises:
        ProtocolError: an object or text that RFC 3 has no form for. TypeError: of another type.

    >>> encode({"name": "rank"}), encode("hi"), encode(b"raw"), encode(None)
    (b'{"name":"rank"}\x00', b'hi\x00', b'raw', None)
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return encode_text(value)
    if isinstance(value, Mapping):
        return encode_json(value)
    raise TypeError(f"a payload is a mapping, str, bytes or None, not {type(value).__name__}")


def encode_json(value: Mapping[str, Any]) -> bytes:
    r"""The JSON payload of ``value``: compact UTF-8 and one NUL. A float that is no number becomes null.

    Raises:
        ProtocolError: EPROTO; not an object, a lone surrogate, nested too deeply (or in itself).
        TypeError: holds something JSON has no form for: a mistake of the program, not of a peer.

    >>> encode_json({"name": "rank"})
    b'{"name":"rank"}\x00'
    """
    if not isinstance(value, Mapping):
        raise ProtocolError(f"a JSON payload is an object, not {type(value).__name__}")
    try:
        text = _encoder.encode(value if isinstance(value, dict) else dict(value))
        if len(text) > NESTED_MAX:
            check(text)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"cannot be written as JSON: {error}") from error
    return text + b"\0"


def decode_json(payload: bytes | None) -> dict[str, Any]:
    r"""The object of a JSON payload; text after the first NUL is ignored.

    Raises:
        ProtocolError: EPROTO; no payload, no NUL, not JSON, not UTF-8, not an object, a number out of range,
            nested too deeply.

    >>> decode_json(b'{"name":"rank"}\x00')
    {'name': 'rank'}
    """
    text = _before_nul(payload)
    try:
        if len(text) > NESTED_MAX:
            check(text)
        return _object.decode(text)
    except ValueError as error:
        raise ProtocolError(f"not a JSON object: {HALF if has_half(text) else error}") from error


def read_request(shape: type[T], payload: bytes | None) -> T:
    r"""The payload of a request as ``shape``, a Struct; no payload is an empty object.

    Raises:
        RpcError: EINVAL; it is something else, and the text says where.

    >>> read_request(dict[str, int], b'{"id":7}\x00'), read_request(dict[str, int], None)
    ({'id': 7}, {})
    """
    try:
        return msgspec.convert({} if payload is None else decode_json(payload), shape)
    except msgspec.ValidationError as error:
        raise RpcError(errno.EINVAL, str(error)) from error
    except ProtocolError as error:
        raise RpcError(errno.EINVAL, f"expected a JSON object: {error}") from error


def has_half(text: bytes) -> bool:
    r"""Whether JSON holds half of a character: an escaped surrogate without its other one. Readers of JSON take it for
    all kinds of things, such as the end of the text.

    >>> has_half(b'"\\ud83d"'), has_half(b'"\\ud83d\\ude00"'), has_half(b'"\\\\ud83d"')
    (True, False, False)
    """
    return _HALF.search(_PAIR.sub(b"", text.replace(b"\\\\", b""))) is not None


def is_json_object(payload: bytes) -> bool:
    """True when ``payload`` is a JSON object and exactly one NUL at its end; nothing is built from it. What every form
    of a message and of an event shows as JSON is decided here.
    """
    if not payload.startswith(b"{") or payload.find(b"\0") != len(payload) - 1:
        return False
    try:
        if len(payload) > NESTED_MAX:
            check(payload)
        _syntax.decode(payload[:-1])
        payload.decode()
    except ValueError:
        return False
    return True


def encode_text(text: str) -> bytes:
    """The string payload of ``text``: UTF-8 (surrogate escapes become the bytes they stand for) and one NUL.

    Raises:
        ProtocolError: EPROTO; ``text`` holds a NUL, which would end it early, or a lone surrogate.
    """
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ProtocolError(f"cannot be written as UTF-8: {error.reason}") from error
    if b"\0" in data:
        raise ProtocolError("a string payload cannot hold a NUL")
    return data + b"\0"


def encode_reason(text: str) -> bytes | None:
    r"""The payload of an error answer: what ``text`` says, whatever is in it; None when that is nothing.

    Never raises: a caller that waits for an answer must get one. A NUL is left out, half of a character becomes a
    ``?``.

    >>> encode_reason("no\0 \ud83d"), encode_reason("")
    (b'no ?\x00', None)
    """
    data = text.replace("\0", "").encode("utf-8", "replace")
    return data + b"\0" if data else None


def any_text(payload: bytes | None) -> str:
    """The text of ``payload`` for people, whether or not it ends in NUL; "" when there is none.

    Never raises: for error texts and log lines, where deployed software writes both forms.
    """
    return (payload or b"").partition(b"\0")[0].decode("utf-8", "replace")


def _before_nul(payload: bytes | None) -> bytes:
    text, nul, _ignored = (payload or b"").partition(b"\0")
    if not nul:
        raise ProtocolError("payload is missing" if payload is None else "payload does not end in NUL")
    return text
