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
from typing import TYPE_CHECKING, Final

from broker.endpoints import Endpoint
from broker.errors import LinkError
from broker.journal.layout import CURVE, PLAIN, UNIX
from broker.nfp import opening
from broker.nfp.frames import HEADS_BYTES_MAX, Body, InvalidPacket, Packet, decode, encode
from broker.nfp.names import Command, Sender
from broker.nfp.principal import Principal
from broker.nfp.server.names import name_of
from broker.nfp.server.turn import LESSER, QueuedPeer
from broker.rates import Throttle
from broker.sockets import peer_credentials
from broker.transport.batching import Part
from broker.transport.dialing import Probing
from broker.transport.handshaking import Stranger, host_of
from broker.transport.link import Options
from broker.transport.zeromq.connection import Connection
from broker.transport.zeromq.listening import ConnectionListener, pair_of
from broker.transport.zeromq.mechanisms import Refused
from broker.transport.zeromq.pipe import Pipe, Turns

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker

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
FIRST_S: Final = 0.02
"""After a connection was let in: a worker that says something by itself does so by then."""
EVERYBODY: Final = frozenset({Sender.CLIENT, Sender.WORKER})


class Newcomer:
    """A connection that was let in and has not said yet what makes it a peer (``pipe.Owner``).

    Attributes:
        identity: as it said, or one that the router made. key: that it has proved, "" without CURVE.
        lockstep: its socket is a REQ.
        pipe: its connection; set at once.
        held: its first messages, while it is asked whether who has its name is still there.
    """

    def __init__(self, router: NfpRouter, identity: bytes, key: str, address: str, lockstep: bool) -> None:
        self.identity = identity
        self.key = key
        self.address = address
        self.lockstep = lockstep
        self.pipe: Pipe
        self.held: list[list[Part]] = []
        self._router = router

    def received(self, messages: list[list[Part]]) -> None:
        """See ``pipe.Owner``."""
        if self.held:  # it was paused, and lost: then all that it has said comes
            self.held += messages
        else:
            self._router.introduce(self, messages)

    def room(self) -> None:
        """See ``pipe.Owner``: nothing waits."""

    def ended(self, error: LinkError) -> None:
        """See ``pipe.Owner``."""
        self._router.left(self)


class RouterPeer(QueuedPeer[list[Body]]):
    """See ``Peer``; it exists from the first message of a connection to the connection's end.

    Attributes:
        pipe: its connection.
        lockstep: its socket is a REQ: one answer for each request, and nothing unasked.
        senders: who may speak on its socket: clients, workers, or both.
    """

    def __init__(self, router: NfpRouter, newcomer: Newcomer, name: str, principal: Principal) -> None:
        super().__init__(
            router.broker, name, newcomer.identity, principal, newcomer.address, router.transport
        )
        self.lockstep = newcomer.lockstep
        self.senders = router.senders
        self.pipe = newcomer.pipe
        self._router = router
        self._stuck = -1
        self._stuck_s = 0.0

    def __repr__(self) -> str:
        return f"<{self.name} at {self.address}>"

    # -- from the connection (``pipe.Owner``) ----------------------------------------------------

    def received(self, messages: list[list[Part]]) -> None:
        """See ``pipe.Owner``."""
        self._router.handle(self, messages)

    def room(self) -> None:
        """See ``pipe.Owner``."""
        self.flush()

    def ended(self, error: LinkError) -> None:
        """See ``pipe.Owner``."""
        log.debug("%s: %s", self, error)
        self.lost()
        self._router.gone(self)

    # -- sending ---------------------------------------------------------------------------------

    def send(self, packet: Packet, after: int = 0) -> bool:
        """See ``Peer.send``. A peer that has no room even for a result, and takes nothing, does not read: it is cut."""
        if not self.alive:
            return False
        try:
            frames = encode(packet)
        except ValueError as error:  # the peer has changed its dialect since it asked for this
            log.debug("%s: %s", self, error)
            self._broker.dropped += 1
            return False
        if self.pipe.lost is not None:
            return False
        return self._queue(packet, frames, sum(map(len, frames)), after, frames)

    def flush(self) -> None:
        """See ``QueuedPeer.flush``: write what the kernel takes."""
        super().flush()
        if self.alive:
            self.pipe.flush()

    def _offer(self, frames: list[Body]) -> bool:
        """Make one message if there is room for it; if not, it is tried again when there is."""
        if self.pipe.add(frames):
            self._router.sent += 1
            return True
        if self.pipe.lost is not None:
            self.lost()
        return False

    def lost(self) -> None:
        """Nothing is sent any more: the connection is gone."""
        self.alive = False
        if len(self._outbox):
            self.unsent = self._outbox.uuids()
        self._broker.dropped += self._outbox.clear()
        self._broker.turn.forget(self)

    def cut(self, why: str) -> None:
        """End the connection, and do not listen to what it has sent; what was written to it before follows."""
        if not self.deaf:
            self.deaf = True
            self.lost()
            log.warning("%s: %s is cut: %s", self._router.contact_address, self, why)
            self.pipe.close()
            self._broker.loop.call_soon(self._router.gone, self)

    def _makes_room(self, command: Command, size: int) -> bool:
        """What this turn has queued may not have been offered yet."""
        if self.pipe.free:
            self.flush()
            if self.alive and self._outbox.has_room(command, size):
                return True
        if self.alive and command not in LESSER:
            self._wants_room = True
            self._check_progress()
        return False

    def _check_progress(self) -> None:
        """Cut it when it had no room before and has taken nothing since, for as long as a silent peer is waited for."""
        taken, now = self.pipe.taken, self._broker.clock.now()
        if self._gated or taken != self._stuck:
            self._stuck, self._stuck_s = taken, now
        elif now - self._stuck_s >= self._router.stall_s:
            messages, size = self.waiting
            self.cut(f"does not read: {messages} messages, {size} bytes are waiting")


class NfpRouter(ConnectionListener):
    """The listener at one endpoint, and the connections that came by it.

    Args:
        broker: whose it is: its settings, keys, rules and turns. asked: the endpoint. senders: who may speak here.

    Attributes:
        received, sent: messages. failed: handshakes that failed. denied: connections whose key is nobody's.
        cut_dead: that gave no sign of life while another wanted their name.
        stall_s: a queue that is full and stands still for so long is of a peer that does not read.
        answer_s: within which a connection that is asked has to give a sign of life; a worker does so by itself.
        transport: how its peers are connected, as the journal numbers it.
    """

    share = 0.5  # after a restart those who come are those that work is done for
    handshakes_max = BACKLOG

    def __init__(self, broker: NfpBroker, asked: Endpoint, senders: frozenset[Sender] = EVERYBODY) -> None:
        settings, certificate = broker.settings, broker.keys.broker
        keys = pair_of(certificate) if certificate is not None else None
        super().__init__(asked, keys, Options(insecure=settings.insecure), BACKLOG)
        interval_s, hold_ms = -(-settings.keepalive_ms // 1000), settings.keepalive_ms * settings.multiplier
        self.probing = Probing(interval_s, interval_s, PROBES, hold_ms)
        self.broker = broker
        self.stall_s = hold_ms / 1000
        self.answer_s = settings.keepalive_ms / 1000 + LOOK_S
        self.received = self.sent = 0
        self.failed = self.denied = self.cut_dead = 0
        self.transport = CURVE if keys is not None else UNIX if asked.is_unix else PLAIN
        self.senders = senders
        self._body_bytes = settings.message_bytes_max
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
        if self.broker.ingress.known(key):
            return lambda: self._open(stranger, key)
        self.denied += 1
        self._turned_away(stranger.address, key, "the key is not listed")
        self._warn("%s: refused %s: CURVE key %r is not listed", stranger.address, key)
        return None

    def _open(self, stranger: Stranger[Connection], key: str) -> None:
        connection = stranger.handshake
        connection.limit(self._body_bytes + HEADS_BYTES_MAX, self._body_bytes)
        said = connection.mechanism.metadata or {}
        # who says no identity gets one as libzmq's ROUTER would make it, which is nobody's name
        identity = connection.identity or b"\0" + os.urandom(4)
        lockstep = said.get(b"socket-type") == b"REQ"
        newcomer = Newcomer(self, identity, key, stranger.address, lockstep)
        newcomer.pipe = Pipe(stranger.sock, connection, stranger.address, newcomer, self._turns)
        self._newcomers[newcomer] = None
        newcomer.pipe.resume()
        if name_of(identity) in self.broker.expected:
            self._loop.call_later(FIRST_S, self._call_back, newcomer)

    def _call_back(self, newcomer: Newcomer) -> None:
        """Have a worker of an earlier run of this broker register: DISCONNECT, if it has said nothing by itself.

        Deployed NorFab's worker comes back and knows nothing of another broker before its next KEEPALIVE; it registers
        anew at once when it is sent DISCONNECT (NFP, "Opening and Closing a Connection"). The message has no content,
        so it may be sent before it is known whether the connection may have that name.
        """
        worker = self.broker.expected.get(name_of(newcomer.identity))
        if worker is None or newcomer.held or newcomer not in self._newcomers:
            return
        service, dialect = worker.service or "-", worker.dialect
        packet = Packet(Sender.BROKER, Command.DISCONNECT, dialect=dialect, service=service)
        self.broker.called_back += newcomer.pipe.add(encode(packet))
        newcomer.pipe.flush()

    def _warn(self, text: str, *about: object) -> None:
        if self._lines.admits(text, self._loop.time()):
            log.warning(text, self.contact_address, *about)

    def _turned_away(self, address: str, key: str, why: str) -> None:
        if self.broker.recording is not None:
            self.broker.recording.turned_away(address, key, why)

    # -- names -----------------------------------------------------------------------------------

    def introduce(self, newcomer: Newcomer, messages: list[list[Part]]) -> None:
        """The first messages of a connection: may it have its name?"""
        identity, key, address = newcomer.identity, newcomer.key, newcomer.address
        principal = self.broker.ingress.authenticate(identity, key, address)
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
        turn, ingress = self.broker.turn, self.broker.ingress
        turn.soon()  # whatever happens here, the turn ends
        now = turn.clock.now()
        for frames in messages:
            if peer.deaf:
                return
            self.received += 1
            try:
                ingress.handle(peer, frames, now)
            except Exception:  # those behind it must not pay for it
                log.exception("%s: a message of %s could not be handled", self.contact_address, peer)
        turn.finish()

    # -- the ends --------------------------------------------------------------------------------

    def left(self, newcomer: Newcomer) -> None:
        """``newcomer`` is gone."""
        self._newcomers.pop(newcomer, None)

    def gone(self, peer: RouterPeer) -> None:
        """``peer`` is gone; everything that came from it was handled. Its name is free."""
        if self._peers.get(peer.identity) is not peer:
            return  # closed
        del self._peers[peer.identity]
        self.broker.ingress.gone(peer, self.broker.clock.now())
        self.broker.turn.soon()
        newcomer = self._waiting.pop(peer.identity, None)
        if newcomer is not None:
            self._loop.call_soon(self._take_over, newcomer)
