"""Control objects of the gateway: what it tells a client beside Flux messages.

PROTOCOL.md has them in a table, ``/asyncapi.json`` is made of them. What clients say is in ``codecs.control``.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

import msgspec

from gateway.closes import MEANINGS


class Limits(TypedDict):
    """What a client has to know of its limits; 0 is no limit."""

    message_bytes: int
    in_flight: int
    msgs_per_s: float
    subscriptions: int
    services: int


class State(TypedDict):
    """The broker behind the gateway."""

    joined: bool
    rank: int
    size: int
    version: str


class Welcome(TypedDict):
    """The session has begun: who the client is here, and what it may."""

    type: Literal["welcome"]
    session: str
    user: str
    userid: int
    roles: list[str]
    limits: Limits
    resume: str
    epoch: str | None
    sequence: int
    server: str
    upstream: State
    ping_s: float
    expires: float | None


class Refreshed(TypedDict):
    """The fresh credential was accepted."""

    type: Literal["refreshed"]
    expires: float | None
    roles: list[str]


class Resumed(TypedDict):
    """The end of a replay: live from here on."""

    type: Literal["resumed"]
    recovered: bool
    epoch: str
    sequence: int
    replayed: int
    denied: list[str]


Gap = TypedDict("Gap", {"type": Literal["gap"], "lost": int, "from": int, "to": int})
Gap.__doc__ = (
    "Events with numbers from, to were dropped: the client read too slowly, or the hook did not answer."
)


class Upstream(TypedDict):
    """The broker behind the gateway went away, came back, or events were missed."""

    type: Literal["upstream"]
    joined: bool
    epoch: str | None
    reason: str
    lost: int | None


class Denied(TypedDict):
    """An event of the client's was dropped: events have no response that could say so."""

    type: Literal["denied"]
    kind: Literal["publish"]
    topic: str
    errno: int
    text: str


class Unsubscribed(TypedDict):
    """Prefixes that the client may not subscribe to any more."""

    type: Literal["unsubscribed"]
    subscriptions: list[str]


class Service(TypedDict):
    """A service of the client's is not registered any more."""

    type: Literal["service"]
    service: str
    registered: Literal[False]
    errno: int


class Shutdown(TypedDict):
    """The gateway leaves; closes follow within so many seconds."""

    type: Literal["shutdown"]
    in_s: float


class Error(TypedDict):
    """A close with this code follows."""

    type: Literal["error"]
    code: int
    name: str
    text: str
    reconnect: bool


class Pong(TypedDict):
    """Answers ``ping``."""

    type: Literal["pong"]


Notice: TypeAlias = (
    Welcome | Refreshed | Resumed | Gap | Upstream | Denied | Unsubscribed | Service | Shutdown | Error | Pong
)
"""What the gateway says."""


def encode(obj: Notice) -> bytes:
    """Its JSON text."""
    return msgspec.json.encode(obj)


def error(code: int, text: str = "") -> Error:
    """What is said right before the connection is closed with ``code``; ``text`` may add to its meaning."""
    meaning = MEANINGS[code]
    return {
        "type": "error",
        "code": code,
        "name": meaning.name,
        "text": text or meaning.text,
        "reconnect": meaning.reconnect,
    }


def gap(lost: int, first: int, last: int) -> Gap:
    """``lost`` events from number ``first`` to ``last`` were dropped because the client read too slowly."""
    return {"type": "gap", "lost": lost, "from": first, "to": last}
