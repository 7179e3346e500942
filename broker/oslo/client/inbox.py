"""What one listener has received and the application has not taken yet: bounded, in order.

The thread of the sockets puts in, any thread or greenlet takes out. Calls, casts and notifications come only as far as
there is credit for them, which is given back as they are taken; fan-outs that find no room are dropped (``listeners``).
"""

# compiled: mypyc

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from broker.oslo.client.resend import Deduplicator
from broker.oslo.client.waiting import Waiter, Waiters, new_waiter
from broker.oslo.contract import Address
from broker.oslo.frames import Envelope, Kind, due_of
from broker.oslo.names import Pipeline
from broker.oslo.reactor import natives
from broker.oslo.records import Opened, Opening, Record

if TYPE_CHECKING:
    from broker.oslo.client.listeners import Listeners

STOP_S: Final = 1.0
"""How long the end of a listener waits for the proxy's word that nothing more comes."""


Post = Callable[..., bool]
"""Has something called in the thread of the sockets; False: in a forked child, or after the end, it cannot."""


CREDIT: Final = 1024
"""Casts, or notifications, that a proxy may send ahead of what was taken; fewer where an inbox holds fewer."""
CALLS: Final = 10_000
"""The same of calls, which wait in no queue of the proxy: as many as an inbox holds by default."""
SMALL: Final = 128
"""A window of so many at most has credit for each message given back at once: it is soon used up."""
CREDIT_PARTS: Final = 8
"""Of others credit is given back when such a part was taken, of messages or bytes ..."""
CREDIT_BYTES: Final = 4 << 20
"""... or as much, where that is less; the rest is given back at the next look (``listeners``)."""


class InboxCredit:
    """How much one pipeline may send ahead to a listener.

    Credit for a message is given back when the application has taken it. What came and is not given back yet is
    **held**: a proxy that the listener opens at counts that as given out already, by the proxy before it
    (``records.Opening``). The thread of the sockets writes what came and what was given back, whoever has the
    inbox's lock what was taken.

    Args:
        pipeline: whose messages.
        limits: messages and bytes that the inbox holds.

    Attributes:
        window, window_bytes: messages and bytes that may come before any was taken.
    """

    def __init__(self, pipeline: Pipeline, limits: tuple[int, int]) -> None:
        self.pipeline = pipeline
        self.window = min(CALLS if pipeline is Pipeline.CALL else CREDIT, limits[0])
        self.window_bytes = limits[1]
        self._step = 1 if self.window <= SMALL else self.window // CREDIT_PARTS
        self._step_bytes = min(self.window_bytes // CREDIT_PARTS, CREDIT_BYTES)
        self._came = self._came_bytes = self._taken = self._taken_bytes = self._given = self._given_bytes = 0

    @property
    def held(self) -> int:
        """Messages that came and for which no credit was given back."""
        return self._came - self._given

    @property
    def held_bytes(self) -> int:
        """The same in bytes."""
        return self._came_bytes - self._given_bytes

    @property
    def owed(self) -> int:
        """Messages that were taken and for which no credit was given back."""
        return self._taken - self._given

    def come(self, size: int) -> None:
        """A message came."""
        self._came += 1
        self._came_bytes += size

    def take(self, size: int) -> bool:
        """It was taken. True: so much is owed now that it is to be given back."""
        self._taken += 1
        self._taken_bytes += size
        return (
            self._taken - self._given >= self._step
            or self._taken_bytes - self._given_bytes >= self._step_bytes
        )

    def give(self, messages: int) -> None:
        """Credit for so many of what is ``owed`` was given back: all of it, or what was taken since comes next."""
        self._given += messages
        self._given_bytes = self._taken_bytes


class ReceivedMessage:
    """One message that came. What the application calls may be called from any thread and never raises; a second call
    does nothing.

    Attributes:
        body: as it was sent.
        route: opaque, whom to answer.
        head: its envelope as it came.
        credit: what it has taken, given back when it is taken itself; None: it came without.
        wants_reply: True for calls.
        reply_bytes_max: a larger reply is not sent, but counted and logged: its caller would have to wait in vain.
        monitor_s: of a monitored call: the caller gives up after so many seconds without a heartbeat; else None.
    """

    __slots__ = (
        "_done", "body", "credit", "due_s", "envelope", "head", "inbox", "monitor_s", "reply_bytes_max", "route",
        "size", "wants_reply",
    )  # fmt: skip

    def __init__(
        self,
        inbox: ClientInbox,
        envelope: Envelope,
        head: bytes,
        route: bytes,
        body: bytes,
        now: float,
        credit: InboxCredit | None = None,
    ) -> None:
        self.inbox = inbox
        self.envelope = envelope
        self.head = head
        self.route = route
        self.body = body
        self.size = len(body)
        self.credit = credit
        self.due_s = due_of(envelope, now)
        self.wants_reply = envelope.kind == Kind.CALL
        self.reply_bytes_max = inbox.body_max
        self.monitor_s = envelope.word / 1000 if self.wants_reply and envelope.word else None
        self._done = False

    @property
    def userid(self) -> int:
        """As the proxy stamped it."""
        return self.envelope.userid

    @property
    def rolemask(self) -> int:
        """As the proxy stamped it."""
        return self.envelope.rolemask

    @property
    def address(self) -> Address:
        """Where it was sent to."""
        envelope = self.envelope
        return Address(envelope.exchange, envelope.topic, envelope.server)

    def requeue(self) -> None:
        """Notifications: give it back, to be delivered again at the end of the queue."""
        if self.envelope.kind == Kind.NOTIFY and not self._done:
            self._done = True
            self.inbox.post(self.inbox.owner.requeue, self)

    def reply(self, body: bytes) -> None:
        """The result of a call; ignored for others."""
        if self.wants_reply and not self._done:
            self._done = True
            if len(body) > self.reply_bytes_max:
                # it would end the connection, and with it what else is on its way
                self.inbox.post(self.inbox.owner.note_too_large, len(body), self.inbox.body_max)
            else:
                self.inbox.post(self.inbox.owner.answer, Kind.REPLY, self, body)

    def beat(self) -> None:
        """The call is still worked on."""
        if self.wants_reply and not self._done:
            self.inbox.post(self.inbox.owner.answer, Kind.BEAT, self, b"")


class ClientInbox:
    """What one listener receives: bounded, in order.

    Args:
        post: has something called in the thread of the sockets.
        owner: what is called there.
        listener: its id.
        records: where it listens: one for an rpc-server, else one for each topic.
        pool: of notifications; None is a pool, too.
        limits: messages and bytes it holds; those of each pipeline are bounded by their credit, and may be as many.
        body_max: largest body of a reply.

    Attributes:
        rpc: True for an rpc-server.
        ready: set when all pipelines that are there have confirmed.
        ended: set when nothing more comes.
        missing, confirmed: pipelines whose word is waited for; the word of those that have given it.
        begun_s: when the thread of the sockets began to register it.
        credit: of casts, or notifications; ``call_credit`` of calls, and casts that come as they do: an rpc-server's.
        refusal: why it may not listen, when a proxy said so.
        put_s: when something was last put in.
        untold: something was put in, and ``tell`` is still to be called.
        stopping, closed: its end was asked for; ``close`` was called.
    """

    def __init__(
        self,
        post: Post,
        owner: Listeners,
        listener: str,
        records: Sequence[Record],
        pool: str | None,
        limits: tuple[int, int],
        *,
        rpc: bool,
        body_max: int,
    ) -> None:
        self.post = post
        self.owner = owner
        self.listener = listener
        self.records = tuple(records)
        self.pool = pool
        self.rpc = rpc
        self.ready: Waiter = new_waiter()
        self.ended: Waiter = new_waiter()
        self.missing: set[Pipeline] = set()
        self.confirmed: dict[Pipeline, Opened] = {}
        self.refusal = ""
        self.put_s = 0.0
        self.untold = False
        self.begun_s = 0.0
        self.body_max = body_max
        self._pid = os.getpid()
        self._msgs_max, self._bytes_max = limits
        self.credit = InboxCredit(Pipeline.CAST if rpc else Pipeline.NOTIFY, limits)
        self.call_credit = InboxCredit(Pipeline.CALL, limits) if rpc else None
        self._lock = natives.allocate_lock()
        self._items: deque[ReceivedMessage] = deque()
        self._waiters = Waiters()
        self._put_bytes = self._taken_bytes = 0
        self._seen = Deduplicator()
        self._told: Callable[[], None] | None = None
        self.stopping = self._stopped = self.closed = False

    # ------------------------------------------------------------ in the thread of the sockets

    @property
    def full(self) -> bool:
        """Whether it should get nothing more that comes without credit."""
        return len(self._items) >= self._msgs_max or self._put_bytes - self._taken_bytes >= self._bytes_max

    def put(self, item: ReceivedMessage, now: float) -> bool:
        """Take it in, or False: closed. The one that makes it full still fits. ``tell`` comes after it."""
        if self.closed:
            return False
        self._seen.add(item.head)
        self._put_bytes += item.size
        if item.credit is not None:
            item.credit.come(item.size)
        self.put_s = now
        self._items.append(item)
        return True

    def tell(self) -> None:
        """Call the callback of ``notify`` if there is one; else wake as many waiting ``get`` as there are messages."""
        self.untold = False
        if self._told is not None:
            self._told()
            return
        for _ in range(min(len(self._items), len(self._waiters))):
            self._waiters.wake_one()

    def has_had(self, head: bytes) -> bool:
        """Whether the message with that envelope was put in before."""
        return head in self._seen

    def skip(self, credit: InboxCredit | None) -> None:
        """A message has taken ``credit``, and takes no place."""
        if credit is not None:
            credit.come(0)
            with self._lock:
                due = credit.take(0)
            if due:
                self.owner.credit(self)

    @property
    def credits(self) -> tuple[InboxCredit, ...]:
        """That of each pipeline whose messages come within it."""
        return (self.credit,) if self.call_credit is None else (self.call_credit, self.credit)

    def opening(self, credit: InboxCredit) -> Opening:
        """What it says to the pipeline of ``credit`` when it opens there, at first and after a restart."""
        window = (credit.window, credit.window_bytes)
        return Opening(self.listener, self.records, self.pool, *window, credit.held, credit.held_bytes)

    # ------------------------------------------------------------ for the application

    @property
    def empty(self) -> bool:
        """Whether nothing is here. From any thread."""
        return not self._items

    def notify(self, told: Callable[[], None]) -> None:
        """Call ``told`` when something has come, in place of waking who waits in ``get``: in the thread of the sockets,
        once for all that came in a turn of it. It must not wait for anything.
        """
        self._told = told
        if self._items:
            self.post(self.tell)

    def get(self, timeout_s: float | None) -> ReceivedMessage | None:
        """The next message; None after ``timeout_s`` (None: waits), or when stopped and empty, then at once.

        In a forked child nothing comes: None, at once.
        """
        if os.getpid() != self._pid:
            return None
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            stopped = self._stopped  # asked before: what came until then is here
            while self._items:
                item: ReceivedMessage | None = None
                due = False
                with self._lock:  # mypyc compiles no break in here
                    try:
                        item = self._items.popleft()
                    except IndexError:
                        pass  # another one has taken it, or all were dropped
                    else:
                        self._taken_bytes += item.size
                        due = item.credit is not None and item.credit.take(item.size)
                if item is None:
                    break
                if due:
                    self.post(self.owner.credit, self)
                if item.due_s is None or time.monotonic() <= item.due_s:
                    return item
                self.post(self.owner.drop, "expired", 1)
            left_s = None if end_s is None else end_s - time.monotonic()
            if stopped or (left_s is not None and left_s <= 0):
                return None
            try:
                self._waiters.wait(left_s, lambda: bool(self._items) or self._stopped)
            finally:  # when somebody else was quicker, or this one gives up, the next one may be needed
                if self._items:
                    self._waiters.wake_one()

    @property
    def topic(self) -> tuple[str, str]:
        """Exchange and topic of an rpc-server."""
        return (self.records[0].exchange, self.records[0].topic)

    def begin_stop(self) -> None:
        """Ask for the end without waiting for it; ``stop`` waits."""
        if not self.stopping:
            self.stopping = True
            if not self.post(self.owner.end, self):
                self.cut_off()

    def stop(self) -> None:
        """Take nothing more in: the directory forgets it, ``get`` drains what is here. Replies still go out."""
        if not self._stopped:
            self.begin_stop()
            self.ended.wait(STOP_S)
            self.cut_off()

    def cut_off(self) -> None:
        """Nothing more is to be expected: who waits goes home with what is here. From any thread."""
        self.stopping = self._stopped = True
        self.ready.set()
        self.ended.set()
        self._waiters.wake()

    def close(self) -> None:
        """End it; unread messages are dropped and counted. Replies that are on their way are not lost."""
        self.stop()
        if self.closed:
            return
        self.closed = True
        left = len(self._items)
        self._items.clear()
        if left:
            self.post(self.owner.drop, "dropped", left)
        self.post(self.owner.forget, self)
