"""Sockets that others connect to: files with the right modes, ports, and who may enter.

New CURVE keys for a listener take several sockets at one port, after each other (``TcpPort``): libzmq copies the
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
(``Gate``). A peer that ZAP judges has a key. One that takes us for somebody with another key, or that speaks
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
from typing import Final, NamedTuple, Protocol

import zmq

from broker import z85
from broker.endpoints import Endpoint, bracketed, parse
from broker.errors import ConfigError
from broker.listening import listen, listening_at
from broker.obstacles import obstacle
from broker.oslo.node import SEND_MSGS, NodeConfig
from broker.oslo.reactor.loop import Reactor
from broker.oslo.reactor.socket import Socket, SocketEvents
from broker.oslo.reactor.tuning import KeepAlive, Tuning, serve_curve, tune_local, tune_tcp
from broker.rates import Throttle
from broker.transport.curve import Certificate, CurveServer, load

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
    certificate has the same socket listen at the same port once more, and the newest gets every new connection; those
    that exist go on until their peers have gone. Each certificate costs a descriptor until the socket is closed.

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
        made, self.endpoint = listen(where, BACKLOG)
        sock.set(zmq.IPV6, int(":" in self.endpoint.host))
        self._listening = [made.detach()]
        """Descriptors that libzmq has, oldest first; none is closed before the others."""
        try:
            _hand_over(self._listening[0], sock, self.endpoint)
        except zmq.ZMQError as error:
            raise obstacle(f"cannot listen at {where.text}: {error.strerror}", error) from error

    def renew(self, certificate: Certificate) -> None:
        """Show ``certificate`` to whoever connects from now on; its socket of the reactor has to be touched afterwards.

        Raises:
            ConfigError: the port cannot be listened at a second time, or the kernel sends nothing there.
        """
        serve_curve(self._sock, CurveServer(certificate))
        try:
            with _same(self._listening[-1]) as former:
                former.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                newest = _beside(former)
            _hand_over(newest, self._sock, self.endpoint)
            instruction = array("B", _INSTRUCTION.pack(_RETURN_K, 0, 0, len(self._listening)))
            program = _PROGRAM.pack(1, instruction.buffer_info()[0])
            with _same(newest) as made:
                made.setsockopt(socket.SOL_SOCKET, _ATTACH_REUSEPORT_CBPF, program)
        except (OSError, zmq.ZMQError) as error:
            raise ConfigError(
                f"{self.endpoint.text}: cannot listen there a second time: {error.strerror}", error.errno
            ) from error
        self._listening.append(newest)


_ATTACH_REUSEPORT_CBPF: Final = 51
"""SO_ATTACH_REUSEPORT_CBPF of asm-generic/socket.h; Python does not name it."""
_INSTRUCTION: Final = Struct("=HBBI")
"""``struct sock_filter``: code, jt, jf, k."""
_RETURN_K: Final = 0x06
_PROGRAM: Final = Struct("@HP")
"""``struct sock_fprog``: how many instructions, and where."""


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
        made.listen(BACKLOG)
        return made.detach()


# ---------------------------------------------------------------- who may connect

_domains = itertools.count(1)
_ADDRESS: Final = "inproc://zeromq.zap.01"
_GRANT: Final = (b"200", b"OK")
_DENY: Final = (b"400", b"No access")
QUIET_S: Final = 60.0
"""Between two lines about the same key, or the same failure."""
_FAILED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_OTHER_KEY: Final = int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
_OTHER_MECHANISM: Final = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)


class ZapPolicy(Protocol):
    """Decides who may connect to one socket, and counts whom it refuses."""

    denied: int

    def judge(self, address: str, key: str) -> str | None:
        """The user id (see the module) of a connection that may enter, None for one that may not; ``key``: "" without
        CURVE.
        """


class ZapHandler:
    """The one handler of a context, at the address libzmq looks for, while there are gates.

    Attributes:
        gates: by their domains.
    """

    def __init__(self, reactor: Reactor) -> None:
        assert reactor.context is not None
        self.gates: dict[bytes, Gate] = {}
        self._sock: zmq.Socket[bytes] = reactor.context.socket(zmq.ROUTER)
        self._sock.set(zmq.LINGER, 0)
        self._sock.bind(_ADDRESS)
        self._socket = Socket(reactor, self._sock, self._on_request)

    def _on_request(self, frames: list[bytes], _origin: str) -> None:
        """``[asker][][version][id][domain][address][identity][mechanism][key]``: who asks is libzmq."""
        asker, empty, version, number, domain, address, _identity, mechanism, *credentials = frames
        gate = self.gates.get(domain)
        if gate is None:
            return
        user_id = gate.judge(address.decode(), z85.encode(credentials[0]) if mechanism == b"CURVE" else "")
        verdict = _DENY if user_id is None else _GRANT
        self._socket.send((asker, empty, version, number, *verdict, (user_id or "").encode(), b""))

    def close(self) -> None:
        """Stop answering."""
        if not self._sock.closed:
            with contextlib.suppress(zmq.ZMQError):  # the context has ended
                self._sock.unbind(_ADDRESS)  # at once; closing would leave the address taken for a while
        self._socket.close()


_handlers: dict[Reactor, ZapHandler] = {}


class Gate:
    """Who connects to one socket: judged at each handshake, told when refused.

    Messages then have the judge's answer as their property ``User-Id``, in plaintext, too. It also watches the socket
    for those who fail before they are judged.

    Args:
        reactor: whose thread; open.
        sock: set up, not yet bound.
        policy: who decides.
    """

    def __init__(self, reactor: Reactor, sock: zmq.Socket[bytes], policy: ZapPolicy) -> None:
        if reactor.context is None:
            raise RuntimeError("a socket is guarded before its reactor was opened")
        self._reactor = reactor
        self._policy = policy
        self._sock = sock
        self._curve = bool(sock.get(zmq.CURVE_SERVER))
        self._lines = Throttle(QUIET_S)
        self._events = SocketEvents(reactor, sock, _FAILED, self._on_failure)
        self._domain = b"headgate-%d" % next(_domains)
        handler = _handlers.get(reactor)
        if handler is None:
            handler = _handlers[reactor] = ZapHandler(reactor)
        handler.gates[self._domain] = self
        sock.set(zmq.ZAP_DOMAIN, self._domain)

    def judge(self, address: str, key: str) -> str | None:
        """See ``ZapPolicy``."""
        user_id = self._policy.judge(address, key)
        if user_id is None:
            whose = f"the CURVE key {key}" if key else "a peer without CURVE"
            what = (
                "a [[oslo.keys]] entry with a role, or a certificate that has one"
                if key
                else "oslo.curve_cert and a key there"
            )
            text = f"{whose} (from {address[:64]}): it is not listed here, or has no role"
            self._say("judged", key, text, what)
        return user_id

    def close(self) -> None:
        """The socket is closed. Harmless twice."""
        self._events.close()
        handler = _handlers.get(self._reactor)
        if handler is None:
            return
        handler.gates.pop(self._domain, None)
        if not handler.gates:
            del _handlers[self._reactor]
            handler.close()

    def _on_failure(self, _event: int, error: int) -> None:
        if error == _OTHER_KEY and self._curve:
            self._policy.denied += 1
            whose = "a peer that expects another CURVE key here than ours"
            what = "our public key as its directory_key or zmq_curve_directory_key, or the same curve_cert"
            self._say("key", "", whose, what)
        elif error == _OTHER_MECHANISM:
            self._policy.denied += 1
            whose = "a peer in plaintext" if self._curve else "a peer with CURVE, while this port has none"
            what = "curve_cert, or zmq_curve_directory_key, there" if self._curve else "oslo.curve_cert here"
            self._say("mechanism", "", whose, what)

    def _say(self, kind: str, key: str, whose: str, what: str) -> None:
        if not self._lines.admits((kind, key), self._reactor.now()):
            return
        at = "" if self._sock.closed else self._sock.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        text = "%s: turned away %s; to be let in it needs %s (denied: %d so far)"
        self._reactor.say(logging.WARNING, text, (at, whose, what, self._policy.denied))


def guard(reactor: Reactor, sock: zmq.Socket[bytes], policy: ZapPolicy) -> Callable[[], None]:
    """Let ``policy`` decide who connects to ``sock``, see ``Gate``; call the result when it is closed."""
    return Gate(reactor, sock, policy).close


class Door(NamedTuple):
    """One socket that others connect to.

    Attributes:
        endpoint: where it is bound.
        origin: the property of its messages that says whose they are: ``User-Id`` (see ``Gate``) or ``Peer-Address``.
    """

    sock: zmq.Socket[bytes]
    endpoint: str
    origin: str


class NodePolicy(ZapPolicy, Protocol):
    """Decides for the port of a node."""

    def let_in(self, key: str) -> None:
        """Our own key, "" without CURVE: whoever has it is one of our nodes."""


class NodeSockets:
    """Where a room of a node is reached, bound when it is made: a TCP port with its gate, and a file in its folder.

    Args:
        reactor: whose thread; open.
        config: of the node: host, folder, certificate.
        kind: of both sockets, such as ``zmq.ROUTER``.
        port: 0 any free one.
        file: its name in the folder.
        policy: who may connect to the port.
        max_bytes: largest frame.
        send_msgs: SNDHWM.

    Attributes:
        tcp: None without ``config.host``. local: the file's.
        port: the number that is bound; 0 without TCP.
        key: Z85 public key that the port shows; "" plaintext.

    Raises:
        ConfigError: a port or file is in use, or the port would be open to other machines in plaintext.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: NodeConfig,
        kind: int,
        port: int,
        file: str,
        policy: NodePolicy,
        max_bytes: int,
        send_msgs: int = SEND_MSGS,
    ) -> None:
        if reactor.context is None:
            raise RuntimeError("a node's sockets are opened before their reactor was")
        self.tcp: Door | None = None
        self.port = 0
        self.key = ""
        self._policy = policy
        self._bound: TcpPort | None = None
        with contextlib.ExitStack() as undo:
            if config.host:
                certificate = load(config.curve_cert) if config.curve_cert else None
                self.key = "" if certificate is None else certificate.public_key
                where = resolved(
                    config.host, port, protected=certificate is not None, insecure=config.insecure
                )
                sock = reactor.context.socket(kind)
                undo.callback(sock.close, 0)
                served = None if certificate is None else CurveServer(certificate)
                tune_tcp(sock, Tuning(KeepAlive(*config.keepalive), max_bytes, served), send_msgs=send_msgs)
                policy.let_in(self.key)
                undo.callback(guard(reactor, sock, policy))
                self._bound = TcpPort(sock, where)
                self.port = self._bound.endpoint.port
                self.tcp = Door(sock, self._bound.endpoint.text, "User-Id")
            sock = reactor.context.socket(kind)
            undo.callback(sock.close, 0)
            tune_local(sock, max_bytes, send_msgs=send_msgs)
            path = bind_local(sock, config.path(file), config.ipc_group)
            undo.callback(remove_socket, path)
            self.local = Door(sock, f"ipc://{path}", "Peer-Address")
            self._undo = undo.pop_all()

    def renew(self, certificate: Certificate | None) -> None:
        """Show ``certificate`` at the port to whoever connects from now on; its socket of the reactor has to be touched
        afterwards. Connections stay.

        Raises:
            ConfigError: the port cannot be listened at with the new key; the former one is shown.
        """
        if certificate is not None and self._bound is not None:
            self._policy.let_in(certificate.public_key)
            if certificate.public_key != self.key:
                self._bound.renew(certificate)
                self.key = certificate.public_key

    def close(self) -> None:
        """Close what is not closed yet, and delete the file. Harmless twice."""
        self._undo.close()
