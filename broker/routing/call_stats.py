"""Rate, errors and duration of calls, by method (the topic of the request), counted once: where a client's call enters.

A call is counted with its request; its latency is the time until its first response reaches the broker, its error what
its last response says. Whoever runs the router tells the time at the begin of each batch (``now_ns``), so that a
latency is exact to the length of a batch. Of calls with matchtag 0, or with one that is in use, neither the latency nor
how many are open is known. Calls of the broker itself, and those that only pass through the tree, are not counted.
"""

from __future__ import annotations

import errno
import re
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from broker.wire.message import Message
from broker.wire.parts import part_data

if TYPE_CHECKING:
    from broker.routing.port import Decision

METHODS_MAX: Final = 256
"""Methods with figures of their own; the rest are counted together under ``OTHER``."""
UNPROVEN_MAX: Final = 64
"""Of these, methods that were never answered without an error: anybody can make up names."""
NAME_MAX_BYTES: Final = 255
"""A longer topic has no figures of its own."""
ERRNOS_MAX: Final = 32
"""Distinct errnos of a method; the rest are counted together as 0."""
OTHER: Final = "other"
NOTICE: Final = b".disconnect"
BOUNDS_NS: Final = tuple(int(2 ** (14 + step / 2)) for step in range(45))
"""Upper bounds of the latency buckets in ns, two an octave from 16 us to 69 s; one more bucket has no bound."""
TEXT_MAX: Final = 200
_ID: Final = re.compile(
    r"(?<![^.\-_])(?:[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{16,}|\d{4,})(?![^.\-_])", re.IGNORECASE
)
"""What names one thing of many in a topic: a UUID, a long hexadecimal or decimal number."""


def grouped(topic: str) -> str:
    """A topic without the ids in it.

    >>> grouped("nfp.job.0b4fdc51-7a0e-4b6e-9a51-3c1d5f0c2a77.progress"), grouped("kvs.get")
    ('nfp.job.*.progress', 'kvs.get')
    """
    return _ID.sub("*", topic)


def name_of(topic: bytes) -> str:
    r"""The method that calls with this topic are counted as; ``OTHER`` where it is long, or cannot be printed.

    >>> name_of(b"job.12345678.end"), name_of(b"kvs.get\x1b[2J")
    ('job.*.end', 'other')
    """
    name = topic.decode("utf-8", "replace") if len(topic) <= NAME_MAX_BYTES else OTHER
    return grouped(name) if name.isprintable() else OTHER


class MethodStats:
    """Figures of one method since the broker started, or since they were cleared.

    Attributes:
        calls: requests that clients sent. open: of those, not answered yet.
        errors: errno -> calls that ended with it. A stream that ends with ENODATA did not fail.
        buckets: how many first responses took as long as ``BOUNDS_NS`` says. total_ns: how long all of them took.
        proven: a call was answered without an error.
        last_errno, last_text, last_userid, last_ns: of the newest error: what it says, whose call, when; 0: none.
    """

    __slots__ = (
        "buckets",
        "calls",
        "errors",
        "last_errno",
        "last_ns",
        "last_text",
        "last_userid",
        "open",
        "proven",
        "total_ns",
    )

    def __init__(self) -> None:
        self.open: int = 0
        self.proven: bool = False
        self.clear()

    def clear(self) -> None:
        """Start at zero; what is open stays open."""
        self.calls: int = 0
        self.errors: dict[int, int] = {}
        self.buckets: list[int] = [0] * (len(BOUNDS_NS) + 1)
        self.total_ns: int = 0
        self.last_errno: int = 0
        self.last_text: str = ""
        self.last_userid: int = 0
        self.last_ns: int = 0

    def failed(self, errnum: int, text: str, userid: int, now_ns: int) -> None:
        """A call of ``userid`` ended with an error."""
        kept = errnum if errnum in self.errors or len(self.errors) < ERRNOS_MAX else 0
        self.errors[kept] = self.errors.get(kept, 0) + 1
        self.last_errno = errnum
        self.last_text = text
        self.last_userid = userid
        self.last_ns = now_ns


UNCOUNTED: Final = MethodStats()
"""Of calls that are counted elsewhere: nobody reads it."""


class CallStats:
    """The methods that clients of one broker called.

    Attributes:
        now_ns: the time, by a clock that nobody sets.
        methods: by topic, ids left out (``grouped``).
    """

    __slots__ = ("_unproven", "methods", "now_ns")

    def __init__(self) -> None:
        self.now_ns: int = 0
        self.methods: dict[str, MethodStats] = {}
        self._unproven: set[str] = set()

    def clear(self) -> None:
        """Start at zero; decisions hold on to what they count in and have to be forgotten, too."""
        self.methods = {name: method for name, method in self.methods.items() if method.open}
        self._unproven &= set(self.methods)
        for method in self.methods.values():
            method.clear()

    def of(self, topic: bytes) -> MethodStats:
        """Where calls of a topic are counted."""
        name = name_of(topic)
        method = self.methods.get(name)
        if method is None:
            if len(self._unproven) < UNPROVEN_MAX and len(self.methods) < METHODS_MAX:
                self._unproven.add(name)
            else:
                name = OTHER
            method = self.methods.setdefault(name, MethodStats())
        return method

    def refused(self, message: Message, errnum: int, text: str, userid: int) -> None:
        """A call of a client was refused as it came in, for want of a service or of room."""
        topic = bytes(part_data(message.topic_part) or b"")
        if topic.endswith(NOTICE):
            return  # says that somebody left; it is no call
        method = self.of(topic)
        method.calls += 1
        method.failed(errnum, text, userid, self.now_ns)

    def answered(
        self, method: MethodStats, call: Decision, key: bytes, message: Message, failed: bool
    ) -> None:
        """A response came to ``call``, whose key in ``Port.began`` is ``key``; ``failed``: with an errnum."""
        began = call.origin.began
        if call.once or failed:
            at = began.pop(key, -1)
            if at >= 0:
                method.open -= 1
        else:
            at = began.get(key, -1)
            if at > 0:
                began[key] = 0
        if at > 0:
            ns = self.now_ns - at
            method.total_ns += ns
            method.buckets[bisect_left(BOUNDS_NS, ns)] += 1
        if failed and (call.once or message.errnum != errno.ENODATA):
            method.failed(message.errnum, text_of(message), userid_of(call), self.now_ns)
        elif not method.proven:
            self._prove(call)

    def _prove(self, call: Decision) -> None:
        """What ``call`` was to is there, so its name is not made up: it has figures of its own from now on."""
        name = name_of(bytes(part_data(call.topic_part) or b""))
        if name == OTHER or (name not in self.methods and len(self.methods) >= METHODS_MAX):
            return
        method = self.methods.setdefault(name, MethodStats())
        method.proven = True
        self._unproven.discard(name)
        if call.method is not method:
            call.origin.forget_decisions()  # the next one is counted there


def userid_of(call: Decision) -> int:
    """Who made it."""
    return int.from_bytes(call.head[5:9], "big")


def text_of(message: Message) -> str:
    """The text of an error response; "" where it has none."""
    data = bytes(part_data(message.payload_part[: TEXT_MAX * 4]) or b"")
    return data.rstrip(b"\0").decode("utf-8", "replace")[:TEXT_MAX]
