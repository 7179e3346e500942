"""One turn of the loop: whatever happened in it is committed once and flushed once, at its end.

What is said to a peer waits in its outbox, in order, some of it for a commit (NFP, "Job Persistence": stored before
told).
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from math import ceil, inf
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from broker.awake import AwakeClock
from broker.nfp.contract import Peer
from broker.nfp.frames import Body, Packet
from broker.nfp.names import Command, Dialect
from broker.nfp.principal import Principal
from broker.rates import Bucket

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker

log = logging.getLogger("headgate")
Form = TypeVar("Form")
EVENT_SHARE: Final = 0.75
"""Events and streams may fill this much of a queue: a result, which is not sent twice, still finds room."""
LESSER: Final = frozenset({Command.EVENT, Command.STREAM})
"""What may be lost on the way to a peer that is full."""

_KEEPALIVE: Final = Command.KEEPALIVE


class Turn:
    """Collects who has something to send until the turn ends: then one commit, and one flush of each of them.

    Args:
        loop: whose turns. commit: see ``StoreThread.commit``. tick: the dispatcher's due
            timers; returns when to be called again. gate_is_stuck: whether nothing can be stored at present, see
            ``Outbox.ready_despite_gate``.

    Attributes:
        committed: the last commit that is done. clock: what ``tick`` is told.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        commit: Callable[..., None],
        tick: Callable[[float], float],
        gate_is_stuck: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self.clock = AwakeClock(loop.time)
        self._commit = commit
        self._tick = tick
        self.gate_is_stuck = gate_is_stuck
        self._touched: dict[QueuedPeer[Any], None] = {}
        self._gated: dict[QueuedPeer[Any], None] = {}
        self._handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._ending = False
        self._waited = False
        self.committed = 0

    def touch(self, sender: QueuedPeer[Any], after: int = 0) -> None:
        """``sender`` has something to send, behind the commit ``after``: it is flushed at the end of the turn."""
        self._touched[sender] = None
        if after > self.committed:
            self._waited = True
        self.soon()

    def soon(self) -> None:
        """End the turn soon: something was put or queued, perhaps outside of one."""
        if self._handle is None and not self._ending and not self._closed:
            self._handle = self._loop.call_soon(self.finish)

    def forget(self, sender: QueuedPeer[Any]) -> None:
        """``sender`` is gone."""
        self._touched.pop(sender, None)
        self._gated.pop(sender, None)

    def commit_done(self, number: int) -> None:
        """The store has made durable everything up to ``number``."""
        self.committed = number
        self._touched.update(self._gated)
        self._gated.clear()
        self.finish()

    def retry(self) -> None:
        """Try everybody who waits for a commit: the order may be left now, see ``Outbox.ready_despite_gate``."""
        self._touched.update(self._gated)
        self._gated.clear()
        self.soon()

    def finish(self) -> None:
        """The end of a turn."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._closed:
            return
        self._ending = True  # what the timers have to say leaves with the rest
        self._run_timers()
        waited, self._waited = self._waited, False
        try:
            self._commit(waited=waited)
        except Exception:
            log.exception("a commit could not be begun")
        self._ending = False
        if self._touched:
            self.flush()

    def hold(self, sender: QueuedPeer[Any]) -> None:
        """``sender`` waits for a commit."""
        self._gated[sender] = None

    def flush(self) -> None:
        """Flush who was touched."""
        touched, self._touched = self._touched, {}
        for sender in touched:
            try:
                sender.flush()
            except Exception:  # the others must not pay for it
                log.exception("%r could not be flushed", sender)

    def close(self) -> None:
        """No more turns."""
        self._closed = True
        for handle in (self._handle, self._timer):
            if handle is not None:
                handle.cancel()
        self._touched.clear()
        self._gated.clear()

    def _run_timers(self) -> None:
        try:
            when = self._tick(self.clock.now())
        except Exception:
            log.exception("a timer of the dispatcher failed")
            when = self.clock.now() + 1.0
        when = self.clock.loop_time(when)
        timer = self._timer
        if timer is not None:
            if timer.when() <= when and not timer.cancelled() and timer.when() > self._loop.time():
                return  # early enough: it asks again
            timer.cancel()
            self._timer = None
        if when < inf:
            self._timer = self._loop.call_at(when, self._timed)
            self.clock.wakes_at(when)

    def _timed(self) -> None:
        self._timer = None
        self.finish()


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
        broker: NfpBroker,
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
        self._broker = broker
        self._outbox: Outbox[Form] = Outbox(broker.limits)
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
        outbox, broker = self._outbox, self._broker
        if not outbox.has_room(packet.command, size) and not self._makes_room(packet.command, size):
            broker.dropped += 1
            return False
        if packet.command is _KEEPALIVE and self._gated:
            outbox.put_first(Waiting(0, "", size, form))  # a slow disk makes nobody seem dead
        else:
            outbox.put(Waiting(after, packet.uuid, size, form))
        if broker.recording is not None:
            broker.recording.sent(self, packet, frames)
        broker.turn.touch(self, after)
        return True

    def _makes_room(self, command: Command, size: int) -> bool:
        """Whether there is room at a second look; if not, and it is no lesser message, it is told when there is."""
        self._wants_room |= command not in LESSER
        return False

    def flush(self) -> None:
        """Let go what may leave; what waits for its commit or for room follows then.

        While nothing can be stored, what is about other jobs overtakes what waits.
        """
        outbox, turn = self._outbox, self._broker.turn
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
            self._broker.tell_room(self)

    @abstractmethod
    def _offer(self, form: Form) -> bool:
        """Let one message leave; False: there is no room for it now."""

    @property
    def _gated(self) -> bool:
        """Whether the next message waits for the disk."""
        head = self._outbox.head
        return head is not None and head.after > self._broker.turn.committed

    def drop(self, uuids: Container[str]) -> int:
        """Forget what waits for the commit of ``uuids``, which failed; returns how many messages."""
        return self._outbox.drop(uuids)
