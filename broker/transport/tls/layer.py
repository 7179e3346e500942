"""TLS sans I/O: ``ssl`` sees bytes, no socket."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from broker.errors import DecodeError, LinkEnded, LinkError, ProtocolError, Untranslatable
from broker.transport.batching import Form
from broker.transport.codec import Codec
from broker.wire.message import Message

RECORD_BYTES: Final = 16 << 10
"""The most that ``ssl`` gives at once."""
OWED_MAX: Final = 16 << 10
"""Words of TLS itself that may wait: a peer that asks for new keys on and on, and reads no answer, is cut off."""


class _Held(ssl.SSLObject):
    """An ``SSLObject`` that knows what it reads from and writes to."""

    came: ssl.MemoryBIO
    goes: ssl.MemoryBIO


class HeldContext(ssl.SSLContext):
    """A context for asyncio: its connections can be taken over (``Session.held``) when their handshake is over."""

    sslobject_class = _Held

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **more: Any) -> _Held:
        """See ``ssl.SSLContext.wrap_bio``."""
        made = super().wrap_bio(incoming, outgoing, *args, **more)
        assert isinstance(made, _Held)
        made.came, made.goes = incoming, outgoing
        return made


class Session:
    """One end of a connection.

    Args:
        server_name: a dialer's: the name the listener's certificate has to have; None: a listener's end.

    Attributes:
        tls: as ``ssl`` has it: the peer's certificate; what is written to it is ``owed`` then.
        is_open: the handshake is over.
        failure: None, or the ``SSLError`` after which nothing more is read.
        is_ended: the peer has said goodbye (close_notify).
    """

    def __init__(self, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._came, self._goes, server_side=server_name is None, server_hostname=server_name
        )
        self.is_open = self.is_ended = False
        self.failure: ssl.SSLError | None = None
        self.feed(b"")

    @classmethod
    def held(cls, tls: ssl.SSLObject) -> Self:
        """Take over a connection after another party has made its handshake and let go of it.

        Raises:
            TypeError: its context is none that holds (``HeldContext``).
        """
        if not isinstance(tls, _Held):
            raise TypeError(f"TLS of a {type(tls.context).__name__} cannot be taken over")
        session = cls.__new__(cls)
        session._came, session._goes, session.tls = tls.came, tls.goes, tls
        session.is_open, session.is_ended, session.failure = True, False, None
        return session

    @property
    def asks(self) -> bool:
        """A listener's: the certificate of the peer is to be judged."""
        return self.is_open

    @property
    def owed(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._goes.pending)

    @property
    def owed_bytes(self) -> int:
        """How much that is."""
        return self._goes.pending

    def take_owed(self) -> bytes:
        """The bytes to be sent."""
        return self._goes.read()

    def feed(self, data: bytes) -> None:
        """Take what came, and go on with the handshake. Never raises: see ``failure``."""
        self._came.write(data)
        if not self.is_open:
            try:
                self.tls.do_handshake()
                self.is_open = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                self.failure = error.with_traceback(None)  # which would make a cycle with this session

    def read(self, size: int = RECORD_BYTES) -> bytes:
        """Some of what the peer has said; b"": nothing more has come, or will come."""
        try:
            data = self.tls.read(size)
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLError as error:
            self.failure = error.with_traceback(None)
            return b""
        self.is_ended = self.is_ended or not data
        return data

    def forget(self) -> None:
        """Let go of what has come and is not read."""
        self._came.read()


class TlsCodec:
    """Another codec, sealed by a session whose handshake is over; see ``Codec``."""

    def __init__(self, session: Session, inner: Codec) -> None:
        self._session = session
        self._inner = inner
        self.early = True  # what the peer sent behind its last word of the handshake
        self.says_goodbye = True  # else anybody between could end the connection
        self.failure: ProtocolError | LinkError | None = None
        self.form = inner.form

    @property
    def untranslatable(self) -> Callable[[Untranslatable], object]:
        """See ``Codec``: the inner one's."""
        return self._inner.untranslatable

    @untranslatable.setter
    def untranslatable(self, told: Callable[[Untranslatable], object]) -> None:
        self._inner.untranslatable = told

    @property
    def owed(self) -> object:
        """Whether TLS has something to say by itself, such as new keys, or the inner codec has."""
        return self._session.owed or self._inner.owed

    def feed(self, data: bytes) -> list[Message]:
        """See ``Codec.feed``."""
        session, inner = self._session, self._inner
        plain = []
        session.feed(data)
        while piece := session.read():
            plain.append(piece)
        messages = inner.feed(b"".join(plain))
        self.form, self.failure = inner.form, inner.failure
        if self.failure is not None or inner.early:  # what the peer said comes before its end
            return messages
        if session.owed_bytes > OWED_MAX:
            self.failure = DecodeError("TLS: words whose answers are not read")
        if session.failure is not None:
            self.failure = DecodeError(f"TLS: {session.failure.reason or session.failure}")
        elif session.is_ended:
            self.failure = LinkEnded("the peer closed the connection")
        return messages

    def encode(self, forms: Sequence[Form | memoryview]) -> bytes:
        """See ``Codec.encode``."""
        return self._sealed(self._inner.encode(forms))

    def forget(self) -> None:
        """See ``Codec.forget``."""
        self._inner.forget()
        self._session.forget()

    def goodbye(self, reason: str) -> bytes:
        """That of the inner codec, then that of TLS."""
        said = self._sealed(self._inner.goodbye(reason))
        with contextlib.suppress(ssl.SSLError):  # the goodbye of the peer has not come
            self._session.tls.unwrap()
        return said + self._session.take_owed()

    def enable_batch(self) -> None:
        """See ``Codec.enable_batch``."""
        self._inner.enable_batch()
        self.form = self._inner.form

    def _sealed(self, data: bytes | bytearray) -> bytes:
        if data and self._session.failure is None:  # else nobody would understand it
            self._session.tls.write(data)
        return self._session.take_owed()
