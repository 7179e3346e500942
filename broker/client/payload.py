"""What a program may hand over as a payload (RFC 3, "Payload Conventions")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from broker.wire.payload import encode_json, encode_text

Payload: TypeAlias = Mapping[str, Any] | str | bytes | None
"""A JSON object, a text, raw bytes, or no payload at all."""


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
