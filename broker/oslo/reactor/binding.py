"""Sockets that others connect to: files with the right modes, ports, and who may enter.

New CURVE keys for a listener take several sockets at one port, after each other (``ReusedPort``): libzmq copies the
keys of a socket when it binds, and ends every connection of what is unbound. So new keys need a second socket that
listens at the same address, and the first lives on, with nobody new coming to it. SO_REUSEPORT lets it listen there,
and a program at the group of the two sends each new connection to the newest (Linux 4.5; needs no privilege). The
option is set when that happens and not before: what is started twice by mistake still finds its address in use.

Who may connect is asked by libzmq in the middle of each handshake (ZAP, ZeroMQ RFC 27). Every listener has a ZAP domain
of its own, so one handler serves them all; the domain never leaves the process. The answer's user id, which libzmq then
attaches to every message of the connection, is ``NUMBER KEY``: a number that no other connection has, so that a message
is never taken for one of an earlier connection with the same identity, and the Z85 key that CURVE proved ("" without
CURVE).

Who was not let in is told once a minute, with what an operator has to change, and counted as ``denied``
(``LoggedPolicy``). A peer that ZAP judges has a key. One that takes us for somebody with another key, or that speaks
plaintext to a port with CURVE, fails before that: libzmq tells it to a monitor of the socket, without saying who it
was. Both sides see that their mechanisms differ; a peer that hangs up first is not seen here, and has to say so itself.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import itertools
import logging
import os
import socket
from array import array
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, Protocol

import zmq

from broker import z85
from broker.endpoints import Endpoint, bracketed, parse
from broker.errors import ConfigError
from broker.listening import listen, listening_at
from broker.obstacles import obstacle
from broker.oslo.reactor.loop import Reactor
from broker.oslo.reactor.monitor import SocketEvents
from broker.oslo.reactor.tuning import serve_curve
from broker.rates import Throttle
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


_connections = itertools.count(1)
_domains = itertools.count(1)
_ADDRESS: Final = "inproc://zeromq.zap.01"
_GRANT: Final = (b"200", b"OK")
_DENY: Final = (b"400", b"No access")
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)
_NOBLOCK: Final = int(zmq.NOBLOCK)
"""Plain numbers: pyzmq's are enums, whose ``&`` costs as much as a small send."""


class ZapPolicy(Protocol):
    """Decides for one domain.

    Attributes:
        shut: True once nobody is to get in any more: handshakes are left without an answer.
    """

    shut: bool

    def judge(self, address: str, key: str) -> str | None:
        """The user id (see ``tag``) of a connection that may enter, None for one that may not; ``key``: "" without
        CURVE.
        """


class Loop(Protocol):
    """What the handler needs of the loop it lives on: asyncio's will do."""

    def add_reader(self, fd: int, call: Callable[[], None], /) -> Any:
        """Call whenever ``fd`` is readable."""

    def remove_reader(self, fd: int, /) -> Any:
        """Forget ``fd``."""

    def call_soon(self, call: Callable[[], None], /) -> Any:
        """Call in the next turn."""


def tag(key: str) -> str:
    """The user id of one more connection."""
    return f"{next(_connections)} {key}"


def _key(request: list[bytes]) -> str:
    """The key that CURVE proved, Z85; "" with another mechanism."""
    return z85.encode(request[6]) if request[5] == b"CURVE" else ""


class Zap:
    """The one handler of a context, at the address libzmq looks for."""

    def __init__(self, sock: zmq.Socket[bytes], loop: Loop) -> None:
        self._sock = sock
        self._loop = loop
        self._gates: dict[bytes, ZapPolicy] = {}
        sock.set(zmq.LINGER, 0)
        sock.bind(_ADDRESS)
        self._fd = int(sock.get(zmq.FD))
        loop.add_reader(self._fd, self._answer)
        loop.call_soon(self._answer)

    def add(self, gate: ZapPolicy) -> bytes:
        """A new domain whose connections ``gate`` judges."""
        domain = b"headgate-%d" % next(_domains)
        self._gates[domain] = gate
        return domain

    def remove(self, domain: bytes) -> None:
        """Nobody gets into ``domain`` any more."""
        self._gates.pop(domain, None)

    def close(self) -> None:
        """Stop answering."""
        self._loop.remove_reader(self._fd)
        if not self._sock.closed:
            with contextlib.suppress(zmq.ZMQError):  # the context has ended
                self._sock.unbind(_ADDRESS)  # at once; closing would leave the address taken for a while
            self._sock.close(0)

    def _answer(self) -> None:
        sock = self._sock
        while not sock.closed and int(sock.get(_EVENTS)) & _POLLIN:
            asker, empty, *request = sock.recv_multipart(_NOBLOCK)
            answer = self.reply(request)
            if answer:
                sock.send_multipart([asker, empty, *answer], _NOBLOCK)

    def reply(self, request: list[bytes]) -> list[bytes]:
        """The answer to one request: version, id, status code, status text, user id, metadata. Empty: none."""
        version, number, domain, address = request[:4]
        gate = self._gates.get(domain)
        if gate is None or gate.shut:
            return []
        user_id = gate.judge(address.decode(), _key(request))
        code, text = _DENY if user_id is None else _GRANT
        return [version, number, code, text, (user_id or "").encode(), b""]


QUIET_S: Final = 60.0
"""Between two lines about the same key, or the same failure."""
_FAILED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_OTHER_KEY: Final = int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
_OTHER_MECHANISM: Final = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)


class Denying(Protocol):
    """A ``ZapPolicy`` that counts whom it refuses."""

    denied: int
    shut: bool

    def judge(self, address: str, key: str) -> str | None:
        """See ``ZapPolicy``."""


class LoggedPolicy:
    """A judge whose refusals are told; also watches ``sock`` for those who fail before they are judged.

    Args:
        reactor: whose thread; open.
        sock: set up, not yet bound.
        judge: who decides.
    """

    def __init__(self, reactor: Reactor, sock: zmq.Socket[bytes], judge: Denying) -> None:
        self._reactor = reactor
        self._judge = judge
        self._sock = sock
        self._curve = bool(sock.get(zmq.CURVE_SERVER))
        self._lines = Throttle(QUIET_S)
        self._events = SocketEvents(reactor, sock, _FAILED, self._event)

    @property
    def shut(self) -> bool:
        """See ``ZapPolicy``."""
        return self._judge.shut

    @shut.setter
    def shut(self, value: bool) -> None:
        self._judge.shut = value

    def judge(self, address: str, key: str) -> str | None:
        """See ``ZapPolicy``."""
        user_id = self._judge.judge(address, key)
        if user_id is None:
            whose = f"the CURVE key {key}" if key else "a peer without CURVE"
            what = (
                "a [[oslo.keys]] entry with a role, or a certificate that has one"
                if key
                else "oslo.curve_cert and a key there"
            )
            self._say(
                "judged",
                key,
                f"{whose} (from {address[:64]}): it is not listed here, or has no role",
                what,
            )
        return user_id

    def close(self) -> None:
        """Watch no more. Harmless twice."""
        self._events.close()

    def _event(self, _event: int, error: int) -> None:
        if error == _OTHER_KEY and self._curve:
            self._judge.denied += 1
            whose = "a peer that expects another CURVE key here than ours"
            what = "our public key as its directory_key or zmq_curve_directory_key, or the same curve_cert"
            self._say("key", "", whose, what)
        elif error == _OTHER_MECHANISM:
            self._judge.denied += 1
            whose = "a peer in plaintext" if self._curve else "a peer with CURVE, while this port has none"
            what = "curve_cert, or zmq_curve_directory_key, there" if self._curve else "oslo.curve_cert here"
            self._say("mechanism", "", whose, what)

    def _say(self, kind: str, key: str, whose: str, what: str) -> None:
        if not self._lines.admits((kind, key), self._reactor.now()):
            return
        at = "" if self._sock.closed else self._sock.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        text = "%s: turned away %s; to be let in it needs %s (denied: %d so far)"
        self._reactor.say(logging.WARNING, text, (at, whose, what, self._judge.denied))


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
    closed. Who is not let in is told to the log.

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
