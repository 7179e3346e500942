"""How messages travel in the ZeroMQ messages of one link: its dialect, and batches where both sides agreed on them."""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broker.errors import DecodeError, MessageTooLarge
from broker.transport.batching import Part, is_framed, plain
from broker.transport.link import Options
from broker.wire.decoding import from_parts
from broker.wire.dialects import Dialect, dialect
from broker.wire.framing import Splitter
from broker.wire.message import Message


class MessageForms:
    """Of one link.

    Args:
        options: its dialect, and ``extra["batch"]``.
        max_bytes: the largest message the peer may send.

    Attributes:
        form: what is sent for a message; raises Untranslatable where the dialect cannot carry it.
        batch: True while messages to the peer are sent in batches.
    """

    __slots__ = ("_batch_allowed", "_decode", "_max_bytes", "_splitter", "batch", "form")

    def __init__(self, options: Options, max_bytes: int) -> None:
        spoken = dialect(options.dialect, options.strict_rfc3)
        self._max_bytes = max_bytes
        self._splitter = Splitter(max_bytes)
        self._batch_allowed = bool(options.extra.get("batch", False)) and spoken.native
        self._decode: Callable[[list[Part]], Message] = from_parts if spoken.native else _decoder(spoken)
        self.batch = False
        self.form: Callable[[Message], Any] = plain if spoken.native else spoken.encode

    def enable_batch(self) -> None:
        """Send batches from now on. No effect where ``extra["batch"]`` is not set."""
        if self._batch_allowed and not self.batch:
            self.batch = True
            self.form = Message.framed  # a large one, too: it need not be sealed whole

    def forget(self) -> None:
        """Let go of the rest of a batch: nothing follows."""
        self._splitter.forget()

    def decode_into(self, out: list[Message], parts: list[Part]) -> None:
        """Append what one ZeroMQ message says to ``out``.

        Raises:
            Untranslatable: it has no form in our dialect; the next one may.
            ProtocolError: it is no message, larger than agreed, or a batch that was not agreed on. What stands in front
                of that is in ``out``.
        """
        splitter = self._splitter
        if len(parts) == 1 and (splitter.pending_bytes or is_framed(parts[0])):
            if not self._batch_allowed:
                raise DecodeError("a batch, which was not agreed on")
            out += splitter.feed(bytes(parts[0]))
            if splitter.failure is not None:
                raise splitter.failure
            return
        if splitter.pending_bytes:
            raise DecodeError("a message in parts, while the rest of a framed one is due")
        size = sum(map(len, parts))
        if size > self._max_bytes:
            raise MessageTooLarge(f"message of {size} bytes, the cap for this peer is {self._max_bytes}")
        out.append(self._decode(parts))


def _decoder(spoken: Dialect) -> Callable[[list[Part]], Message]:
    def translate(parts: Sequence[Part]) -> Message:
        return spoken.decode([bytes(part) for part in parts])

    return translate
