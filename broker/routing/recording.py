"""The interface between the router and a recorder of traffic; it knows neither files nor processes.

A record is two appends: a mark of sixteen bytes (who, where to, which direction; made once per decision) and the
frame as stream framing has it. What is recorded, and when:

* a request once its origin is proven, its credentials are stamped and our hop is pushed, just before it is delivered;
* a response with the stack it came with (our hop still on it, so that it joins its request), stamped;
* an event as stamped and, at rank 0, numbered; a duplicate that the parent sent is recorded and goes nowhere;
* a request that was refused: as it came, stamped, with the errno, whether it wanted an answer or not;
* where ``both`` ends are wanted, each delivery with its bytes as they leave (to our own end as they came); an event
  once, with the number of deliveries and of those among them that went to other brokers.

What the broker itself says (answers of built-in services, its own calls, disconnect notices of a client that went)
entered by no link: it is a delivery only. Its own events are numbered with all others, and so they count as received,
from the own port. Control messages are never recorded.
"""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from broker.routing.port import Decision, Port
from broker.wire.message import Message

IN: Final = 0
"""Accepted from a link."""
OUT: Final = 1
"""Delivered to a link or to the broker's own end."""
DENIED: Final = 2
"""Refused with an errno."""


class Recording(Protocol):
    """Takes records; never waits, never raises."""

    @property
    def items(self) -> list[bytes]:
        """The list that ``add`` appends to, for callers for which a call would cost too much; the same for as long as
        it is in use.
        """

    @property
    def add(self) -> Callable[[bytes], None]:
        """Takes a mark, then its frame. The same callable for as long as it is in use."""

    @property
    def both(self) -> bool:
        """Deliveries are recorded, too."""

    def mark(self, direction: int, peer: int, via: int, claimed: int, reason: int = 0) -> bytes:
        """The mark of a message; ``peer`` and ``via`` (the other end) are as ``Port.peer``, ``claimed`` is the userid
        before stamping, ``reason`` the errno of a refusal.
        """


def mark_request(recording: Recording, own: Port, decision: Decision, claimed: int) -> None:
    """Make the marks of requests like this one; what comes from the own port, or on behalf of a port that is gone,
    entered by no link.
    """
    decision.claimed = claimed
    origin, target = decision.origin, decision.target
    if origin is not own and origin.live:
        decision.mark = recording.mark(IN, origin.peer, target.peer, claimed)
    if recording.both:
        decision.out_mark = recording.mark(OUT, target.peer, origin.peer, claimed)


def mark_answer(recording: Recording | None, own: Port, decision: Decision, port: Port, head: bytes) -> None:
    """Make the marks of the responses of ``port`` to requests like this one; kept while their header is the same."""
    decision.answer_head = head
    decision.answer_mark = decision.answer_out_mark = b""
    if recording is None:
        return
    origin = decision.origin
    claimed = int.from_bytes(head[5:9], "big")
    if port is not own:
        decision.answer_mark = recording.mark(IN, port.peer, origin.peer, claimed)
    if recording.both:
        decision.answer_out_mark = recording.mark(OUT, origin.peer, port.peer, claimed)


def forget_marks(ports: Iterable[Port]) -> None:
    """Somebody else records from now on, or nobody: no mark made before is used again."""
    for port in ports:
        port.forget_decisions()
        port.marks = {}
        for key, calls in port.pending.items():
            for call in calls.decisions(key):
                call.answer_head = b""
        for providers in port.untagged.values():
            for call, _unanswered in providers.values():
                call.answer_head = b""


def record_denied(
    recording: Recording, port: Port, via: Port | None, message: Message, claimed: int, errnum: int
) -> None:
    """A request of ``port`` was refused by the broker or by its service (then ``via`` is the own port)."""
    frame = message.framed()  # first: no mark stands alone
    recording.add(recording.mark(DENIED, port.peer, via.peer if via is not None else 0, claimed, errnum))
    recording.add(frame)


def record_request(records: list[bytes], decision: Decision, message: Message) -> None:
    """A request passes, as it leaves."""
    frame = message.framed()
    if decision.mark:
        records.append(decision.mark)
        records.append(frame)
    if decision.out_mark:
        records.append(decision.out_mark)
        records.append(frame)


def record_response(
    records: list[bytes], decision: Decision, message: Message, front: bytes, own: bool
) -> None:
    """A response passes, with the stack ``front``; to our ``own`` end it leaves by no link, and keeps its hop."""
    if decision.answer_mark:
        frame = message.recorded(front)
        records.append(decision.answer_mark)
        records.append(frame)
    else:
        message.front = front
    if decision.answer_out_mark:
        if not own or not decision.answer_mark:
            frame = message.framed()
        records.append(decision.answer_out_mark)
        records.append(frame)


def record_out(recording: Recording, port: Port, source: Port, message: Message) -> None:
    """Record a message that the broker itself made on behalf of ``source``, as it leaves for ``port``."""
    if recording.both:
        frame = message.framed()
        recording.add(recording.mark(OUT, port.peer, source.peer, message.userid))
        recording.add(frame)
