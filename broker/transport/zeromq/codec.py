"""An open connection of ZMTP as the codec of a stream link.

How messages travel in its ZeroMQ messages is the link's dialect, and batches where both sides agreed on them.
"""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.errors import DecodeError, LinkError, MessageTooLarge, ProtocolError, Untranslatable
from broker.transport.batching import Form, Part, is_framed, plain
from broker.transport.link import Options
from broker.transport.zeromq.connection import Connection
from broker.wire.decoding import from_parts
from broker.wire.dialects import Dialect, dialect
from broker.wire.framing import Splitter
from broker.wire.message import Message

RECORD_BYTES: Final = 64 << 10
"""Of the stream of framed messages in one box, which is sealed, and opened, in a tenth of a millisecond."""


class ZmtpCodec:
    """See ``Codec``.

    Args:
        connection: one that is open.
        options: the dialect, and ``extra["batch"]``.
        max_bytes: the largest message of the peer.

    Attributes:
        batch: True while messages to the peer are sent in batches.
    """

    def __init__(self, connection: Connection, options: Options, max_bytes: int) -> None:
        connection.limit(max_bytes)
        spoken = dialect(options.dialect, options.strict_rfc3)
        self._connection = connection
        self._max_bytes = max_bytes
        self._splitter = Splitter(max_bytes)
        self._batch_allowed = bool(options.extra.get("batch", False)) and spoken.native
        self._decode: Callable[[list[Part]], Message] = from_parts if spoken.native else _decoder(spoken)
        self.batch = False
        self.early = True
        self.says_goodbye = False
        self.failure: ProtocolError | LinkError | None = None
        self.form: Callable[[Message], Any] = plain if spoken.native else spoken.encode
        self.untranslatable: Callable[[Untranslatable], object] = lambda _error: None

    @property
    def owed(self) -> bool:
        """See ``Codec``."""
        return self._connection.owed

    def enable_batch(self) -> None:
        """Send batches from now on. No effect where ``extra["batch"]`` is not set."""
        if self._batch_allowed and not self.batch:
            self.batch = True
            self.form = Message.framed  # a large one, too: it need not be sealed whole

    def feed(self, data: bytes) -> list[Message]:
        """See ``Codec.feed``."""
        out: list[Message] = []
        connection = self._connection
        for parts in connection.feed(data):
            try:
                self._decode_into(out, parts)
            except Untranslatable as error:
                self.untranslatable(error)
            except ProtocolError as failure:
                self.failure = failure.with_traceback(None)  # which would make a cycle with this codec
                return out
        self.failure = connection.failure
        return out

    def _decode_into(self, out: list[Message], parts: list[Part]) -> None:
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
        # records of a large message come one behind the other: anything between them is out of order
        if splitter.pending_bytes:
            raise DecodeError("a message in parts, while the rest of a framed one is due")
        size = sum(map(len, parts))
        if size > self._max_bytes:
            raise MessageTooLarge(f"message of {size} bytes, the cap for this peer is {self._max_bytes}")
        out.append(self._decode(parts))

    def forget(self) -> None:
        """See ``Codec.forget``."""
        self._connection.forget()
        self._splitter.forget()

    def encode(self, forms: Sequence[Form | memoryview]) -> bytes | bytearray:
        """See ``Codec.encode``: framed messages next to each other become records."""
        connection = self._connection
        out: list[Part | bytearray] = [connection.take_owed()] if connection.owed else []
        framed: list[Part] = []
        for form in forms:
            if isinstance(form, list):
                self._record(framed, out)
                framed = []
                connection.encode(form, out)
            else:
                framed.append(form)
        self._record(framed, out)
        return b"".join(out) if len(out) != 1 or isinstance(out[0], memoryview) else out[0]

    def goodbye(self, reason: str) -> bytes:
        """ZMTP has no such word."""
        return b""

    def _record(self, framed: list[Part], out: list[Part | bytearray]) -> None:
        """Append records of ``framed``: as many messages in one as fit, a large one in several."""
        frame = self._connection.frame
        start = size = 0
        for at, each in enumerate(framed):
            length = len(each)
            if size + length > RECORD_BYTES and at > start:
                frame(0, framed[start:at], out)
                start, size = at, 0
            size += length
            if length > RECORD_BYTES:
                view = memoryview(each)
                for begin in range(0, length, RECORD_BYTES):
                    frame(0, (view[begin : begin + RECORD_BYTES],), out)
                start, size = at + 1, 0
        if start < len(framed):
            frame(0, framed[start:] if start else framed, out)


def _decoder(spoken: Dialect) -> Callable[[list[Part]], Message]:
    def translate(parts: Sequence[Part]) -> Message:
        return spoken.decode([bytes(part) for part in parts])

    return translate
