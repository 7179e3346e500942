"""Calls that wait for their answers, and when they stop waiting (pure).

Each is one entry of a dict and one of a heap of deadlines. Nearly all calls are answered long before their deadline:
what is left of them in the heap is thrown out when it is more than half of it. A heartbeat moves a deadline without
touching the heap: an entry that comes up too early goes back in.
"""

# compiled: mypyc

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from broker.oslo.client.resend import Parcel
from broker.oslo.contract import Address, Closed, OsloFailure
from broker.oslo.frames import Flag, Kind, encode

SPARE: Final = 64
"""Entries of answered calls that the heap may always keep."""

_CONFIRM: Final = int(Flag.CONFIRM)
_MANDATORY: Final = int(Flag.MANDATORY)
_REPEATED: Final = int(Flag.REPEATED)
_U32_MAX: Final = 0xFFFFFFFF

Answer = bytes | OsloFailure


class PendingCall(Parcel):
    """A call, or a cast that wants to know that a server has it.

    Args:
        address: where to.
        body: opaque.
        id: 16 bytes.
        kind: CALL or CAST.
        due_s: end of the whole call, on the clock of whoever keeps it; None: never.
        timeout_s: the same, as asked for: for texts.
        monitor_s: seconds without a heartbeat after which it ends, too; None: not monitored.
        mandatory: fails at once when nobody listens.
        tries: for casts: how often a full queue may be found before it fails; None: without end.
        owner: whose it is.

    Attributes:
        done: called with the answer, once.
        end_s: when it ends without news: the nearer one of both deadlines.
        listener: who was chosen.
        sent: libzmq has it; only a refusal allows another choice.
        tried: listeners that refused it.
        answer: None while it is pending.

    It is ``over`` once it is answered.
    """

    __slots__ = (
        "address", "answer", "body", "done", "due_s", "end_s", "id", "kind", "listener", "mandatory", "monitor_s",
        "owner", "refusal", "sent", "timeout_s", "tried", "tries",
    )  # fmt: skip

    def __init__(
        self,
        address: Address,
        body: bytes,
        id: bytes,  # noqa: A002
        done: Callable[[Answer], None],
        *,
        kind: Kind = Kind.CALL,
        due_s: float | None = None,
        timeout_s: float | None = None,
        monitor_s: float | None = None,
        mandatory: bool = False,
        tries: int | None = None,
        owner: object = None,
    ) -> None:
        super().__init__(len(body))
        self.address = address
        self.body = body
        self.id = id
        self.kind = kind
        self.due_s = due_s
        self.timeout_s = timeout_s
        self.monitor_s = monitor_s
        self.mandatory = mandatory
        self.tries = tries
        self.owner = owner
        self.done = done
        self.end_s = due_s
        self.listener = ""
        self.sent = False
        self.tried: set[str] | None = None
        self.refusal = 0
        self.answer: Answer | None = None

    def finish(self, answer: Answer) -> None:
        """Answer it; only the first answer counts."""
        if not self.over:
            self.over = True
            self.answer = answer
            self.done(answer)

    def beaten(self, now: float) -> None:
        """A heartbeat came (or it was sent): a monitored call goes on waiting."""
        if self.monitor_s is not None:
            quiet_s = now + self.monitor_s
            self.end_s = quiet_s if self.due_s is None or quiet_s < self.due_s else self.due_s

    def forgive(self, absent: float, now: float) -> None:
        """So many seconds were nobody's silence: its end is later, ``monitor_s`` from ``now`` at most."""
        quiet_s = self.end_s
        if self.monitor_s is not None and quiet_s is not None:
            self.beaten(min(quiet_s + absent - self.monitor_s, now))

    def mark_repeated(self) -> None:
        """See ``Parcel``; its server cannot be heard for the moment: heartbeats are not waited for until ``beaten``."""
        self.sent, self.repeated = False, True
        self.end_s = self.due_s

    def head(self, now: float) -> bytes | None:
        """Its envelope, when it is sent now; None: it is over, or ends in a moment."""
        if self.over:
            return None
        ttl_ms = 0
        if self.due_s is not None:
            ttl_ms = int((self.due_s - now) * 1000)
            if ttl_ms <= 0:
                return None
        address = self.address
        flags = 0 if self.kind is Kind.CALL else _CONFIRM
        if self.repeated:
            flags |= _REPEATED
        return encode(
            self.kind,
            address.exchange,
            address.topic,
            address.server,
            (self.listener,),
            flags=flags | _MANDATORY if self.mandatory else flags,
            ttl_ms=min(ttl_ms, _U32_MAX),
            word=0 if self.monitor_s is None else min(max(int(self.monitor_s * 1000), 1), _U32_MAX),
            id=self.id,
        )

    def cut(self) -> Closed:
        """What it is told when its session is closed while it waits."""
        if not self.sent:
            return Closed(f"{self.address}: the session was closed before it was sent")
        what = "it may be executed all the same" if self.kind is Kind.CALL else "a server may have it"
        return Closed(f"{self.address}: the session was closed while it waited for its answer; {what}")

    @property
    def monitored_out(self) -> bool:
        """True when a missing heartbeat ends it, and not its whole time."""
        return self.monitor_s is not None and self.end_s != self.due_s


class PendingCalls(dict[bytes, PendingCall]):
    """The pending ones, by id."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[tuple[float, bytes]] = []

    def add(self, call: PendingCall) -> None:
        """Keep it until it is taken out or has ended; or its deadline is nearer than it was."""
        self[call.id] = call
        if call.end_s is not None:
            if len(self._ends) > 2 * len(self) + SPARE:
                self._ends = [(end_s, number) for end_s, number in self._ends if number in self]
                heapq.heapify(self._ends)
            heapq.heappush(self._ends, (call.end_s, call.id))

    def forgive(self, absent: float, now: float) -> None:
        """This process was stopped: heartbeats are waited for so much longer, the time of a call is what it was."""
        if not absent:
            return
        for call in self.values():
            if call.monitored_out:
                call.forgive(absent, now)

    def next_end_s(self) -> float | None:
        """When to ask ``pop_due`` next; None: nothing ends."""
        return self._ends[0][0] if self._ends else None

    def pop_due(self, now: float) -> list[PendingCall]:
        """Take out those whose time is over."""
        over: list[PendingCall] = []
        ends = self._ends
        while ends and ends[0][0] <= now:
            number = heapq.heappop(ends)[1]
            call = self.get(number)
            if call is None or call.end_s is None:
                continue
            if call.end_s > now:
                heapq.heappush(ends, (call.end_s, number))
                continue
            del self[number]
            over.append(call)
        return over
