"""A publishing socket to one node: what is published waits until the node has subscribed, for each filter by itself.

A publishing socket drops what nobody has subscribed to, and a node subscribes when its connection is there. So a copy
for a node that the directory lists waits until the node has subscribed, ``fanout_wait_s`` at most: that is the time of
a restart, since a proxy that is being started subscribes when its servers and listeners have come back. Directories
list a node for a lease only; where they say that it is gone, nothing waits. What waited in vain is counted, and the
filter is not waited for again until it is subscribed to.
"""

# compiled: mypyc

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker.oslo.client.links import LOST_S, NodeLink, NodeLinks
from broker.oslo.client.resend import Parcel
from broker.oslo.frames import repeated
from broker.oslo.reactor import Timer
from broker.oslo.reactor.socket import Frames
from broker.oslo.reactor.tuning import Tuning


class Copy(Parcel):
    """What one node gets of a fan-out or notification: filter, envelope and body.

    ``elsewhere`` gives it to another node, once it is known that this one never had it; False: there is none.
    """

    __slots__ = ("due_s", "elsewhere", "frames", "node")

    def __init__(self, node: str, frames: Frames, elsewhere: Callable[[], bool] | None = None) -> None:
        super().__init__(len(frames[2]))
        self.node = node
        self.frames = frames
        self.elsewhere = elsewhere
        self.due_s = 0.0
        """When it has waited for a subscription for long enough."""

    def mark_repeated(self) -> None:
        """See ``Parcel``."""
        self.repeated = True
        self.frames = (self.frames[0], repeated(self.frames[1]), self.frames[2])
        self.elsewhere = None  # the node may have it


class PublishingLink(NodeLink[Copy]):
    """See the module."""

    def __init__(
        self, links: NodeLinks[Copy], node: str, endpoint: str, tuning: Tuning, node_key: str = ""
    ) -> None:
        self._held: dict[bytes, deque[Copy]] = {}
        self._held_msgs = self._held_bytes = 0
        self._missed: set[bytes] = set()
        self._timer: Timer | None = None
        super().__init__(links, node, endpoint, tuning, node_key)

    @property
    def away(self) -> bool:
        """Nothing is subscribed: it is not connected, as far as we see."""
        return not self.filters

    @property
    def waiting(self) -> int:
        """Messages in the outbox, and those that wait for a subscription."""
        return super().waiting + self._held_msgs

    @property
    def draining(self) -> bool:
        """See ``NodeLink``; what waits for it to come back does not."""
        return super().draining and not self.away

    def submit(self, parcel: Copy) -> None:
        """Send it, or let it wait, for room or for the subscription."""
        data = parcel.frames[0]
        if data in self.filters:
            super().submit(parcel)
        elif data in self._missed or (self.full and self.down):
            self._sender.lose(parcel)
        else:
            self._hold(data, parcel)

    def _hold(self, data: bytes, copy: Copy) -> None:
        copy.due_s = self._reactor.now() + self._links.settings.fanout_wait_s
        self._held.setdefault(data, deque()).append(copy)
        self._held_msgs += 1
        self._held_bytes += copy.size
        self._arm(copy.due_s)
        self._fill()

    def _release(self, data: bytes) -> deque[Copy]:
        held = self._held.pop(data, None) or deque()
        self._held_msgs -= len(held)
        self._held_bytes -= sum(copy.size for copy in held)
        return held

    def _beyond(self, part: float) -> bool:
        settings = self._links.settings
        return (
            self.waiting >= part * settings.outbox_msgs
            or self._parcel_bytes + self._held_bytes >= part * settings.outbox_bytes
        )

    # ------------------------------------------------------------ subscriptions

    def subscribed(self, data: bytes) -> None:
        """The node hears that filter from now on."""
        self.filters.add(data)
        self._missed.discard(data)
        for copy in self._release(data):
            super().submit(copy)
        self._relieve()

    def unsubscribed(self, data: bytes) -> None:
        """It does not hear it any more; what was not sent yet waits for it to come back, in its order."""
        self.filters.discard(data)
        outbox = self.take_parcels()
        for copy in outbox:
            if copy.frames[0] == data:
                self._hold(data, copy)
            else:
                super().submit(copy)

    def drop_held(self, data: bytes) -> None:
        """The subscription to that filter is not waited for any more."""
        dropped = self._release(data)
        self._relieve()
        for copy in dropped:
            self._sender.lose(copy)

    def take_all(self) -> list[Copy]:
        """See ``NodeLink``: what waits for subscriptions, too, of each filter in its order."""
        held = [copy for data in list(self._held) for copy in self._release(data)]
        return [*self.take_parcels(), *held]

    @property
    def awaited(self) -> list[bytes]:
        """Filters whose subscription something waits for."""
        return list(self._held)

    def _arm(self, due_s: float) -> None:
        if self._timer is None and not self.closed:
            self._timer = self._reactor.call_later(max(due_s - self._reactor.now(), 0.0), self._late)

    def _late(self) -> None:
        """Give up what has waited for long enough."""
        self._timer = None
        now_s = self._reactor.now()
        for data, held in list(self._held.items()):
            if held[0].due_s <= now_s:
                self._missed.add(data)
                self.drop_held(data)
        if self._held:
            self._arm(min(held[0].due_s for held in self._held.values()))

    # ------------------------------------------------------------ connections that end

    def _resend_lost(self) -> None:
        """What may be lost, what was not sent, what waits: in this order, for each filter."""
        if self.closed:
            return
        if self._readable():  # that it has unsubscribed, by ending: what is sent before we know goes nowhere
            self._reactor.check_after_turn(self)
            self._interrupted = self._reactor.call_later(LOST_S, self._resend_lost)
            return
        self._interrupted = None
        for copy in [*self._links.take_lost(self), *self.take_all()]:
            self.submit(copy)

    def close(self, linger_ms: int = 0) -> None:
        """See ``Socket.close``."""
        if self._timer is not None:
            self._timer.cancel()
        super().close(linger_ms)
