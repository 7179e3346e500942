"""A pipeline's entry: one socket for other nodes (TCP) and one for clients on this one (IPC), of the same kind."""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import zmq

from broker.endpoints import Endpoint, numeric
from broker.errors import ConfigError
from broker.identity import Credentials
from broker.oslo.names import Pipeline, entry_file
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.reactor import Reactor, Socket
from broker.oslo.reactor.binding import Door, NodeSockets
from broker.oslo.reactor.counters import Counters
from broker.oslo.reactor.router import RouterSocket
from broker.oslo.reactor.socket import Receive
from broker.transport.curve import Certificate

REMEMBERED_MAX: Final = 8192
"""Connections whose credentials are remembered."""

Came = Callable[[list[bytes], Credentials, int], None]
"""Takes the frames of a message (a ROUTER's with its peer's id in front), who sent it, and the index of the socket."""


class Frontend:
    """The sockets through which a pipeline's messages come in, bound when it is made; the reactor has to be open.

    Args:
        reactor: whose.
        config: host, ports, keys, limits.
        pipeline: of this port and this file.
        kind: of both sockets, such as ``zmq.XSUB``.
        acl: says who is who.
        receive: takes each message; messages of nobody are counted as ``stranger`` and dropped.
        counters: where that is counted.

    Attributes:
        sockets: TCP first when ``config.host`` says so, then IPC; a ROUTER's are ``RouterSocket``.
        endpoint: what other nodes dial; "" without TCP.

    Raises:
        ConfigError: a port or file is in use, or the port would be open to other machines in plaintext.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: NodeConfig,
        pipeline: Pipeline,
        kind: int,
        acl: AccessControl,
        receive: Came,
        counters: Counters | None = None,
    ) -> None:
        self.sockets: list[Socket] = []
        self.endpoint = ""
        self._reactor = reactor
        self._config = config
        self._kind = kind
        self._receive = receive
        self._counters = Counters() if counters is None else counters
        self._forget: list[Callable[[], None]] = []
        self._pauses: set[str] = set()
        port, file = config.ports[pipeline], entry_file(pipeline)
        self._doors = NodeSockets(reactor, config, kind, port, file, acl, config.message_bytes_max)
        try:
            if self._doors.tcp is not None:
                self.endpoint = advertised(config, self._doors.port)
                self._add_socket(self._doors.tcp, acl.by_connection)
            self._add_socket(self._doors.local, acl.by_ipc)
        except BaseException:
            self.close()
            raise

    @property
    def key(self) -> str:
        """Z85 public key of the TCP socket; "" plaintext."""
        return self._doors.key

    def _add_socket(self, door: Door, judge: Callable[[str], Credentials | None]) -> None:
        form = RouterSocket if self._kind == zmq.ROUTER else Socket
        self.sockets.append(
            form(
                self._reactor,
                door.sock,
                self._receiver(len(self.sockets), judge),
                origin=door.origin,
                outbox_msgs=self._config.queue_msgs,
                outbox_bytes=self._config.queue_bytes,
            )
        )

    def _receiver(self, index: int, judge: Callable[[str], Credentials | None]) -> Receive:
        known = lru_cache(REMEMBERED_MAX)(judge)
        self._forget.append(known.cache_clear)
        receive = self._receive

        def take(frames: list[bytes], origin: str) -> None:
            who = known(origin)
            if who is None:
                text = "dropped a message of %.64s, who is nobody here"
                self._counters.count_dropped("stranger", text, origin)
            else:
                receive(frames, who, index)

        return take

    def renew(self, certificate: Certificate | None) -> None:
        """Judge everybody anew from the next message on, and show ``certificate`` to whoever connects from now on.

        Connections stay. One whose key may do nothing any more stays, too: whatever it sends is denied.

        Raises:
            ConfigError: the port cannot be listened at with the new key; the former one is shown.
        """
        for forget in self._forget:
            forget()
        try:
            self._doors.renew(certificate)
        finally:
            self._reactor.check_after_turn(self.sockets[0])

    def pause(self, why: str, *, on: bool) -> None:
        """Read nothing as long as there is a reason not to; what comes meanwhile waits at its senders."""
        if on:
            self._pauses.add(why)
        else:
            self._pauses.discard(why)
        for socket in self.sockets:
            if not socket.closed and socket.paused is not bool(self._pauses):
                socket.paused = bool(self._pauses)

    def status(self) -> list[dict[str, Any]]:
        """Each socket: type, where, what came and went, what waits, what found no room."""
        kind = zmq.SocketType(self._kind).name
        bound = [door.endpoint for door in (self._doors.tcp, self._doors.local) if door is not None]
        return [status_of(kind, at, socket) for at, socket in zip(bound, self.sockets, strict=True)]

    def close(self, linger_ms: int = 0) -> None:
        """Close both; libzmq goes on sending for ``linger_ms``. Harmless twice."""
        for socket in self.sockets:
            socket.close(linger_ms)
        self._doors.close()


def status_of(kind: str, at: str, socket: Socket) -> dict[str, Any]:
    """What is told of one socket."""
    return {
        "type": kind,
        "endpoint": at,
        "in": socket.received,
        "in_bytes": socket.received_bytes,
        "out": socket.sent,
        "out_bytes": socket.sent_bytes,
        "waiting": socket.waiting,
        "refused": socket.refused,
    }


def advertised(config: NodeConfig, port: int) -> str:
    """What other nodes dial to reach ``port``.

    Raises:
        ConfigError: neither ``advertise`` nor ``node`` is a host.
    """
    host = config.advertise or config.node
    if not host or "/" in host or (":" in host and numeric(host) is None):
        raise ConfigError(f"advertise {host[:64]!r}: expected a host name or address without port")
    return Endpoint("tcp", host, port).text
