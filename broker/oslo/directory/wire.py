"""Messages of the directory: two frames, ``b"HGD"`` + version byte + kind byte, and JSON (pure).

A DEALER speaks with the ROUTER of a directory, over TCP or over ``directory.ctl`` in the folder of its node; what comes
from there is in one ZeroMQ frame (``reactor.bundle``)::

    -> HELLO     {"want": bool}                      want: send me all states, and each that changes
    -> ANNOUNCE  State                               all of what a pipeline offers
    -> BEAT      [[node, pipeline, incarnation, version], ...]   leases renewed; [] says only: still here
    -> LEAVE     [node, pipeline, incarnation, version]          the pipeline ends
    -> AWAY      [node, pipeline, incarnation, version]          it is started again: keep it for ``RESTART_S``
    <- WELCOME   {"node", "incarnation", "lease_s"}  answers HELLO; a snapshot begins for those who want
    <- STATES    {"states": [...], "complete": bool}  states as they are now; complete: the snapshot ends
    <- GONE      [[node, pipeline, incarnation, why], ...]
    <- GREET     {}                                  say HELLO and announce: I do not know you, or what you beat for
    <- ALIVE     {}                                  still here
    <- REFUSED   {"reason": text}

Both sides refuse messages of another ``VERSION`` and log that they saw one. Whatever is decoded here has been checked:
names, endpoints, counts, and that a record has the fields of its pipeline and no others, so that two records of one
listener at one topic are always equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

from broker.nesting import decoder
from broker.oslo.frames import Malformed, check_name
from broker.oslo.names import NAME_BYTES_MAX, Pipeline
from broker.oslo.records import (
    RECORDS_MAX,
    STATE_CHARS_MAX,
    STATES_MAX,
    Beat,
    NodeName,
    Number,
    PipelineName,
    Place,
    Record,
    State,
    chars_of,
    fits_state,
    to_json,
)

MAGIC: Final = b"HGD"
VERSION: Final = 2
HEAD_BYTES: Final = 5
JSON_BYTES_MAX: Final = 20 << 20
"""JSON of one message: any state of ``STATE_CHARS_MAX`` fits, whatever its characters are. More is refused by libzmq
before it is allocated."""
RESTART_S: Final = 30.0
"""A pipeline that is started again is kept for so long, at least for a lease."""
CHUNK_RECORDS: Final = 2_048
"""Records in one STATES of a snapshot, about 200 KiB: others are served between two of them."""
RECORDS_TOTAL_MAX: Final = 1 << 18
"""Records of all states that a directory, or a reader, holds: a thousand nodes with 250 listeners each."""


class DirectoryKind(IntEnum):
    """What a message is; 16 and up come from the directory."""

    HELLO = 1
    ANNOUNCE = 2
    BEAT = 3
    LEAVE = 4
    AWAY = 5
    WELCOME = 17
    STATES = 18
    GONE = 19
    GREET = 20
    ALIVE = 21
    REFUSED = 22


_ENTRIES: Final = msgspec.Meta(max_length=STATES_MAX)


class Hello(msgspec.Struct, frozen=True):
    """Body of HELLO."""

    want: bool = False


class Welcome(msgspec.Struct, frozen=True):
    """Body of WELCOME; ``incarnation`` is of the directory's process, nanoseconds of the clock at its start."""

    node: str
    incarnation: Number
    lease_s: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    message_bytes_max: Number = 0
    """Largest body that the pipelines of that node take; 0 not told."""


class States(msgspec.Struct, frozen=True):
    """Body of STATES."""

    states: Annotated[tuple[State, ...], _ENTRIES] = ()
    complete: bool = False


class Gone(msgspec.Struct, frozen=True, array_like=True):
    """One entry of GONE: a state of that incarnation, or an older one, is no more."""

    node: NodeName
    pipeline: PipelineName
    incarnation: Number
    why: Annotated[str, msgspec.Meta(max_length=64)] = "not known any more"
    """A text for people; nothing depends on it."""

    @property
    def place(self) -> Place:
        """Whose state it was."""
        return (self.node, self.pipeline)


class Empty(msgspec.Struct, frozen=True):
    """Body of GREET and ALIVE."""


class DirectoryRefused(msgspec.Struct, frozen=True):
    """Body of REFUSED."""

    reason: Annotated[str, msgspec.Meta(max_length=1024)] = ""


Body: TypeAlias = (
    Hello | State | tuple[Beat, ...] | Beat | Welcome | States | tuple[Gone, ...] | Empty | DirectoryRefused
)


class DirectoryMessage(NamedTuple):
    """A message; the type of ``body`` follows from ``kind``."""

    kind: DirectoryKind
    body: Any


TO_DIRECTORY: Final = frozenset(kind for kind in DirectoryKind if kind < 16)
FROM_DIRECTORY: Final = frozenset(kind for kind in DirectoryKind if kind > 16)
_TYPES: Final[dict[DirectoryKind, Any]] = {
    DirectoryKind.HELLO: Hello,
    DirectoryKind.ANNOUNCE: State,
    DirectoryKind.BEAT: Annotated[tuple[Beat, ...], _ENTRIES],
    DirectoryKind.LEAVE: Beat,
    DirectoryKind.AWAY: Beat,
    DirectoryKind.WELCOME: Welcome,
    DirectoryKind.STATES: States,
    DirectoryKind.GONE: Annotated[tuple[Gone, ...], _ENTRIES],
    DirectoryKind.GREET: Empty,
    DirectoryKind.ALIVE: Empty,
    DirectoryKind.REFUSED: DirectoryRefused,
}
_DECODE: Final = {kind: decoder(type_) for kind, type_ in _TYPES.items()}
_HEADS: Final = {kind: MAGIC + bytes((VERSION, kind)) for kind in DirectoryKind}


def encode(kind: DirectoryKind, body: Body) -> tuple[bytes, bytes]:
    """The two frames of a message."""
    return _HEADS[kind], to_json(body)


def decode(frames: Sequence[bytes], expected: frozenset[DirectoryKind] = FROM_DIRECTORY) -> DirectoryMessage:
    """Read the frames of a message and check what it says.

    Raises:
        Malformed: not two frames, another magic, version or kind than ``expected``, not the JSON of that kind, or
            values that cannot be.
    """
    if len(frames) != 2 or len(frames[0]) != HEAD_BYTES or frames[0][:3] != MAGIC:
        first = bytes(frames[0][:16]) if frames else b""
        raise Malformed(f"saw {len(frames)} frames, the first {first!r}, expected two of the directory")
    if frames[0][3] != VERSION:
        text = "saw version %d of the directory's messages, expected %d: the other one runs another release"
        raise Malformed(text % (frames[0][3], VERSION), unknown_version=True)
    number = frames[0][4]
    if number not in expected:
        raise Malformed(f"saw kind {number}, expected one of {sorted(expected)}")
    kind = DirectoryKind(number)
    if len(frames[1]) > JSON_BYTES_MAX:
        raise Malformed(f"saw {len(frames[1])} bytes of JSON, expected {JSON_BYTES_MAX} at most")
    try:
        body = _DECODE[kind](frames[1])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"saw a {kind.name} that is not its JSON: {str(error)[:120]}") from None
    _check_body(body)
    return DirectoryMessage(kind, body)


# ---------------------------------------------------------------- checks


def canonical(pipeline: str, record: Record) -> Record:
    """``record`` with the fields that its pipeline has, and no others.

    >>> canonical("fanout", Record("nova", "compute", "host", "0a"))
    Record(exchange='nova', topic='compute', server='', listener='', pool=None)
    """
    if pipeline == Pipeline.FANOUT:
        return Record(record.exchange, record.topic)
    if pipeline == Pipeline.NOTIFY:
        return Record(record.exchange, record.topic, "", record.listener, record.pool)
    return Record(record.exchange, record.topic, record.server, record.listener)


def check_state(state: State) -> None:
    """Refuse a state that cannot be, beyond what its type says.

    Raises:
        Malformed: see the module.
    """
    _check_names({state.node})
    _check_records(state.pipeline, state.records)


def _check_body(body: Body) -> None:
    if isinstance(body, State):
        check_state(body)
    elif isinstance(body, States):
        for state in body.states:
            check_state(state)
    elif isinstance(body, tuple):
        _check_names({each.node for each in body})
    elif isinstance(body, (Welcome, Beat)):
        _check_names({body.node})


def _check_records(pipeline: str, records: Sequence[Record]) -> None:
    exchanges, topics = {each.exchange for each in records}, {each.topic for each in records}
    servers, listeners = {each.server for each in records}, {each.listener for each in records}
    pools = {each.pool for each in records}
    names = (exchanges, topics, servers, listeners, {pool for pool in pools if pool is not None})
    _check_names(set().union(*names))
    if pipeline == Pipeline.FANOUT:
        wrong = servers - {""} or listeners - {""} or pools - {None}
    elif pipeline == Pipeline.NOTIFY:
        wrong = servers - {""} or listeners & {""}
    else:
        wrong = listeners & {""} or pools - {None}
    if wrong:
        raise Malformed(f"saw records with other fields than {pipeline} has: {str(next(iter(wrong)))[:64]!r}")
    chars = len(records) * sum(max(map(len, each), default=0) for each in names)
    if chars > STATE_CHARS_MAX:  # at most, that is; to count them takes longer than all of the rest
        chars = sum(map(chars_of, records))
    if not fits_state(len(records), chars):
        raise Malformed(
            f"saw {len(records)} records, expected {RECORDS_MAX} at most, of {STATE_CHARS_MAX} characters in all"
        )


def _check_names(names: set[str]) -> None:
    text = "".join(names)
    if text.isascii() and text.isprintable() and max(map(len, names), default=0) <= NAME_BYTES_MAX:
        return  # a look at all of them at once takes a tenth of the time
    for name in names:
        try:
            check_name(name, "a name")
        except ValueError as error:
            raise Malformed(f"saw {error}") from None


def fits_record(pipeline: str, record: Record) -> bool:
    """Whether ``record`` may be announced by ``pipeline``."""
    try:
        _check_records(pipeline, (record,))
    except Malformed:
        return False
    return True


# ---------------------------------------------------------------- snapshots


def chunks(states: Iterable[State]) -> list[tuple[bytes, bytes]]:
    """The messages of a snapshot: STATES of about ``CHUNK_RECORDS`` records each, without the one that completes it."""
    messages: list[tuple[bytes, bytes]] = []
    part: list[State] = []
    weight = 0
    for state in states:
        if part and weight + len(state.records) >= CHUNK_RECORDS:
            messages.append(encode(DirectoryKind.STATES, States(tuple(part))))
            part, weight = [], 0
        part.append(state)
        weight += len(state.records) + 1
    if part:
        messages.append(encode(DirectoryKind.STATES, States(tuple(part))))
    return messages


COMPLETE: Final = encode(DirectoryKind.STATES, States((), complete=True))
ALIVE: Final = encode(DirectoryKind.ALIVE, Empty())
GREET: Final = encode(DirectoryKind.GREET, Empty())
