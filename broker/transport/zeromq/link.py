"""The link of one connection of ZMTP.

A peer that takes no records, as all but Headgate's brokers, has a large message in one box, and sends such boxes. They
are sealed and opened by a thread, one at a time, while nothing else leaves or is read on this link. A close waits for
the box that is being made, and makes what waits behind it by itself.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from broker.errors import LinkBroken, LinkError
from broker.identity import PeerInfo
from broker.transport.batching import ALONE_BYTES, Form, form_size, form_type
from broker.transport.link import Options
from broker.transport.stream import WRITE_BYTES, StreamLink
from broker.transport.zeromq.codec import ZmtpCodec
from broker.transport.zeromq.connection import BESIDE_BYTES, Connection
from broker.wire.message import MARK, REQUEST, control

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

THREADS = 2
"""That seal and open boxes."""
_FRAMED = {bytes}
_NOT_YET = b"\0"
"""The rest while a thread makes it."""
_threads: list[ThreadPoolExecutor] = []
"""The pool, once there is one."""


class ZmtpLink(StreamLink):
    """The link of one connection.

    Attributes:
        identity: that of the dialer.
    """

    __slots__ = ("_connection", "_mark", "_opening", "_sealing", "identity")

    def __init__(
        self, sock: socket.socket, peer: PeerInfo, options: Options, connection: Connection, identity: bytes
    ) -> None:
        super().__init__(sock, peer, options, ZmtpCodec(connection, options, options.max_bytes(peer)))
        self.identity = identity
        self._mark = 0
        self._connection = connection
        connection.opens_beside = True
        self._sealing: Future[bytes | bytearray] | None = None
        self._opening: Future[None] | None = None

    def _is_small(self, forms: list[Form]) -> bool:
        """See ``StreamLink``: framed, and none that is followed by a mark."""
        return (
            set(map(type, forms)) == _FRAMED
            and max(map(len, forms)) <= ALONE_BYTES
            and sum(map(len, forms)) <= WRITE_BYTES
        )

    def _begins(self, form: Form, number: int) -> None:
        """See ``StreamLink``. A large request is followed by a mark, which tells of its handling (``InFlight``)."""
        size = form_size(form)
        if (
            size > ALONE_BYTES
            and form_type(form) == REQUEST
            and self.outbox.in_flight.sends_large(number, size)
        ):
            self._mark = number

    def _left(self) -> None:
        if 0 < self._mark <= self.outbox.sent and self.ended is None:
            self._mark = 0
            self.send(control(MARK, self.outbox.sent & 0xFFFFFFFF))

    # -- large boxes ---------------------------------------------------------------------------

    def _beside(self, work: Callable[..., Any], *about: Any, then: Callable[[], None]) -> Future[Any]:
        """Do ``work`` in a thread, ``then`` the rest in the loop."""
        from concurrent.futures import ThreadPoolExecutor  # late: most links never need one

        def done(_done: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(then)

        if not _threads:
            _threads.append(ThreadPoolExecutor(THREADS, "headgate-boxes"))
        future = _threads[0].submit(work, *about)
        future.add_done_callback(done)
        return future

    def _write_pieces(self, pieces: Sequence[Form | memoryview], size: int) -> int:
        """See ``StreamLink``; what a thread seals is the rest, once it is there."""
        if size <= BESIDE_BYTES or not isinstance(pieces[0], list) or not self._connection.seals:
            return super()._write_pieces(pieces, size)
        self._want_write(False)
        self._rest, self._plain = _NOT_YET, size
        self._sealing = self._beside(self._codec.encode, pieces, then=self._sealed)
        return 0

    def _sealed(self) -> None:
        sealing, self._sealing = self._sealing, None
        if sealing is None or self.ended is not None:
            return
        try:
            self._rest = memoryview(sealing.result())
        except Exception as error:  # such as no memory
            self._shut(LinkBroken(f"{self.peer.address}: cannot send: {error!r}"))
        self._want_write(True)

    def _want_write(self, wanted: bool) -> None:
        super()._want_write(wanted and self._sealing is None)

    def _leave(self, error: LinkError, reason: str) -> None:
        if self._sealing is not None:  # boxes have numbers: it goes first, and is waited for
            self._sealing.exception()
            self._sealed()
        super()._leave(error, reason)

    def _deliver(self, data: bytes) -> None:
        super()._deliver(data)
        if self._connection.waits and self.ended is None:
            self._loop.remove_reader(self._sock.fileno())
            self._opening = self._beside(self._connection.open_large, then=self._opened)

    def _opened(self) -> None:
        """The thread is done. While nothing is to be read, what it opened stays where it is."""
        opening, self._opening = self._opening, None
        failure = opening.exception() if opening is not None else None
        if self.ended is not None:
            self._connection.forget()
        elif failure is not None:  # such as no memory
            self._shut(LinkBroken(f"{self.peer.address}: cannot read: {failure!r}"))
        elif self._reading:
            self._go_on()

    def _go_on(self) -> None:
        """Hand over what was opened, and read again."""
        if self._reading and self.ended is None and self._opening is None:
            self._deliver(b"")
            if self._reading:
                self.resume()

    def resume(self) -> None:
        """See ``StreamLink``."""
        self._reading = True
        if self._opening is not None:
            return
        if self._connection.waits:
            self._loop.call_soon(self._go_on)
        else:
            super().resume()
