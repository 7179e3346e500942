"""What one broker counts: messages (``MessageCounters``), calls by method (``CallStats``), events by topic
(``EventStats``).

Messages. The ways a message usually takes count it once, where it comes in; only the rare ones (refused, dropped, made
here) count what they did with it. What was sent is the difference, so that sending costs the corridor nothing.

Calls are counted once, where a client's call enters. A call is counted with its request; its latency is the time until
its first response reaches the broker, its error what its last response says; a stream that ends with ENODATA did not
fail. The corridor sets the time at the begin of each batch (``now_ns``), so that a latency is exact to the length of a
batch. Of calls with matchtag 0, or with one that is in use, neither the latency nor how many are open is known. Calls
of the broker itself, and those that only pass through the tree, are not counted.

Events are counted once in the tree, where they get their number (rank 0); an event that is refused for good before that
is counted where it came in. The names of guests may be made up: an owner's have figures of their own while there is
room, and few of theirs. That an event is counted costs a look into a dictionary; topics are read, and ids in them left
out, when one is first seen.
"""

# compiled: mypyc

from __future__ import annotations

import errno
from typing import Final

from broker.identity import Role
from broker.name_stats import OTHER, TEXT_MAX, NameStats, StatsTable, grouped, name_of
from broker.routing.port import Decision, OpenCall
from broker.wire.message import Message
from broker.wire.parts import part_data

REASONS_MAX: Final = 256
"""Distinct reasons kept: some carry an errno, none carries peer data."""
NOTICE: Final = b".disconnect"
"""How the topic of a disconnect notice ends."""
KNOWN_MAX: Final = 1024
"""Topics remembered as they are; then all are forgotten and read again."""
TAILS_MAX: Final = 64
"""Last words remembered behind an id."""
_OWNER: Final = int(Role.OWNER)


class MessageCounters:
    """Message counts of one broker since it started.

    Messages from links and those of this broker's own services and calls are routed alike, and counted alike.

    Attributes:
        requests, responses, events, controls: came in.
        refused_requests: of those, answered here or dropped; the others were passed on.
        stray_responses: of those, dropped; the others were passed on.
        answered: responses made here: a service that is not there, a lost neighbour, a refused request.
        notices: requests made here: ``SERVICE.disconnect`` for streams that came through a lost neighbour.
        delivered_events: handed to subscribers, to children, or up to the parent; one event may count many times.
        sent_controls: to neighbours of the tree.
        connects: clients that were attached.
        drops: reason -> messages that went nowhere.
    """

    __slots__ = (
        "answered",
        "connects",
        "controls",
        "delivered_events",
        "drops",
        "events",
        "notices",
        "refused_requests",
        "requests",
        "responses",
        "sent_controls",
        "stray_responses",
    )

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start all counts at zero, and again (``broker.stats-clear``)."""
        self.requests: int = 0
        self.responses: int = 0
        self.events: int = 0
        self.controls: int = 0
        self.refused_requests: int = 0
        self.stray_responses: int = 0
        self.answered: int = 0
        self.notices: int = 0
        self.delivered_events: int = 0
        self.sent_controls: int = 0
        self.connects: int = 0
        self.drops: dict[str, int] = {}

    def drop(self, reason: str, count: int = 1) -> None:
        """Count messages that went nowhere."""
        if reason not in self.drops and len(self.drops) >= REASONS_MAX:
            reason = "other"
        self.drops[reason] = self.drops.get(reason, 0) + count

    def received(self) -> dict[str, int]:
        """Message type -> how many came in."""
        return {
            "request": self.requests,
            "response": self.responses,
            "event": self.events,
            "control": self.controls,
        }

    def sent(self) -> dict[str, int]:
        """Message type -> how many were passed on or made here, an event once per receiver."""
        return {
            "request": self.requests - self.refused_requests + self.notices,
            "response": self.responses - self.stray_responses + self.answered,
            "event": self.delivered_events,
            "control": self.sent_controls,
        }


class CallStats:
    """The methods that clients of one broker called.

    Attributes:
        now_ns: the time, by a clock that nobody sets.
        methods: by topic, ids left out; a method is proven that was answered without an error.
    """

    __slots__ = ("_table", "methods", "now_ns")

    def __init__(self) -> None:
        self.now_ns: int = 0
        self._table: StatsTable = StatsTable()
        self.methods: dict[str, NameStats] = self._table.by_name

    def clear(self) -> None:
        """Start at zero; decisions hold on to what they count in and have to be forgotten, too."""
        self._table.clear()

    def of(self, topic: bytes) -> NameStats:
        """Where calls of a topic are counted."""
        return self._table.of(name_of(topic))

    def refused(self, message: Message, errnum: int, text: str, userid: int) -> None:
        """A call of a client was refused as it came in, for want of a service or of room."""
        topic = bytes(part_data(message.topic_part) or b"")
        if topic.endswith(NOTICE):
            return  # says that somebody left; it is no call
        method = self.of(topic)
        method.calls += 1
        method.failed(errnum, text, userid, self.now_ns)

    def answered(self, call: Decision, timed: OpenCall | None, message: Message, failed: bool) -> None:
        """A response came to a call.

        Args:
            call: what was decided about it.
            timed: the call itself; None where its matchtag does not tell which one it is.
            message: the response.
            failed: it has an errnum.
        """
        method = call.method
        is_over = call.single_response or failed
        if timed is not None and timed.began_ns >= 0:
            if timed.began_ns > 0:
                method.took(self.now_ns - timed.began_ns)
            if is_over:
                method.open -= 1
            else:
                timed.began_ns = 0
        if failed and (call.single_response or message.errnum != errno.ENODATA):
            method.failed(message.errnum, text_of(message), userid_of(call), self.now_ns)
        elif not method.proven:
            self._prove(call)

    def _prove(self, call: Decision) -> None:
        """The called service is there, so its name is not made up: it has figures of its own from now on."""
        name = name_of(bytes(part_data(call.topic_part) or b""))
        method = self._table.proven(name)
        if method.proven and call.method is not method:
            call.origin.forget_decisions()  # the next one is counted there


def userid_of(call: Decision) -> int:
    """The userid of the caller."""
    return int.from_bytes(call.head[5:9], "big")


def text_of(message: Message) -> str:
    """The text of an error response; "" where it has none."""
    data = bytes(part_data(message.payload_part[: TEXT_MAX * 4]) or b"")
    return data.rstrip(b"\0").decode("utf-8", "replace")[:TEXT_MAX]


class EventStats:
    """The topics of the events that one broker numbered, or refused.

    Args:
        calls: tells the time.

    Attributes:
        table: by topic, ids left out. known: the same by topic part as it comes; the hot path looks here first.
    """

    __slots__ = ("_calls", "_groups", "_heads", "known", "table")

    def __init__(self, calls: CallStats) -> None:
        self.table: StatsTable = StatsTable()
        self.known: dict[bytes, NameStats] = {}
        self._heads: dict[bytes, dict[bytes, NameStats]] = {}
        self._groups: dict[str, dict[bytes, NameStats]] = {}
        self._calls: CallStats = calls

    def clear(self) -> None:
        """Start at zero."""
        self._forget()
        self.table.clear()

    def _forget(self) -> None:
        self.known = {}
        self._heads = {}
        self._groups = {}

    def of(self, message: Message) -> NameStats:
        """Where a stamped event is counted that is not ``known``; a topic without ids is, from now on."""
        part = message.topic_part
        topic = bytes(part_data(part) or b"")
        if not message.head[12] & _OWNER:
            stats = self.table.of(name_of(topic))
            if self.table.has(stats):  # else an owner's event may still prove the name
                self._keep(part, stats)
            return stats
        head, _, tail = topic.rpartition(b".")
        tails = self._heads.get(head)
        if tails is not None:
            found = tails.get(tail)
            if found is not None:
                return found
        return self._learn(part, topic, head, tail)

    def _learn(self, part: bytes, topic: bytes, head: bytes, tail: bytes) -> NameStats:
        """An owner's topic that is seen the first time. Many have an id in front of their last word, as those of jobs
        have: what the head is without it, is found out once for all that happens to one job.
        """
        text = head.decode("utf-8", "replace")
        group = grouped(text)
        tails = self._groups.get(group)
        stats = tails.get(tail) if tails is not None else None
        if stats is None:
            name = name_of(topic)
            stats = self.table.proven(name)
            if group == text or name == OTHER:
                self._keep(part, stats)
                return stats
            if tails is None:
                if len(self._groups) >= KNOWN_MAX:
                    self._groups = {}
                tails = self._groups[group] = {}
            if len(tails) < TAILS_MAX:
                tails[tail] = stats
        if len(self._heads) >= KNOWN_MAX:
            self._heads = {}
        assert tails is not None
        self._heads[head] = tails
        return stats

    def _keep(self, part: bytes, stats: NameStats) -> None:
        if len(self.known) >= KNOWN_MAX:
            self.known = {}
        self.known[part] = stats

    def refused(self, topic: bytes, errnum: int, text: str, userid: int) -> None:
        """An event of ``userid`` was refused where it came in."""
        stats = self.table.of(name_of(topic))
        stats.calls += 1
        stats.failed(errnum, text, userid, self._calls.now_ns)
