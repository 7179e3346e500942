"""Messages of the directory: two frames, ``b"HGD"`` + version byte + kind byte, and JSON (pure).

A DEALER speaks with the ROUTER of a directory, over TCP or over ``directory.ctl`` in the folder of its node; what comes
from there is in one ZeroMQ frame (``reactor.bundle``)::

    -> HELLO     {"want": bool, "node": ""}          want: send me all states, and what changes
    -> ANNOUNCE  State                               all of what a pipeline offers
    -> CHANGE    Change                              what changed of it
    -> BEAT      [[node, pipeline, incarnation, version], ...]   leases renewed; [] says only: still here
    -> LEAVE     [node, pipeline, incarnation, version]          the pipeline ends
    <- WELCOME   {"node", "incarnation", "lease_s", "ipc_dir"}   answers HELLO; a snapshot begins for those who want
    <- STATES    {"states": [...], "complete": bool}  states as they are now; complete: the snapshot ends
    <- CHANGED   Change
    <- GONE      [[node, pipeline, incarnation, why], ...]
    <- RESEND    [[node, pipeline], ...]              ANNOUNCE these; []: I do not know you, say HELLO
    <- ALIVE     {}                                   still here
    <- REFUSED   {"reason": text}

Whatever is decoded here has been checked: names, endpoints, counts, and that a record has the fields of its pipeline
and no others, so that two records of one listener at one topic are always equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from broker.nesting import decoder
from broker.oslo.frames import Malformed, check_name
from broker.oslo.names import Pipeline
from broker.oslo.records import (
    RECORDS_MAX,
    STATE_CHARS_MAX,
    STATES_MAX,
    Beat,
    Change,
    Place,
    Record,
    State,
    chars_of,
    fits_state,
    to_json,
)

MAGIC: Final = b"HGD"
VERSION: Final = 1
HEAD_BYTES: Final = 5
TOLD_BYTES_MAX: Final = 16 << 20
"""JSON of one message to a directory, refused by libzmq before it is allocated."""
HEARD_BYTES_MAX: Final = 40 << 20
"""JSON of one message from a directory: any state of ``STATE_CHARS_MAX`` fits, whatever its characters are."""
CHUNK_RECORDS: Final = 2_048
"""Records in one STATES of a snapshot, about 200 KiB: others are served between two of them."""
RECORDS_TOTAL_MAX: Final = 1 << 18
"""Records of all states that a directory, or a reader, holds: a thousand nodes with 250 listeners each."""
NUMBER_MAX: Final = (1 << 63) - 1
"""Of incarnations and versions."""
WHY_CHARS_MAX: Final = 64

_ENDPOINT: Final = re.compile(r"tcp://(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.%a-z]{2,64}\]):[0-9]{1,5}")
_KEY_CHARS: Final = 40


class DirectoryKind(IntEnum):
    """What a message is; 16 and up come from the directory."""

    HELLO = 1
    ANNOUNCE = 2
    CHANGE = 3
    BEAT = 4
    LEAVE = 5
    WELCOME = 17
    STATES = 18
    CHANGED = 19
    GONE = 20
    RESEND = 21
    ALIVE = 22
    REFUSED = 23


class Why:
    """Reasons in GONE; texts for logs, nothing depends on them."""

    LEFT: Final = "left"
    LEASE: Final = "lease ended"
    MOVED: Final = "not known any more"


class Hello(msgspec.Struct, frozen=True):
    """Body of HELLO."""

    want: bool = False
    node: str = ""


class Welcome(msgspec.Struct, frozen=True):
    """Body of WELCOME; ``incarnation`` is of the directory's process, nanoseconds of the clock at its start."""

    node: str
    incarnation: int
    lease_s: float
    ipc_dir: str = ""
    message_bytes_max: int = 0
    """Largest body that the pipelines of that node take; 0 not told."""


class States(msgspec.Struct, frozen=True):
    """Body of STATES."""

    states: tuple[State, ...] = ()
    complete: bool = False


class Gone(msgspec.Struct, frozen=True, array_like=True):
    """One entry of GONE: a state of that incarnation, or an older one, is no more."""

    node: str
    pipeline: str
    incarnation: int
    why: str = ""

    @property
    def place(self) -> Place:
        """Whose state it was."""
        return (self.node, self.pipeline)


class Alive(msgspec.Struct, frozen=True):
    """Body of ALIVE."""


class DirectoryRefused(msgspec.Struct, frozen=True):
    """Body of REFUSED."""

    reason: str = ""


Body: TypeAlias = (
    Hello | State | Change | tuple[Beat, ...] | Beat | Welcome | States | tuple[Gone, ...] | tuple[Place, ...] | Alive
    | DirectoryRefused
)  # fmt: skip


class DirectoryMessage(NamedTuple):
    """A message; the type of ``body`` follows from ``kind``."""

    kind: DirectoryKind
    body: Any


TO_DIRECTORY: Final = frozenset(kind for kind in DirectoryKind if kind < 16)
FROM_DIRECTORY: Final = frozenset(kind for kind in DirectoryKind if kind > 16)
_TYPES: Final[dict[DirectoryKind, Any]] = {
    DirectoryKind.HELLO: Hello,
    DirectoryKind.ANNOUNCE: State,
    DirectoryKind.CHANGE: Change,
    DirectoryKind.BEAT: tuple[Beat, ...],
    DirectoryKind.LEAVE: Beat,
    DirectoryKind.WELCOME: Welcome,
    DirectoryKind.STATES: States,
    DirectoryKind.CHANGED: Change,
    DirectoryKind.GONE: tuple[Gone, ...],
    DirectoryKind.RESEND: tuple[Place, ...],
    DirectoryKind.ALIVE: Alive,
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
        raise Malformed(f"saw version {frames[0][3]}, expected {VERSION}", unknown_version=True)
    number = frames[0][4]
    if number not in expected:
        raise Malformed(f"saw kind {number}, expected one of {sorted(expected)}")
    kind = DirectoryKind(number)
    most = TOLD_BYTES_MAX if kind in TO_DIRECTORY else HEARD_BYTES_MAX
    if len(frames[1]) > most:
        raise Malformed(f"saw {len(frames[1])} bytes of JSON, expected {most} at most")
    try:
        body = _DECODE[kind](frames[1])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"saw a {kind.name} that is not its JSON: {str(error)[:120]}") from None
    check = _CHECKS.get(kind)
    if check is not None:
        check(body)
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
    """Refuse a state that cannot be.

    Raises:
        Malformed: see the module.
    """
    _check_place(state.node, state.pipeline)
    _check_number(state.incarnation, "an incarnation")
    _check_number(state.version, "a version")
    if state.endpoint and not _ENDPOINT.fullmatch(state.endpoint):
        raise Malformed(f"saw the endpoint {state.endpoint[:64]!r}, expected tcp://HOST:PORT")
    if state.key and (len(state.key) != _KEY_CHARS or not state.key.isascii()):
        raise Malformed(f"saw a key of {len(state.key)} characters, expected the {_KEY_CHARS} of Z85")
    _check_records(state.pipeline, state.records)


def _check_change(change: Change) -> None:
    _check_place(change.node, change.pipeline)
    _check_number(change.incarnation, "an incarnation")
    _check_number(change.since, "a version")
    _check_number(change.version, "a version")
    if change.version <= change.since:
        raise Malformed(f"saw a change from version {change.since} to {change.version}, expected a later one")
    _check_records(change.pipeline, change.added)
    _check_records(change.pipeline, change.removed)


def _check_states(body: States) -> None:
    if len(body.states) > STATES_MAX:
        raise Malformed(f"saw {len(body.states)} states, expected {STATES_MAX} at most")
    for state in body.states:
        check_state(state)


def _check_beat(beat: Beat) -> None:
    _check_place(beat.node, beat.pipeline)
    _check_number(beat.incarnation, "an incarnation")
    _check_number(beat.version, "a version")


def _check_gone(gone: Gone) -> None:
    _check_place(gone.node, gone.pipeline)
    _check_number(gone.incarnation, "an incarnation")
    if len(gone.why) > WHY_CHARS_MAX:
        raise Malformed(f"saw {len(gone.why)} characters of why, expected {WHY_CHARS_MAX} at most")


def _check_welcome(body: Welcome) -> None:
    _check(body.node, "a node")
    _check_number(body.incarnation, "an incarnation")
    _check_number(body.message_bytes_max, "a size of messages")
    if not 0 < body.lease_s <= 3600:
        raise Malformed(f"saw a lease of {body.lease_s} s, expected up to an hour")


def _check_hello(body: Hello) -> None:
    _check(body.node, "a node")


def _check_refused(body: DirectoryRefused) -> None:
    if len(body.reason) > 1024:
        raise Malformed(f"saw a reason of {len(body.reason)} characters, expected 1024 at most")


def _each(check: Callable[[Any], None]) -> Callable[[Sequence[Any]], None]:
    def check_all(body: Sequence[Any]) -> None:
        if len(body) > STATES_MAX:
            raise Malformed(f"saw {len(body)} entries, expected {STATES_MAX} at most")
        for each in body:
            check(each)

    return check_all


def _check_place(node: str, pipeline: str) -> None:
    if not node:
        raise Malformed("saw a node without a name")
    _check(node, "a node")
    if pipeline not in _PIPELINES:
        raise Malformed(f"saw the pipeline {pipeline[:64]!r}, expected one of {sorted(_PIPELINES)}")


def _check_number(value: int, what: str) -> None:
    if not 0 <= value <= NUMBER_MAX:
        raise Malformed(f"saw {what} of {value}, expected 0 to 2**63 - 1")


def _check_records(pipeline: str, records: Sequence[Record]) -> None:
    listens = pipeline != Pipeline.FANOUT
    for record in records:
        for name in (record.exchange, record.topic, record.server, record.listener):
            _check(name, "a record's name")
        if record.pool is not None:
            _check(record.pool, "a pool")
        if bool(record.listener) is not listens or record != canonical(pipeline, record):
            raise Malformed(f"saw a record of {record.topic[:64]!r} with other fields than {pipeline} has")
    if not fits_state(len(records), sum(map(chars_of, records))):
        raise Malformed(
            f"saw {len(records)} records, expected {RECORDS_MAX} at most, of {STATE_CHARS_MAX} characters in all"
        )


def fits_record(pipeline: str, record: Record) -> bool:
    """Whether ``record`` may be announced by ``pipeline``."""
    try:
        _check_records(pipeline, (record,))
    except Malformed:
        return False
    return True


def _check(name: str, what: str) -> None:
    try:
        check_name(name, what)
    except ValueError as error:
        raise Malformed(f"saw {error}") from None


_PIPELINES: Final = frozenset(map(str, Pipeline))
_CHECKS: Final[dict[DirectoryKind, Callable[[Any], None]]] = {
    DirectoryKind.HELLO: _check_hello,
    DirectoryKind.ANNOUNCE: check_state,
    DirectoryKind.CHANGE: _check_change,
    DirectoryKind.BEAT: _each(_check_beat),
    DirectoryKind.LEAVE: _check_beat,
    DirectoryKind.WELCOME: _check_welcome,
    DirectoryKind.STATES: _check_states,
    DirectoryKind.CHANGED: _check_change,
    DirectoryKind.GONE: _each(_check_gone),
    DirectoryKind.RESEND: _each(lambda place: _check_place(*place)),
    DirectoryKind.REFUSED: _check_refused,
}


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
ALIVE: Final = encode(DirectoryKind.ALIVE, Alive())
SAY_HELLO: Final = encode(DirectoryKind.RESEND, ())
