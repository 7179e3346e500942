"""TLS on a connected socket: the handshake, and then the codec of a ``StreamLink``. ``ssl`` sees bytes, no socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final

from broker.errors import DecodeError, LinkEnded, ProtocolError
from broker.transport.codec import FluxCodec
from headgate_tls.certificates import Certificate

READ_BYTES: Final = 16 << 10


class Session:
    """One end of a connection.

    Args:
        sock: connected, and does not block. server_name: a dialer's: the name the listener's certificate has to have.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self.sock = sock
        self.came, self.goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        is_server = server_name is None
        self.tls = context.wrap_bio(self.came, self.goes, server_side=is_server, server_hostname=server_name)

    async def shake_hands(self) -> None:
        """Prove to each other who we are.

        Raises:
            SSLError: one does not believe the other. LinkEnded: the peer hung up. OSError: the connection broke.
        """
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._send()
                await self._receive()
            except ssl.SSLError:
                await self._send()  # the alert that says why
                raise
            else:
                await self._send()
                return

    async def say(self, byte: int) -> None:
        """Send one byte."""
        self.tls.write(bytes((byte & 0xFF,)))
        await self._send()

    async def hear(self) -> int:
        """The first byte of the peer.

        Raises:
            SSLError, LinkEnded, OSError: there is none.
        """
        while True:
            try:
                data = self.tls.read(1)
            except ssl.SSLWantReadError:
                await self._receive()
            else:
                if not data:
                    raise LinkEnded("the peer said goodbye instead of a byte")
                return data[0]

    def certificate(self) -> Certificate:
        """What the peer has shown."""
        return Certificate(self.tls.getpeercert(binary_form=True) or b"", self.tls.getpeercert() or {})

    async def _send(self) -> None:
        if self.goes.pending:
            await asyncio.get_running_loop().sock_sendall(self.sock, self.goes.read())

    async def _receive(self) -> None:
        data = await asyncio.get_running_loop().sock_recv(self.sock, READ_BYTES)
        if not data:
            raise LinkEnded("the peer hung up in the handshake")
        self.came.write(data)


class TlsCodec(FluxCodec):
    """Framed messages on a session whose handshake is over."""

    def __init__(self, session: Session, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._session = session
        self.early = True  # what the peer sent behind its last word of the handshake

    @property
    def owed(self) -> bool:
        """Whether TLS has something to say by itself, such as new keys."""
        return bool(self._session.goes.pending)

    @owed.setter
    def owed(self, _value: bool) -> None:
        """``FluxCodec`` owes nothing."""

    def feed(self, data: bytes) -> list[Any]:
        """See ``Codec.feed``."""
        session, plain = self._session, []
        session.came.write(data)
        broken: ProtocolError | None = None
        try:
            while piece := session.tls.read(READ_BYTES):
                plain.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:  # goodbye; the end of the connection follows
            pass
        except ssl.SSLError as error:
            broken = DecodeError(f"TLS: {error.reason or error}")
        messages = super().feed(b"".join(plain))
        self.failure = self.failure or broken
        return messages

    def encode(self, forms: Sequence[Any]) -> bytes:
        """See ``Codec.encode``."""
        if forms:
            self._session.tls.write(super().encode(forms))
        return self._session.goes.read()
