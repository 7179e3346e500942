"""A listener of ZMTP on the loop: accepts, shakes hands, lets in.

Strangers are bounded: so many handshakes at once, each of so long, so many steps of handshakes in one turn of the loop,
and no more than a share of the loop's time for all of them together, so that whoever is in does not feel those who
are not.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from broker.errors import ConfigError
from broker.sockets import peer_credentials
from broker.transport import curve
from broker.transport.accepting import StreamListener
from broker.transport.link import Accept, Options
from broker.transport.zeromq.address import contact, listening_at, named, parse
from broker.transport.zeromq.gate import NO_CREDENTIALS, Gate, UidGidPid
from broker.transport.zeromq.limits import HANDSHAKE_MS
from broker.transport.zmtp import sockets
from broker.transport.zmtp.boxes import KeyPair
from broker.transport.zmtp.connection import Connection, State
from broker.transport.zmtp.link import ZmtpLink
from broker.transport.zmtp.mechanisms import CurveServer, Mechanism, Null
from broker.wire.dialects import dialect

log = logging.getLogger("headgate")

HANDSHAKES_MAX: Final = 256
"""Connections that have not finished their handshake; beyond it the one goes that has been silent for longest."""
STEPS: Final = 8
"""Steps of handshakes in one turn of the loop; one of CURVE takes 0.15 to 0.35 ms."""
SHARE: Final = 0.25
"""Of the loop's time for accepting and handshakes."""
DEBT_S: Final = 0.01
"""Nobody is accepted while strangers had so much more than their share."""
_READ_BYTES: Final = 4096


class Handshake:
    """One connection until it is a link."""

    __slots__ = ("_listener", "_timer", "address", "connection", "data", "sock")

    def __init__(
        self, listener: ZmtpListener, sock: socket.socket, mechanism: Mechanism, address: str
    ) -> None:
        self._listener = listener
        self.sock = sock
        self.address = address
        self.connection = Connection(mechanism)
        self.data = b""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HANDSHAKE_MS / 1000, listener.give_up, self, "it took too long")
        self.await_more()

    def await_more(self) -> None:
        """Look at what comes next."""
        asyncio.get_running_loop().add_reader(self.sock.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            self.data = self.sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._listener.give_up(self, str(error.strerror))
            return
        if not self.data:
            self._listener.give_up(self, "the peer hung up")
            return
        asyncio.get_running_loop().remove_reader(self.sock.fileno())
        self._listener.step_soon(self)

    def say(self) -> bool:
        """Send what the connection owes; False when the peer is gone, or does not read a few hundred bytes."""
        data = self.connection.take_owed()
        try:
            return not data or self.sock.send(data) == len(data)
        except OSError:
            return False

    def release(self) -> None:
        """Nobody waits for this connection any more; its socket is the caller's."""
        self._timer.cancel()
        asyncio.get_running_loop().remove_reader(self.sock.fileno())


class ZmtpListener(StreamListener):
    """One listening socket and the links that came by it."""

    def __init__(self, uri: str, accept: Accept, options: Options) -> None:
        dialect(options.dialect, options.strict_rfc3)  # says so now if there is none
        endpoint = listening_at(uri, options.extra.get("curve"), options.insecure)
        self._keys = _keys_of(options)
        sock, place = sockets.listen(endpoint)
        path = place.host if place.scheme == "ipc" and not place.host.startswith("@") else ""
        super().__init__(sock, place.text, options, path)
        self.contact_address = contact(place, parse(uri).host)
        self._accept = accept
        self._gate = Gate(uri, options)
        self._count = 0
        self._handshakes: dict[Handshake, None] = {}  # the one that was silent for longest first
        self._ready: deque[Handshake] = deque()
        self._turn_due = False
        self._not_before = 0.0

    def renew(self, extra: Mapping[str, Any]) -> ZmtpListener:
        """See ``Listener.renew``: keys are a connection's, so those that come from now on have the new ones."""
        if self._sock.fileno() < 0:
            raise ConfigError(f"{self.address}: nobody listens there any more")
        options = replace(self._options, extra={**self._options.extra, **extra})
        self._keys, self._options = _keys_of(options), options
        return self

    async def stop(self) -> None:
        """See ``Listener.stop``; handshakes end, and whoever was in one dials again."""
        await super().stop()
        for each in list(self._handshakes):
            self.give_up(each, "")

    # -- handshakes ----------------------------------------------------------------------------

    def greet(self, sock: socket.socket) -> None:
        """See ``StreamListener``."""
        begin = time.perf_counter()
        self._begin(sock)
        self._spent(time.perf_counter() - begin)
        debt_s = self._not_before - self._loop.time()
        if debt_s > DEBT_S:
            self._rest(debt_s)

    def _begin(self, sock: socket.socket) -> None:
        sockets.tune(sock)
        self._count += 1
        properties = {b"Socket-Type": b"ROUTER"}
        mechanism: Mechanism = (
            Null(properties, as_server=True) if self._keys is None else CurveServer(properties, self._keys)
        )
        handshake = Handshake(self, sock, mechanism, self._address_of(sock))
        self._handshakes[handshake] = None
        if not handshake.say():
            self.give_up(handshake, "the peer hung up")
            return
        scarce = self._options.reserve.has(sock.fileno())
        most = min(HANDSHAKES_MAX, self._options.reserve.strangers) if scarce else HANDSHAKES_MAX
        if len(self._handshakes) > most:
            silent = next((each for each in self._handshakes if not each.data), handshake)
            self.give_up(silent, "too many have said nothing yet")

    def _address_of(self, sock: socket.socket) -> str:
        if sock.family == socket.AF_UNIX:
            return f"{self._gate.uri}#{self._count}"
        try:
            host = str(sock.getpeername()[0])
        except OSError:  # gone already
            host = "?"
        return named(host, self._count)

    def step_soon(self, handshake: Handshake) -> None:
        """Something came in ``handshake``; it has its turn."""
        self._handshakes[handshake] = self._handshakes.pop(handshake)  # it is not silent
        self._ready.append(handshake)
        self._plan_turn()

    def _plan_turn(self) -> None:
        if self._ready and not self._turn_due:
            self._turn_due = True
            self._loop.call_at(self._not_before, self._turn)

    def _spent(self, seconds: float) -> None:
        """So long was spent on strangers: what ``SHARE`` leaves to the others has to pass before the next of them."""
        self._not_before = max(self._not_before, self._loop.time()) + seconds * (1 - SHARE) / SHARE

    def _turn(self) -> None:
        self._turn_due = False
        begin = time.perf_counter()
        try:
            for _ in range(min(STEPS, len(self._ready))):
                handshake = self._ready.popleft()
                if handshake in self._handshakes:
                    self._step(handshake)
        finally:
            self._spent(time.perf_counter() - begin)
            self._plan_turn()

    def _step(self, handshake: Handshake) -> None:
        connection = handshake.connection
        connection.feed(handshake.data)
        handshake.data = b""
        if connection.state is State.ASKED and connection.failure is None:
            self._judge(handshake)
            return
        if not handshake.say():
            self.give_up(handshake, "the peer hung up")
        elif connection.failure is not None:
            self.give_up(handshake, str(connection.failure))
        else:
            handshake.await_more()

    def _judge(self, handshake: Handshake) -> None:
        connection, sock = handshake.connection, handshake.sock
        key = curve.text_of(connection.mechanism.key) if connection.mechanism.key else ""
        peer = self._gate.judge(handshake.address, key, _origin(sock), handshake.address)
        if peer is not None and self._kept_from(peer, sock.fileno()):
            peer = None
        if peer is None:
            connection.refuse()
            handshake.say()
            self.give_up(handshake, "")
            return
        connection.grant()
        if not handshake.say():
            self.give_up(handshake, "the peer hung up")
            return
        self._leave(handshake)
        # another connection may have the same identity: it is a name here, and no address as in a ROUTER
        self._accept(ZmtpLink(sock, peer, self._options, connection, connection.identity))

    def give_up(self, handshake: Handshake, why: str) -> None:
        """End a connection that is no link yet; ``why`` is for the log, "" where that has been told."""
        if handshake not in self._handshakes:
            return
        self._leave(handshake)
        handshake.sock.close()
        if why:
            log.warning("%s: %s failed in its handshake: %s", self.address, handshake.address, why)

    def _leave(self, handshake: Handshake) -> None:
        del self._handshakes[handshake]
        handshake.release()


def _origin(sock: socket.socket) -> UidGidPid:
    if sock.family != socket.AF_UNIX:
        return NO_CREDENTIALS
    pid, uid, gid = peer_credentials(sock)
    return uid, gid, pid


def _keys_of(options: Options) -> KeyPair | None:
    """Our own keys; None where there is no CURVE.

    Raises:
        ConfigError: as of ``curve.server_of``.
    """
    served = curve.server_of(options.extra.get("curve"))
    return None if served is None else pair_of(served.certificate)


def pair_of(certificate: curve.Certificate) -> KeyPair:
    """The keys of ``certificate``, which has both, as bytes."""
    return KeyPair(curve.raw_key(certificate.public_key), curve.raw_key(certificate.secret_key or ""))
