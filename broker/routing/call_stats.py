"""Rate, errors and duration of calls, by method (the topic of the request), counted once: where a client's call enters.

A call is counted with its request; its latency is the time until its first response reaches the broker, its error what
its last response says; a stream that ends with ENODATA did not fail. Whoever runs the router tells the time at the
begin of each batch (``now_ns``), so that a latency is exact to the length of a batch. Of calls with matchtag 0, or with
one that is in use, neither the latency nor how many are open is known. Calls of the broker itself, and those that only
pass through the tree, are not counted.
"""

# compiled: mypyc

from __future__ import annotations

import errno
from typing import Final

from broker.figures import TEXT_MAX, NameStats, StatsTable, name_of
from broker.routing.port import Decision
from broker.wire.message import Message
from broker.wire.parts import part_data

NOTICE: Final = b".disconnect"


class CallStats:
    """The methods that clients of one broker called.

    Attributes:
        now_ns: the time, by a clock that nobody sets.
        methods: by topic, ids left out; a method is proven that was answered without an error.
    """

    __slots__ = ("_table", "methods", "now_ns")

    def __init__(self) -> None:
        self.now_ns: int = 0
        self._table: StatsTable = StatsTable()
        self.methods: dict[str, NameStats] = self._table.by_name

    def clear(self) -> None:
        """Start at zero; decisions hold on to what they count in and have to be forgotten, too."""
        self._table.clear()

    def of(self, topic: bytes) -> NameStats:
        """Where calls of a topic are counted."""
        return self._table.of(name_of(topic))

    def refused(self, message: Message, errnum: int, text: str, userid: int) -> None:
        """A call of a client was refused as it came in, for want of a service or of room."""
        topic = bytes(part_data(message.topic_part) or b"")
        if topic.endswith(NOTICE):
            return  # says that somebody left; it is no call
        method = self.of(topic)
        method.calls += 1
        method.failed(errnum, text, userid, self.now_ns)

    def answered(self, method: NameStats, call: Decision, key: bytes, message: Message, failed: bool) -> None:
        """A response came to ``call``, whose key in ``Port.began`` is ``key``; ``failed``: with an errnum."""
        began = call.origin.began
        if call.single_response or failed:
            at = began.pop(key, -1)
            if at >= 0:
                method.open -= 1
        else:
            at = began.get(key, -1)
            if at > 0:
                began[key] = 0
        if at > 0:
            method.took(self.now_ns - at)
        if failed and (call.single_response or message.errnum != errno.ENODATA):
            method.failed(message.errnum, text_of(message), userid_of(call), self.now_ns)
        elif not method.proven:
            self._prove(call)

    def _prove(self, call: Decision) -> None:
        """What ``call`` was to is there, so its name is not made up: it has figures of its own from now on."""
        name = name_of(bytes(part_data(call.topic_part) or b""))
        method = self._table.proven(name)
        if method.proven and call.method is not method:
            call.origin.forget_decisions()  # the next one is counted there


def userid_of(call: Decision) -> int:
    """Who made it."""
    return int.from_bytes(call.head[5:9], "big")


def text_of(message: Message) -> str:
    """The text of an error response; "" where it has none."""
    data = bytes(part_data(message.payload_part[: TEXT_MAX * 4]) or b"")
    return data.rstrip(b"\0").decode("utf-8", "replace")[:TEXT_MAX]
