"""Control objects: what gateway and client tell each other beside Flux messages, as JSON objects with a ``type``.

From the client: ``auth``, ``refresh``, ``resume``, ``ping``. From the gateway: ``welcome``, ``gap``, ``upstream``,
``refreshed``, ``resumed``, ``error``, ``shutdown``, ``pong``. PROTOCOL.md states their fields. What a client sends
is checked here, type by type; unknown fields are refused, so that a misspelt one is not taken for an absent one.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from broker.errors import DecodeError
from broker.nesting import decoder
from gateway.closes import MEANINGS

Sequence = Annotated[int, Meta(ge=0, le=2**32 - 1)]

PING: Final[dict[str, Any]] = {"type": "ping"}
PONG: Final[dict[str, Any]] = {"type": "pong"}


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
_encoder = msgspec.json.Encoder()
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
        raise DecodeError(f"not a control object: {reason_of(error)}") from error


def plain(obj: ClientControl) -> dict[str, Any]:
    """The object as a dict with its ``type``."""
    found: dict[str, Any] = {"type": type(obj).__struct_config__.tag}
    for name in obj.__struct_fields__:
        value = getattr(obj, name)
        found[name] = list(value) if isinstance(value, tuple) else value
    return found


def reason_of(error: Exception) -> str:
    """What msgspec says of input it refused, short enough for a close reason or a log line."""
    return str(error)[:_TEXT_CHARS]


def encode(obj: dict[str, Any]) -> bytes:
    """The JSON text of a control object."""
    return _encoder.encode(obj)


def error(code: int, text: str = "") -> dict[str, Any]:
    """What is said right before the connection is closed with ``code``; ``text`` may add to its meaning."""
    meaning = MEANINGS[code]
    return {
        "type": "error",
        "code": code,
        "name": meaning.name,
        "text": text or meaning.text,
        "reconnect": meaning.reconnect,
    }


def gap(lost: int, first: int, last: int) -> dict[str, Any]:
    """``lost`` events from number ``first`` to ``last`` were dropped because the client read too slowly."""
    return {"type": "gap", "lost": lost, "from": first, "to": last}
