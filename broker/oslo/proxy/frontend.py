"""A pipeline's entry: one socket for other nodes (TCP) and one for clients on this one (IPC), of the same kind."""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import zmq

from broker.endpoints import Endpoint, numeric
from broker.errors import ConfigError
from broker.identity import Credentials
from broker.oslo.names import Pipeline, entry_file
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.reactor import Reactor, Socket
from broker.oslo.reactor.binding import TcpPort, bind_local, guard, remove_socket, resolved
from broker.oslo.reactor.counters import Counters
from broker.oslo.reactor.router import RouterSocket
from broker.oslo.reactor.socket import Receive
from broker.oslo.reactor.tuning import KeepAlive, Tuning, tune_local, tune_tcp
from broker.transport import curve
from broker.transport.curve import Certificate

REMEMBERED_MAX: Final = 8192
"""Connections whose credentials are remembered; then all are forgotten and found again."""

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
        key: Z85 public key of the TCP socket; "" plaintext.

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
        self.key = ""
        self._reactor = reactor
        self._config = config
        self._pipeline = pipeline
        self._kind = kind
        self._acl = acl
        self._receive = receive
        self._counters = Counters() if counters is None else counters
        self._bound: list[str] = []
        self._path = ""
        self._port: TcpPort | None = None
        self._known: list[dict[str, Credentials]] = []
        self._release: Callable[[], None] | None = None
        self._pauses: set[str] = set()
        try:
            if config.host:
                self._open_tcp()
            self._open_local()
        except BaseException:
            self.close()
            raise

    def _open_tcp(self) -> None:
        config = self._config
        certificate = curve.load(config.curve_cert) if config.curve_cert else None
        self.key = "" if certificate is None else certificate.public_key
        self._acl.let_in(self.key)
        port, protected = config.ports[self._pipeline], certificate is not None
        where = resolved(config.host, port, protected=protected, insecure=config.insecure)
        sock = self._new_socket()
        tuning = Tuning(
            KeepAlive(*config.keepalive),
            config.message_bytes_max,
            None if certificate is None else curve.CurveServer(certificate),
        )
        try:
            tune_tcp(sock, tuning)
            self._release = guard(self._reactor, sock, self._acl)
            self._port = TcpPort(sock, where)
            self.endpoint = advertised(config, self._port.endpoint.port)
        except BaseException:
            sock.close(0)
            raise
        self._bound.append(self._port.endpoint.text)
        self._add_socket(sock, "User-Id", self._acl.by_connection)

    def _open_local(self) -> None:
        sock = self._new_socket()
        try:
            tune_local(sock, self._config.message_bytes_max)
            path = bind_local(sock, self._config.path(entry_file(self._pipeline)), self._config.ipc_group)
        except BaseException:
            sock.close(0)
            raise
        self._path = path
        self._bound.append(f"ipc://{path}")
        self._add_socket(sock, "Peer-Address", self._acl.by_ipc)

    def _new_socket(self) -> zmq.Socket[bytes]:
        if self._reactor.context is None:
            raise RuntimeError("an entry is opened before its reactor was")
        return self._reactor.context.socket(self._kind)

    def _add_socket(
        self, sock: zmq.Socket[bytes], origin: str, judge: Callable[[str], Credentials | None]
    ) -> None:
        form = RouterSocket if self._kind == zmq.ROUTER else Socket
        self.sockets.append(
            form(
                self._reactor,
                sock,
                self._receiver(len(self.sockets), judge),
                origin=origin,
                outbox_msgs=self._config.queue_msgs,
                outbox_bytes=self._config.queue_bytes,
            )
        )

    def _receiver(self, index: int, judge: Callable[[str], Credentials | None]) -> Receive:
        known: dict[str, Credentials] = {}
        self._known.append(known)
        receive = self._receive

        def take(frames: list[bytes], origin: str) -> None:
            who = known.get(origin)
            if who is None:
                who = judge(origin)
                if who is None:
                    self._counters.count_dropped(
                        "stranger", "dropped a message of %.64s, who is nobody here", origin
                    )
                    return
                if len(known) >= REMEMBERED_MAX:
                    known.clear()
                known[origin] = who
            receive(frames, who, index)

        return take

    def renew(self, certificate: Certificate | None) -> None:
        """Judge everybody anew from the next message on, and show ``certificate`` to whoever connects from now on.

        Connections stay. One whose key may do nothing any more stays, too: whatever it sends is denied.

        Raises:
            ConfigError: the port cannot be listened at with the new key; the former one is shown.
        """
        for known in self._known:
            known.clear()
        if certificate is None or self._port is None:
            return
        self._acl.let_in(certificate.public_key)
        if certificate.public_key == self.key:
            return
        try:
            self._port.renew(certificate)
        finally:
            self._reactor.check_after_turn(self.sockets[0])
        self.key = certificate.public_key

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
        return [status_of(kind, at, socket) for at, socket in zip(self._bound, self.sockets, strict=True)]

    def close(self, linger_ms: int = 0) -> None:
        """Close both; libzmq goes on sending for ``linger_ms``. Harmless twice."""
        for socket in self.sockets:
            socket.close(linger_ms)
        if self._release is not None:
            self._release()
        if self._path:
            remove_socket(self._path)


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
