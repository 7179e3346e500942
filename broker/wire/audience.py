"""The receivers of an event: what brokers and gateways ask for each of them, however many have subscribed.

A prefix is a plain string: "" is everything, "foo" matches "foobar". ``Prefixes`` finds those of a topic with one
lookup for each length that some prefix has. ``Audiences`` keeps what was found; when one prefix changes, it forgets
the topics that begin with it, and no others. ``Confidants`` are the possible receivers of a private event.
"""

# compiled: mypyc

from __future__ import annotations

from bisect import bisect_left, insort
from operator import itemgetter
from typing import Final, Generic, TypeVar

V = TypeVar("V")

PREFIX_MAX_BYTES: Final = 256
"""Longest prefix to subscribe to. It bounds the lookups of a topic, however long that is. Topics in use have some tens
of bytes, and deployed brokers have no room for more than 255."""
TOPIC_MAX_BYTES: Final = 1024
"""Longer topics are not remembered, which bounds the memory."""
# the following are read where they are used, not folded by the compiler: tests lower them
TOPICS_MAX: int = 4096
"""Topics that are remembered; beyond it all are forgotten and found again as needed."""
MEMBERS_MAX: int = 1 << 20
"""Members of all audiences together, 8 bytes each; beyond it all are forgotten, too."""


class Prefixes(Generic[V]):
    """A table from prefixes to values that are found by topic."""

    __slots__ = ("_counts", "_lengths", "_values")

    def __init__(self) -> None:
        self._values: dict[bytes, V] = {}
        self._counts: dict[int, int] = {}  # length -> how many prefixes have it
        self._lengths: list[int] = []  # those that some prefix has, shortest first

    def __len__(self) -> int:
        return len(self._values)

    def get(self, prefix: bytes) -> V | None:
        """The value of exactly this prefix."""
        return self._values.get(prefix)

    def add(self, prefix: bytes, value: V) -> None:
        """Enter a prefix that is not there yet."""
        self._values[prefix] = value
        length = len(prefix)
        count = self._counts.get(length, 0)
        self._counts[length] = count + 1
        if not count:
            insort(self._lengths, length)

    def remove(self, prefix: bytes) -> None:
        """Take out a prefix that is there."""
        del self._values[prefix]
        length = len(prefix)
        self._counts[length] -= 1
        if not self._counts[length]:
            del self._counts[length]
            del self._lengths[bisect_left(self._lengths, length)]

    def matching(self, topic: bytes) -> list[V]:
        """The values of all prefixes that ``topic`` begins with, shortest first."""
        found: list[V] = []
        most = len(topic)
        for length in self._lengths:
            if length > most:
                break
            value = self._values.get(topic[:length])
            if value is not None:
                found.append(value)
        return found

    def items(self) -> list[tuple[bytes, V]]:
        """All prefixes with their values."""
        return list(self._values.items())


_TOPIC: Final = itemgetter(0)


class _Audience(Generic[V]):
    """A set of members, and how many topics have exactly this one."""

    __slots__ = ("members", "topics")

    def __init__(self, members: tuple[V, ...]) -> None:
        self.members = members
        self.topics = 0


class Audiences(Generic[V]):
    """Topic -> its audience, found once. Topics with the same members share one tuple: "the same" is "identical".

    Attributes:
        found: encoded topic -> members; to be read only.
    """

    __slots__ = ("_held", "_same", "_topics", "found")

    def __init__(self) -> None:
        self.found: dict[bytes, tuple[V, ...]] = {}
        self._topics: list[tuple[bytes, bytes, _Audience[V]]] = []  # topic, encoded topic, audience; in order
        self._same: dict[tuple[V, ...], _Audience[V]] = {}
        self._held = 0  # members of all audiences

    def keep(self, topic: bytes, topic_part: bytes, members: tuple[V, ...]) -> tuple[V, ...]:
        """Remember the members of a topic that is not in ``found``, unless it is very long; returns the shared one."""
        audience = self._same.get(members)
        if len(topic) > TOPIC_MAX_BYTES:
            return members if audience is None else audience.members
        if len(self._topics) >= TOPICS_MAX or (audience is None and self._held + len(members) > MEMBERS_MAX):
            self.clear()
            audience = None
        if audience is None:
            audience = self._same[members] = _Audience(members)
            self._held += len(members)
        audience.topics += 1
        insort(self._topics, (topic, topic_part, audience), key=_TOPIC)
        self.found[topic_part] = audience.members
        return audience.members

    def forget(self, prefix: bytes) -> None:
        """Forget the topics that begin with ``prefix``; each was paid for when it was remembered."""
        topics = self._topics
        first = end = bisect_left(topics, prefix, key=_TOPIC)
        while end < len(topics) and topics[end][0].startswith(prefix):
            _, topic_part, audience = topics[end]
            del self.found[topic_part]
            audience.topics -= 1
            if not audience.topics:
                del self._same[audience.members]
                self._held -= len(audience.members)
            end += 1
        del topics[first:end]

    def clear(self) -> None:
        """Forget everything."""
        self.found = {}
        self._topics = []
        self._same = {}
        self._held = 0


class Confidants(Generic[V]):
    """Members by what decides about private events: owners, and those of a userid (RFC 12, "Event Privacy")."""

    __slots__ = ("_owners", "_users")

    def __init__(self) -> None:
        self._owners: dict[V, None] = {}
        self._users: dict[int, dict[V, None]] = {}

    def add(self, member: V, userid: int, owner: bool) -> None:
        """Enter a member that is not there."""
        if owner:
            self._owners[member] = None
        self._users.setdefault(userid, {})[member] = None

    def remove(self, member: V, userid: int) -> None:
        """Take out a member that is there with this userid."""
        self._owners.pop(member, None)
        mine = self._users[userid]
        del mine[member]
        if not mine:
            del self._users[userid]

    def of(self, userid: int) -> dict[V, None]:
        """Owners, and the members of ``userid``."""
        return {**self._owners, **self._users.get(userid, {})}
