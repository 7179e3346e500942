"""What the rooms of the wing call each other with: peers, the store, job events, calls of the broker's own services."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol

import msgspec

from broker.errors import HeadgateError
from broker.nfp.frames import Packet
from broker.nfp.names import Dialect
from broker.nfp.principal import Principal
from broker.nfp.records import Op, StoredJob


class Peer(Protocol):
    """Somebody who can be sent packets: across a ROUTER, or in this process.

    Attributes:
        name: its identity as text (printable; hexadecimal digits when it is not UTF-8).
        identity: its ZeroMQ identity.
        principal: who it is.
        dialect: as its latest message was written; answers are written alike.
        features: what its OPEN asked for (see ``FEATURES``); without OPEN empty, but for a client of the text that can
            be told unasked: ``push``.
        lockstep: it gets one answer for each request, and can be told nothing unasked: a REQ socket.
        alive: False once its connection is gone.
        unsent: uuids of the messages that waited when it went.
    """

    name: str
    identity: bytes
    principal: Principal
    dialect: Dialect
    features: frozenset[str]
    alive: bool
    lockstep: bool = False
    unsent: Collection[str] = ()

    def send(self, packet: Packet, after: int = 0) -> bool:
        """Queue ``packet``, to leave once the store's commit ``after`` is done, never before what was queued earlier.

        False: it is gone or its queue is full; nothing was queued.
        """

    def has_spare_room(self) -> bool:
        """Whether what can wait, such as results sent once more, may be queued now: half of the queue is free.

        After False, and after a ``send`` that found no room, the dispatcher is told when it is (``has_room``).
        """

    def cut(self, why: str) -> None:
        """End its connection; the dispatcher is told (``gone``)."""


FEATURES = frozenset({"push", "recorded", "delete", "jobs"})
"""What an OPEN may ask for. Clients: ``push`` (results come unasked; events, too, in the text's dialect, where this is
what a client has without asking unless its socket is a REQ: ``{"features": []}`` in its OPEN asks for lock step).
Workers: ``recorded`` (the broker says when a result is safe), ``delete`` (understands cancellation), ``jobs`` (its OPEN
lists the jobs it holds; those of them that have not begun, and every job that must not be run twice, begin only when
the broker has confirmed that they are this worker's)."""


class NotStored(HeadgateError):
    """Something could not be read, or written; in the latter case it stays queued unless its owner took it out."""


class Journal(Protocol):
    """What becomes durable.

    Attributes:
        position: the commit that will make durable everything put so far; 0 with the store off.
        committed: the last commit that is done; -1 with the store off, where nothing ever is.
        broken: "" or why nothing can be stored at present: new jobs are refused with it.
    """

    position: int
    committed: int
    broken: str

    def put(self, op: Op) -> None:
        """Write down ``op`` with the next commit. Never waits."""

    def find_closed(self, uuid: str) -> StoredJob | None:
        """This closed job, if it is durable, read at once: some 0.02 ms, and what its disk takes.

        Raises:
            NotStored: it cannot be read; a disk that hangs is not asked.
        """


class JobEvent(msgspec.Struct, frozen=True, gc=False):
    """Something that happened to a job, or was published: for subscribers, the Flux side and the journal.

    Thousands of them are held: Structs are quickly made, and nothing to the garbage collector.
    """

    kind: str
    """submitted, queued, dispatched, accepted, progress, input_request, input_response, result_ready, stream, returned,
    finished (one worker's final result), closed (the last one), expired, cancelled; published: a worker's event on a
    topic that is no job, of nobody's job."""
    uuid: str
    """The topic of what was published."""
    service: str
    task: str
    holder: str
    userid: int
    worker: str = ""
    attempt: int = 0
    status: int = 0
    body: Any = b""
    """Of an event or a result: what the worker sent."""
    size: int = 0
    """Bytes that came in (submitted) or went out (finished)."""
    state: str = ""
    """How it ended, see ``outcome``: one worker's part (finished), the job (closed, expired, cancelled); else ""."""


class EventFilter(NamedTuple):
    """Which events a subscriber wants; empty fields want everything."""

    uuid: str = ""
    service: str = ""
    kinds: frozenset[str] = frozenset()

    def wants(self, uuid: str, service: str, kind: str) -> bool:
        """True when such an event passes every field."""
        return (
            (not self.uuid or uuid == self.uuid)
            and (not self.service or service == self.service)
            and (not self.kinds or kind in self.kinds)
        )

    def asked(self) -> dict[str, Any]:
        """The fields as requests and answers of the events' service have them."""
        return {"uuid": self.uuid, "service": self.service, "kinds": sorted(self.kinds)}


OnJobEvent = Callable[[JobEvent], None]
"""Is told in order, at once; must not call back into the dispatcher."""

Offended = Callable[[Peer, str, str], None]
"""A peer did what only a broken or hostile one does; a word for the counters, and a text that says what. It counts
against the peer, which may be gone when this returns."""


def ignore(peer: Peer, kind: str, offence: str) -> None:
    """Nobody counts offences."""


def unnoticed(errnum: int) -> None:
    """Nobody notices refusals."""


class Call(NamedTuple):
    """A request to a service that the broker answers itself (management, inventory, events, jobs)."""

    service: str
    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    uuid: str
    peer: Peer


class Answer(NamedTuple):
    """``body`` is JSON."""

    status: int
    body: bytes
