"""What the bytes of a stream mean, sans I/O: a codec turns them into messages, and messages into bytes.

::

    FluxCodec            frames back to back (RFC 3, "Message Framing and Security"): UNIX sockets
    zmtp.codec           ZMTP 3.1 with NULL or CURVE: tcp and ipc

A codec knows no socket. ``stream.StreamLink`` has one, and does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from broker.errors import ProtocolError, Untranslatable
from broker.transport.batching import Form
from broker.wire.framing import Splitter, frame
from broker.wire.message import MAGIC_DEPLOYED, Message


class Codec(Protocol):
    """One connection's; both directions.

    Attributes:
        failure: None, or what ended the stream; nothing behind it is looked at.
        form: what waits in the outbox for a message: ``bytes`` with a frame, or a list of parts. Raises
            Untranslatable where the link's dialect cannot carry it.
        untranslatable: told of each message that arrived and has no form in our dialect; set by the link.
        early: whether something may have come with the end of a handshake, which ``feed(b"")`` then gives.
    """

    early: bool

    failure: ProtocolError | None
    form: Callable[[Message], Any]
    untranslatable: Callable[[Untranslatable], object]

    @property
    def owed(self) -> bool:
        """Whether there is something to send that is no message, such as an answer to a ping."""

    def feed(self, data: bytes) -> list[Message]:
        """The messages that ``data`` completes, in order, wherever it was cut. Never raises: see ``failure``."""

    def encode(self, forms: Sequence[Form | memoryview]) -> bytes | bytearray:
        """The bytes of ``forms``, in order, behind what is ``owed``. They have to be sent: they cannot be made anew."""

    def forget(self) -> None:
        """Let go of what has come and is not complete: nothing follows."""

    def enable_batch(self) -> None:
        """The peer takes many messages in one from now on; nothing where there is no such form."""


class FluxCodec:
    """Framed messages. Answers in the order of magic that the peer uses.

    Args:
        max_bytes: the largest frame the peer may send.
        strict: makes the frame that ``strict_rfc3`` asks for; None: the deployed one.
    """

    __slots__ = ("_splitter", "_strict", "early", "failure", "form", "owed", "untranslatable")

    def __init__(self, max_bytes: int, strict: Callable[[Message], bytes] | None = None) -> None:
        self._splitter = Splitter(max_bytes)
        self._strict = strict
        self.failure: ProtocolError | None = None
        self.form: Callable[[Message], Any] = strict or Message.framed
        self.early = self.owed = False
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

    def enable_batch(self) -> None:
        """Frames are as short as it gets."""
