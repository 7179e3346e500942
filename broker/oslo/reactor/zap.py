"""Who may connect: the ZAP handler (ZeroMQ RFC 27), asked by libzmq in the middle of each handshake.

Every listener has a ZAP domain of its own, so one handler serves them all; the domain never leaves the process.
The answer's user id, which libzmq then attaches to every message of the connection, is ``NUMBER KEY``: a number
that no other connection has, so that a message is never taken for one of an earlier connection with the same
identity, and the Z85 key that CURVE proved ("" without CURVE).

Who was not let in is told once a minute, with what an operator has to change, and counted as ``denied``
(``LoggedPolicy``). A peer that ZAP judges has a key. One that takes us for somebody with another key, or that speaks
plaintext to a port with CURVE, fails before that: libzmq tells it to a monitor of the socket, without saying who it
was. Both sides see that their mechanisms differ; a peer that hangs up first is not seen here, and has to say so itself.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

import zmq

from broker import z85
from broker.oslo.reactor.loop import Reactor
from broker.oslo.reactor.monitor import SocketEvents
from broker.rates import Throttle

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
    """A ``broker.oslo.reactor.zap.ZapPolicy`` that counts whom it refuses."""

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
