"""Control objects of clients: JSON objects with a ``type``, beside Flux messages.

PROTOCOL.md states their fields, which are checked here, type by type; unknown fields are refused, so that a misspelt
one is not taken for an absent one. What the gateway says is in ``gateway.notices``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from broker.errors import DecodeError
from broker.nesting import NESTED_MAX, decoder
from broker.wire.payload import HALF, has_half

Sequence = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Auth(Struct, tag_field="type", tag="auth", forbid_unknown_fields=True, frozen=True):
    """The credential, where the handshake carried none."""

    token: str


class Refresh(Struct, tag_field="type", tag="refresh", forbid_unknown_fields=True, frozen=True):
    """A fresh credential of the same user, on a live connection."""

    token: str


class Resume(Struct, tag_field="type", tag="resume", forbid_unknown_fields=True, frozen=True):
    """What the client had before its connection broke: subscribe again, and replay what it missed."""

    epoch: str
    sequence: Sequence
    subscriptions: tuple[str, ...]
    token: str = ""


class Ping(Struct, tag_field="type", tag="ping", forbid_unknown_fields=True, frozen=True):
    """Asks for a ``pong``: for clients that cannot send WebSocket pings, as browsers."""


ClientControl: TypeAlias = Auth | Refresh | Resume | Ping

_read: Final = decoder(ClientControl)
_TEXT_CHARS: Final = 200
"""An error text quotes field names and types of what was sent; this much of it is enough."""


def decode(data: bytes) -> dict[str, Any]:
    """The control object that a client sent as a text message, checked.

    Raises:
        DecodeError: not JSON, an unknown type, a missing, unknown or wrong field; the text names it, never its value.
    """
    try:
        return plain(_read(data))
    except ValueError as error:
        raise DecodeError(f"not a control object: {reason_of(error, data)}") from error


def plain(obj: ClientControl) -> dict[str, Any]:
    """The object as a dict with its ``type``."""
    found: dict[str, Any] = {"type": type(obj).__struct_config__.tag}
    for name in obj.__struct_fields__:
        value = getattr(obj, name)
        found[name] = list(value) if isinstance(value, tuple) else value
    return found


def reason_of(error: Exception, data: bytes = b"") -> str:
    """What is wrong with ``data``, where a reader has refused it: short enough for a close reason or a log line, and in
    the words of PROTOCOL.md, whatever reader it was.

    >>> reason_of(msgspec.ValidationError("Expected `int`, got `str` - at `$.matchtag`"))
    '$.matchtag: saw a text, expected a whole number'
    """
    if isinstance(error, msgspec.ValidationError):
        text, mark, place = str(error).rpartition(" - at `")
        return _wrong(text if mark else str(error), f"{place.rstrip('`')}: " if mark else "")[:_TEXT_CHARS]
    if isinstance(error, UnicodeDecodeError):
        return "no UTF-8"
    if str(error).startswith("nested"):
        return f"JSON that is nested deeper than {NESTED_MAX}"
    if has_half(data):
        return HALF
    return "truncated JSON" if "truncated" in str(error) else "no JSON"


def _wrong(text: str, where: str) -> str:
    """What a ``ValidationError`` says, in other words."""
    if found := _EXPECTED.fullmatch(text):
        types, saw, rest = found.groups()
        expected = " or ".join(_WORDS.get(each, each) for each in types.split(" | "))
        if saw:
            return f"{where}saw {_WORDS.get(saw, saw)}, expected {expected}"
        return f"{where}expected {expected}{rest if rest[:3] in (' >=', ' <=') else ' of another form'}"
    if found := _FIELD.fullmatch(text):
        return f'field "{found[2]}" is {"missing" if found[1] == "missing required" else "unknown here"}'
    if found := _VALUE.fullmatch(text):
        return f"{where}{found[1]} is unknown here"
    return f"{where}expected base64" if "base64" in text else f"{where}not what is expected there"


_EXPECTED: Final = re.compile(r"Expected `([^`]*)`(?:, got `([^`]*)`)?(.*)", re.DOTALL)
_FIELD: Final = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)
_VALUE: Final = re.compile(r"Invalid (?:enum )?value (.*)", re.DOTALL)
_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
