"""Sockets of TCP and of ``ipc://`` as libzmq makes them, without libzmq: listening and connected ones."""

from __future__ import annotations

import asyncio
import fcntl
import socket
from struct import pack
from typing import Final

from broker import trust
from broker.obstacles import obstacle
from broker.sockets import connect_unix, remove_stale
from broker.transport.accepting import BACKLOG
from broker.transport.zeromq import limits
from broker.transport.zeromq.address import Endpoint, untrusted

_SIOCGIFADDR: Final = 0x8915


def tune(sock: socket.socket) -> None:
    """What every connection of TCP has: no waiting for more to send, and an end when the other machine is gone."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    interval_s, count = limits.KEEPALIVE_INTERVAL_S, limits.KEEPALIVE_COUNT
    probe(sock, limits.KEEPALIVE_IDLE_S, interval_s, count, limits.UNCONFIRMED_MS)


def probe(sock: socket.socket, idle_s: int, interval_s: int, count: int, unconfirmed_ms: int) -> None:
    """Have TCP ask a peer that sent nothing for ``idle_s`` whether it is there, ``count`` times each ``interval_s``.

    What was sent, or asked, may stay without an acknowledgement for ``unconfirmed_ms``; then the connection ends.
    """
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unconfirmed_ms)


def listen(endpoint: Endpoint, backlog: int = BACKLOG) -> tuple[socket.socket, Endpoint]:
    """A listening socket, and where it is: with the port that it was given. ``backlog``: may wait to be accepted.

    Raises:
        ConfigError: in use, not ours, not there.
    """
    sock = None
    try:
        sock = _listening(endpoint)
        sock.setblocking(False)
        sock.listen(backlog)
        return sock, _bound(endpoint, sock)
    except OSError as error:
        if sock is not None:
            sock.close()
        text = f"cannot listen at {endpoint.text}: {error.strerror or error}"
        path = endpoint.host if endpoint.scheme == "ipc" else ""
        raise obstacle(text, error, absent=True, port=endpoint.port, path=path) from error


def _listening(endpoint: Endpoint) -> socket.socket:
    if endpoint.scheme == "ipc":
        if not endpoint.host.startswith("@"):
            remove_stale(endpoint.host)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _bind(sock, _path(endpoint.host))
        return sock
    host = endpoint.host
    if host == "*":
        try:
            sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        except OSError:  # a machine without IPv6
            host = "0.0.0.0"  # noqa: S104 - all interfaces are what was asked for
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            _bind(sock, ("::", endpoint.port))
            return sock
    if host in {name for _index, name in socket.if_nameindex()}:
        host = _address_of(host)
    sock = socket.socket(_family(host), socket.SOCK_STREAM)
    _bind(sock, _numbers(host, endpoint.port))
    return sock


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _numbers(host: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    """The address of a host in numbers as its family has it; behind "%" stands the interface of a link-local one."""
    host, _, scope = host.partition("%")
    if ":" not in host:
        return host, port
    return host, port, 0, int(scope) if scope.isdigit() else socket.if_nametoindex(scope) if scope else 0


def _bind(sock: socket.socket, address: object) -> None:
    try:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)  # type: ignore[arg-type]  # of the socket's family
    except OSError:
        sock.close()
        raise


def _path(host: str) -> str:
    """A path, or the name of an abstract socket, which begins with "@" in addresses."""
    return "\0" + host[1:] if host.startswith("@") else host


def _address_of(interface: str) -> str:
    """The IPv4 address of an interface.

    Raises:
        OSError: it has none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        found = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, pack("256s", interface.encode()[:15]))
    return socket.inet_ntoa(found[20:24])


def _bound(endpoint: Endpoint, sock: socket.socket) -> Endpoint:
    if endpoint.scheme == "ipc":
        return endpoint
    host, port = sock.getsockname()[:2]
    return endpoint._replace(host=host.removeprefix("::ffff:"), port=port)


async def connect(endpoint: Endpoint, *, proven: bool) -> socket.socket:
    """Connect to a resolved ``endpoint``.

    Args:
        endpoint: of numbers, or a path.
        proven: the peer will prove a key; otherwise a local one must be somebody whom we trust.

    Raises:
        LinkRefused: it is not. OSError: nobody there.
    """
    if endpoint.scheme == "tcp":
        sock = socket.socket(_family(endpoint.host), socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, _numbers(endpoint.host, endpoint.port))
            tune(sock)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await connect_unix(lambda: sock.connect(_path(endpoint.host)))
        if not proven and (text := trust.peer_objection(sock, endpoint.host)):
            raise untrusted(endpoint, text)
    except BaseException:
        sock.close()
        raise
    return sock
