"""Full outboxes: which links are paused, which stall, and which are ended.

Requests. Only a *pure caller* is ever paused: a client that provides no service. Tree links and providers are not, so
a wait chain has length one and cannot close into a circle; their request that does not fit is answered EAGAIN.

Events. Nobody answers them, so a link that publishes more than its share is paused while the tree, or a subscriber, is
behind (``routing.flow``): every client, a provider, too, but no tree link. That wait ends without anybody's help:
brokers read each other whatever happens, a broker that does not is lost, and a subscriber is waited for no longer than
``PATIENCE_S``. Events come as requests, too (``event.publish``), and are held where their sender is attached.

Sequence of a publisher that is too fast::

    Flow.blocked       somebody is behind
    Broker.run         asks ``admit`` before each batch
    admit              the user's share is used up: the rest of the batch waits in the Backlog, the link is not read
    Flow.on_open       nobody is behind any more, or shares have grown again (``renew``): ``release_held``
"""

# compiled: mypyc

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.errors import LinkBroken
from broker.identity import USERID_UNKNOWN
from broker.routing.port import CLIENT, Port
from broker.wire.message import EVENT, REQUEST, Message
from broker.wire.parts import encode_part
from broker.wire.shares import Shares, cost

if TYPE_CHECKING:
    from broker.node.broker import Broker

log = logging.getLogger("headgate")

PATIENCE_S: Final = 2.0
"""Publishers wait for a subscriber above high water so long, and up to one ``sweep`` longer. A subscriber that reads
3 072 events or 768 KiB in that time is below low water again; a slower one costs itself: it is ended, or misses events.
"""
CALM_SHARE: Final = 0.25
"""A subscriber earns back this share of the time in which nobody waits for it: one that reads just enough to fall below
low water now and then uses ``PATIENCE_S`` up all the same."""
DEFERRED_BYTES: int = 16 << 20
"""Limit of what users of one owner's link may have said beyond their shares, as of ``shares.cost``, before the link is
held."""
UNTRUSTED_S: Final = 60.0
"""Nobody waits for the subscribers of that user again for so long, or a few that do not read could stop publishers."""
_PUBLISH: Final = encode_part(b"event.publish")


class DeferredMessages:
    """Messages of one link's users beyond their shares, in order; and their cost (``shares.cost``)."""

    def __init__(self) -> None:
        self.users: dict[int, list[Message]] = {}
        self.load = 0

    def add(self, userid: int, message: Message) -> None:
        """Defer a message."""
        self.users.setdefault(userid, []).append(message)
        self.load += cost(message)


class Pressure:
    """Back-pressure of one broker.

    Attributes:
        deferred: what users said beyond their shares over owners' links.
        on_shared: told that shares are used from now on: ``renew`` is to be called each ``RENEW_S`` while it says so.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.on_shared: Callable[[], object] = lambda: None
        self._waiters: dict[Port, set[Port]] = {}
        self._paused: dict[Port, int] = {}
        self._held: dict[Port, None] = {}
        self._shares = Shares()
        self._progress: dict[Port, tuple[int, float]] = {}
        self._waited_for: dict[Port, Port | int] = {}
        self._waits: dict[Port | int, float] = {}
        self._untrusted: dict[Port | int, float] = {}
        self.deferred: dict[Port, DeferredMessages] = {}
        self._told_missed: dict[Port, int] = {}

    def is_held(self, port: Port) -> bool:
        """True while ``port`` is not heard, what was read of it neither; of a link that ended the rest is."""
        return (port in self._paused or port in self._held) and port.link.ended is None

    def is_paused(self, port: Port) -> bool:
        """True while ``port`` waits for the one that it calls."""
        return port in self._paused and port.link.ended is None

    # -- requests ------------------------------------------------------------------------------

    def admit_request(self, origin: Port, target: Port, size: int) -> bool:
        """``target`` is choked: pause a pure caller and let its request of ``size`` bytes pass; False means EAGAIN.

        Its request has been read, and so have a few behind it and those of others: they do not all find room.
        """
        # others may wait for what neighbours and providers say: were these paused, two could wait for each other
        if origin.kind != CLIENT or origin.services or origin.link is None:
            return bool(target.link.outbox.admits_request(size))
        if not target.link.outbox.has_room_for_requests:
            return False
        waiters = self._waiters.setdefault(target, set())
        if origin not in waiters:
            waiters.add(origin)
            self._paused[origin] = self._paused.get(origin, 0) + 1
            origin.link.pause()
        return True

    def became_provider(self, port: Port) -> None:
        """A paused caller registered a service: it must be read again, others may wait for it."""
        if self._paused.pop(port, None) is not None:
            for waiters in self._waiters.values():
                waiters.discard(port)
            self._resume(port)

    def _release(self, target: Port) -> None:
        for origin in self._waiters.pop(target, ()):
            left = self._paused.get(origin, 0) - 1
            # the caller waits for another provider, too
            if left > 0:
                self._paused[origin] = left
            elif self._paused.pop(origin, None) is not None:
                self._resume(origin)

    # -- events --------------------------------------------------------------------------------

    def admit(self, port: Port, messages: list[Message], start: int, stop: int, blocked: bool) -> int:
        """Events are ``blocked``: the end of what ``port`` may say of ``messages[start:stop]``; the rest is held. When
        they are not any more, what was set aside comes first.
        """
        if not blocked:
            return self.rejoin(port, messages, start, stop)
        if port.kind != CLIENT or port.link is None:
            return stop  # links of the tree are always read (see ``routing.flow``)
        # a link that has ended cannot be held up, and all that it sent is here
        if port.link.ended is not None:
            return self.rejoin(port, messages, start, stop)
        if port.owner:
            return self._admit_users(port, messages, start, stop)
        for index in range(start, stop):
            if _publishes(messages[index]) and not self._share(port.cred.userid, messages[index]):
                return self._hold(port, index)
        return stop

    def _share(self, userid: int, message: Message) -> bool:
        """Whether the user may still say that; what it may say is less then."""
        first = not self._shares
        allowed = self._shares.take(userid, cost(message))
        if allowed and first:
            self.on_shared()
        return allowed

    def _hold(self, port: Port, index: int) -> int:
        self._held[port] = None
        port.link.pause()
        return index

    def _admit_users(self, port: Port, messages: list[Message], start: int, stop: int) -> int:
        """An owner's link speaks for many users: what one says beyond its share is taken out of ``messages`` and
        set aside, so that the others are heard. When too much is, or it is the owner itself, the link is held.
        """
        deferred = self.deferred.get(port) or DeferredMessages()
        kept: list[Message] = []
        for index in range(start, stop):
            message = messages[index]
            if _publishes(message):
                userid = message.userid
                # the stamp fills in the owner where a message names nobody (``ingress.stamping``)
                if userid == USERID_UNKNOWN:
                    userid = port.cred.userid
                if userid in deferred.users or not self._share(userid, message):
                    if userid == port.cred.userid or deferred.load + cost(message) > DEFERRED_BYTES:
                        stop = self._hold(port, index)
                        break
                    deferred.add(userid, message)
                    self.deferred[port] = deferred
                    continue
            kept.append(message)
        messages[start:stop] = kept
        return start + len(kept)

    def rejoin(self, port: Port, messages: list[Message], start: int, stop: int) -> int:
        """Put the messages set aside of ``port`` in front of ``messages[start:]``; returns the end of the batch."""
        messages[start:start] = self.take_deferred(port)
        return stop

    def take_deferred(self, port: Port) -> list[Message]:
        """Take the messages set aside of ``port``, each user's in order."""
        deferred = self.deferred.pop(port, None)
        return [] if deferred is None else [message for said in deferred.users.values() for message in said]

    def release_held(self) -> None:
        """Events move on, or shares are new: the links that wait for that are read again, in the order in which they
        came.
        """
        held, self._held = self._held, {}
        for port in held:
            self._resume(port)
        if self.deferred:
            # a port that sends more says first what was set aside (``rejoin``); for the others it is said here
            asyncio.get_running_loop().call_soon(self._release_deferred)

    def _release_deferred(self) -> None:
        for port in list(self.deferred):
            self._broker.backlog.put_back(port, self.take_deferred(port))

    def _wait_for(self, port: Port, choked: bool) -> None:
        """The outbox of a client crossed a water mark: publishers wait for a subscriber that may not miss events."""
        wanted = choked and bool(port.subscriptions) and not port.link.outbox.drops
        # an owner's programs have nothing to do with each other
        whose = port if port.owner else port.cred.userid
        if wanted and whose not in self._untrusted:
            self._waited_for[port] = whose
            self._broker.router.events.flow.wait_for(port, True)
        elif self._waited_for.pop(port, None) is not None:
            self._broker.router.events.flow.wait_for(port, False)

    def _lose_patience(self, elapsed_s: float) -> None:
        self._untrusted = {
            userid: left - elapsed_s for userid, left in self._untrusted.items() if left > elapsed_s
        }
        gain_s = CALM_SHARE * elapsed_s
        self._waits = {whose: waited - gain_s for whose, waited in self._waits.items() if waited > gain_s}
        # several late links of one user use its patience up once
        for whose in set(self._waited_for.values()):
            self._waits[whose] = self._waits.get(whose, 0.0) + elapsed_s + gain_s
        for port, whose in list(self._waited_for.items()):
            if self._waits[whose] > PATIENCE_S + gain_s:
                log.warning("%s reads too slowly: events go on without waiting for it", port.name)
                self._untrusted[whose] = UNTRUSTED_S
                self._wait_for(port, False)

    # -- outboxes ------------------------------------------------------------------------------

    def mark(self, port: Port, choked: bool) -> None:
        """An outbox crossed a water mark."""
        self._broker.router.set_busy(port, choked)
        if port.kind == CLIENT:
            self._wait_for(port, choked)
        else:
            self._broker.router.events.flow.choked(port, choked)
        if choked:
            self._progress[port] = (port.link.outbox.progress, 0.0)
        else:
            self._progress.pop(port, None)
            self._release(port)
            self._tell_missed(port)

    def _tell_missed(self, port: Port) -> None:
        """A subscriber with policy ``drop`` reads again: one line says how many events it missed."""
        dropped: int = port.link.outbox.dropped_events
        missed = dropped - self._told_missed.get(port, 0)
        if missed:
            self._told_missed[port] = dropped
            log.warning("%s did not read in time and missed %d events", port.name, missed)

    def forget(self, port: Port) -> None:
        """The port is gone: nobody waits for it and it waits for nobody."""
        self._progress.pop(port, None)
        self._waited_for.pop(port, None)
        self._told_missed.pop(port, None)
        self._held.pop(port, None)
        self.deferred.pop(port, None)
        self._release(port)
        if self._paused.pop(port, None) is not None:
            for waiters in self._waiters.values():
                waiters.discard(port)

    def sweep(self, elapsed_s: float, stall_s: float) -> None:
        """Called now and then: end links above high water that took no byte for ``stall_s`` seconds, while something
        waits that cannot be dropped.
        """
        for port, (progress, waited) in list(self._progress.items()):
            seen = port.link.outbox.progress
            # events that may be dropped are no reason to end a link: its policy copes with a reader that stalls
            if seen != progress or not port.link.outbox.has_undroppable:
                self._progress[port] = (seen, 0.0)
            elif waited + elapsed_s < stall_s:
                self._progress[port] = (progress, waited + elapsed_s)
            else:
                log.warning("%s took no byte for %g s: disconnected", port.name, stall_s)
                port.link.abort(LinkBroken(f"took no byte for {stall_s:g} s"))
        self._lose_patience(elapsed_s)

    def renew(self, elapsed_s: float) -> bool:
        """``elapsed_s`` later: shares have grown, and the links that wait for that are read. True while more may."""
        self._shares.grow(elapsed_s)
        more = bool(self._shares)
        self.release_held()
        return more

    def _resume(self, origin: Port) -> None:
        """Hear ``origin`` again, unless it waits for something else, too; what was read of it, before it is read."""
        if not origin.live or origin.link.ended is not None or self.is_held(origin):
            return
        if origin in self._broker.backlog:
            self._broker.backlog.requeue(origin)
        else:
            origin.link.resume()


def _publishes(message: Message) -> bool:
    kind = message.head[3]
    return kind == EVENT or (kind == REQUEST and message.topic_part == _PUBLISH)
