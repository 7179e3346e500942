"""The meaning of a stream's bytes, sans I/O: a codec turns them into messages, and messages into bytes.

::

    FluxCodec            frames back to back (RFC 3, "Message Framing and Security"): UNIX sockets
    zeromq.codec           ZMTP 3.1 with NULL or CURVE: tcp and ipc
    websocket.codec      framed messages in the binary messages of RFC 6455: ws and wss
    tls.layer            any of these, sealed by TLS: tls and wss
    gateway.websocket    RFC 6455 as a server speaks it, with the subprotocols of web clients

A codec knows no socket. ``stream.StreamLink`` has one, and does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from broker.errors import LinkError, ProtocolError, Untranslatable
from broker.transport.batching import Form
from broker.wire.framing import Splitter, frame
from broker.wire.message import MAGIC_DEPLOYED, Message


class Codec(Protocol):
    """One connection's; both directions.

    Attributes:
        untranslatable: told of each message that arrived and has no form in our dialect; set by the link.
        failure: None, or what ended the stream, a LinkError where the peer told it; nothing behind it is looked at.
        form: what waits in the outbox for a message: ``bytes`` with a frame, or a list of parts. Raises
            Untranslatable where the link's dialect cannot carry it.
    """

    failure: ProtocolError | LinkError | None
    form: Callable[[Message], Any]
    untranslatable: Callable[[Untranslatable], object]

    @property
    def says_goodbye(self) -> bool:
        """Whether who leaves says so, and the other one ends the connection: one that just ends was cut off."""

    @property
    def early(self) -> bool:
        """Whether something may have come with the end of a handshake, which ``feed(b"")`` then gives."""

    @property
    def owed(self) -> object:
        """Whether (true or false) there is something to send that is no message, such as an answer to a ping."""

    def feed(self, data: bytes) -> list[Message]:
        """The messages that ``data`` completes, in order, wherever it was cut. Never raises: see ``failure``."""

    def encode(self, forms: Sequence[Form | memoryview]) -> bytes | bytearray:
        """The bytes of ``forms``, in order, behind what is ``owed``. They have to be sent: they cannot be made anew."""

    def forget(self) -> None:
        """Let go of what has come and is not complete: nothing follows."""

    def goodbye(self, reason: str) -> bytes:
        """The last bytes, behind all messages; b"" where there is nothing (more) to say."""

    def enable_batch(self) -> None:
        """The peer takes many messages in one from now on; nothing where there is no such form."""


class FluxCodec:
    """Framed messages. Answers in the order of magic that the peer uses.

    Args:
        max_bytes: the largest frame the peer may send.
        strict: makes the frame that ``strict_rfc3`` asks for; None: the deployed one.
    """

    __slots__ = ("_splitter", "_strict", "failure", "form", "untranslatable")

    early: bool = False
    owed: bool = False
    says_goodbye: bool = False

    def __init__(self, max_bytes: int, strict: Callable[[Message], bytes] | None = None) -> None:
        self._splitter = Splitter(max_bytes)
        self._strict = strict
        self.failure: ProtocolError | LinkError | None = None
        self.form: Callable[[Message], Any] = strict or Message.framed
        self.untranslatable: Callable[[Untranslatable], object] = lambda _error: None

    def feed(self, data: bytes) -> list[Message]:
        """See ``Codec.feed``."""
        splitter = self._splitter
        messages = splitter.feed(data)
        self.failure = splitter.failure
        if splitter.magic != MAGIC_DEPLOYED and self._strict is None:
            self.form = self._mirrored
        return messages

    def _mirrored(self, message: Message) -> bytes:
        return frame(message, self._splitter.magic)

    def encode(self, forms: Sequence[Form | memoryview]) -> bytes:
        """See ``Codec.encode``."""
        return forms[0] if len(forms) == 1 else b"".join(forms)  # type: ignore[arg-type,return-value]  # all frames

    def forget(self) -> None:
        """See ``Codec.forget``."""
        self._splitter.forget()

    def goodbye(self, reason: str) -> bytes:
        """Frames have no such word."""
        return b""

    def enable_batch(self) -> None:
        """Frames are as short as it gets."""
