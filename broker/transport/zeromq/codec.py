"""An open connection of ZMTP as the codec of a stream link."""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.errors import LinkError, ProtocolError, Untranslatable
from broker.transport.batching import Form, Part
from broker.transport.link import Options
from broker.transport.zeromq.connection import Connection
from broker.transport.zeromq.forms import MessageForms
from broker.wire.message import Message

RECORD_BYTES: Final = 64 << 10
"""Of the stream of framed messages in one box, which is sealed, and opened, in a tenth of a millisecond."""


class ZmtpCodec:
    """See ``Codec``.

    Args:
        connection: one that is open.
        max_bytes: the largest message of the peer.
    """

    def __init__(self, connection: Connection, options: Options, max_bytes: int) -> None:
        connection.limit(max_bytes)
        self._connection = connection
        self._forms = MessageForms(options, max_bytes)
        self.early = True
        self.says_goodbye = False
        self.failure: ProtocolError | LinkError | None = None
        self.form: Callable[[Message], Any] = self._forms.form
        self.untranslatable: Callable[[Untranslatable], object] = lambda _error: None

    @property
    def owed(self) -> bool:
        """See ``Codec``."""
        return self._connection.owed

    def enable_batch(self) -> None:
        """See ``MessageForms``."""
        self._forms.enable_batch()
        self.form = self._forms.form

    def feed(self, data: bytes) -> list[Message]:
        """See ``Codec.feed``."""
        out: list[Message] = []
        connection, decode_into = self._connection, self._forms.decode_into
        for parts in connection.feed(data):
            try:
                decode_into(out, parts)
            except Untranslatable as error:
                self.untranslatable(error)
            except ProtocolError as failure:
                self.failure = failure
                return out
        self.failure = connection.failure
        return out

    def forget(self) -> None:
        """See ``Codec.forget``."""
        self._connection.forget()
        self._forms.forget()

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
