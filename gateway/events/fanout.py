"""From an event to everybody who subscribed to it, at the cost of one call per receiver.

Theory of operation. Prefixes are plain strings ("" is everything, "foo" matches "foobar"). Who receives a topic is
found once per topic and remembered until one of its prefixes or a right changes: those who have a prefix are kept by
their roles, and each role found is asked whether it may see *this* topic, so that a wide prefix never overrides a deny
below it. Topics with the same receivers share one tuple of them; consecutive events with the same one become one Run,
which each receiver's link gets with one call and encodes at most once for all of them.

A private event is for owners and for the sessions of its sender's userid (RFC 12, "Event Privacy"): these are looked up
and held against their present principal at each delivery. That is never remembered.

What the rules keep from somebody whose prefix asks for it is counted by topic, for operators: subscribers are not told,
for that would name the topics. Topics of which nothing is kept from anybody cost one look whether there are others.
"""

# compiled: mypyc

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from broker.errors import LinkBroken
from broker.identity import Role
from broker.name_stats import NameStats, StatsTable, name_of
from broker.wire.audience import PREFIX_MAX_BYTES, TOPICS_MAX, Audiences, Confidants, Prefixes
from broker.wire.message import PRIVATE
from broker.wire.parts import part_data
from gateway.events.run import Run, SendRun

if TYPE_CHECKING:
    from broker.transport.link import Link
    from broker.wire.message import Message
    from gateway.principal import Principal

log = logging.getLogger("headgate")

PREFIXES_MAX: Final = 256
"""Distinct prefixes one session may subscribe to unless told otherwise; beyond it ENOSPC."""


class Subscriber(Protocol):
    """A session, as the fan-out sees it."""

    @property
    def link(self) -> Link:
        """Where its events go; the same for the subscriber's whole life."""

    @property
    def subscriptions(self) -> dict[bytes, int]:
        """Its prefixes and how often it asked for each; written by the fan-out only."""

    @property
    def principal(self) -> Principal:
        """Who it is at present."""

    @property
    def roles(self) -> int:
        """Its role bits: who has the same sees the same topics. A change is followed by ``Fanout.changed``."""

    @property
    def send_run(self) -> SendRun:
        """What takes its events; the same for its whole life."""

    def sees_topic(self, topic: bytes) -> bool:
        """Whether the access rules let it see events of exactly this topic."""


class Receiver:
    """What takes runs for a subscriber, whose it is, and the userid and roles under which it is found."""

    __slots__ = ("roles", "send", "subscriber", "userid")

    def __init__(self, subscriber: Subscriber) -> None:
        self.send: SendRun = subscriber.send_run
        self.subscriber = subscriber
        self.userid = subscriber.principal.userid
        self.roles = subscriber.roles

    @property
    def owner(self) -> bool:
        """Whether it is found as an owner."""
        return bool(self.roles & Role.OWNER)


Receivers: TypeAlias = tuple[Receiver, ...]


class Fanout:
    """The subscriptions of all sessions of one process.

    Args:
        prefixes_max: distinct prefixes one subscriber may have.

    Attributes:
        events: events that came in.
        deliveries: events handed to links: one event for three receivers counts three.
        withheld: by topic, ids left out: deliveries that the access rules kept from subscribers of a wider prefix
            (``calls``); private events are not counted.
    """

    __slots__ = (
        "_confidants",
        "_matches",
        "_prefixes_max",
        "_receivers",
        "_subscribers",
        "_withheld",
        "deliveries",
        "events",
        "withheld",
    )

    def __init__(self, prefixes_max: int = PREFIXES_MAX) -> None:
        self._prefixes_max = prefixes_max
        self._receivers: dict[Subscriber, Receiver] = {}
        self._confidants: Confidants[Receiver] = Confidants()
        self._subscribers: Prefixes[dict[int, dict[Receiver, None]]] = Prefixes()  # by prefix, by roles
        self._matches: Audiences[Receiver] = Audiences()
        self._withheld: dict[bytes, tuple[NameStats, int]] = {}  # encoded topic, as long as it is in _matches
        self.events = 0
        self.deliveries = 0
        self.withheld = StatsTable()

    # -- subscriptions -------------------------------------------------------------------------

    def subscribe(self, subscriber: Subscriber, prefix: bytes) -> int:
        """Count one more subscription; returns 0, ENOSPC or ENAMETOOLONG. Live at once."""
        if len(prefix) > PREFIX_MAX_BYTES:
            return errno.ENAMETOOLONG
        mine = subscriber.subscriptions
        count = mine.get(prefix, 0)
        if not count and len(mine) >= self._prefixes_max:
            return errno.ENOSPC
        mine[prefix] = count + 1
        if not count:
            self._enter(self._receivers.get(subscriber) or self._join(subscriber), prefix)
        return 0

    def unsubscribe(self, subscriber: Subscriber, prefix: bytes) -> int:
        """Take one subscription back; returns 0 or ENOENT."""
        count = subscriber.subscriptions.get(prefix, 0)
        if not count:
            return errno.ENOENT
        if count > 1:
            subscriber.subscriptions[prefix] = count - 1
        else:
            self._remove(subscriber, prefix)
        return 0

    def forget(self, subscriber: Subscriber) -> None:
        """Take all its subscriptions back; harmless when it has none."""
        for prefix in list(subscriber.subscriptions):
            self._remove(subscriber, prefix)

    def changed(self, subscriber: Subscriber) -> None:
        """Its roles are others than before."""
        receiver = self._receivers.get(subscriber)
        if receiver is not None and receiver.roles != subscriber.roles:
            for prefix in subscriber.subscriptions:
                self._take_out(receiver, prefix)
            receiver.roles = subscriber.roles
            self._confidants.remove(receiver, receiver.userid)
            self._confidants.add(receiver, receiver.userid, receiver.owner)
            for prefix in subscriber.subscriptions:
                self._enter(receiver, prefix)

    def invalidate(self) -> None:
        """Forget who receives what: access rules changed."""
        self._matches.clear()
        self._withheld = {}

    def prefixes(self) -> dict[bytes, int]:
        """Prefix -> number of sessions subscribed to it."""
        return {prefix: sum(map(len, members.values())) for prefix, members in self._subscribers.items()}

    def listeners(self, topic: bytes) -> set[Subscriber]:
        """Who receives an event of ``topic`` that is not private."""
        return {one.subscriber for alike in self._asking(topic) for one in alike}

    def explain(self, message: Message) -> dict[Subscriber, str]:
        """Everybody whose prefixes ask for ``message``, and what keeps it away: "rule", "private"; "" where nothing."""
        topic = bytes(part_data(message.topic_part) or b"")
        found: dict[Subscriber, str] = {}
        for alike in self._groups(topic):
            seen = _sees(alike, topic)
            for one in alike:
                private = seen and not may_see(one.subscriber.principal, message)
                found[one.subscriber] = "private" if private else "" if seen else "rule"
        return found

    def _remove(self, subscriber: Subscriber, prefix: bytes) -> None:
        self._take_out(self._receivers[subscriber], prefix)
        del subscriber.subscriptions[prefix]
        if not subscriber.subscriptions:
            receiver = self._receivers.pop(subscriber)
            self._confidants.remove(receiver, receiver.userid)

    def _join(self, subscriber: Subscriber) -> Receiver:
        receiver = self._receivers[subscriber] = Receiver(subscriber)
        self._confidants.add(receiver, receiver.userid, receiver.owner)
        return receiver

    def _enter(self, receiver: Receiver, prefix: bytes) -> None:
        members = self._subscribers.get(prefix)
        if members is None:
            members = {}
            self._subscribers.add(prefix, members)
        members.setdefault(receiver.roles, {})[receiver] = None
        self._matches.forget(prefix)

    def _take_out(self, receiver: Receiver, prefix: bytes) -> None:
        members = self._subscribers.get(prefix)
        assert members is not None
        alike = members[receiver.roles]
        del alike[receiver]
        if not alike:
            del members[receiver.roles]
            if not members:
                self._subscribers.remove(prefix)
        self._matches.forget(prefix)

    # -- the way of an event -------------------------------------------------------------------

    def publish(self, messages: list[Message]) -> int:
        """Hand stamped, numbered events, in order, to whoever may have them; returns the count of deliveries."""
        before = self.deliveries
        self.events += len(messages)
        receivers: Receivers = ()
        together: list[Message] = []
        for message in messages:
            if message.head[4] & PRIVATE:
                found = self._allowed(message)
                if found == receivers:
                    found = receivers
            else:
                known = self._matches.found.get(message.topic_part)
                found = self._match(message.topic_part) if known is None else known
                if self._withheld:
                    self._count_withheld(message.topic_part)
            if not found:
                continue
            if found is not receivers and together:
                self._deliver(receivers, Run(together))
                together = []
            receivers = found
            together.append(message)
        if together:
            self._deliver(receivers, Run(together))
        return self.deliveries - before

    def _deliver(self, receivers: Receivers, run: Run) -> None:
        self.deliveries += len(receivers) * len(run)
        for receiver in receivers:
            try:
                receiver.send(run)
            except Exception as error:  # a fault while queuing costs the link it happened at, and nobody else
                link = receiver.subscriber.link
                log.error("%s: cannot queue events", link.peer.address, exc_info=error)
                link.abort(LinkBroken(f"{link.peer.address}: cannot queue events: {error!r}"))

    def _match(self, topic_part: bytes) -> Receivers:
        topic = bytes(part_data(topic_part) or b"")
        found: dict[Receiver, None] = {}
        denied: dict[Receiver, None] = {}
        for alike in self._groups(topic):
            (found if _sees(alike, topic) else denied).update(alike)
        if len(self._withheld) >= TOPICS_MAX:
            # both, or topics that are remembered would no longer be counted
            self.invalidate()
        self._withheld.pop(topic_part, None)
        if denied:
            self._withheld[topic_part] = (self.withheld.of(name_of(topic)), len(denied))
        return self._matches.keep(topic, topic_part, tuple(found))

    def _count_withheld(self, topic_part: bytes) -> None:
        entry = self._withheld.get(topic_part)
        if entry is not None:
            entry[0].calls += entry[1]

    def _allowed(self, message: Message) -> Receivers:
        """Who receives a private event at this moment."""
        asking = self._asking(bytes(part_data(message.topic_part) or b""))
        return tuple(
            one
            for one in self._confidants.of(message.userid)
            if any(one in alike for alike in asking) and may_see_private(one.subscriber.principal, message)
        )

    def _asking(self, topic: bytes) -> list[dict[Receiver, None]]:
        """Those who subscribed to a topic and may see it, in groups that may overlap."""
        return [alike for alike in self._groups(topic) if _sees(alike, topic)]

    def _groups(self, topic: bytes) -> list[dict[Receiver, None]]:
        """Those who subscribed to a topic, by prefix and roles; who has several prefixes of it is in several."""
        return [alike for members in self._subscribers.matching(topic) for alike in members.values()]


def _sees(alike: dict[Receiver, None], topic: bytes) -> bool:
    """Whether those of one group, whose roles are the same, may see a topic."""
    return next(iter(alike)).subscriber.sees_topic(topic)


def may_see(principal: Principal, message: Message) -> bool:
    """Whether ``principal`` may see ``message`` as far as privacy goes (RFC 12, "Event Privacy").

    A private event reaches the owner and its sender's userid; who is nobody, or shares a userid, receives none.
    """
    if not message.head[4] & PRIVATE:
        return True
    return may_see_private(principal, message)


def may_see_private(principal: Principal, message: Message) -> bool:
    """Whether ``principal`` may see the private event ``message``."""
    mine = principal.userid == message.userid and not (principal.shared or principal.nobody)
    return principal.owner or mine
