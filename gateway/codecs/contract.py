"""What a subprotocol is to a WebSocket link: bytes of whole WebSocket messages to Flux messages, and back.

A codec belongs to one connection (``gateway.codecs.new_codec``). It sees reassembled WebSocket messages, never
fragments, and what it writes is complete frames, unmasked, as a server sends them. It does no input or output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.wire.message import Message
    from gateway.events.run import Run
    from gateway.notices import Notice

Control: TypeAlias = dict[str, Any]
"""A control object of a client: a JSON object whose ``type`` says what it is (``control``)."""

RUN_BYTES: Final = 256 << 10
"""Events of a run are joined into one WebSocket message up to this size; precedent: batches between brokers."""


class Refused:
    """A request that is none, of a client that is told so: its type and matchtag could be read, and ``text`` says what
    is wrong with it.
    """

    __slots__ = ("message", "text")

    def __init__(self, message: Message, text: str) -> None:
        self.message = message
        self.text = text


class Codec(Protocol):
    """One subprotocol on one connection.

    Attributes:
        name: the subprotocol as it is echoed in the handshake, and the key of ``Run.forms``.
        greeting: frames that go out before anything else; b"" where the subprotocol has none.
    """

    name: str
    greeting: bytes

    def decode(self, data: bytes, text: bool) -> Sequence[Message | Control | Refused]:
        """The messages and control objects of one WebSocket message, in order; ``text`` tells its opcode.

        May be empty where the subprotocol has WebSocket messages that carry no Flux message (ZWS2.0).

        Raises:
            DecodeError: not what this subprotocol carries; the connection cannot go on (close code 4503).
            MessageTooLarge: above the limit of this connection (close code 1009).
        """

    def encode(self, message: Message) -> bytes:
        """The complete frame, or frames, of ``message``."""

    def encode_run(self, run: Run) -> bytes:
        """The complete frames of all events of ``run``; made once for all connections (``Run.forms``)."""

    def encode_control(self, obj: Notice) -> bytes | None:
        """The complete frame of a control object; None when the subprotocol has no place for it."""
