"""The link of one connection of ZMTP."""

from __future__ import annotations

import socket

from broker.identity import PeerInfo
from broker.transport.batching import ALONE_BYTES, Form, form_size, form_type
from broker.transport.link import Options
from broker.transport.stream import WRITE_BYTES, StreamLink
from broker.transport.zmtp.codec import ZmtpCodec
from broker.transport.zmtp.connection import Connection
from broker.wire.message import MARK, REQUEST, control

_FRAMED = {bytes}


class ZmtpLink(StreamLink):
    """The link of one connection.

    Attributes:
        identity: that of the dialer.
    """

    __slots__ = ("_mark", "identity")

    def __init__(
        self, sock: socket.socket, peer: PeerInfo, options: Options, connection: Connection, identity: bytes
    ) -> None:
        super().__init__(sock, peer, options, ZmtpCodec(connection, options, options.max_bytes(peer)))
        self.identity = identity
        self._mark = 0

    def _is_small(self, forms: list[Form]) -> bool:
        """See ``StreamLink``: framed, and none that is followed by a mark."""
        return (
            set(map(type, forms)) == _FRAMED
            and max(map(len, forms)) <= ALONE_BYTES
            and sum(map(len, forms)) <= WRITE_BYTES
        )

    def _begins(self, form: Form, number: int) -> None:
        """See ``StreamLink``. A large request is followed by a mark, which tells of its handling (``in_flight``)."""
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
