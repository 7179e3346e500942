"""Which way a request goes: a service of this rank, or the neighbour that leads to another one (RFC 3, "Request
Routing"; "Request Message Type": the first word of the topic names the service).

``resolve`` is asked once for requests that look alike; ``router`` remembers the answer.
"""

# compiled: mypyc

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.routing.port import CLIENT, PARENT, Port
from broker.routing.topology import NO_PARENT
from broker.wire.message import NODEID_ANY, UPSTREAM, Message
from broker.wire.parts import split_parts

if TYPE_CHECKING:
    from broker.routing.router import Router

LINK_TOPICS: Final = frozenset((b"event.subscribe", b"event.unsubscribe", b"service.add", b"service.remove"))
"""Answered by the broker a client is attached to, whatever nodeid says, and even with NORESPONSE set."""
ROUTE_MAX_BYTES: Final = 255
"""A client's route part, its size byte counted; deployed ids take 37."""


class ServiceTable:
    """Names registered on this rank.

    Built-in services belong to the broker's own port; clients add and remove theirs while they are attached.

    Attributes:
        on_client: told of each name that a client begins (True) or ceases (False) to provide.
    """

    __slots__ = ("_ports", "on_client")

    def __init__(self) -> None:
        self._ports: dict[bytes, Port] = {}
        self.on_client: Callable[[str, bool], object] | None = None

    def find(self, name: bytes) -> Port | None:
        """The provider of ``name``; None when nobody registered it."""
        return self._ports.get(name)

    def add(self, name: bytes, port: Port) -> int:
        """Register; returns 0 or EEXIST (17)."""
        if name in self._ports:
            return errno.EEXIST
        self._ports[name] = port
        port.services.add(name)
        port.user.services += 1
        port.provided = True
        self._tell(name, port, True)
        return 0

    def remove(self, name: bytes, port: Port) -> int:
        """Take back; returns 0 or ENOENT (2) when ``port`` does not provide ``name``."""
        if self._ports.get(name) is not port:
            return errno.ENOENT
        del self._ports[name]
        port.services.discard(name)
        port.user.services -= 1
        self._tell(name, port, False)
        return 0

    def _tell(self, name: bytes, port: Port, there: bool) -> None:
        if self.on_client is not None and port.kind == CLIENT:
            self.on_client(name.decode("utf-8", "replace"), there)

    def names(self) -> list[tuple[str, Port]]:
        """All (name, provider), sorted by name."""
        return sorted(
            ((name.decode("utf-8", "replace"), port) for name, port in self._ports.items()),
            key=lambda e: e[0],
        )


def too_deep(front: bytes, hops: int) -> bool:
    """A stack of more than so many hops, or of longer names, than we keep."""
    return len(front) > hops * ROUTE_MAX_BYTES + 1 or len(split_parts(front)) - 1 > hops


def resolve(router: Router, port: Port, message: Message, topic: bytes) -> Port | None:
    """The port this request of ``port`` goes to; None when it was answered."""
    nodeid = message.nodeid
    # they are about the client's own link, which no other broker has
    if port.kind == CLIENT and topic in LINK_TOPICS:
        return router.own
    if message.flags & UPSTREAM and nodeid == router.rank:
        if router.parent is None and port.strict and not router.rank:
            router.unregistered(port, message, topic)  # the texts: as to any rank, but for the sender's own
        elif router.parent is None:
            router.answer(port, message, errno.EHOSTUNREACH)
        return router.parent
    if nodeid == NODEID_ANY or message.flags & UPSTREAM:
        target = _local(router, port, topic, nodeid) or router.parent
        if target is None and router.rank:
            router.answer(port, message, errno.EHOSTUNREACH)
        elif target is None:
            router.unregistered(port, message, topic)
        return target
    if nodeid == router.rank:
        target = _local(router, port, topic, nodeid)
        if target is None:
            router.unregistered(port, message, topic)
        return target
    return _towards(router, port, message, nodeid)


def _local(router: Router, port: Port, topic: bytes, nodeid: int) -> Port | None:
    target = router.services.find(topic.partition(b".")[0])
    # CMB1 (both texts, "Default Request Routing" 1): a provider's own request to any rank goes on upstream
    return None if target is port and port.cmb1 and nodeid == NODEID_ANY else target


def _towards(router: Router, port: Port, message: Message, nodeid: int) -> Port | None:
    """The neighbour on the way to rank ``nodeid``."""
    target: Port | None = None
    if nodeid < router.topology.size:
        child = router.topology.child_towards(router.rank, nodeid)
        target = router.parent if child == NO_PARENT else router.children.get(child)
    # what the parent sent down does not go back up: the two would pass it to each other for ever
    if target is not None and (target is not port or port.kind != PARENT):
        return target
    router.answer(port, message, errno.EHOSTUNREACH)
    return None
