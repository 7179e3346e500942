"""The latest events of all jobs, numbered: what a subscription is delivered from and what a replay reads.

Numbers begin at 1 with every start of the broker; its incarnation id (``epoch``) tells which beginning is meant. The
buffer holds the latest events within a count and a number of bytes, so a number is *held*, *forgotten* (older) or not
given yet. What an event says is encoded when the first subscriber wants it, once for all of them.
"""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from broker.bounded_queue import BoundedQueue
from broker.nesting import read_json
from broker.nfp.contract import JobEvent
from broker.nfp.principal import told_userid

HELD_MAX: Final = 8192
"""Events held, as the setting ``events_ring`` says by default."""
HELD_MAX_BYTES: Final = 32 << 20
"""Bytes of worker's words held, each event counted with ``ENTRY_BYTES`` more."""
ENTRY_BYTES: Final = 512
"""What an event weighs without its body."""
BODY_MAX_BYTES: Final = 16 << 10
"""A longer body is left out of the event, its size is told; results are fetched with GET."""
_SPOKEN: Final = frozenset({"progress", "input_request", "input_response", "result_ready", "published"})
"""Kinds whose body is the event itself; results and streams go to who asked for them."""


class BufferedEvent(msgspec.Struct, eq=False, gc=False):
    """A numbered event.

    Attributes:
        sequence: its number.
        event: what happened, without the body of a result or a stream.
        time_s: wall clock, for people.
        weight: bytes it counts for.
    """

    sequence: int
    event: JobEvent
    time_s: float
    weight: int = ENTRY_BYTES
    _encoded: bytes | None = None

    def encoded(self, epoch: str) -> bytes:
        """The JSON body of its EVENT packet, made once; see ``told``."""
        if self._encoded is None:
            self._encoded = msgspec.json.encode(told(self, epoch))
        return self._encoded


def numbered(sequence: int, event: JobEvent, time_s: float) -> BufferedEvent:
    """The entry of ``event``: bodies of results and streams, and what is too long, are left out of it."""
    size = len(event.body)
    if size and (size > BODY_MAX_BYTES or event.kind not in _SPOKEN):
        event = replace(event, body=b"", size=event.size or size)
        size = 0
    return BufferedEvent(sequence, event, time_s, ENTRY_BYTES + size)


def told(entry: BufferedEvent, epoch: str) -> dict[str, Any]:
    """What subscribers read.

    Keys: ``kind``, ``uuid``, ``service``, ``task``, ``holder``, ``userid`` (null: none), ``worker``, ``attempt``,
    ``status``, ``state`` (how it ended: of a finished part, or of the job), ``size`` (bytes left out or passed),
    ``time`` (wall clock seconds), ``sequence``, ``epoch`` and ``event``: what the worker said, null when it said
    nothing or no JSON. What was published and is no JSON is its text, or {"base64": ...}.
    """
    event = entry.event
    return {
        "kind": event.kind,
        "uuid": event.uuid,
        "service": event.service,
        "task": event.task,
        "holder": event.holder,
        "userid": told_userid(event.userid),
        "worker": event.worker,
        "attempt": event.attempt,
        "status": event.status,
        "state": event.state,
        "size": event.size,
        "time": round(entry.time_s, 3),
        "sequence": entry.sequence,
        "epoch": epoch,
        "event": _spoken(event.body, event.kind),
    }


def _spoken(body: Any, kind: str = "") -> Any:
    if not len(body):
        return None
    try:
        return read_json(body)
    except (msgspec.MsgspecError, UnicodeError):
        return _plain(bytes(body)) if kind == "published" else None


def _plain(body: bytes) -> Any:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


class ReplayBuffer:
    """The latest entries.

    Args:
        held_max: entries held at most, at least 1.
        held_max_bytes: their weight at most; the latest one is held whatever it weighs.
    """

    __slots__ = ("_entries", "last")

    def __init__(self, held_max: int = HELD_MAX, held_max_bytes: int = HELD_MAX_BYTES) -> None:
        self._entries: BoundedQueue[BufferedEvent] = BoundedQueue(max(1, held_max), held_max_bytes)
        self.last = 0
        """The number of the latest event, 0 before the first."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def first(self) -> int:
        """The oldest number held; one more than ``last`` while nothing is."""
        return self.last - len(self._entries) + 1

    @property
    def weight(self) -> int:
        """Bytes held."""
        return self._entries.bytes

    def add(self, event: JobEvent, time_s: float) -> BufferedEvent:
        """Number ``event`` and hold it. ``overflowing`` then says whether older ones have to go."""
        self.last = last = self.last + 1
        entry = numbered(last, event, time_s)
        self._entries.add(entry, entry.weight)
        return entry

    @property
    def overflowing(self) -> bool:
        """True while more is held than may be."""
        return self._entries.overflowing

    def drop(self) -> BufferedEvent:
        """Forget the oldest entry and return it."""
        return self._entries.pop()

    def __getitem__(self, sequence: int) -> BufferedEvent:
        """The entry of a number that is held.

        Raises:
            IndexError: it is not.
        """
        if not self.first <= sequence <= self.last:
            raise IndexError(f"event {sequence} is not held: {self.first} to {self.last} are")
        return self._entries[sequence - self.first]
