"""An open connection of ZMTP as the codec of a stream link."""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.errors import ProtocolError, Untranslatable
from broker.transport.batching import Form
from broker.transport.link import Options
from broker.transport.zeromq.forms import MessageForms
from broker.transport.zmtp.connection import Connection
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
        self.failure: ProtocolError | None = None
        self.form: Callable[[Message], Any] = self._forms.form
        self.untranslatable: Callable[[Untranslatable], object] = lambda _error: None

    @property
    def owed(self) -> bool:
        """See ``Codec``."""
        return bool(self._connection.owed)

    def enable_batch(self) -> None:
        """See ``MessageForms``; a large message is framed, too, since it need not be sealed whole."""
        self._forms.enable_batch()
        self.form = Message.framed if self._forms.batch else self._forms.form

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

    def encode(self, forms: Sequence[Form | memoryview]) -> bytes:
        """See ``Codec.encode``: framed messages next to each other become records."""
        connection = self._connection
        out: list[bytes] = [connection.take_owed()] if connection.owed else []
        framed: list[bytes | memoryview] = []
        for form in forms:
            if isinstance(form, list):
                self._record(framed, out)
                framed = []
                connection.encode(form, out)
            else:
                framed.append(form)
        self._record(framed, out)
        return b"".join(out)

    def _record(self, framed: list[bytes | memoryview], out: list[bytes]) -> None:
        if not framed:
            return
        data = framed[0] if len(framed) == 1 else b"".join(framed)
        size = len(data)
        if size <= RECORD_BYTES:
            self._connection.frame(0, data, out)
            return
        view = memoryview(data)
        for at in range(0, size, RECORD_BYTES):
            self._connection.frame(0, view[at : at + RECORD_BYTES], out)
