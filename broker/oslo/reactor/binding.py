"""Sockets that others connect to: files with the right modes, ports, and who may enter.

New CURVE keys for a listener take several sockets at one port, after each other (``ReusedPort``): libzmq copies the
keys of a socket when it binds, and ends every connection of what is unbound. So new keys need a second socket that
listens at the same address, and the first lives on, with nobody new coming to it. SO_REUSEPORT lets it listen there,
and a program at the group of the two sends each new connection to the newest (Linux 4.5; needs no privilege). The
option is set when that happens and not before: what is started twice by mistake still finds its address in use.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import socket
from array import array
from collections.abc import Callable
from struct import Struct
from typing import Final

import zmq

from broker.endpoints import Endpoint, bracketed, parse
from broker.errors import ConfigError
from broker.listening import listen, listening_at
from broker.obstacles import obstacle
from broker.oslo.reactor.loop import Reactor
from broker.oslo.reactor.tuning import serve_curve
from broker.oslo.reactor.zap import Denying, LoggedPolicy, Zap
from broker.transport.curve import Certificate, CurveServer

BACKLOG: Final = 4096
"""Connections that may wait to be accepted: all servers of a node come back at once when its proxy does."""


def bind_local(sock: zmq.Socket[bytes], endpoint: str, group: str = "") -> str:
    """Bind at ``ipc://path``, mode 0600, or 0660 for ``group``; returns the path.

    Raises:
        ConfigError: the path is too long, in use, a file of another kind, or cannot be made; no such group.
    """
    made, where = listen(parse(endpoint, "ipc"), BACKLOG, 0o660 if group else 0o600)
    try:
        _hand_over(made.detach(), sock, where)
        if group:
            give_to_group(where.path, group)
    except BaseException as error:
        remove_socket(where.path)
        if isinstance(error, zmq.ZMQError):
            raise obstacle(f"cannot listen at {where.text}: {error.strerror}", error) from error
        raise
    return where.path


def remove_socket(path: str) -> None:
    """Delete the file of a socket bound by ``bind_local``, which is not libzmq's."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _hand_over(made: int, sock: zmq.Socket[bytes], where: Endpoint) -> None:
    """Give libzmq the descriptor ``made``, which listens at ``where``; it is closed when libzmq does not take it."""
    try:
        sock.set(zmq.USE_FD, made)
        sock.bind(where.text)
    except BaseException:
        os.close(made)
        raise


def give_to_group(path: str, group: str) -> None:
    """Make ``path`` belong to ``group``.

    Raises:
        ConfigError: we may not. NotReady: there is no such group yet.
    """
    try:
        os.chown(path, -1, group_id(group))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot give it to the group {group!r}: {error.strerror}", error.errno
        ) from error


def group_id(group: str) -> int:
    """The number of ``group``, which may be a number itself.

    Raises:
        NotReady: there is no such group yet; what knows it may come later, as sssd and LDAP do at boot.
    """
    if group.isascii() and group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        text = f"ipc_group {group!r}: saw no such group on this host"
        raise obstacle(text, errno.ENOENT, absent=True) from None


def resolved(host: str, port: int, *, protected: bool = False, insecure: bool = False) -> Endpoint:
    """Where ``host`` and ``port`` are bound: see ``listening.listening_at``.

    Raises:
        ConfigError: there is no such port, or it would be open to other machines in plaintext.
    """
    return listening_at(parse(f"tcp://{bracketed(host)}:{port}"), protected, insecure)


class TcpPort:
    """The TCP port of one socket, bound when it is made; its CURVE certificate can change while connections stay.

    libzmq copies the keys of a socket to what listens for it, and ends every connection of what is unbound. So a new
    certificate has the same socket listen at the same port once more (``ReusedPort``): new connections
    come there, those that exist go on until their peers have gone. Each certificate costs a descriptor until the socket
    is closed.

    Args:
        sock: set up with its first certificate.
        where: port 0: any free one.

    Attributes:
        endpoint: where it is bound.

    Raises:
        ConfigError: in use, or not ours.
    """

    def __init__(self, sock: zmq.Socket[bytes], where: Endpoint) -> None:
        self._sock = sock
        self._port = ReusedPort()
        made, self.endpoint = listen(where, BACKLOG)
        sock.set(zmq.IPV6, int(":" in self.endpoint.host))
        try:
            self._take(made.detach())
        except zmq.ZMQError as error:
            raise obstacle(f"cannot listen at {where.text}: {error.strerror}", error) from error

    def renew(self, certificate: Certificate) -> None:
        """Show ``certificate`` to whoever connects from now on; its socket of the reactor has to be touched afterwards.

        Raises:
            ConfigError: the port cannot be listened at a second time; everything is as before.
        """
        made = self._port.open()
        try:
            _deepen(made)
            serve_curve(self._sock, CurveServer(certificate))
            self._take(made)
        except (OSError, zmq.ZMQError) as error:
            raise ConfigError(
                f"{self.endpoint.text}: cannot listen there a second time: {error.strerror}", error.errno
            ) from error

    def _take(self, made: int) -> None:
        _hand_over(made, self._sock, self.endpoint)
        self._port.take(made)


def _deepen(descriptor: int) -> None:
    """Let as many connections wait there as at a first one."""
    with socket.socket(fileno=os.dup(descriptor)) as listening:
        listening.listen(BACKLOG)


class _House:
    """The one ZAP handler of a reactor's context, as long as something is guarded."""

    def __init__(self, reactor: Reactor, sock: zmq.Socket[bytes]) -> None:
        self.zap = Zap(sock, reactor)
        self.guarded = 0

    def close(self) -> None:
        """Stop answering."""
        self.zap.close()


_houses: dict[Reactor, _House] = {}


def guard(reactor: Reactor, sock: zmq.Socket[bytes], judge: Denying) -> Callable[[], None]:
    """Let ``judge`` decide who connects to ``sock``, which is set up and not yet bound; call the result when it is
    closed. Who is not let in is told to the log (``zap``).

    Messages then have the judge's answer as their property ``User-Id``, in plaintext, too.
    """
    if reactor.context is None:
        raise RuntimeError("a socket is guarded before its reactor was opened")
    house = _houses.get(reactor)
    if house is None:
        house = _houses[reactor] = _House(reactor, reactor.context.socket(zmq.ROUTER))
    watched = LoggedPolicy(reactor, sock, judge)
    domain = house.zap.add(watched)
    house.guarded += 1
    sock.set(zmq.ZAP_DOMAIN, domain)
    kept = [domain]

    def release() -> None:
        if not kept:
            return
        house.zap.remove(kept.pop())
        watched.close()
        house.guarded -= 1
        if not house.guarded and _houses.get(reactor) is house:
            del _houses[reactor]
            house.close()

    return release


_FORMER_BACKLOG: Final = 100
"""As libzmq has it; ``TcpPort`` deepens it."""
_ATTACH_REUSEPORT_CBPF: Final = 51
"""SO_ATTACH_REUSEPORT_CBPF of asm-generic/socket.h; Python does not name it."""
_INSTRUCTION: Final = Struct("=HBBI")
"""``struct sock_filter``: code, jt, jf, k."""
_RETURN_K: Final = 0x06
_PROGRAM: Final = Struct("@HP")
"""``struct sock_fprog``: how many instructions, and where."""


class ReusedPort:
    """The sockets that listen at one port, none of which is closed before the others; the newest gets what comes."""

    def __init__(self) -> None:
        self._group: list[int] = []

    def open(self) -> int:
        """One more socket that listens there, for libzmq to use.

        Raises:
            ConfigError: the port cannot be used a second time.
        """
        try:
            with _same(self._group[-1]) as former:
                former.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                return _beside(former)
        except OSError as error:
            raise ConfigError(f"cannot listen a second time: {error.strerror}", error.errno) from error

    def take(self, fd: int) -> None:
        """``fd``, which libzmq listens at now, gets every new connection.

        Raises:
            ConfigError: the kernel has no such thing: the former one still gets some, or all.
        """
        self._group.append(fd)
        if len(self._group) == 1:
            return
        instruction = array("B", _INSTRUCTION.pack(_RETURN_K, 0, 0, len(self._group) - 1))
        program = _PROGRAM.pack(1, instruction.buffer_info()[0])
        try:
            with _same(fd) as newest:
                newest.setsockopt(socket.SOL_SOCKET, _ATTACH_REUSEPORT_CBPF, program)
        except OSError as error:
            self._group.pop()
            raise ConfigError(
                f"cannot send connections to a second socket: {error.strerror}", error.errno
            ) from error


def _same(fd: int) -> socket.socket:
    """A socket of libzmq once more, to be closed by the caller.

    Raises:
        OSError: it is closed.
    """
    return socket.socket(fileno=os.dup(fd))


def _beside(former: socket.socket) -> int:
    """A socket that listens at the same address and port as ``former``."""
    with socket.socket(former.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as made:
        if former.family == socket.AF_INET6:
            only = former.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(former.getsockname())
        made.listen(_FORMER_BACKLOG)
        return made.detach()
