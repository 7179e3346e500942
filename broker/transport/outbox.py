"""The messages that wait to be sent on a link: bounded in bytes and messages, with one budget for the whole broker.

Theory of operation. While the transport takes what it is given, messages are ``unflushed`` for the rest of one batch
only. Once it reports that it is full, the rest is *queued*: kept in encoded form (shared between subscribers)
and counted. Queued bytes drive these rules:

* above ``high_bytes``/``high_msgs`` the outbox is *full*: it is choked, and callers of this link are paused or answered
  EAGAIN;
* events beyond ``event_bytes`` end the link or are dropped and counted, as ``event_policy`` says;
* anything else beyond ``cap_bytes`` ends the link: responses are never dropped;
* what waits for all links together is held against a ``Budget`` (see there).

A peer may be *lagging*, behind with what the transport took (``InFlight``): what was given to a transport may still be
far from the peer, in two kernels' buffers, where nobody can look; a peer that says how many messages it has *handled*
makes it known. It is behind when more than ``WINDOW_MSGS`` are under way, and until it is ``AGAIN_MSGS``, or more than
``WINDOW_BYTES`` of large requests. Of these a few fill the window, and a peer speaks of many messages at a time: from
half a window on they are followed by a *mark*, which comes back when they are handled. While a peer lags, the outbox is
choked, too, though not full. It holds nothing back for that: answers go on.

Events and the rest have limits apart, so that neither takes the other's room: a link whose policy is ``drop`` is never
ended because of events, and a long answer costs nobody an event. Each of the two limits may be exceeded by one message,
of any size: a message that was let in can be sent on, also behind a short one that has not left yet. So a link holds
at most ``event_bytes + cap_bytes`` and two messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from broker.errors import LinkBroken, LinkError
from broker.transport.budget import Account, Budget
from broker.wire.message import EVENT

WINDOW_MSGS: Final = 256
"""A broker handles so many small requests in 5 to 10 ms; in 1 ms of network it does not."""
AGAIN_MSGS: Final = 224
"""Above ``routing.flow.LATE_MSGS``, which the peer may have handled and not said, and what only one end counts: a peer
that has handled everything must not count as behind for want of another word."""
WINDOW_BYTES: Final = 1 << 20
"""The same of large requests, in bytes."""
_COUNTED: Final = 0xFFFFFFFF
"""Messages are told modulo 2**32."""
_NEVER: Final = 1 << 62
_NOW: Final = -1
LARGE_BYTES: Final = 64 << 10
"""From this size on a form that several links hold is counted once: it is there once, and whole until the last has
sent it. Smaller ones are counted for each link."""
SMALL_BYTES: Final = 1 << 10
"""Up to this size a request is a small one."""
_EVENT: Final = 1
_LARGE: Final = 2
"""Bits noted with a queued form: it is an event, a large one."""
PROTO_TYPE: Final = -18
"""Where a framed message has its type: PROTO comes last."""


class InFlight:
    """The messages between two ends of a link, counted as they are sent.

    Attributes:
        end: the peer is behind when more were sent.
        large_bytes: of large requests of which no mark has come back.
    """

    __slots__ = ("_done", "_large", "end", "large_bytes")

    def __init__(self) -> None:
        self.end: int = _NEVER
        self.large_bytes: int = 0
        self._done: int = 0
        self._large: list[tuple[int, int]] = []  # few: the number of each, modulo 2**32, and its bytes

    def handled(self, sent: int, count: int) -> bool:
        """The peer has handled ``count`` messages, modulo 2**32, of ``sent``: whether one that was behind still is."""
        messages = (sent - count) & _COUNTED
        if messages > _COUNTED >> 1:  # those of the greeting count differently at either end
            messages = 0
        self._done = sent - messages
        return self._is_late(sent)

    def marked(self, sent: int, number: int) -> bool:
        """The peer has handled what was sent up to ``number``, modulo 2**32: whether one that was behind still is."""
        while self._large and (number - self._large[0][0]) & _COUNTED <= _COUNTED >> 1:
            self.large_bytes -= self._large.pop(0)[1]
        self._done = max(self._done, sent - ((sent - number) & _COUNTED))
        return self._is_late(sent)

    def _is_late(self, sent: int) -> bool:
        full = self.large_bytes > WINDOW_BYTES
        self.end = _NOW if full else self._done + WINDOW_MSGS
        return full or sent - self._done > AGAIN_MSGS

    def sends_large(self, number: int, size: int) -> bool:
        """Message ``number`` is a request of ``size`` bytes; True: a mark shall follow it."""
        if self.end == _NEVER:
            return False
        self._large.append((number & _COUNTED, size))
        self.large_bytes += size
        if self.large_bytes > WINDOW_BYTES:
            self.end = _NOW
        return self.large_bytes > WINDOW_BYTES // 2


__all__ = ["LARGE_BYTES", "PROTO_TYPE", "Account", "Budget", "Outbox", "OutboxLimits", "Owner"]

Form = TypeVar("Form")


class Owner(Protocol):
    """The link an outbox belongs to."""

    def choked(self, choked: bool) -> None:
        """A water mark was crossed."""

    def abort(self, error: LinkError) -> None:
        """End the link now."""


@dataclass(slots=True)
class OutboxLimits:
    """Limits of one outbox; every one is in bytes or messages and none can be switched off."""

    high_bytes: int = 1 << 20
    high_msgs: int = 4096
    event_bytes: int = 16 << 20
    """Events, besides one of any size."""
    cap_bytes: int = 64 << 20
    """Bytes of everything but events, besides one message of any size."""
    event_policy: str = "disconnect"
    """``disconnect`` a subscriber that falls behind, or ``drop`` events and count the gap."""


class Outbox(Generic[Form]):
    """The queue of one link.

    Attributes:
        account: of the user whose link it is; None: a link by itself.
        unflushed: forms sent since the last flush while nothing is queued.
        queue: (form, size, what it is) that the transport did not take yet.
        queued_bytes, event_bytes: their sizes; those of events among them.
        charged_bytes: what the account is charged for them.
        sent: messages that left completely.
        in_flight: how far behind the peer is with them, where it tells what it has handled.
        lagging: too many are in flight. full: more is queued than high water. choked: full, or lagging.
        progress: count of flushes in which the transport took at least one byte; stall detection compares it.
        dropped_events: events dropped by policy ``drop`` since the link began.
        discarded: messages that were queued when the link ended, or came later.
    """

    __slots__ = (
        "_beyond",
        "_beyond_bytes",
        "_beyond_event",
        "_beyond_event_bytes",
        "_budget",
        "_few",
        "_large",
        "_left",
        "_limits",
        "_owner",
        "account",
        "charged_bytes",
        "choked",
        "discarded",
        "dropped_events",
        "event_bytes",
        "full",
        "in_flight",
        "lagging",
        "progress",
        "queue",
        "queued_bytes",
        "sent",
        "unflushed",
    )

    def __init__(self, owner: Owner, limits: OutboxLimits, budget: Budget) -> None:
        self._owner: Owner | None = owner
        self._limits = limits
        self._budget = budget
        self._few = 0  # requests that were let in since it is full
        self._large = 0
        self.account: Account | None = None
        self.unflushed: list[Form] = []
        self.queue: deque[tuple[Form, int, int]] | None = None
        self.queued_bytes = 0
        self.event_bytes = 0
        self.charged_bytes = 0
        # forms that have left, and the number, counted so, of the one beyond each limit, with its bytes
        self._left = 0
        self._beyond = self._beyond_event = -1
        self._beyond_bytes = self._beyond_event_bytes = 0
        self.full = self.lagging = self.choked = False
        self.in_flight = InFlight()
        self.progress = 0
        self.sent = 0
        self.dropped_events = 0
        self.discarded = 0

    def charge_to(self, user: Hashable, limit_bytes: int) -> None:
        """It is the link of ``user``, whose links may hold ``limit_bytes`` together (0: any number).

        One that is known while something waits already stays by itself.
        """
        if self.queue is None:
            self.account = self._budget.account(user, limit_bytes)

    @property
    def drops(self) -> bool:
        """Whether events that do not fit are dropped."""
        return self._limits.event_policy == "drop"

    @property
    def undroppable_bytes(self) -> int:
        """Queued bytes of what is not an event: responses, requests, control."""
        return self.queued_bytes - self.event_bytes

    @property
    def has_undroppable(self) -> bool:
        """True while something waits that its reader cannot do without: all but events that may be dropped."""
        return self.undroppable_bytes > 0 or (self.event_bytes > 0 and not self.drops)

    @property
    def has_room_for_requests(self) -> bool:
        """Whether more requests may wait: half of the cap is kept for responses, so that no request ends a link."""
        return self.undroppable_bytes - self._beyond_bytes <= self._limits.cap_bytes // 2

    def admits_request(self, size: int) -> bool:
        """Whether a request whose sender cannot wait may wait here: until it is full no longer a few small ones, too.

        They are counted, whatever else waits: the sender that filled it (and is paused now) costs the others no call.
        """
        if not self.full:
            return True
        few = self._limits.high_bytes // 4 // SMALL_BYTES
        if size > SMALL_BYTES or self._few == few or not self.has_room_for_requests:
            return False
        self._few += 1
        return True

    @property
    def single_bytes(self) -> int:
        """The least that one of the waiting messages is charged for."""
        if not self.queue:
            return 0
        one = max(self.queue[0][1], self._beyond_bytes, self._beyond_event_bytes)
        return self.charged_bytes if len(self.queue) == 1 else min(one, self.charged_bytes)

    # -- in ------------------------------------------------------------------------------------

    def enqueue(self, form: Form, size: int, kind: int = 0, taken: int = 0, *, is_made: bool = False) -> None:
        """Keep ``form`` (``size`` bytes, message type ``kind``) until the transport takes more; may end the link.

        ``taken``: bytes of it that the transport took already; nothing else may wait then. ``is_made``: its bytes are
        made and will be sent, so that it counts, and is not judged any more.
        """
        limits = self._limits
        if kind == EVENT:
            held, limit, marks = self.event_bytes, limits.event_bytes, _EVENT
        else:
            held, limit, marks = self.queued_bytes - self.event_bytes, limits.cap_bytes, 0
        if self._owner is None:
            self.discarded += 1
            return
        if held + size > limit and not self._goes_beyond(held, size, marks, is_made=is_made):
            return
        queue, account = self.queue, self.account
        # most outboxes never queue anything: a link without a queue costs no deque and no account
        if queue is None or account is None:
            queue, account = self._begin()
        self.queued_bytes += size
        if marks:
            self.event_bytes += size
        budget = self._budget
        if size < LARGE_BYTES:
            budget.used_bytes += size
            self.charged_bytes += size
            account.charged_bytes += size
        else:
            budget.hold(self, form, size)
            self._large += 1
            marks |= _LARGE
        queue.append((form, size, marks))
        if taken:
            self._shorten(taken)
        if budget.used_bytes > budget.limit_bytes or 0 < account.limit_bytes < account.charged_bytes:
            budget.enforce(account)  # which may end this link, or another one
        if not self.full and (self.queued_bytes > limits.high_bytes or len(queue) > limits.high_msgs):
            self.full = True
            self._judge()

    def _judge(self) -> None:
        choked = self.full or self.lagging
        if choked is not self.choked and self._owner is not None:
            self.choked = choked
            self._owner.choked(choked)

    def handled(self, count: int) -> None:
        """The peer has handled ``count`` messages since the link began, modulo 2**32."""
        self._caught_up(not self.in_flight.handled(self.sent, count))

    def marked(self, number: int) -> None:
        """The peer has handled what was sent up to ``number``, modulo 2**32."""
        self._caught_up(not self.in_flight.marked(self.sent, number))

    def _caught_up(self, yes: bool) -> None:
        if self.lagging and yes:
            self.lagging = False
            self._judge()

    def progressed(self) -> None:
        """The transport took something."""
        self.progress += 1
        if self.sent > self.in_flight.end and not self.lagging:
            self.lagging = True
            self._judge()

    def _goes_beyond(self, held: int, size: int, marks: int, *, is_made: bool) -> bool:
        """More would wait of a kind than its limit: keep the message all the same if no other is beyond it."""
        limits = self._limits
        limit, beyond = (
            (limits.event_bytes, self._beyond_event_bytes)
            if marks
            else (limits.cap_bytes, self._beyond_bytes)
        )
        if not _has_room(limit, held, beyond, size):
            if is_made:
                return True
            self._refuse(held + size, marks)
            return False
        if held - beyond + size > limit:
            number = self._left + len(self.queue or ())
            if marks:
                self._beyond_event, self._beyond_event_bytes = number, size
            else:
                self._beyond, self._beyond_bytes = number, size
        return True

    def _refuse(self, total: int, marks: int) -> None:
        """There is no room: for an event whatever the policy says, for anything else the link ends."""
        limits = self._limits
        if marks and self.drops:
            self.dropped_events += 1
            return
        self.overflow(
            f"events beyond {limits.event_bytes} bytes wait for a reader that does not read"
            if marks
            else f"{total} bytes wait for a reader that does not read, the cap is {limits.cap_bytes} and one message"
        )
        self.discarded += 1

    def enqueue_rest(self, forms: Iterable[tuple[Form, int, int]], taken: int, made: int = 0) -> None:
        """Keep what a transport did not take of these (form, size, message type), in order: it took ``taken`` bytes.

        The bytes of the first ``made`` of them are made, and will be sent.
        """
        for number, (form, size, kind) in enumerate(forms):
            if taken >= size:
                taken -= size
                self.sent += 1
                continue
            # for the first one there is always room
            self.enqueue(form, size, kind, taken, is_made=number < made)
            taken = 0

    def has_room_for_event(self, size: int) -> bool:
        """Whether an event of ``size`` bytes may wait."""
        return _has_room(self._limits.event_bytes, self.event_bytes, self._beyond_event_bytes, size)

    def _begin(self) -> tuple[deque[tuple[Form, int, int]], Account]:
        queue: deque[tuple[Form, int, int]] = deque()
        account = self.account or Account()
        self.queue, self.account = queue, account
        account.outboxes.add(self)
        self._budget.accounts.add(account)
        return queue, account

    # -- out -----------------------------------------------------------------------------------

    def dequeue(self) -> Form:
        """Take the oldest queued form."""
        queue, account = self.queue, self.account
        assert queue
        assert account is not None
        form, size, marks = queue.popleft()
        if marks or self._left == self._beyond:
            self._count(-size, marks)
        else:
            self.queued_bytes -= size
        self._left += 1
        if marks & _LARGE:
            self._large -= 1
            self._budget.release(self, form)
        else:
            self._budget.used_bytes -= size
            self.charged_bytes -= size
            account.charged_bytes -= size
        return form

    def oldest(self, limit: int) -> list[Form]:
        """The oldest queued forms: those of which what is left fits into ``limit`` bytes, but at least one.

        They are whole, and stay until ``dequeue`` or ``consume``: of the first one ``len(form) - queue[0][1]`` bytes
        may have left already.
        """
        assert self.queue
        forms: list[Form] = []
        total = 0
        for form, size, _marks in self.queue:
            total += size
            if forms and total > limit:
                break
            forms.append(form)
        return forms

    def consume(self, count: int) -> None:
        """The transport took the oldest ``count`` queued bytes."""
        queue = self.queue
        while queue and queue[0][1] <= count:
            count -= queue[0][1]
            self.dequeue()
            self.sent += 1
        if count:
            self._shorten(count)

    def _shorten(self, count: int) -> None:
        """The transport took ``count`` bytes of the oldest form: it counts for less, and is kept whole."""
        assert self.queue
        form, size, marks = self.queue[0]
        self.queue[0] = (form, size - count, marks)
        self._count(-count, marks)
        if not marks & _LARGE:
            self._budget.charge(self, -count)

    def drained(self) -> None:
        """After a drain: release what is empty and report falling below low water (a quarter of high)."""
        if self.queue is not None and not self.queue:
            self._leave()
        limits = self._limits
        low = self.queued_bytes <= limits.high_bytes // 4 and len(self.queue or ()) <= limits.high_msgs // 4
        if self.full and low:
            self.full = False
            self._few = 0
            self._judge()

    def overflow(self, reason: str) -> None:
        """The peer reads too slowly: end its link."""
        owner = self._owner
        self.discard()
        if owner is not None:
            owner.abort(LinkBroken(reason))

    def discard(self) -> None:
        """The link has ended: forget everything queued, counting it; nothing is kept any more, nor the link itself."""
        self._owner = None
        self.discarded += len(self.unflushed) + len(self.queue or ())
        self.unflushed = []
        if self.queue is not None:
            if self._large:
                for form, _size, marks in self.queue:
                    if marks & _LARGE:
                        self._budget.release(self, form)
            self._budget.charge(self, -self.charged_bytes)
            self.queued_bytes = self.event_bytes = self._beyond_bytes = self._beyond_event_bytes = 0
            self._leave()

    def _leave(self) -> None:
        self.queue = None
        account = self.account
        assert account is not None
        account.outboxes.discard(self)
        if not account.outboxes:
            self._budget.accounts.discard(account)

    def _count(self, size: int, marks: int) -> None:
        """The oldest form has become longer by ``size``, which is less than 0."""
        self.queued_bytes += size
        if marks & _EVENT:
            self.event_bytes += size
            if self._left == self._beyond_event:
                self._beyond_event_bytes += size
        elif self._left == self._beyond:
            self._beyond_bytes += size


def _has_room(limit: int, held: int, beyond: int, size: int) -> bool:
    """Whether ``size`` bytes may wait besides ``held``, ``beyond`` of which are of the message that went beyond
    ``limit``; as long as all together are within it again, another one may.
    """
    return not beyond or held - beyond + size <= limit or held <= limit
