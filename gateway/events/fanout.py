"""From an event to everybody who subscribed to it, at the cost of one call per receiver.

Theory of operation. Prefixes are plain strings ("" is everything, "foo" matches "foobar"). Who receives a topic is
found once per topic and remembered until a subscription or a right changes: each prefix of the topic is looked up,
and each session found is asked whether it may see *this* topic, so that a wide prefix never overrides a deny below
it. Topics with the same receivers share one entry; consecutive events with the same entry become one Run, which each
receiver's link gets with one call and encodes at most once for all of them.

A private event is held against every receiver's present principal at each delivery (RFC 12, "Event Privacy"): that
check is never remembered.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from broker.errors import LinkBroken
from broker.wire.message import PRIVATE
from broker.wire.parts import part_data
from gateway.events.run import Run, SendRun, sender

if TYPE_CHECKING:
    from broker.transport.link import Link
    from broker.wire.message import Message
    from gateway.principal import Principal

log = logging.getLogger("headgate")

# bounds are read where they are used, not folded by the compiler: tests lower them
MATCHES_MAX: int = 4096
"""Topics whose receivers are remembered; beyond it all are forgotten and found again as needed."""
REMEMBERED_MAX: int = 1 << 20
"""Receivers remembered for all topics together, 16 bytes each; beyond it all are forgotten, too."""
PREFIXES_MAX: Final = 256
"""Distinct prefixes one session may subscribe to unless told otherwise; beyond it ENOSPC."""
PREFIX_MAX_BYTES: Final = 1024
"""Longest prefix; beyond it ENAMETOOLONG. It bounds the work of matching a topic, however long that is."""


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
        """Who it is at present; a change that changes rights is followed by ``Fanout.invalidate``."""

    def sees_topic(self, topic: bytes) -> bool:
        """Whether the access rules let it see events of exactly this topic."""


Receiver: TypeAlias = tuple[SendRun, Subscriber]
"""What takes runs for a subscriber, and whose it is."""


class _Receivers:
    """Who gets a topic; one object per distinct set, so that "the same receivers" is "the same object"."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: tuple[Receiver, ...]) -> None:
        self.pairs = pairs


_NOBODY: Final = _Receivers(())


class Fanout:
    """The subscriptions of all sessions of one process.

    Args:
        prefixes_max: distinct prefixes one subscriber may have.

    Attributes:
        events: events that came in.
        deliveries: events handed to links: one event for three receivers counts three.
    """

    __slots__ = (
        "_matches",
        "_pairs",
        "_prefixes_max",
        "_remembered",
        "_same",
        "_subscribers",
        "deliveries",
        "events",
    )

    def __init__(self, prefixes_max: int = PREFIXES_MAX) -> None:
        self._prefixes_max = prefixes_max
        self._subscribers: dict[bytes, dict[Subscriber, None]] = {}
        self._matches: dict[bytes, _Receivers] = {}
        self._same: dict[tuple[Receiver, ...], _Receivers] = {}
        self._remembered = 0  # receivers in all entries of _same together
        self._pairs: dict[Subscriber, Receiver] = {}
        self.events = 0
        self.deliveries = 0

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
            if subscriber not in self._pairs:
                self._pairs[subscriber] = (sender(subscriber.link), subscriber)
            self._subscribers.setdefault(prefix, {})[subscriber] = None
            self.invalidate()
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

    def invalidate(self) -> None:
        """Forget who receives what: access rules, a principal's roles or a subscription changed."""
        self._matches = {}
        self._same = {}
        self._remembered = 0

    def prefixes(self) -> dict[bytes, int]:
        """Prefix -> number of sessions subscribed to it."""
        return {prefix: len(members) for prefix, members in self._subscribers.items()}

    def _remove(self, subscriber: Subscriber, prefix: bytes) -> None:
        del subscriber.subscriptions[prefix]
        members = self._subscribers[prefix]
        del members[subscriber]
        if not members:
            del self._subscribers[prefix]
        if not subscriber.subscriptions:
            del self._pairs[subscriber]
        self.invalidate()

    # -- the way of an event -------------------------------------------------------------------

    def publish(self, messages: list[Message]) -> int:
        """Hand stamped, numbered events, in order, to whoever may have them; returns the count of deliveries."""
        before = self.deliveries
        self.events += len(messages)
        receivers = _NOBODY
        together: list[Message] = []
        for message in messages:
            found = self._matches.get(message.topic_part)
            if found is None:
                found = self._match(message.topic_part)
            if message.head[4] & PRIVATE:
                found = _allowed(found, message, receivers)
            if not found.pairs:
                continue
            if found is not receivers and together:
                self._deliver(receivers, Run(together))
                together = []
            receivers = found
            together.append(message)
        if together:
            self._deliver(receivers, Run(together))
        return self.deliveries - before

    def matches(self, subscriber: Subscriber, message: Message) -> bool:
        """Whether ``subscriber`` would get ``message`` if it came now; for replay, which asks for each event."""
        topic = bytes(part_data(message.topic_part) or b"")
        return (
            any(topic.startswith(prefix) for prefix in subscriber.subscriptions)
            and subscriber.sees_topic(topic)
            and may_see(subscriber.principal, message)
        )

    def _deliver(self, receivers: _Receivers, run: Run) -> None:
        self.deliveries += len(receivers.pairs) * len(run)
        for send, subscriber in receivers.pairs:
            try:
                send(run)
            except Exception as error:  # a fault while queuing costs the link it happened at, and nobody else
                address = subscriber.link.peer.address
                log.error("%s: cannot queue events", address, exc_info=error)
                subscriber.link.abort(LinkBroken(f"{address}: cannot queue events: {error!r}"))

    def _match(self, topic_part: bytes) -> _Receivers:
        topic = bytes(part_data(topic_part) or b"")
        found: dict[Subscriber, None] = {}
        for end in range(min(len(topic), PREFIX_MAX_BYTES) + 1):
            members = self._subscribers.get(topic[:end])
            if members:
                found.update(members)
        receivers = self._shared(tuple(self._pairs[one] for one in found if one.sees_topic(topic)))
        if len(topic) <= PREFIX_MAX_BYTES:
            self._matches[topic_part] = receivers
        return receivers

    def _shared(self, pairs: tuple[Receiver, ...]) -> _Receivers:
        """The one _Receivers of ``pairs``; makes room first where too much is remembered."""
        if len(self._matches) >= MATCHES_MAX or self._remembered + len(pairs) > REMEMBERED_MAX:
            self.invalidate()
        receivers = self._same.get(pairs) if pairs else _NOBODY
        if receivers is None:
            receivers = self._same[pairs] = _Receivers(pairs)
            self._remembered += len(pairs)
        return receivers


def _allowed(found: _Receivers, message: Message, previous: _Receivers) -> _Receivers:
    """Those of ``found`` who may see a private event at this moment; ``previous`` itself when they are the same."""
    pairs = tuple(pair for pair in found.pairs if may_see_private(pair[1].principal, message))
    for known in (found, previous):
        if pairs == known.pairs:
            return known
    return _Receivers(pairs)


def may_see(principal: Principal, message: Message) -> bool:
    """Whether ``principal`` may see ``message`` as far as privacy goes (RFC 12, "Event Privacy").

    A private event reaches the owner and its sender's userid; a userid that several people share receives none.
    """
    if not message.head[4] & PRIVATE:
        return True
    return may_see_private(principal, message)


def may_see_private(principal: Principal, message: Message) -> bool:
    """Whether ``principal`` may see the private event ``message``."""
    return principal.owner or (principal.userid == message.userid and not principal.shared)
