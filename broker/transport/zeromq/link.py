"""What the links of ROUTER and DEALER share: forms on the way out, decoding on the way in."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from broker.errors import (
    LinkBroken,
    LinkClosed,
    LinkError,
    ProtocolError,
    Untranslatable,
)
from broker.identity import PeerInfo
from broker.transport.batching import (
    ALONE_BYTES,
    BATCH_BYTES,
    BATCH_MSGS,
    Form,
    Part,
    form_size,
    form_type,
    group_end,
)
from broker.transport.link import Link, Options
from broker.transport.zeromq.connection import taken_bytes
from broker.transport.zeromq.drain import Pump
from broker.transport.zeromq.forms import MessageForms
from broker.transport.zeromq.tuning import LINGER_IDLE_MS, LINGER_MAX_MS, LINGER_MS, MORE_NOBLOCK, NOBLOCK
from broker.wire.message import MARK, REQUEST, Message, control

log = logging.getLogger("headgate")

LOOK_S: Final = 0.5
"""How often a connection that libzmq has no room for is asked whether it moves."""


class ZeromqLink(Link):
    """One peer of a ZeroMQ socket.

    Attributes:
        identity: the identity part: of the peer (ROUTER), or our own (DEALER).
        fd: the connection's descriptor in libzmq; -1 while it is not known. inode: its socket's number.
        unsent: what the peer has not taken of what waited when the link was closed.
    """

    __slots__ = (
        "_arrived",
        "_forms",
        "_idle_ms",
        "_lingered_ms",
        "_marks",
        "_max_bytes",
        "_moved",
        "_pump",
        "_sock",
        "_taken_bytes",
        "_taken_s",
        "fd",
        "identity",
        "inode",
        "unsent",
    )

    def __init__(self, peer: PeerInfo, options: Options, identity: bytes, pump: Pump) -> None:
        super().__init__(peer, options)
        self.identity = identity
        self._pump = pump
        self._sock = pump.sock
        self._max_bytes = options.max_bytes(peer)
        self._forms = MessageForms(options, self._max_bytes)
        self._arrived: list[list[Part]] = []
        self.unsent: list[Form] = []
        self._moved = self._marks = False
        self._lingered_ms = self._idle_ms = 0
        self.fd, self.inode = -1, 0
        self._taken_bytes, self._taken_s = 0, 0.0

    def enable_batch(self) -> None:
        """Send batches from now on: the peer said that it takes them. No effect where ``extra["batch"]`` is not set."""
        self._forms.enable_batch()

    @property
    def batch(self) -> bool:
        """Whether small messages to the peer are sent in batches."""
        return self._forms.batch

    # -- sending -------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Queue ``message``; see ``Link.send``. Its form is made now, so it may be patched afterwards."""
        outbox = self.outbox
        if self.ended is not None:
            outbox.discarded += 1
            return
        try:
            form = self._forms.form(message)
        except Untranslatable as error:
            self.refuse(message, error)
            return
        if outbox.queue is not None:
            outbox.enqueue(form, form_size(form), message.head[3])
        else:
            if not outbox.unflushed:
                self.flusher.touch(self)
            outbox.unflushed.append(form)

    def flush(self) -> None:
        """Give libzmq what it takes; queue the rest and wait for room."""
        outbox = self.outbox
        if self.ended is not None:
            if self.unsent:
                self._flush_unsent()
            return
        before = outbox.sent
        if outbox.queue is not None:
            self._flush_queue()
        elif outbox.unflushed:
            self._flush_fresh()
        if outbox.sent != before:
            outbox.progressed()
            if self._marks:
                self._marks = False
                self.send(control(MARK, outbox.sent & 0xFFFFFFFF))
        elif outbox.queue:
            self._look_for_progress()
        self._pump.sent()

    def _look_for_progress(self) -> None:
        """Libzmq has no room, maybe for as long as one large message takes: does the peer take something of it?"""
        now = self._pump.now()
        if now - self._taken_s < LOOK_S:
            return
        self._taken_s = now
        taken = taken_bytes(self.fd, self.inode)
        if taken > self._taken_bytes:
            self._taken_bytes = taken
            self.outbox.progress += 1

    def _flush_fresh(self) -> None:
        outbox = self.outbox
        forms, outbox.unflushed = outbox.unflushed, []
        start, count = 0, len(forms)
        while start < count:
            stop = group_end(forms, start)
            if not self._offer(forms[start:stop]):
                break
            outbox.sent += stop - start
            start = stop
        for form in forms[start:]:
            outbox.enqueue(form, form_size(form), form_type(form))

    def _flush_queue(self) -> None:
        outbox = self.outbox
        while outbox.queue and self._room():
            group = self._dequeue_group()
            self._put(group)
            outbox.sent += len(group)
        if self.ended is None:
            outbox.settle()

    def _dequeue_group(self) -> list[Form]:
        outbox = self.outbox
        first = outbox.dequeue()
        group, size = [first], len(first)
        while outbox.queue and isinstance(first, bytes) and len(group) < BATCH_MSGS:
            form, length, _marks = outbox.queue[0]
            size += length
            if not isinstance(form, bytes) or size > BATCH_BYTES:
                break
            group.append(outbox.dequeue())
        return group

    def close(self, reason: str = "") -> None:
        """Flush, and end with LinkClosed; what is left follows for as long as the peer takes it, see ``lingers``."""
        if self.ended is None:
            self.flush()
            outbox = self.outbox
            while outbox.queue:
                self.unsent.append(outbox.dequeue())
            self.end_lingering(LinkClosed(reason or "closed"))
            if self.unsent:
                self._flush_unsent()

    def _flush_unsent(self) -> None:
        forms, start = self.unsent, 0
        while start < len(forms):
            stop = group_end(forms, start)
            if not self._offer(forms[start:stop]):
                break
            start = stop
            self._moved = True
        del forms[:start]
        if not forms:
            self.all_sent()

    def drop_unsent(self) -> None:
        """The peer does not take the rest, or its connection is closed."""
        self.unsent.clear()

    def lingers(self) -> bool:
        """Asked every ``LINGER_MS`` after the close: whether the connection is needed for as long again."""
        moved, self._moved = self._moved, False
        self._lingered_ms += LINGER_MS
        self._idle_ms = 0 if moved else self._idle_ms + LINGER_MS
        if self._lingered_ms >= LINGER_MAX_MS:
            return False
        return moved or (bool(self.unsent) and self._idle_ms < LINGER_IDLE_MS)

    def _offer(self, group: Sequence[Form]) -> bool:
        """Send one ZeroMQ message if there is room for it; if not, ``flush`` is called again when there is."""
        if not self._room():
            return False
        self._put(group)
        return True

    def _put(self, group: Sequence[Form]) -> None:
        """Send one ZeroMQ message; ``_room`` said that there is room for it."""
        form = group[0]
        send = self._sock.send
        if isinstance(form, bytes):
            send(form if len(group) == 1 else b"".join(group), NOBLOCK)  # type: ignore[arg-type]  # all bytes, see ``group_end``
        else:
            for part in form[:-1]:
                send(part, MORE_NOBLOCK)
            send(form[-1], NOBLOCK)
            size = form_size(form)
            if size > ALONE_BYTES and form_type(form) == REQUEST:
                outbox = self.outbox
                self._marks |= outbox.in_flight.sends_large(outbox.sent + 1, size)

    @abstractmethod
    def _room(self) -> bool:
        """Whether one more ZeroMQ message can be put; if not, ``flush`` is called again when it can."""

    # -- receiving -----------------------------------------------------------------------------

    def arrived(self, parts: list[Part]) -> bool:
        """Keep the parts of one ZeroMQ message for ``deliver``; True when they are the first."""
        self._arrived.append(parts)
        return len(self._arrived) == 1

    def deliver(self) -> None:
        """Decode what arrived and hand it over; what is no message ends the link, after those in front of it."""
        arrived, self._arrived = self._arrived, []
        messages: list[Message] = []
        failure: ProtocolError | None = None
        for parts in arrived:
            try:
                self._forms.decode_into(messages, parts)
            except Untranslatable as error:
                self.dropped(error)
            except ProtocolError as error:
                failure = error
                break
        if messages and self.ended is None:
            self._hand_over(messages)
        if failure is not None and self.ended is None:
            self.abort(LinkBroken(f"{self.peer.address}: {failure}", failure.errno))

    def _hand_over(self, messages: list[Message]) -> None:
        """Give ``messages`` to the receiver; its failure costs this link, not the others of the socket."""
        assert self.receiver is not None
        try:
            self.receiver.received(self, messages)
        except Exception:
            log.exception("%s: its messages broke their receiver", self.peer.address)
            self.abort(LinkBroken(f"{self.peer.address}: its messages broke their receiver"))

    @abstractmethod
    def end_lingering(self, error: LinkError) -> None:
        """End with ``error``; the connection stays for as long as the link ``lingers``."""

    @abstractmethod
    def all_sent(self) -> None:
        """Called after ``close`` once nothing is ``unsent`` any more."""

    @abstractmethod
    def lost(self, error: LinkError) -> None:
        """The connection is gone: deliver what arrived before, then end with ``error``."""
