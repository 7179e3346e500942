"""The link of a connected stream socket. What its bytes mean is its codec's.

``send`` puts forms into the outbox, ``flush`` has the codec make bytes of some of them, or of a piece of a large one,
and writes these. What the kernel does not take is the *rest*: it is sent before anything else, since bytes that were
made (and sealed) once cannot be made again. Their forms stay in the outbox, and leave it as the bytes do: limits hold.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from broker.errors import LinkBroken, LinkClosed, LinkError, Untranslatable
from broker.identity import PeerInfo
from broker.transport.batching import Form, form_size, form_type
from broker.transport.byte_stream import ByteStream, Leaving
from broker.transport.codec import Codec
from broker.transport.link import Link, Options
from broker.wire.message import Message

log = logging.getLogger("headgate")

WRITE_BYTES: Final = 256 << 10
"""Bytes encoded at a time; a form in parts is encoded whole."""


def _nobody(_error: Untranslatable) -> None:
    """A link that has ended is told of nothing any more."""


class StreamLink(ByteStream[Message], Link):
    """Messages over one connected socket.

    Args:
        sock: as of ``ByteStream``.

    ``_plain`` are the bytes of forms that the rest stands for.
    """

    __slots__ = ("_plain",)

    _codec: Codec

    def __init__(self, sock: socket.socket, peer: PeerInfo, options: Options, codec: Codec) -> None:
        Link.__init__(self, peer, options)
        ByteStream.__init__(self, sock, peer.address, codec)
        codec.untranslatable = self.dropped
        self._plain = 0

    def form(self, message: Message) -> Form:
        """The form of ``message`` that waits in the outbox. Raises Untranslatable."""
        form: Form = self._codec.form(message)
        return form

    def enable_batch(self) -> None:
        """See ``Link.enable_batch``."""
        self._codec.enable_batch()

    # -- reading -------------------------------------------------------------------------------

    def _read_bytes(self) -> int:
        return self.flusher.read_bytes

    def _hung_up(self, text: str, number: int | None = None) -> LinkError:
        """See ``ByteStream``; a peer that leaves without the goodbye that is due was cut off."""
        error = super()._hung_up(text, number)
        return LinkBroken(f"{error}, without a goodbye", error.errno) if self._codec.says_goodbye else error

    def hand_over(self, messages: list[Message]) -> None:
        """See ``ByteStream``: to the receiver."""
        if self.receiver is not None:
            self.receiver.received(self, messages)

    # -- writing -------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Queue ``message``; see ``Link.send``. Its form is made now, so it may be patched afterwards."""
        outbox = self.outbox
        try:
            form = self._codec.form(message)
        except Untranslatable as error:
            self.refuse(message, error)
            return
        if outbox.queue is None:
            fresh = outbox.unflushed
            if not fresh:
                self.flusher.touch(self)
            fresh.append(form)
        elif self.ended is None:
            outbox.enqueue(form, form_size(form), message.head[3])

    def flush(self) -> None:
        """Write what was sent since the last flush; queue what the kernel does not take."""
        outbox = self.outbox
        fresh = outbox.unflushed
        if not fresh:
            return
        outbox.unflushed = []
        if self.ended is not None or self._lost is not None:
            outbox.discarded += len(fresh)
            return
        if not self._rest and self._is_small(fresh):
            data = self._codec.encode(fresh)
            sent = self._write(data)
            if sent == len(data):  # as nearly always
                outbox.sent += len(fresh)
                outbox.progressed()
            else:
                if sent:
                    outbox.progressed()
                self._queue(fresh, self._keep(data, sent, sum(map(len, fresh))), len(fresh))
        else:
            self._flush_pieces(fresh)

    def _is_small(self, forms: list[Form]) -> bool:
        """Whether all of them are written at once, with nothing to be noted of one."""
        return (len(forms[0]) if len(forms) == 1 else sum(map(len, forms))) <= WRITE_BYTES

    def _flush_pieces(self, fresh: list[Form]) -> None:
        """The same piece by piece: some are large."""
        outbox = self.outbox
        start = begun = made = 0
        while start < len(fresh) and not self._rest and self.ended is None:
            forms = fresh[start:] if start else fresh
            pieces, size = self._pieces(forms, begun)
            taken = self._write_pieces(pieces, size)
            if self._rest:
                begun += taken
                made = len(pieces)
            elif isinstance(pieces[0], memoryview) and begun + size < form_size(forms[0]):
                begun += size
            else:
                begun = 0
                start += len(pieces)
                outbox.sent += len(pieces)
        if start or begun:
            outbox.progressed()
        if start < len(fresh):
            self._queue(fresh[start:], begun, made)
        self._left()

    def _queue(self, forms: list[Form], taken: int, made: int) -> None:
        """Keep ``forms``, of which ``taken`` bytes have left and the first ``made`` are encoded."""
        self.outbox.enqueue_rest([(form, form_size(form), form_type(form)) for form in forms], taken, made)
        self._want_write(True)

    def _pieces(self, forms: list[Form], begun: int) -> tuple[Sequence[Form | memoryview], int]:
        """The next pieces of ``forms`` to encode, and their size; ``begun`` bytes of the first one were encoded before.

        That is all of them, as many as fit into ``WRITE_BYTES``, or as much of the first one.
        """
        first = forms[0]
        # only a framed message is cut; one in parts is a box of CURVE for each part, which is sealed whole
        if isinstance(first, bytes) and (begun or len(first) > WRITE_BYTES):
            if not begun:
                self._begins(first, self.outbox.sent + 1)
            piece = memoryview(first)[begun : begun + WRITE_BYTES]
            return (piece,), len(piece)
        size = count = 0
        for count, form in enumerate(forms):
            length = form_size(form)
            if count and size + length > WRITE_BYTES:
                break
            size += length
            self._begins(form, self.outbox.sent + count + 1)
        else:
            return forms, size
        return forms[:count], size

    def _begins(self, form: Form, number: int) -> None:
        """``form``, which is message ``number`` of those that were sent, is encoded next."""

    def _left(self) -> None:
        """Forms may have left."""

    def _write_pieces(self, pieces: Sequence[Form | memoryview], size: int) -> int:
        """Write ``pieces`` of ``size`` bytes; what is not taken becomes the rest.

        Returns:
            What was taken of ``size``.
        """
        data = self._codec.encode(pieces)
        sent = self._write(data)
        return size if sent == len(data) else self._keep(data, sent, size)

    def _keep(self, data: bytes | bytearray, sent: int, size: int) -> int:
        """All but ``sent`` bytes of ``data`` become the rest; it stands for ``size`` bytes of forms.

        Returns:
            How many of those have left.
        """
        taken = size * sent // len(data)
        self._rest, self._plain = memoryview(data)[sent:], size - taken
        return taken

    def _pay(self) -> None:
        """Send what the codec owes by itself, unless something waits that it can go with."""
        if self._codec.owed and not self._rest and self.outbox.queue is None and self.ended is None:
            self._write_pieces((), 0)
            self._want_write(bool(self._rest))

    def _drain(self) -> None:
        """The kernel takes more: of the rest, or of the queue."""
        outbox, waited = self.outbox, len(self._rest)
        taken = 0
        if waited:
            taken = self._plain * self._write_rest() // waited
            self._plain -= taken
        elif outbox.queue:
            form, size, _marks = outbox.queue[0]
            taken = self._write_pieces(*self._pieces(outbox.oldest(WRITE_BYTES), form_size(form) - size))
        if self.ended is not None:
            return
        if taken:
            outbox.consume(taken)
            outbox.progressed()
        self._left()
        outbox.drained()
        if not self._rest and outbox.queue is None:
            self._want_write(False)
            self._pay()

    # -- the end -------------------------------------------------------------------------------

    def close(self, reason: str = "") -> None:
        """End with LinkClosed. What is queued follows as far as the peer takes it, and the codec's goodbye."""
        self._leave(LinkClosed(reason or "closed"), reason)

    def _leave(self, error: LinkError, reason: str) -> None:
        """End with ``error``, and send what there is to send; ``reason`` is for the peer."""
        if self.ended is not None:
            return
        self.flush()
        # the kernel may take more by now than when the rest was queued
        if self.outbox.queue:
            self._writable()  # now: the process may leave
        if self._is_open():
            self._release()
            self._see_off(self._unsent(), partial(self._encode_some, reason))
            self.finish(error)
        else:
            self._shut(error)

    def _see_off(
        self, left: deque[Form | memoryview], encode: Callable[[deque[Any]], bytes | bytearray]
    ) -> None:
        """The connection leaves: with the rest, with what is ``left`` to encode, and with a goodbye."""
        self._codec.forget()
        Leaving(self._loop, self._sock, self._rest, left, encode, self._codec.says_goodbye)
        self._rest = b""

    def _unsent(self) -> deque[Form | memoryview]:
        """The forms of the outbox that are not in the rest."""
        outbox = self.outbox
        left: deque[Form | memoryview] = deque()
        while outbox.queue:
            size, form = outbox.queue[0][1], outbox.dequeue()
            if self._plain >= size:  # it is in the rest
                self._plain -= size
            else:
                sent = form_size(form) - size + self._plain
                left.append(memoryview(form)[sent:] if sent else form)
                self._plain = 0
        return left

    def _encode_some(self, reason: str, forms: deque[Form | memoryview]) -> bytes | bytearray:
        """The next bytes of a connection that leaves for this reason."""
        if not forms:
            return self._codec.goodbye(reason)
        pieces: list[Form | memoryview] = [forms.popleft()]
        size = form_size(pieces[0])
        if size > WRITE_BYTES and not isinstance(pieces[0], list):
            whole = memoryview(pieces[0])
            pieces = [whole[:WRITE_BYTES]]
            forms.appendleft(whole[WRITE_BYTES:])
        while forms and size + form_size(forms[0]) <= WRITE_BYTES:
            size += form_size(forms[0])
            pieces.append(forms.popleft())
        return self._codec.encode(pieces)

    @property
    def _is_heard(self) -> bool:
        return self.receiver is not None

    def finish(self, error: LinkError) -> None:
        """See ``Link.finish``."""
        Link.finish(self, error)

    def _release(self) -> None:
        """See ``ByteStream``. A link that ended must be no part of a cycle: it could wait long for a collection of
        garbage.
        """
        super()._release()
        self._codec.untranslatable = _nobody
