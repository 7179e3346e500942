"""One address of the broker: who connects, and the messages that come (NFP, "ROUTER Addressing").

A connection is an object from its handshake on, which proves its key; its name is the identity that it says there. It
has that name from its first message on, if it may have it, and until it ends.

Where somebody has the name already, that connection is asked by a ping. One whose process or machine is gone, or
frozen, does not answer: it is cut, and the new one is served in its place, as a peer needs that comes back. One that
answers keeps its name, whoever uses it by mistake, and the new one is told so. Deployed NorFab's broker gives a name to
whoever comes last, so that two who share one take it from each other without end.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from broker.endpoints import Endpoint
from broker.journal.layout import CURVE, PLAIN, UNIX
from broker.nfp import opening
from broker.nfp.frames import HEADS_BYTES_MAX, InvalidPacket, Packet, decode, encode
from broker.nfp.names import Command, Sender
from broker.nfp.server.connections import Newcomer, QueuedPeer, QueueLimits, RouterPeer, name_of
from broker.nfp.server.ingress import Ingress
from broker.nfp.server.recording import Recording
from broker.nfp.server.turn import Turn
from broker.rates import Throttle
from broker.sockets import peer_credentials
from broker.transport.batching import Part
from broker.transport.curve import CurveServer
from broker.transport.dialing import Probing
from broker.transport.handshaking import Stranger, host_of
from broker.transport.link import Options
from broker.transport.zeromq.connection import Connection
from broker.transport.zeromq.listening import ConnectionListener, pair_of
from broker.transport.zeromq.mechanisms import Refused
from broker.transport.zeromq.pipe import Pipe, Turns

log = logging.getLogger("headgate")
BACKLOG: Final = 4096
"""Connections that may wait to be accepted, as far as the system lets them: all workers come back at once after a
restart, and whom the kernel turns away tries again after seconds. So many may be in their handshakes, too."""
PROBES: Final = 3
"""Of TCP keep-alive that may stay without an answer."""
WARN_EVERY_S: Final = 10.0
"""Who was turned away tries again for ever; one line in so long says so."""
QUIET_S: Final = 60.0
"""A peer with another key tries again for ever, a scanner as often as it likes: one line a minute for each address."""
LOOK_S: Final = 0.25
"""A connection that is asked for a sign of life, and gives one, is looked at again after so long: a peer that closes
its socket and opens the next at once, as the text has workers do, may be here before its former connection ends."""
EVERYBODY: Final = frozenset({Sender.CLIENT, Sender.WORKER})


class Tuning(NamedTuple):
    """What a router is told.

    Attributes:
        curve: the broker's certificate, None in plaintext. message_bytes: cap of one frame, and of the body in one
            message. beat_ms: interval of KEEPALIVE, which TCP's is rounded from; hold_ms: TCP drops a connection on
            which nothing is acknowledged for so long. limits: of each peer's queue.
            insecure: plaintext may be open to other machines.
    """

    curve: CurveServer | None
    message_bytes: int
    beat_ms: int
    hold_ms: int
    limits: QueueLimits
    insecure: bool = False

    @property
    def probing(self) -> Probing:
        """TCP keep-alive, whose interval knows whole seconds only."""
        interval_s = -(-self.beat_ms // 1000)
        return Probing(interval_s, interval_s, PROBES, self.hold_ms)


class NfpRouter(ConnectionListener):
    """The listener at one endpoint, and the connections that came by it.

    Attributes:
        received, sent: messages. dropped: those that found no room or nobody. failed: handshakes that failed. denied:
            connections whose key is nobody's. cut_dead: that gave no sign of life while another wanted their name.
        stall_s: a queue that is full and stands still for so long is of a peer that does not read.
        answer_s: within which a connection that is asked has to give a sign of life; a worker does so by itself.
        transport: how its peers are connected, as the journal numbers it. recording: what is sent is recorded there.
    """

    share = 0.5  # after a restart those who come are those that work is done for
    handshakes_max = BACKLOG

    def __init__(
        self,
        asked: Endpoint,
        ingress: Ingress,
        turn: Turn,
        tuning: Tuning,
        senders: frozenset[Sender] = EVERYBODY,
        recording: Recording | None = None,
    ) -> None:
        keys = pair_of(tuning.curve.certificate) if tuning.curve is not None else None
        super().__init__(asked, keys, Options(insecure=tuning.insecure), BACKLOG)
        self.probing = tuning.probing
        self.turn = turn
        self.limits = tuning.limits
        self.stall_s = tuning.hold_ms / 1000
        self.answer_s = tuning.beat_ms / 1000 + LOOK_S
        self.now: Callable[[], float] = turn.clock.now
        self.received = self.sent = self.dropped = 0
        self.failed = self.denied = self.cut_dead = 0
        self.transport = CURVE if tuning.curve is not None else UNIX if asked.is_unix else PLAIN
        self.senders = senders
        self.recording = recording
        self._ingress = ingress
        self._tuning = tuning
        self._peers: dict[bytes, RouterPeer] = {}
        self._newcomers: dict[Newcomer, None] = {}
        self._turns = Turns(self._loop)
        self._waiting: dict[bytes, Newcomer] = {}
        """Who wants the name of a peer that is asked whether it is there."""
        self._failures = Throttle(QUIET_S)
        self._lines = Throttle(WARN_EVERY_S)

    def peers(self) -> Iterable[RouterPeer]:
        """Connections that have spoken."""
        return self._peers.values()

    def has(self, identity: bytes) -> bool:
        """Whether somebody who spoke has this identity."""
        return identity in self._peers

    def is_newcomer(self, newcomer: Newcomer) -> bool:
        """Whether ``newcomer`` still is one."""
        return newcomer in self._newcomers

    def has_room(self, peer: QueuedPeer[Any]) -> None:
        """See ``PeerOwner``."""
        self._loop.call_soon(self._ingress.has_room, peer)

    async def close(self) -> None:
        """Let nobody in any more, and end every connection; what was written to it follows. Harmless twice."""
        await self.stop()
        there: list[RouterPeer | Newcomer] = [*self._peers.values(), *self._newcomers]
        for each in there:
            each.pipe.close()
        self._peers.clear()
        self._newcomers.clear()
        self._waiting.clear()

    # -- handshakes (``HandshakeListener``) ------------------------------------------------------

    def address_of(self, sock: socket.socket, number: int) -> str:
        """The host, which failures are counted by; of an ipc peer ``localhost:UID:GID:PID``."""
        if sock.family == socket.AF_UNIX:
            pid, uid, gid = peer_credentials(sock)
            return f"localhost:{uid}:{gid}:{pid}"
        return host_of(sock)

    def tell_failure(self, stranger: Stranger[Connection], why: str) -> None:
        """See ``HandshakeListener``."""
        self.failed += 1
        if not isinstance(stranger.handshake.failure, Refused | None):
            why = f"{why}: one side without CURVE, or with another key of this broker?"
        where = (
            "localhost"
            if stranger.sock.family == socket.AF_UNIX
            else stranger.address or "an address that had left already"
        )
        if self._failures.admits(where, self._loop.time()):
            log.warning(
                "%s: a connection from %s failed in its handshake (%s)", self.contact_address, where, why
            )

    def let_in(self, stranger: Stranger[Connection], key: str) -> Callable[[], object] | None:
        """See ``ConnectionListener``: every key gets in that is somebody's."""
        if self._ingress.known(key):
            return lambda: self._open(stranger, key)
        self.denied += 1
        self._turned_away(stranger.address, key, "the key is not listed")
        self._warn("%s: refused %s: CURVE key %r is not listed", stranger.address, key)
        return None

    def _open(self, stranger: Stranger[Connection], key: str) -> None:
        connection = stranger.handshake
        connection.limit(self._tuning.message_bytes + HEADS_BYTES_MAX, self._tuning.message_bytes)
        said = connection.mechanism.metadata or {}
        # who says no identity gets one as libzmq's ROUTER would make it, which is nobody's name
        identity = connection.identity or b"\0" + os.urandom(4)
        lockstep = said.get(b"socket-type") == b"REQ"
        newcomer = Newcomer(self, identity, key, stranger.address, lockstep)
        newcomer.pipe = Pipe(stranger.sock, connection, stranger.address, newcomer, self._turns)
        self._newcomers[newcomer] = None
        newcomer.pipe.resume()
        self._ingress.arrived(name_of(identity), newcomer.send)

    def _warn(self, text: str, *about: object) -> None:
        if self._lines.admits(text, self._loop.time()):
            log.warning(text, self.contact_address, *about)

    def _turned_away(self, address: str, key: str, why: str) -> None:
        if self.recording is not None:
            self.recording.turned_away(address, key, why)

    # -- names -----------------------------------------------------------------------------------

    def introduce(self, newcomer: Newcomer, messages: list[list[Part]]) -> None:
        """The first messages of a connection: may it have its name?"""
        identity, key, address = newcomer.identity, newcomer.key, newcomer.address
        principal = self._ingress.authenticate(identity, key, address)
        if principal is None:
            self._refuse(newcomer, messages, "belongs to another key" if key else "is somebody else's")
            return
        holder = self._peers.get(identity)
        if holder is not None:
            newcomer.held = messages
            newcomer.pipe.pause()
            self._ask(holder, newcomer)
            return
        del self._newcomers[newcomer]
        peer = RouterPeer(self, newcomer, name_of(identity), principal)
        newcomer.pipe.owner = self._peers[identity] = peer
        peer.received(messages)

    def _ask(self, holder: RouterPeer, newcomer: Newcomer) -> None:
        """``newcomer`` wants the name of ``holder``: is that one still there? Who wanted it before wants it no more."""
        earlier = self._waiting.pop(holder.identity, None)
        self._waiting[holder.identity] = newcomer
        if earlier is not None:
            self._refuse(earlier, earlier.held, "is wanted by another connection, too")
            return
        holder.pipe.ping()
        until = self._loop.time() + self.answer_s
        self._loop.call_later(LOOK_S, self._look, holder, holder.pipe.life, until)

    def _look(self, holder: RouterPeer, life: tuple[int, int], until: float) -> None:
        if self._peers.get(holder.identity) is not holder or holder.identity not in self._waiting:
            return
        if holder.pipe.life != life:
            newcomer = self._waiting.pop(holder.identity)
            self._warn(
                "%s: refused %s as %r: somebody is connected by that name", newcomer.address, holder.name
            )
            self._refuse(newcomer, newcomer.held, "is in use")
        elif self._loop.time() >= until:
            self.cut_dead += 1
            holder.cut(f"it gave no sign of life within {self.answer_s:g} s, and another one has its name")
        else:
            self._loop.call_later(LOOK_S, self._look, holder, life, until)

    def _refuse(self, newcomer: Newcomer, messages: list[list[Part]], why: str) -> None:
        """End a connection; an OPEN is answered. Others send none, and come back at once if told."""
        name = name_of(newcomer.identity)
        self._turned_away(newcomer.address, newcomer.key, f"the name {name[:64]!r} {why}")
        self._newcomers.pop(newcomer, None)
        try:
            packet = decode(messages[0])
        except InvalidPacket:
            packet = None
        if packet is not None and packet.command is Command.OPEN:
            body = opening.write(opening.BrokerOpen("headgate", refused=f"the name {name} {why}"))
            answer = Packet(Sender.BROKER, Command.OPEN, dialect=packet.dialect, body=body)
            newcomer.pipe.add(encode(answer))
        newcomer.pipe.close()

    def _take_over(self, newcomer: Newcomer) -> None:
        if newcomer in self._newcomers:
            held, newcomer.held = newcomer.held, []
            newcomer.pipe.resume()
            self.introduce(newcomer, held)

    # -- messages --------------------------------------------------------------------------------

    def handle(self, peer: RouterPeer, messages: list[list[Part]]) -> None:
        """Act on what one read of a connection brought: a turn, at whose end what it led to leaves together."""
        self.turn.soon()  # whatever happens here, the turn ends
        now, ingress = self.now(), self._ingress
        for frames in messages:
            if peer.deaf:
                return
            self.received += 1
            try:
                ingress.handle(peer, frames, now)
            except Exception:  # those behind it must not pay for it
                log.exception("%s: a message of %s could not be handled", self.contact_address, peer)
        self.turn.finish()

    # -- the ends --------------------------------------------------------------------------------

    def left(self, newcomer: Newcomer) -> None:
        """``newcomer`` is gone."""
        self._newcomers.pop(newcomer, None)

    def cut(self, peer: RouterPeer, why: str) -> None:
        """End the connection of ``peer``; what was written to it before follows."""
        log.warning("%s: %s is cut: %s", self.contact_address, peer, why)
        peer.pipe.close()
        self._loop.call_soon(self.gone, peer)

    def gone(self, peer: RouterPeer) -> None:
        """``peer`` is gone; everything that came from it was handled. Its name is free."""
        if self._peers.get(peer.identity) is not peer:
            return  # closed
        del self._peers[peer.identity]
        self._ingress.gone(peer, self.now())
        self.turn.soon()
        newcomer = self._waiting.pop(peer.identity, None)
        if newcomer is not None:
            self._loop.call_soon(self._take_over, newcomer)
