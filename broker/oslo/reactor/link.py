"""A socket that connects to one place: a file of this node, or a TCP port by number or name, with CURVE or without.

libzmq connects again by itself, and says so to a monitor of the socket only. Three things it does not do. It resolves
names in the one thread that moves all bytes, so it is only ever given numbers (``naming`` looks names up). A peer that
refuses our CURVE key is given up for good and nobody is told: the operator has to know, and keys are listed while
processes run. And a peer may be away since its name has another address now.
"""

# compiled: mypyc

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Final

import zmq

from broker.backoff import Backoff
from broker.endpoints import Endpoint, numeric, parse
from broker.oslo.reactor.loop import Reactor
from broker.oslo.reactor.naming import Addresses, names_of
from broker.oslo.reactor.socket import OUTBOX_BYTES, OUTBOX_MSGS, Receive, Socket, SocketEvents
from broker.oslo.reactor.tuning import RECEIVE_MSGS, Tuning, tune_local, tune_tcp

USABLE_LOOK_S: Final = 0.5
"""Between two looks for a folder that is not there, or not to be used."""
AWAY_FIRST_S: Final = 15.0
"""A peer that is away for so long has its name looked up again; longer than libzmq holds on to a dead connection with
the default keep-alive, so that nothing is lost with it."""
AWAY_LAST_S: Final = 240.0
# read where it is used, not folded by the compiler: tests change it
REFUSED_S: float = 2.0
"""A peer that refused our key is asked again after so long."""
_REFUSED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_SUCCEEDED: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_DISCONNECTED: Final = int(zmq.EVENT_DISCONNECTED)


class Link(Socket):
    """See the module. Whoever wants to know when a connection is there or has ended overrides ``on_up``, ``on_lost``.

    Args:
        reactor: whose; opened.
        kind: type of the socket, such as ``zmq.DEALER``.
        endpoint: ``tcp://HOST:PORT`` or ``ipc://PATH``.
        receive, outbox_msgs, outbox_bytes: see ``Socket``.
        tuning: of TCP; a file takes ``max_bytes`` of it.
        receive_msgs: RCVHWM of a file.
        watched: ``on_up`` and ``on_lost`` are called; it costs two descriptors, which CURVE takes anyway.
        usable: whether the file may be connected to now; asked again until it may. None: at any time.

    Attributes:
        unknown_key: our CURVE key, while the peer refuses it; "" it does not, as far as we know.

    Raises:
        ConfigError: another form of ``endpoint``.
        zmq.ZMQError: libzmq does not take it.
    """

    __slots__ = (
        "_backoff", "_due_s", "_key", "_monitor", "_moved", "_named", "_try_another", "_usable", "_way",
        "_where", "endpoint", "unknown_key",
    )  # fmt: skip

    def __init__(
        self,
        reactor: Reactor,
        kind: int,
        endpoint: str,
        receive: Receive | None = None,
        *,
        tuning: Tuning | None = None,
        receive_msgs: int = RECEIVE_MSGS,
        watched: bool = False,
        usable: Callable[[], bool] | None = None,
        outbox_msgs: int = OUTBOX_MSGS,
        outbox_bytes: int = OUTBOX_BYTES,
    ) -> None:
        if reactor.context is None:
            raise RuntimeError("a link is made before its reactor was opened")
        if tuning is None:
            tuning = Tuning()
        self.endpoint = endpoint
        self.unknown_key = ""
        self._where = parse(endpoint, "tcp", "ipc")
        self._way: Endpoint | None = None
        self._named = self._where.scheme == "tcp" and numeric(self._where.host) is None
        self._key = ""
        self._usable = usable
        self._backoff = Backoff(AWAY_FIRST_S, AWAY_LAST_S, spread=False)
        self._due_s = reactor.now() + self._backoff.after()
        self._moved = 0
        self._try_another = False
        self._monitor: SocketEvents | None = None
        sock = reactor.context.socket(kind)
        try:
            if self._where.scheme == "tcp":
                tune_tcp(sock, tuning)
                self._key = "" if tuning.curve is None else tuning.curve.certificate.public_key
            else:
                tune_local(sock, tuning.max_bytes, receive_msgs=receive_msgs)
            if kind == zmq.XPUB:
                # it must forget the subscriptions of its peer with the connection
                sock.set(zmq.IMMEDIATE, 1)
                sock.set(zmq.XPUB_NODROP, 1)
            super().__init__(reactor, sock, receive, outbox_msgs=outbox_msgs, outbox_bytes=outbox_bytes)
        except BaseException:
            sock.close(0)
            raise
        try:
            if watched or self._key:
                self._monitor = SocketEvents(
                    reactor, sock, _REFUSED | _SUCCEEDED | _DISCONNECTED, self._on_event
                )
            self._open()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------ for who made it

    @property
    def at(self) -> str:
        """Where it is connected to, in numbers, as libzmq has it; "" while the name is looked up."""
        return "" if self._way is None else self._way.text

    @property
    def movable(self) -> bool:
        """``check_peer`` has something to do: its peer may get another address, or forget our key."""
        return self._named or bool(self._key)

    def on_up(self) -> None:
        """There is a connection; called for each one."""

    def on_lost(self) -> None:
        """A connection has ended; called for each one."""

    def check_peer(self, away: bool) -> None:
        """To be called from time to time; ``away``: the peer is. Then its name is looked up again, more and more
        rarely; when it has other addresses, or this one led nowhere since the last look, another one is tried. With
        CURVE the connection is made anew: a peer that refused our key in the meantime may have learnt it.
        """
        if not self.movable or self.closed:
            return
        moved = self.sent + self.received
        now = self._reactor.now()
        if not away:
            self._backoff.reset()
        elif now < self._due_s:
            return
        else:
            self._try_another = moved == self._moved
            if self._key:
                self.reconnect()
            if self._named:
                names_of(self._reactor).find(self._where.host, self)
        self._moved = moved
        self._due_s = now + self._backoff.after()

    def reconnect(self) -> None:
        """Make the same connection anew; nothing where none was made: that is still being tried."""
        way = self._way
        if self.closed or way is None:
            return
        self._reactor.check_after_turn(self)
        with contextlib.suppress(zmq.ZMQError):  # libzmq has given it up itself
            self.sock.disconnect(way.text)
        if self._usable is None:
            self._connect(way)
        else:  # it may be another folder by now
            self._way = None
            self._open()

    def close(self, linger_ms: int = 0) -> None:
        """See ``Socket.close``."""
        if self._monitor is not None:
            self._monitor.close()
        super().close(linger_ms)

    # ------------------------------------------------------------ connecting

    def _open(self) -> None:
        if self.closed:
            return
        if self._usable is not None and not self._usable():
            self._reactor.call_later(USABLE_LOOK_S, self._open)
        elif self._named:
            names_of(self._reactor).find(self._where.host, self)
        else:
            self._connect(self._where)

    def found(self, addresses: Addresses) -> None:
        """The name has these addresses."""
        if self.closed:
            return
        ways = [self._where._replace(host=address) for address in addresses]
        texts = [way.text for way in ways]
        another, self._try_another = self._try_another, False
        if self.at in texts and not another:
            return
        way = ways[(texts.index(self.at) + 1) % len(ways)] if self.at in texts else ways[0]
        if way.text == self.at:
            return
        self._reactor.check_after_turn(self)
        try:
            if self.at:
                self.sock.disconnect(self.at)
            self._connect(way)
        except zmq.ZMQError as error:
            text = "%s: cannot connect to %s: %s"
            self._reactor.say(logging.ERROR, text, (self.endpoint, way.text, error))

    def _connect(self, way: Endpoint) -> None:
        if way.scheme == "tcp":
            self.sock.set(zmq.IPV6, int(":" in way.host))
        self._reactor.check_after_turn(self)
        self.sock.connect(way.text)
        self._way = way

    def _on_event(self, event: int, _value: int) -> None:
        if self.closed:
            return
        if event == _REFUSED:
            self._on_key_refused()
        elif event == _DISCONNECTED:
            self.on_lost()
        else:
            self.unknown_key = ""
            self.on_up()

    def _on_key_refused(self) -> None:
        """Our key is not known there: said once, and tried again until it is."""
        if not self.unknown_key:
            text = (
                "%s: the node there does not let our CURVE key %s in; list it in [[oslo.keys]] of its proxy, or use a"
                " certificate that is listed (zmq_curve_cert of a service, oslo.curve_cert of a proxy)"
            )
            self._reactor.say(logging.WARNING, text, (self.endpoint, self._key))
        self.unknown_key = self._key
        self._reactor.call_later(REFUSED_S, self.reconnect)
