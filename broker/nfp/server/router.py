"""One ROUTER socket of the broker: messages in, and the connections they come from (NFP, "ROUTER Addressing").

A connection is known by the user id that the authenticator gave it, so that a message is never taken for one of an
earlier connection with the same identity; it becomes a ``RouterPeer`` with its first message and ends when the monitor
says so, once everything that came before is handled. A connection is cut by shutting its descriptor down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import zmq

from broker.journal.layout import CURVE, PLAIN, UNIX
from broker.nfp import opening
from broker.nfp.frames import Body, InvalidPacket, Packet, decode, encode
from broker.nfp.names import Command, Sender
from broker.nfp.server.authenticator import Authenticator
from broker.nfp.server.connections import Connections
from broker.nfp.server.flusher import Flusher
from broker.nfp.server.handshake_failures import HandshakeFailures
from broker.nfp.server.ingress import Ingress
from broker.nfp.server.outbox import QueueLimits
from broker.nfp.server.peers import RouterPeer, name_of
from broker.nfp.server.recording import Recording
from broker.transport.curve import CurveServer
from broker.transport.zeromq.address import Endpoint, contact, parse, remove_socket
from broker.transport.zeromq.binding import bind
from broker.transport.zeromq.connection import inode, shut_down
from broker.transport.zeromq.drain import Pump
from broker.transport.zeromq.hub import Hub
from broker.transport.zeromq.monitor import FAILED, Monitor
from broker.transport.zeromq.tuning import LINGER_MS, MORE_NOBLOCK, NOBLOCK, probe, serve_curve, tune

log = logging.getLogger("headgate")
_EVENTS: Final = int(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED) | FAILED
_PATIENCE_TURNS: Final = 64
"""A lost peer ends when the socket is drained, or after so many turns if others keep it full."""
_REMEMBERED: Final = 4096
"""Ended connections whose late messages are recognised and dropped."""
BACKLOG: Final = 4096
"""Connections that may wait to be accepted, as far as the system lets them: all workers come back at once after a
restart, and whom the kernel turns away tries again after seconds."""
BODY_BYTES: Final = 64 << 10
"""From this size on a frame is passed on as libzmq received it; below, counting references costs more than a copy."""
FRAMES_MAX: Final = 10
"""Frames of one message that are kept: two more than the longest message has, so that it is seen to be too long."""
AT_ONCE: Final = 64
"""Messages of one turn that leave while it lasts, on the news of connections that it began with; what comes then waits
for its end, when there is newer news. A millisecond or two, in which nobody gets through a handshake either: the
loop that authenticates is busy with this turn."""
TOLD_S: Final = 0.1
"""Whose name is not its own has so long to read that; then its connection is cut."""
PROBES: Final = 3
"""Of TCP keep-alive that may stay without an answer, where TCP_MAXRT is not counted instead, as Linux does."""
SILENT_PROBES: Final = 2.5
"""Intervals of TCP keep-alive after which a connection on which nothing was acknowledged is taken for dead when
another of its key waits."""


EVERYBODY: Final = frozenset({Sender.CLIENT, Sender.WORKER})


class Tuning(NamedTuple):
    """What a router is told.

    Attributes:
        curve: the broker's certificate, None in plaintext. message_bytes: cap of one frame. beat_ms: interval of
            KEEPALIVE, which TCP's is rounded from; hold_ms: TCP drops a connection on which nothing is acknowledged for
            so long. limits: of each peer's queue.
    """

    curve: CurveServer | None
    message_bytes: int
    beat_ms: int
    hold_ms: int
    limits: QueueLimits

    @property
    def probe_s(self) -> int:
        """Interval of TCP keep-alive, which knows whole seconds only."""
        return -(-self.beat_ms // 1000)


class NfpRouter:
    """The socket at one endpoint.

    Attributes:
        endpoint: where it listens, with the port it was given. contact: what peers dial.
        at_once: how many messages may leave at present without waiting for the end of the turn.
        received, sent: messages. dropped: those that found no room or nobody. failed: handshakes that failed.
        stall_s: a queue that is full and stands still for so long is of a peer that does not read.
        transport: how its peers are connected, as the journal numbers it. recording: what is sent is recorded there.
    """

    def __init__(
        self,
        hub: Hub,
        endpoint: Endpoint,
        asked: str,
        ingress: Ingress,
        flusher: Flusher,
        tuning: Tuning,
        senders: frozenset[Sender] = EVERYBODY,
        recording: Recording | None = None,
    ) -> None:
        self.flusher = flusher
        self.limits = tuning.limits
        self.stall_s = tuning.hold_ms / 1000
        self.now: Callable[[], float] = flusher.clock.now
        self.received = 0
        self.sent = 0
        self.at_once = 0
        self.dropped = 0
        self.failed = 0
        self.transport = CURVE if tuning.curve is not None else UNIX if endpoint.scheme == "ipc" else PLAIN
        self.senders = senders
        self.recording = recording
        self._ingress = ingress
        self._peers: dict[bytes, RouterPeer] = {}
        self._by_fd: dict[int, RouterPeer] = {}
        self._arrived: list[tuple[RouterPeer, list[Body] | None]] = []
        self._draining: dict[RouterPeer, int] = {}
        self._ignored: dict[str, None] = {}
        self._failures = HandshakeFailures(hub.loop, asked)
        self._failure = ""
        self.authenticator = Authenticator(
            hub.loop,
            asked,
            known=ingress.known,
            busy=self._busy,
            granted=self._granted,
            turned_away=recording.turned_away if recording is not None else None,
        )
        silence_s = SILENT_PROBES * tuning.probe_s
        self.connections = Connections(hub.loop, silence_s, self.authenticator.ended)
        self._hub = hub
        sock = hub.open(zmq.ROUTER)
        self.pump = Pump(hub, sock, self)
        self._recv: Any = sock.recv
        # without pyzmq's checks for draft sockets, a call for each frame
        self.send: Any = super(zmq.Socket, sock).send
        self._monitor = Monitor(hub, sock, _EVENTS, self._monitored)
        self.settle = self._monitor.drain
        self._domain = hub.guard(sock, self.authenticator)
        try:
            place = self._bind(sock, endpoint, tuning)
        except BaseException:
            self.close()
            raise
        self.endpoint = place.text
        self.contact = self._failures.where = contact(place, parse(asked).host)

    def _bind(self, sock: zmq.Socket[bytes], endpoint: Endpoint, tuning: Tuning) -> Endpoint:
        tune(sock, tuning.message_bytes)
        serve_curve(sock, tuning.curve)
        sock.set(zmq.ROUTER_MANDATORY, 1)
        sock.set(zmq.BACKLOG, BACKLOG)
        probe(sock, tuning.probe_s, tuning.probe_s, PROBES)
        sock.set(zmq.TCP_MAXRT, tuning.hold_ms)
        return bind(sock, endpoint)

    def peers(self) -> Iterable[RouterPeer]:
        """Connections that have spoken."""
        return self._peers.values()

    def _granted(self, address: str, key: str) -> None:
        self.connections.granted(address, key)
        self._ingress.arrived(key)

    def _busy(self, key: str) -> bool:
        self._monitor.drain()
        return self.connections.has(key)

    def has_room(self, peer: RouterPeer) -> None:
        """Say so, in a turn of its own: whoever is sending now need not expect it."""
        self._hub.loop.call_soon(self._ingress.has_room, peer)

    def has(self, identity: bytes) -> bool:
        """Whether somebody who spoke has this identity."""
        return identity in self._peers

    # -- reading -------------------------------------------------------------------------------

    def take(self) -> int:
        """Read one message and keep it for ``deliver`` (drain.Owner)."""
        recv = self._recv
        frame = head = recv(NOBLOCK, False)
        frames: list[Body] = []
        size = 0
        while frame.more:
            frame = recv(NOBLOCK, False)
            length = len(frame)
            size += length
            if len(frames) < FRAMES_MAX:
                frames.append(frame.bytes if length < BODY_BYTES else frame)
        peer = self._peers.get(head.bytes)
        if peer is None or peer.tag != head.get("User-Id"):
            peer = self._first_message(head, frames)
        if peer is not None:
            self._arrived.append((peer, frames))
        return size

    def deliver(self, drained: bool) -> None:
        """Handle what was taken; lost peers end after their last message (drain.Owner)."""
        arrived, self._arrived = self._arrived, []
        if not arrived and not self._draining and drained:
            return
        self.flusher.begin()
        self.settle()
        self.at_once = AT_ONCE
        try:
            self._handle(arrived, drained)
        finally:
            self.at_once = 0
            self.flusher.finish()

    def _handle(self, arrived: list[tuple[RouterPeer, list[Body] | None]], drained: bool) -> None:
        self.received += len(arrived)
        now = self.now()
        ingress = self._ingress
        for peer, frames in arrived:
            if frames is None:
                ingress.gone(peer, now)
            elif not peer.deaf:
                try:
                    ingress.handle(peer, frames, now)
                except Exception:  # those behind it must not pay for it
                    log.exception("%s: a message of %s could not be handled", self.contact, peer)
        for peer, turns in list(self._draining.items()) if self._draining else ():
            self._draining[peer] = turns + 1
            if drained or turns >= _PATIENCE_TURNS:
                self._forget(peer)
                ingress.gone(peer, now)

    def _first_message(self, head: zmq.Frame, frames: list[Body]) -> RouterPeer | None:
        """The first message of a connection: who is it? None when it is not to be heard (any more)."""
        self._monitor.drain()
        tag, fd, identity = str(head.get("User-Id")), int(head.get(zmq.SRCFD)), head.bytes
        if tag in self._ignored:
            return None
        key, address = tag.partition(" ")[2], str(head.get("Peer-Address"))
        self.connections.spoke(fd, key)
        for earlier in {self._peers.get(identity), self._by_fd.get(fd)}:
            if earlier is not None:
                self._forget(earlier)
                self._arrived.append((earlier, None))
        principal = self._ingress.authenticate(identity, key, address)
        if principal is None:
            if self.authenticator.turned_away is not None:
                self.authenticator.turned_away(address, key, f"the name {identity[:64]!r} is not theirs")
            self._ignore(tag)
            self.connections.refused(fd)
            told = self._tell_refused(identity, key, frames)
            self._hub.loop.call_later(TOLD_S if told else 0.0, shut_down, fd, inode(fd))
            return None
        peer = RouterPeer(self, identity, tag, principal, address, fd)
        peer.lockstep = head.get("Socket-Type") == "REQ"
        self._peers[identity] = self._by_fd[fd] = peer
        if fd not in self.connections:
            self.connection_lost(peer)
        return peer

    def _tell_refused(self, identity: bytes, key: str, frames: list[Body]) -> bool:
        """Answer the OPEN of a peer whose name is not its own; others send none, and come back at once if told."""
        try:
            packet = decode(frames)
        except InvalidPacket:
            return False
        if packet.command is not Command.OPEN:
            return False
        whose = "belongs to another key" if key else "is somebody else's"
        body = opening.write(opening.BrokerOpen("headgate", refused=f"the name {name_of(identity)} {whose}"))
        answer = Packet(Sender.BROKER, Command.OPEN, dialect=packet.dialect, body=body)
        return self.send_unproven(identity, encode(answer))

    def send_unproven(self, identity: bytes, frames: list[Body]) -> bool:
        """Send to whoever has ``identity``, proven or not: only what anybody may read. False: nobody, or no room."""
        if self.pump.closed or identity in self._peers:
            return False
        send = self.pump.sock.send
        try:
            send(identity, MORE_NOBLOCK)
            for frame in frames[:-1]:
                send(frame, MORE_NOBLOCK)
            send(frames[-1], NOBLOCK)
        except zmq.ZMQError:  # nobody has it, or is full
            return False
        self.pump.sent()
        return True

    # -- the ends ------------------------------------------------------------------------------

    def connection_lost(self, peer: RouterPeer) -> None:
        """The connection of ``peer`` is lost: send nothing more; it ends once everything it sent is handled."""
        if peer.alive:
            peer.lost()
            self._draining[peer] = 0
            self.pump.wake()

    def cut(self, peer: RouterPeer, why: str) -> None:
        """End the connection of ``peer`` and do not listen to what it has sent."""
        if peer.deaf:
            return
        peer.deaf = True
        log.warning("%s: %s is cut: %s", self.contact, peer, why)
        self._ignore(peer.tag)
        self.connection_lost(peer)
        shut_down(peer.fd, peer.inode)

    def _ignore(self, tag: str) -> None:
        """Do not listen to the connection ``tag`` any more."""
        self._ignored[tag] = None
        if len(self._ignored) > _REMEMBERED:
            del self._ignored[next(iter(self._ignored))]

    def _forget(self, peer: RouterPeer) -> None:
        peer.lost()
        self._draining.pop(peer, None)
        self._ignore(peer.tag)
        if self._peers.get(peer.identity) is peer:
            del self._peers[peer.identity]
        if self._by_fd.get(peer.fd) is peer:
            del self._by_fd[peer.fd]
            self.connections.ended(peer.fd)

    def _monitored(self, event: int, value: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._accepted(value)
        elif event == zmq.EVENT_DISCONNECTED:
            peer = self._by_fd.get(value)
            if peer is None:
                self._tell_failure(self.connections.host(value))
                self.connections.ended(value)
            else:
                self.connection_lost(peer)
        elif event != zmq.EVENT_CLOSED:
            self.failed += 1
            if event != zmq.EVENT_HANDSHAKE_FAILED_AUTH:  # of those the authenticator has told why
                self._failure = f"event {event:#x}, code {value:#x}"

    def _tell_failure(self, address: str) -> None:
        """A connection has ended; that its handshake had failed, libzmq told just before."""
        if self._failure:
            why = f"{self._failure}: one side without CURVE, or with another key of this broker?"
            self._failure = ""
            self._failures.add(address, why)

    def _accepted(self, fd: int) -> None:
        """A new connection; one that had the descriptor before has ended, whether it was told or not."""
        peer = self._by_fd.pop(fd, None)
        if peer is not None:
            self.connection_lost(peer)
        self.connections.accepted(fd)

    def shut(self) -> None:
        """Let nobody in any more."""
        self.authenticator.shut = True

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """End; libzmq goes on sending for ``linger_ms``. Harmless twice."""
        if self.pump.closed:
            return
        self.connections.close()
        self._failures.close()
        self.authenticator.close()
        self._hub.unguard(self._domain)
        self._monitor.close()
        self.pump.close(linger_ms)
        if hasattr(self, "endpoint") and self.endpoint.startswith("ipc://"):
            remove_socket(self.endpoint.removeprefix("ipc://"))
