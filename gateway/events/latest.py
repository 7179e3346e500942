"""The newest event of each topic, for clients that begin: what the value is now, without waiting for the next one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from broker.wire.parts import part_data

if TYPE_CHECKING:
    from broker.wire.message import Message


class Latest:
    """Bounded; the topic whose event is oldest goes first.

    Args:
        prefixes: of topics whose newest event is kept.
        max_msgs: topics at most. max_bytes: sizes of their events together at most.

    Attributes:
        bytes: sizes of all held events together.
    """

    __slots__ = ("_held", "_max_bytes", "_max_msgs", "_prefixes", "bytes")

    def __init__(self, prefixes: Sequence[str], max_msgs: int, max_bytes: int) -> None:
        self._prefixes = tuple(prefix.encode() for prefix in prefixes)
        self._max_msgs = max_msgs
        self._max_bytes = max_bytes
        self._held: OrderedDict[bytes, Message] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def update(self, messages: list[Message]) -> None:
        """Events that came, in order."""
        held = self._held
        for message in messages:
            topic = bytes(part_data(message.topic_part) or b"")
            if not topic.startswith(self._prefixes):
                continue
            before = held.pop(topic, None)
            if before is not None:
                self.bytes -= before.size
            if message.size > self._max_bytes:
                continue  # all others would go for it, and it, too
            held[topic] = message
            self.bytes += message.size
            while len(held) > self._max_msgs or self.bytes > self._max_bytes:
                self.bytes -= held.popitem(last=False)[1].size

    def clear(self) -> None:
        """Other brokers' events come from now on, or some were missed: what is held may not be the newest."""
        self._held.clear()
        self.bytes = 0

    def under(self, prefix: bytes) -> Iterator[tuple[bytes, Message]]:
        """Topics that begin with ``prefix`` and their newest events, the newest of all first."""
        return (
            (topic, message) for topic, message in reversed(self._held.items()) if topic.startswith(prefix)
        )
