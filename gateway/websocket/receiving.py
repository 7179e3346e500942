"""What the links of web clients read into, and who gets what they read."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from broker.transport.link import Receiver

READ_BYTES: Final = 128 << 10
"""One read at most, as on UNIX sockets."""

_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()


class WebReceiver(Receiver, Protocol):
    """Who gets what comes out of the link of a web client."""

    def control(self, obj: dict[str, Any]) -> None:
        """A control object of the client, in order with its messages."""


def shared_buffer() -> memoryview:
    """The receive buffer that all links of this loop share: links keep only their partial frames."""
    loop = asyncio.get_running_loop()
    buffer = _buffers.get(loop)
    if buffer is None:
        buffer = _buffers[loop] = memoryview(bytearray(READ_BYTES))
    return buffer
