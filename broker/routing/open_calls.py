"""Open calls, indexed by key, by caller and service, and by the port that has to answer; and disconnect notices, by
which a service learns that a client which called it has gone (RFC 6, "Disconnection").

A delivered request that wants an answer stands in three places: in its origin's ``pending`` under (rest of stack,
matchtag), where its response finds it; in the ``OpenCalls`` of its sender and service, which that sender's
``X.disconnect`` ends; and with these in ``to_answer`` of the port that has to answer, whose departure ends them. So a
notice or a departure costs what it ends, whatever others have open.

Two kinds of calls are not told apart by their matchtag (RFC 6, "Matchtags"), and deployed software makes both: calls
with matchtag 0 may be answered any number of times while both ends live (``Port.untagged``); calls that share one
are answered in any order, each once (``Repeat``).

A request *arms* one notice per (service path, nodeid, upstream, sender); a sender's own ``X.disconnect`` disarms it
and ends the sender's open calls to X. ``departure`` sends what is still armed when the client goes.
"""

# compiled: mypyc

from __future__ import annotations

from typing import Final

from broker.identity import Credentials
from broker.routing.counters import NOTICE
from broker.routing.port import CLIENT, OWN, PARENT, Decision, OpenCall, OpenCalls, Port
from broker.wire.message import DELIMITER, UPSTREAM, Message
from broker.wire.parts import encode_part
from broker.wire.topic import path_of

NO_TAG: Final = b"\0\0\0\0"
REPEATS_MAX: Final = 256
"""Open calls of one sender that may share a matchtag."""
ROTATION_MIN: Final = 256
"""Senders and services of a link that are kept when nothing of theirs is open: the next call finds them there."""

Ended = list[tuple[bytes, Decision]]
"""Calls that are not open any more: key in ``pending`` and what was decided."""


def _discard(_message: Message) -> None:
    """Nobody listens."""


NOBODY: Final = Port(OWN, "", _discard, Credentials())
"""Owes the answers to calls that share a matchtag."""


class Repeat(OpenCalls):
    """Several open calls of one sender with the same matchtag, in ``pending`` alone.

    Its target is nobody, so that a response never matches it by accident.
    """

    __slots__ = ("waiting",)

    def __init__(self, calls: OpenCalls, decision: Decision) -> None:
        super().__init__(decision, NOBODY, calls.front)
        self.waiting: list[tuple[OpenCalls, Decision]] = [(calls, decision)]

    def decisions(self, key: bytes) -> list[Decision]:
        """The decisions about the calls that share the matchtag, oldest first."""
        return [decision for _calls, decision in self.waiting]

    def take(self, port: Port, key: bytes, error: bool) -> Decision | None:
        """The oldest waiting call that ``port`` may answer; it is done unless a stream goes on."""
        for index, (calls, decision) in enumerate(self.waiting):
            if calls.target is port:
                if decision.single_response or error:
                    del self.waiting[index]
                    self.origin.repeats -= bool(self.waiting)
                    if not any(other is calls for other, _decision in self.waiting):
                        del calls.open[key]
                return decision
        return None


def find(port: Port, decision: Decision, front: bytes) -> OpenCalls:
    """Those of the sender ``front`` behind ``port`` to the service and by the way that ``decision`` names."""
    calls = port.calls.get(front + decision.calls_key)
    if calls is None:
        _rotate(port)
        calls = port.calls[front + decision.calls_key] = OpenCalls(decision, decision.target, front)
        port.asked.setdefault(front + decision.service, []).append(calls)
        port.rotation.append(calls)
        decision.target.to_answer[calls] = None
    return calls


def _rotate(port: Port) -> None:
    """Look at two, oldest first, and forget those that have nothing open: there are never many more than are in use."""
    rotation = port.rotation
    for _ in range(2):
        if len(rotation) < ROTATION_MIN:
            return
        calls = rotation.popleft()
        if calls.open:
            rotation.append(calls)
        elif calls.listed:
            _unlist(calls)


def _unlist(calls: OpenCalls) -> None:
    """The ports at both ends forget them."""
    origin, key = calls.origin, calls.front + calls.service
    calls.listed = False
    calls.target.to_answer.pop(calls, None)
    del origin.calls[calls.front + calls.calls_key]
    origin.asked[key].remove(calls)
    if not origin.asked[key]:
        del origin.asked[key]
    # the link's own calls are named in its decisions (``Decision.calls``)
    if calls.front == DELIMITER:
        origin.forget_decisions()  # some of them name these calls


def track_unusual(port: Port, calls: OpenCalls, decision: Decision, key: bytes) -> str:
    """Keep an open call with matchtag 0, with one that is in use, or beyond the cap: "", or why it is refused."""
    if port.open_calls >= port.pending_max:
        return f"more than {port.pending_max} calls are open on this link"
    if key[-4:] == NO_TAG:
        port.untagged.setdefault(calls.front, {})[calls.target] = (decision, True)
    else:
        # RFC 6 forbids it; deployed software answers both, so the later call waits behind the first
        earlier = port.pending[key]
        if isinstance(earlier, Repeat):
            repeat = earlier
        else:
            first = earlier.open[key]
            _untime(first)  # of those that share one it is not known which is answered
            repeat = Repeat(earlier, first.decision)
        if len(repeat.waiting) >= REPEATS_MAX:
            return f"matchtag is in use by {len(repeat.waiting)} open calls"
        repeat.waiting.append((calls, decision))
        port.repeats += 1
        port.pending[key] = repeat
    calls.open[key] = OpenCall(decision, -1)
    return ""


def answered_unusual(origin: Port, port: Port, key: bytes, rest: bytes, failed: bool) -> Decision | None:
    """The call of ``origin`` with matchtag 0, or one that is in use twice, that a response of ``port`` answers."""
    if key[-4:] == NO_TAG:
        return _answered_untagged(origin, port, rest, failed)
    entry = origin.pending.get(key)
    if not isinstance(entry, Repeat):
        return None
    found = entry.take(port, key, failed)
    if not entry.waiting:
        del origin.pending[key]
    return found


def _answered_untagged(origin: Port, port: Port, rest: bytes, failed: bool) -> Decision | None:
    """Any number of responses may come while both ends live."""
    providers = origin.untagged.get(rest, {})
    decision, unanswered = providers.get(port, (None, False))
    if decision is not None and unanswered and (decision.single_response or failed):
        providers[port] = (decision, False)
    return decision


def end(calls: OpenCalls) -> Ended:
    """Take all of them out of every table; returns those that were not answered yet."""
    ended: Ended = []
    for key, call in calls.open.items():
        _untime(call)
        if key[-4:] == NO_TAG:
            _end_untagged(calls, key, ended)
        else:
            _end_tagged(calls, key, ended)
    calls.open = {}
    _unlist(calls)
    return ended


def _end_tagged(calls: OpenCalls, key: bytes, ended: Ended) -> None:
    pending = calls.origin.pending
    entry = pending[key]
    if not isinstance(entry, Repeat):
        ended.append((key, calls.open[key].decision))
        del pending[key]
        return
    ended.extend((key, decision) for each, decision in entry.waiting if each is calls)
    left = [waiting for waiting in entry.waiting if waiting[0] is not calls]
    calls.origin.repeats -= len(entry.waiting) - max(len(left), 1)
    entry.waiting = left
    if not left:
        del pending[key]


def _end_untagged(calls: OpenCalls, key: bytes, ended: Ended) -> None:
    """The sender's latest call by this way counts; it may have been to another service."""
    untagged = calls.origin.untagged
    providers = untagged.get(calls.front, {})
    decision, unanswered = providers.get(calls.target, (None, False))
    if decision is None or decision.service != calls.service:
        return
    del providers[calls.target]
    if not providers:
        del untagged[calls.front]
    if unanswered:
        ended.append((key, decision))


def _untime(call: OpenCall) -> None:
    """Neither time it nor count it as open any more."""
    if call.began_ns >= 0:
        call.began_ns = -1
        call.decision.method.open -= 1


def leave(port: Port) -> None:
    """Forget all calls that ``port`` made: it is gone."""
    for calls in port.calls.values():
        calls.listed = False
        calls.target.to_answer.pop(calls, None)
        for call in calls.open.values():
            _untime(call)
    port.calls = {}
    port.asked = {}
    port.rotation.clear()
    port.pending = {}
    port.repeats = 0
    port.untagged = {}
    port.forget_decisions()


def notice_key(topic: bytes, head: bytes) -> bytes:
    """(service path, upstream, nodeid): one disconnect notice each."""
    return b"".join((path_of(topic), b"\0", bytes((head[4] & UPSTREAM,)), head[13:]))


def arm(port: Port, decision: Decision, front: bytes, message: Message, limit: int) -> None:
    """Remember that the provider learns of the end of ``front`` below ``port``; above ``limit`` notices it does not."""
    key = decision.notice_key + front
    if key not in port.notices and len(port.notices) < limit:
        notice = encode_part(decision.service + NOTICE)
        port.notices[key] = (decision.head, message.tag, notice, front)


def disarm(port: Port, message: Message, topic: bytes) -> bool:
    """A sender's own X.disconnect passes: X owes it nothing more. False when a client never asked X."""
    front = message.front or DELIMITER
    if port.kind == PARENT:
        front = front[len(port.hop) :]
    service = topic[: -len(NOTICE)]
    if port.kind == CLIENT and port.notices.pop(notice_key(topic, message.head) + front, None) is None:
        return False
    for calls in list(port.asked.get(front + service, ())):
        end(calls)
    return True
