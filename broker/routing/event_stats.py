"""How many events were published, by topic: each once in the tree, where it gets its number (rank 0).

What is refused for good before that is counted where it came in. The names of guests may be made up: an owner's have
figures of their own while there is room, and few of theirs. That an event is counted costs a look into a dictionary;
topics are read, and ids in them left out, when one is first seen.
"""

# compiled: mypyc

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.figures import OTHER, NameStats, StatsTable, grouped, name_of
from broker.identity import Role
from broker.wire.message import Message
from broker.wire.parts import part_data

if TYPE_CHECKING:
    from broker.routing.call_stats import CallStats

KNOWN_MAX: Final = 1024
"""Topics remembered as they are; then all are forgotten and read again."""
TAILS_MAX: Final = 64
"""Last words remembered behind an id."""
_OWNER: Final = int(Role.OWNER)


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
