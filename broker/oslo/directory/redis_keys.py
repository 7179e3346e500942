"""What is stored in Redis, and under which names (pure); see ``redis_share``."""

from __future__ import annotations

from typing import Final

import msgspec

from broker.oslo.directory import wire
from broker.oslo.directory.wire import Body, DirectoryKind, DirectoryMessage
from broker.oslo.frames import Malformed
from broker.oslo.records import Age, Place, State, to_json

PREFIX: Final = b"headgate:oslo:"
PLACES: Final = PREFIX + b"places"
CHANNEL: Final = PREFIX + b"changes"
_NEWS: Final = frozenset({DirectoryKind.STATES, DirectoryKind.CHANGED, DirectoryKind.GONE})


def state_key(place: Place) -> bytes:
    """Where the state of ``place`` is."""
    return PREFIX + b"state:" + to_json(place)


def lease_key(place: Place) -> bytes:
    """Where the age of that state is: what a reader looks at first."""
    return PREFIX + b"lease:" + to_json(place)


def age_of(state: State) -> Age:
    """What is stored at ``lease_key``."""
    return (state.incarnation, state.version)


def read_place(data: bytes) -> Place | None:
    """A member of ``PLACES``; None when it is none."""
    try:
        return msgspec.json.decode(data, type=tuple[str, str])
    except msgspec.MsgspecError:
        return None


def read_age(data: bytes | None) -> Age | None:
    """A value at ``lease_key``; None when it is none."""
    words = (data or b"").split()
    if len(words) != 2 or not (words[0].isdigit() and words[1].isdigit()):
        return None
    return (int(words[0]), int(words[1]))


def read_state(place: Place, data: bytes) -> State:
    """A value at ``state_key``.

    Raises:
        Malformed: it is none, or that of another place.
    """
    try:
        state = msgspec.json.decode(data, type=State)
    except msgspec.MsgspecError as error:
        raise Malformed(f"saw a state that is not its JSON: {str(error)[:120]}") from None
    wire.check_state(state)
    if state.place != place:
        raise Malformed(f"saw the state of {state.node[:64]}, expected that of {place[0][:64]}")
    return state


def to_news(kind: DirectoryKind, body: Body) -> bytes:
    """A message of the channel."""
    return b"".join(wire.encode(kind, body))


def read_news(data: bytes, node: str) -> DirectoryMessage | None:
    """A message of the channel without what it says of ``node``; None: nothing else.

    Raises:
        Malformed: it is none.
    """
    message = wire.decode((data[: wire.HEAD_BYTES], data[wire.HEAD_BYTES :]), _NEWS)
    body = message.body
    if message.kind is DirectoryKind.CHANGED:
        return None if body.node == node else message
    if message.kind is DirectoryKind.GONE:
        gone = tuple(each for each in body if each.node != node)
        return message._replace(body=gone) if gone else None
    states = tuple(each for each in body.states if each.node != node)
    return message._replace(body=wire.States(states)) if states else None
