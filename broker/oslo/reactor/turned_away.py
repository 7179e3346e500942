"""Who was not let in: told once a minute, with what an operator has to change, and counted as ``denied``.

A peer that ZAP judges has a key. One that takes us for somebody with another key, or that speaks plaintext to a port
with CURVE, fails before that: libzmq tells it to a monitor of the socket, without saying who it was. Both sides see
that their mechanisms differ; a peer that hangs up first is not seen here, and has to say so itself.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

import zmq

from broker.oslo.reactor.loop import Reactor
from broker.oslo.reactor.socket_events import SocketEvents
from broker.rates import Throttle

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
