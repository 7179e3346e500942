"""The channel across the network: an ordered list of brokers, one connection at a time, as a DEALER.

The life of one session::

    resolve the name -> connect -> handshake -> OPEN is sent -> the broker's OPEN, or open_timeout_s -> connected
      ... -> connection lost | DISCONNECT | another epoch | reopen() -> lost -> wait a little -> resolve ...

Deployed NorFab's broker drops OPEN without a word, so silence means: go on without features. A broker that has
answered OPEN before and now does not is tried on a new connection first: it may not have noticed the end of our former
one, whose name the new one wants (``server.router``).

A peer that comes back has to begin with OPEN, and must know that what was under way is lost. So every session has a
socket of its own, as the text asks (NFP, "Opening and Closing a Connection").
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from broker.bounded_queue import BoundedQueue
from broker.endpoints import parse
from broker.errors import ConfigError, DecodeError, LinkBroken, LinkClosed, LinkError, LinkRefused
from broker.nfp.frames import HEADS_BYTES_MAX, Body, Packet, decode, encode
from broker.nfp.names import Command, Sender
from broker.nfp.opening import broker_of, read_any
from broker.nfp.peer.brokers import Brokers
from broker.nfp.peer.channel import Receiver, Traffic
from broker.nfp.peer.keys import check_name
from broker.transport.batching import Part
from broker.transport.byte_stream import all_left
from broker.transport.curve import CurveClient
from broker.transport.zeromq.connection import Connection
from broker.transport.zeromq.dialing import open_connection
from broker.transport.zeromq.listening import SCHEMES
from broker.transport.zeromq.pipe import Pipe

log = logging.getLogger("headgate")
OPEN_TIMEOUT_S: Final = 0.5
"""How long the broker's OPEN may take before it is taken for a deployed NorFab broker, which has none."""
FAILOVER_S: Final = 5.0
ATTEMPT_S: Final = 5.0
"""One address may take so long for the handshake."""
UNHEARD_S: float = 5.0
"""A worker that was registered for so long has got a KEEPALIVE, also of a deployed broker."""
UNANSWERED: Final = 3
"""New connections tried for an OPEN of ours that a broker which used to answer leaves without answer."""
CLOSE_S: Final = 1.0
"""How long ``close`` waits for the outbox ..."""
LINGER_S: Final = 0.25
"""... and then for the broker to take what was written."""
OUT_MSGS: Final = 10_000
"""Messages that wait in the outbox; deployed NorFab holds as many."""
OUT_BYTES: Final = 64 << 20
"""Bytes that wait; one larger message may wait alone."""
MESSAGE_BYTES: Final = 256 << 20
"""Largest body that is taken from a broker."""


class DealerChannel:
    """See ``Channel``.

    Args:
        endpoints: brokers in order of preference, ``tcp://HOST:PORT`` or ``ipc://PATH``; names are resolved at each
            connect. See ``Brokers`` for when the next one is used.
        identity: name of the peer, at most 255 bytes.
        sender: CLIENT or WORKER.
        curves: keys for each endpoint, see ``keys.credentials``; those without, which only this machine's endpoints or
            ``insecure`` allow, are spoken to in plaintext.
        open_timeout_s: see ``OPEN_TIMEOUT_S``. failover_s: patience with one broker; 0: never go on to the next.
        refused: called after each attempt once every broker of the list has refused us, as long as none has ever let us
            in: its key, or ours, is not what the other side expects, which does not pass by waiting.

    Raises:
        ConfigError: no or bad endpoints or name.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        identity: str,
        sender: Sender,
        curves: Mapping[str, CurveClient],
        open_timeout_s: float = OPEN_TIMEOUT_S,
        failover_s: float = FAILOVER_S,
        insecure: bool = False,
        refused: Callable[[LinkRefused], None] | None = None,
    ) -> None:
        for endpoint in endpoints:
            parse(endpoint, *SCHEMES)
        self.name = check_name(identity)
        self._trouble = "not started"
        self.traffic = Traffic()
        self._sender = sender
        self._open_timeout_s = open_timeout_s
        self._insecure = insecure
        self._brokers = Brokers(self.name, endpoints, curves, failover_s, 0.0)
        self._refused = refused
        self._unanswered = 0
        self._session: BrokerSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._room = asyncio.Event()

    @property
    def broker(self) -> str:
        """See ``Channel``."""
        return self._brokers.current.endpoint

    @property
    def trouble(self) -> str:
        """See ``Channel``."""
        session = self._session
        return session.trouble if session is not None and session.begun else self._trouble

    # -- Channel ----------------------------------------------------------------------------------

    def start(self, receiver: Receiver, open_body: Callable[[], dict[str, Any]]) -> None:
        """See ``Channel``."""
        if self._task is not None:
            raise RuntimeError(f"the channel of {self.name} was started before")
        loop = asyncio.get_running_loop()
        self._brokers.note_reached(loop.time())  # patience begins now
        self._trouble = f"{self.broker}: no answer yet"
        self._task = loop.create_task(self._run(receiver, open_body), name=f"channel of {self.name}")

    def send(self, packet: Packet) -> bool:
        """See ``Channel``."""
        session = self._session
        if session is not None and session.begun and session.send(packet):
            return True
        self.traffic.refused += 1
        self._room.clear()
        return False

    def send_from_thread(self, packet: Packet) -> bool:
        """``send`` for another thread while that of the loop is blocked: it leaves at once, behind what waits."""
        session = self._session
        return session is not None and session.send_from_thread(packet)

    async def writable(self) -> None:
        """See ``Channel``."""
        while self._session is None or not self._session.writable:
            if self._closed:
                raise LinkClosed(f"the channel of {self.name} is closed")
            self._room.clear()
            await self._room.wait()

    def reopen(self, why: str) -> None:
        """See ``Channel``."""
        if self._session is not None:
            self._session.end(why)

    async def close(self) -> None:
        """See ``Channel``."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_S):
                while (session := self._session) is not None and session.waiting:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            log.warning("%s: closed with messages that %s did not take", self.name, self.broker)
        self._room.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await all_left(LINGER_S)
        self._trouble = "closed"

    # -- the loop ---------------------------------------------------------------------------------

    async def _run(self, receiver: Receiver, open_body: Callable[[], dict[str, Any]]) -> None:
        loop = asyncio.get_running_loop()
        while not self._closed:  # an error of the session's end may have taken the place of the cancellation
            try:
                await self._run_session(await self._dial(receiver), open_body)
            except (LinkError, ConfigError) as error:
                self._note_failure(error, loop.time())
            except Exception as error:  # such as no descriptor left; giving up here would be for good
                log.exception("%s: the broker %s could not be talked to", self.name, self.broker)
                self._note_failure(LinkBroken(f"{self.broker}: {error}"), loop.time())
            await asyncio.sleep(self._brokers.pause_s)

    async def _dial(self, receiver: Receiver) -> BrokerSession:
        """A connection whose handshake is over.

        Raises:
            LinkError: nobody there, or it does not let us in. ConfigError: plaintext off this machine.
        """
        broker, own = self._brokers.current, self.name.encode()
        place = parse(broker.endpoint, *SCHEMES)
        about = (place, broker.endpoint, broker.curve, own, self._insecure, ATTEMPT_S)
        return BrokerSession(self, receiver, broker.endpoint, *await open_connection(*about))

    def _note_failure(self, error: LinkError | ConfigError, now: float) -> None:
        self._trouble = self._brokers.note_failure(error, now)
        hopeless = not self.traffic.connections and self._brokers.all_refuse
        if hopeless and self._refused is not None:
            self._refused(LinkRefused(self._trouble, errno.EACCES))

    async def _run_session(self, session: BrokerSession, open_body: Callable[[], dict[str, Any]]) -> None:
        """One session, from OPEN to its loss.

        Raises:
            LinkRefused: the broker does not serve us.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        patience = loop.call_later(self._open_timeout_s, self._give_up_open, session)
        self._session = session
        try:
            session.send(Packet(self._sender, Command.OPEN, body=msgspec.json.encode(open_body())))
            await session.over
        finally:
            patience.cancel()
            self._session = None
            session.close()
        self._trouble = session.why
        if session.begun:
            log.info("%s: lost the broker %s: %s", self.name, session.broker, session.why)
            session.tell_lost()
        if session.refused:
            raise LinkRefused(f"{session.broker}: {session.refused}", errno.EADDRINUSE)
        self._brokers.note_left(loop.time(), loop.time() - began if session.begun else 0.0)

    def _give_up_open(self, session: BrokerSession) -> None:
        """The broker has not answered OPEN in time."""
        if session.begun:
            return
        self._unanswered += 1
        if self._brokers.current.answers and self._unanswered <= UNANSWERED:
            session.end("it did not answer OPEN")
        else:
            self._brokers.current.answers = False
            self._unanswered = 0
            session.begin(None)
            if self._sender is Sender.WORKER:
                asyncio.get_running_loop().call_later(UNHEARD_S, self._tell_unheard, session)

    def _tell_unheard(self, session: BrokerSession) -> None:
        if session is self._session and session.trouble:
            log.warning("%s: %s", self.name, session.trouble)

    # -- what a session tells ---------------------------------------------------------------------

    def note_begin(self, session: BrokerSession, opened: dict[str, Any] | None) -> None:
        """A session begins; ``send`` takes packets from now on."""
        self.traffic.connections += 1
        self._brokers.note_answer()
        how = "" if opened else ": no answer to OPEN, so NorFab's, or somebody else is connected by our name"
        log.info("%s: talks to the broker %s%s", self.name, session.broker, how)

    def note_answer(self) -> None:
        """The broker answered OPEN."""
        self._brokers.current.answers = True
        self._unanswered = 0

    def note_room(self) -> None:
        """There is room in the outbox."""
        self._room.set()


class BrokerSession:
    """What is said over one connection (``pipe.Owner``), from OPEN to its loss.

    Args:
        sock, opened: the connection; the socket is this object's from here on.
        broker: its address.

    Attributes:
        begun: the receiver knows of it. why: it ended, "" before. refused: why the broker does not serve us, as it said
            in its OPEN; "" when it does.
        over: resolves at the end.
    """

    def __init__(
        self, channel: DealerChannel, receiver: Receiver, broker: str, sock: socket.socket, opened: Connection
    ) -> None:
        self.broker = broker
        self.begun = False
        self.why = self.refused = ""
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._channel = channel
        self._receiver = receiver
        self._traffic = channel.traffic
        self._received = channel.traffic.received
        self._opened: dict[str, Any] | None = None
        self._message_bytes = 0
        self._early: list[Packet] = []
        self._outbox: BoundedQueue[Sequence[Body]] = BoundedQueue(OUT_MSGS, OUT_BYTES)
        self._flushing = self._closed = False
        opened.limit(MESSAGE_BYTES + HEADS_BYTES_MAX, MESSAGE_BYTES)
        self._pipe = Pipe(sock, opened, broker, self)
        self._pipe.resume()

    @property
    def waiting(self) -> int:
        """Messages that were not written yet."""
        return len(self._outbox)

    @property
    def trouble(self) -> str:
        """Of a session that has begun without OPEN, and in which nothing has come yet; "" in any other."""
        if self._opened is not None or self._traffic.received > self._received:
            return ""
        name = self._channel.name
        return f"{self.broker} has said nothing yet; perhaps another peer is connected as {name!r}"

    # -- what is sent -----------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """Whether ``send`` would take a packet."""
        return self.begun and not self.over.done() and not self._outbox.full

    def send(self, packet: Packet) -> bool:
        """Queue ``packet``, which leaves at the end of this turn of the loop; False: it is over, or the outbox is full.

        What the broker would end the connection for is dropped, and nobody tries it again: who knows what to do about a
        large body looks at ``BrokerOpen.message_bytes`` before.
        """
        if self._message_bytes and packet.body is not None and len(packet.body) > self._message_bytes:
            log.error(
                "%s: dropped a %s of %d bytes, %s takes %d (nfp.message_bytes_max)",
                self._channel.name,
                packet.command.name,
                len(packet.body),
                self.broker,
                self._message_bytes,
            )
            return True
        if not self._queue(packet):
            return False
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        self._traffic.sent += 1
        return True

    def send_from_thread(self, packet: Packet) -> bool:
        """See ``DealerChannel.send_from_thread``."""
        with self._pipe.lock:
            if not self.writable or not self._queue(packet):
                return False
            self._fill()
            self._pipe.write()
        self._loop.call_soon_threadsafe(self._flush)  # once the loop goes on
        return True

    def _queue(self, packet: Packet) -> bool:
        if self._outbox.full or self._closed or self.over.done():
            return False
        frames = encode(packet)
        with self._pipe.lock:
            self._outbox.add(frames, sum(map(len, frames)))
        return True

    def _flush(self) -> None:
        """Write what the kernel takes; the rest follows when it has room."""
        self._flushing = False
        if not self._closed:
            self._fill()
            self._pipe.flush()
            self._channel.note_room()

    def _fill(self) -> None:
        outbox, pipe = self._outbox, self._pipe
        with pipe.lock:
            while outbox and pipe.add(outbox[0]):
                outbox.pop()

    # -- beginning and end ------------------------------------------------------------------------

    def begin(self, opened: dict[str, Any] | None) -> None:
        """Tell the receiver; then hand it what came before."""
        again, self.begun, self._opened = self.begun, True, opened
        if not again:
            self._channel.note_begin(self, opened)
        self._tell(self._receiver.on_connect, self.broker, opened)
        early, self._early = self._early, []
        for packet in early:
            self._tell(self._receiver.on_packet, packet)
        self._channel.note_room()

    def end(self, why: str) -> None:
        """Over; what was queued is not sent any more."""
        if not self.over.done():
            self.why = why
            self.over.set_result(None)

    def close(self) -> None:
        """Give the socket back; what was written follows, unless the session is over. Harmless twice."""
        with self._pipe.lock:
            self._closed = True
            self._outbox.clear()
            if self.over.done() and not self.over.cancelled():
                self._pipe.abort()
            else:
                self._pipe.close()

    def tell_lost(self) -> None:
        """The receiver learns of the end."""
        self._tell(self._receiver.on_disconnect, self.why)

    def _tell(self, call: Callable[..., None], *what: Any) -> None:
        try:
            call(*what)
        except Exception:
            log.exception("%s: what the broker %s said could not be handled", self._channel.name, self.broker)

    # -- from the connection (pipe.Owner) ---------------------------------------------------------

    def received(self, messages: list[list[Part]]) -> None:
        """See ``pipe.Owner``."""
        for frames in messages:
            try:
                self._take(frames)
            except Exception:
                log.exception("%s: a message could not be handled", self.broker)

    def room(self) -> None:
        """See ``pipe.Owner``."""
        self._flush()

    def ended(self, error: LinkError) -> None:
        """See ``pipe.Owner``."""
        self._closed = True
        self.end(str(error))

    def _take(self, frames: Sequence[Body]) -> None:
        if self.over.done():
            return
        self._traffic.received += 1
        try:
            packet = decode(frames)
            if packet.sender is not Sender.BROKER:
                raise DecodeError(f"header {bytes(packet.sender)!r}, expected that of a broker")
        except DecodeError as error:
            self._traffic.invalid += 1
            log.warning("%s: dropped a message of %s: %s", self._channel.name, self.broker, error)
            return
        if packet.command is Command.OPEN:
            self._take_open(packet)
        elif packet.command is Command.DISCONNECT:
            # one from before our OPEN asks for the new session that this already is
            if self.begun:
                text = packet.data[:64].decode("utf-8", "replace")
                self.end(f"it said DISCONNECT{f': {text}' if text else ''}")
        elif self.begun:
            self._receiver.on_packet(packet)
        else:
            self._early.append(packet)

    def _take_open(self, packet: Packet) -> None:
        opened = read_any(packet.data)
        if not isinstance(opened, dict):
            self._traffic.invalid += 1
            log.warning("%s: the OPEN of %s is no JSON object", self._channel.name, self.broker)
            return
        said = broker_of(opened)
        self.refused, self._message_bytes = said.refused, said.message_bytes
        if self.refused:
            self.end(f"it refused us: {self.refused}")
            return
        self._channel.note_answer()
        known = self._opened
        if known is not None and known.get("epoch") != opened.get("epoch"):
            self.end("it was started anew")
        elif known is None:
            self.begin(opened)
