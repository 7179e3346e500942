"""Who is connected: what waits to be sent to a peer, its connection before and after it has its name, and the word to
the workers of an earlier run.

Messages wait in order, some of them for a commit (NFP, "Job Persistence": stored before told).
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from broker.errors import LinkError
from broker.nfp.contract import Peer
from broker.nfp.frames import Body, Packet, encode
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.principal import Principal
from broker.nfp.records import WorkerSeen
from broker.rates import Bucket
from broker.transport.batching import Part
from broker.transport.zeromq.pipe import Pipe

if TYPE_CHECKING:
    from broker.nfp.server.recording import Recording
    from broker.nfp.server.router import NfpRouter
    from broker.nfp.server.turn import Turn

log = logging.getLogger("headgate")
Form = TypeVar("Form")
EVENT_SHARE: Final = 0.75
"""Events and streams may fill this much of a queue: a result, which is not sent twice, still finds room."""
LESSER: Final = frozenset({Command.EVENT, Command.STREAM})
"""What may be lost on the way to a peer that is full."""


_KEEPALIVE: Final = Command.KEEPALIVE
FIRST_S: Final = 0.02
"""After a connection was let in: a worker that says something by itself does so by then."""
DELIVERED_S: Final = 1.0
"""A worker that was told has that long to connect and register before it is reminded."""
Send = Callable[[list[Body]], bool]
"""Gives one connection a message, in plain frames; False when it is gone, or known by now."""


class QueueLimits(NamedTuple):
    """Of one peer's queue."""

    size_bytes: int
    msgs: int


class Waiting(msgspec.Struct, Generic[Form], eq=False, gc=False):
    """A message in a queue: it leaves once the commit ``after`` is done."""

    after: int
    uuid: str
    size: int
    form: Form


class Outbox(Generic[Form]):
    """A FIFO bounded in bytes and messages.

    Attributes:
        size: bytes that wait.
    """

    __slots__ = ("_lesser_limits", "_limits", "_queue", "size")

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._lesser_limits = QueueLimits(
            int(limits.size_bytes * EVENT_SHARE), ceil(limits.msgs * EVENT_SHARE)
        )
        self._queue: deque[Waiting[Form]] = deque()
        self.size = 0

    def __len__(self) -> int:
        return len(self._queue)

    def has_room(self, command: Command, size: int) -> bool:
        """Whether a message of ``size`` bytes may be queued; a single one always may."""
        if not self._queue:
            return True
        limits = self._lesser_limits if command in LESSER else self._limits
        return len(self._queue) < limits.msgs and self.size + size <= limits.size_bytes

    @property
    def crowded(self) -> bool:
        """True while more than half of it is in use: what can wait should."""
        limits = self._limits
        return 2 * len(self._queue) > limits.msgs or 2 * self.size > limits.size_bytes

    @property
    def head(self) -> Waiting[Form] | None:
        """What leaves next."""
        return self._queue[0] if self._queue else None

    def uuids(self) -> frozenset[str]:
        """What the messages in it are about."""
        return frozenset(each.uuid for each in self._queue)

    def put_first(self, waiting: Waiting[Form]) -> None:
        """Queue, in front of everything: a message that has nothing to do with the others."""
        self._queue.appendleft(waiting)
        self.size += waiting.size

    def put(self, waiting: Waiting[Form]) -> None:
        """Queue, at the end."""
        self._queue.append(waiting)
        self.size += waiting.size

    def due(self, committed: int) -> Iterator[Form]:
        """What may leave, in order. Each has left once the next one is asked for; who stops keeps the last one here."""
        queue = self._queue
        while queue and queue[0].after <= committed:
            waiting = queue[0]
            yield waiting.form
            if self._queue is not queue:  # it was cleared meanwhile
                return
            queue.popleft()
            self.size -= waiting.size

    def drop(self, uuids: Container[str]) -> int:
        """Forget what waits for a commit about ``uuids``, which failed; returns how many messages."""
        if not self._queue:
            return 0
        return self._keep(deque(each for each in self._queue if not (each.after and each.uuid in uuids)))

    def clear(self) -> int:
        """Forget everything; returns how many messages that were."""
        return self._keep(deque())

    def ready_despite_gate(self, committed: int) -> Iterator[Waiting[Form]]:
        """What may leave although others in front wait for a commit: messages about other jobs.

        For the time that nothing can be stored, when the usual order would keep even "the disk is full" waiting.
        """
        held: set[str] = set()
        for each in list(self._queue):
            if each.after > committed:
                held.add(each.uuid)
            elif each.uuid not in held:
                yield each

    def remove(self, gone: Waiting[Form]) -> None:
        """One of ``ready_despite_gate`` has left."""
        for at, each in enumerate(self._queue):
            if each is gone:
                del self._queue[at]
                self.size -= gone.size
                return

    def _keep(self, kept: deque[Waiting[Form]]) -> int:
        lost = len(self._queue) - len(kept)
        self._queue = kept
        self.size = sum(each.size for each in kept)
        return lost


class PeerOwner(Protocol):
    """Whom a peer belongs to: its router, or in this process the broker.

    Attributes:
        turn: at whose end it is flushed. limits: of its queue. recording: what is sent is recorded there; None: nothing
        is. dropped: messages that found no room.
    """

    turn: Turn
    limits: QueueLimits
    recording: Recording | None
    dropped: int

    def has_room(self, peer: QueuedPeer[Any]) -> None:
        """Send ``peer`` what it is owed, in a turn of its own: whoever is sending now need not expect it."""


class QueuedPeer(Peer, Generic[Form]):
    """A peer of this broker with an outbox, whose messages have the form in which they leave.

    Attributes:
        address: where it is, for people. transport: how it is connected, as the journal numbers it.
        tolerance: of its invalid messages; None before the first.
        deaf: True once it is cut: what it has sent is not handled.
        greeted: True once it has said something valid.
        worker: True once it has said something as a worker.
    """

    def __init__(
        self,
        owner: PeerOwner,
        name: str,
        identity: bytes,
        principal: Principal,
        address: str,
        transport: int,
    ) -> None:
        self.name = name
        self.address = address
        self.transport = transport
        self.identity = identity
        self.principal = principal
        self.dialect = Dialect.NORFAB
        self.features = frozenset()
        self.alive = True
        self.unsent = ()
        self.deaf = False
        self.tolerance: Bucket | None = None
        self.greeted = False
        self.worker = False
        self._owner = owner
        self._outbox: Outbox[Form] = Outbox(owner.limits)
        self._wants_room = False

    @property
    def waiting(self) -> tuple[int, int]:
        """Messages and bytes in the outbox."""
        return len(self._outbox), self._outbox.size

    def has_spare_room(self) -> bool:
        """See ``Peer.has_spare_room``."""
        if self.alive and not self._outbox.crowded:
            return True
        self._wants_room = True
        return False

    def _queue(
        self, packet: Packet, form: Form, size: int, after: int, frames: Sequence[Body] | None = None
    ) -> bool:
        """Queue ``packet``, of so many bytes; ``frames``: as the journal has it. False: there is no room."""
        outbox, owner = self._outbox, self._owner
        if not outbox.has_room(packet.command, size) and not self._makes_room(packet.command, size):
            owner.dropped += 1
            return False
        if packet.command is _KEEPALIVE and self._gated:
            outbox.put_first(Waiting(0, "", size, form))  # a slow disk makes nobody seem dead
        else:
            outbox.put(Waiting(after, packet.uuid, size, form))
        if owner.recording is not None:
            owner.recording.sent(self, packet, frames)
        owner.turn.touch(self, after)
        return True

    def _makes_room(self, command: Command, size: int) -> bool:
        """Whether there is room at a second look; if not, and it is no lesser message, it is told when there is."""
        self._wants_room |= command not in LESSER
        return False

    def flush(self) -> None:
        """Let go what may leave; what waits for its commit or for room follows then.

        While nothing can be stored, what is about other jobs overtakes what waits.
        """
        outbox, turn = self._outbox, self._owner.turn
        if not self.alive:
            outbox.clear()
            return
        for form in outbox.due(turn.committed):
            if not self._offer(form):
                break
        else:
            if len(outbox):
                turn.hold(self)
                for waiting in outbox.ready_despite_gate(turn.committed) if turn.gate_is_stuck() else ():
                    if not self._offer(waiting.form):
                        break
                    outbox.remove(waiting)
        if self._wants_room and not outbox.crowded:
            self._wants_room = False
            self._owner.has_room(self)

    @abstractmethod
    def _offer(self, form: Form) -> bool:
        """Let one message leave; False: there is no room for it now."""

    @property
    def _gated(self) -> bool:
        """Whether the next message waits for the disk."""
        head = self._outbox.head
        return head is not None and head.after > self._owner.turn.committed

    def drop(self, uuids: Container[str]) -> int:
        """Forget what waits for the commit of ``uuids``, which failed; returns how many messages."""
        return self._outbox.drop(uuids)


# -- across a socket --------------------------------------------------------------------------------


def name_of(identity: bytes) -> str:
    """A ZeroMQ identity as text: itself when it is printable UTF-8, else hexadecimal digits.

    >>> name_of(b"worker-1"), name_of(bytes([0, 1, 2, 3, 4]))
    ('worker-1', '0001020304')
    """
    try:
        text = identity.decode()
    except UnicodeDecodeError:
        return identity.hex()
    return text if text.isprintable() else identity.hex()


class Newcomer:
    """A connection that was let in and has not said yet what makes it a peer (``pipe.Owner``).

    Attributes:
        identity: as it said, or one that the router made. key: that it has proved, "" without CURVE.
        lockstep: its socket is a REQ.
        pipe: its connection; set at once.
        held: its first messages, while it is asked whether who has its name is still there.
    """

    def __init__(self, router: NfpRouter, identity: bytes, key: str, address: str, lockstep: bool) -> None:
        self.identity = identity
        self.key = key
        self.address = address
        self.lockstep = lockstep
        self.pipe: Pipe
        self.held: list[list[Part]] = []
        self._router = router

    def send(self, frames: list[Body]) -> bool:
        """Say what anybody may read; False: it has gone, is known by now, or waits for its name."""
        if self.held or not self._router.is_newcomer(self) or not self.pipe.add(frames):
            return False
        self.pipe.flush()
        return True

    def received(self, messages: list[list[Part]]) -> None:
        """See ``pipe.Owner``."""
        if self.held:  # it was paused, and lost: then all that it has said comes
            self.held += messages
        else:
            self._router.introduce(self, messages)

    def room(self) -> None:
        """See ``pipe.Owner``: nothing waits."""

    def ended(self, error: LinkError) -> None:
        """See ``pipe.Owner``."""
        self._router.left(self)


class RouterPeer(QueuedPeer[list[Body]]):
    """See ``Peer``; it exists from the first message of a connection to the connection's end.

    Attributes:
        pipe: its connection.
        lockstep: its socket is a REQ: one answer for each request, and nothing unasked.
        senders: who may speak on its socket: clients, workers, or both.
    """

    def __init__(self, router: NfpRouter, newcomer: Newcomer, name: str, principal: Principal) -> None:
        super().__init__(router, name, newcomer.identity, principal, newcomer.address, router.transport)
        self.lockstep = newcomer.lockstep
        self.senders = router.senders
        self.pipe = newcomer.pipe
        self._router = router
        self._stuck = -1
        self._stuck_s = 0.0

    def __repr__(self) -> str:
        return f"<{self.name} at {self.address}>"

    # -- from the connection (``pipe.Owner``) ----------------------------------------------------

    def received(self, messages: list[list[Part]]) -> None:
        """See ``pipe.Owner``."""
        self._router.handle(self, messages)

    def room(self) -> None:
        """See ``pipe.Owner``."""
        self.flush()

    def ended(self, error: LinkError) -> None:
        """See ``pipe.Owner``."""
        log.debug("%s: %s", self, error)
        self.lost()
        self._router.gone(self)

    # -- sending ---------------------------------------------------------------------------------

    def send(self, packet: Packet, after: int = 0) -> bool:
        """See ``Peer.send``. A peer that has no room even for a result, and takes nothing, does not read: it is cut."""
        if not self.alive:
            return False
        try:
            frames = encode(packet)
        except ValueError as error:  # the peer has changed its dialect since it asked for this
            log.debug("%s: %s", self, error)
            self._router.dropped += 1
            return False
        if self.pipe.lost is not None:
            return False
        return self._queue(packet, frames, sum(map(len, frames)), after, frames)

    def flush(self) -> None:
        """See ``QueuedPeer.flush``: write what the kernel takes."""
        super().flush()
        if self.alive:
            self.pipe.flush()

    def _offer(self, frames: list[Body]) -> bool:
        """Make one message if there is room for it; if not, it is tried again when there is."""
        if self.pipe.add(frames):
            self._router.sent += 1
            return True
        if self.pipe.lost is not None:
            self.lost()
        return False

    def lost(self) -> None:
        """Nothing is sent any more: the connection is gone."""
        self.alive = False
        if len(self._outbox):
            self.unsent = self._outbox.uuids()
        self._router.dropped += self._outbox.clear()
        self._router.turn.forget(self)

    def cut(self, why: str) -> None:
        """End the connection, and do not listen to what it has sent."""
        if not self.deaf:
            self.deaf = True
            self.lost()
            self._router.cut(self, why)

    def _makes_room(self, command: Command, size: int) -> bool:
        """What this turn has queued may not have been offered yet."""
        if self.pipe.free:
            self.flush()
            if self.alive and self._outbox.has_room(command, size):
                return True
        if self.alive and command not in LESSER:
            self._wants_room = True
            self._check_progress()
        return False

    def _check_progress(self) -> None:
        """Cut it when it had no room before and has taken nothing since, for as long as a silent peer is waited for."""
        taken, now = self.pipe.taken, self._router.now()
        if self._gated or taken != self._stuck:
            self._stuck, self._stuck_s = taken, now
        elif now - self._stuck_s >= self._router.stall_s:
            messages, size = self.waiting
            self.cut(f"does not read: {messages} messages, {size} bytes are waiting")


# -- workers of an earlier run ----------------------------------------------------------------------


class ReconnectNudge:
    """DISCONNECT to the workers that an earlier run of this broker knew, until each of them speaks.

    Deployed NorFab's worker notices only after its hold time that the broker it talks to is another one, and registers
    no earlier; but it registers anew at once when it is sent DISCONNECT (NFP, "Opening and Closing a Connection"). Its
    connection comes back by itself, and the message has no content, so it may be sent before it is known whether the
    connection may have that name.

    Args:
        loop: for timers.
        patience_s: how long they are waited for: their hold time.

    Attributes:
        sent: how many were told.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, patience_s: float) -> None:
        self._loop = loop
        self._patience_s = patience_s
        self._missing: dict[str, WorkerSeen] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.sent = 0

    def begin(self, workers: Iterable[WorkerSeen]) -> None:
        """Tell these workers, those of the earlier run."""
        self._missing = {each.name: each for each in workers if name_of(each.name.encode()) == each.name}
        if self._missing:
            self._timers[""] = self._loop.call_later(self._patience_s, self.close)

    @property
    def missing(self) -> list[str]:
        """Names of those that have not spoken."""
        return list(self._missing)

    def arrived(self, name: str, send: Send) -> None:
        """A connection that calls itself ``name`` was let in."""
        if name in self._missing:
            self._tell_later(name, send, FIRST_S)

    def spoke(self, name: str) -> None:
        """``name`` is back."""
        if self._missing.pop(name, None) is not None:
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """No more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._missing.clear()

    def _tell_later(self, name: str, send: Send, delay_s: float) -> None:
        earlier = self._timers.pop(name, None)
        if earlier is not None:
            earlier.cancel()
        self._timers[name] = self._loop.call_later(delay_s, self._tell, name, send)

    def _tell(self, name: str, send: Send) -> None:
        del self._timers[name]
        worker = self._missing[name]
        packet = Packet(
            Sender.BROKER, Command.DISCONNECT, dialect=worker.dialect, service=worker.service or "-"
        )
        if send(encode(packet)):  # else it is tried when it has connected anew
            self.sent += 1
            self._tell_later(name, send, DELIVERED_S)
