"""What is stored in Redis, and under which names (pure).

Keys, under ``headgate:oslo:``::

    places                      set of JSON [node, pipeline]: an index, since SCAN would walk keys of others
    state:[node, pipeline]      JSON of records.State, expires with the lease
    lease:[node, pipeline]      "incarnation version" of that state, expires with it: what a reader looks at first

and the channel ``headgate:oslo:changed``, whose messages are JSON [node, pipeline]: look there.
"""

from __future__ import annotations

from typing import Final

import msgspec

from broker.oslo.directory import wire
from broker.oslo.frames import Malformed
from broker.oslo.records import Age, Place, State, to_json

PREFIX: Final = b"headgate:oslo:"
PLACES: Final = PREFIX + b"places"
CHANNEL: Final = PREFIX + b"changed"
PLACE_BYTES_MAX: Final = 1_024
AGE_BYTES_MAX: Final = 64


def state_key(place: Place) -> bytes:
    """Where the state of ``place`` is."""
    return PREFIX + b"state:" + to_json(place)


def lease_key(place: Place) -> bytes:
    """Where the age of that state is."""
    return PREFIX + b"lease:" + to_json(place)


def read_place(data: bytes) -> Place | None:
    """A member of ``PLACES``, or a message of ``CHANNEL``; None when it is none."""
    if len(data) > PLACE_BYTES_MAX:
        return None
    try:
        return msgspec.json.decode(data, type=tuple[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def read_age(data: bytes | None) -> Age | None:
    """A value at ``lease_key``; None when it is none."""
    words = (data or b"").split() if len(data or b"") <= AGE_BYTES_MAX else ()
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
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"saw a state that is not its JSON: {str(error)[:120]}") from None
    wire.check_state(state)
    if state.place != place:
        raise Malformed(f"saw the state of {state.node[:64]}, expected that of {place[0][:64]}")
    return state
