"""Callers that trace messages (``overlay.trace``, ``module.trace``): their filters, and the records each is sent.

A record has the keys of flux-core's, and ``monotonic``: the same time by a clock that nobody sets. A tracer whose link
is above high water is sent nothing until it has caught up; ``dropped`` in its next record says how many it missed. The
messages that carry records to tracers are not traced, or two tracers would trace each other for ever.
"""

from __future__ import annotations

import errno
import fnmatch
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from broker.errors import ProtocolError, RpcError
from broker.services.context import Context, TracedMessage
from broker.services.service import Streams
from broker.serving.request import Request
from broker.wire.message import CONTROL, EVENT, HANDLED, MARK, MARKED, RESPONSE, Message
from broker.wire.parts import part_data
from broker.wire.payload import any_text, is_json_object

TRACERS_MAX: Final = 64
"""Of one service: each of them is work for every message."""
GLOB_CHARS: Final = 1024
FULL_MAX_BYTES: Final = 64 << 10
"""Larger payloads are shown by their size alone, even where the whole message is asked for."""
NONE: Final = -1
"""Rank of a link that is no broker's, of an event that goes to all children, and of a service: "any" as deployed."""
_CONTROLS: Final = {
    0: "heartbeat", 1: "status", 2: "disconnect", HANDLED: "handled", MARK: "mark", MARKED: "marked",
}  # fmt: skip


class Tracer:
    """The wishes of one caller: the keys of its request.

    Attributes:
        types: bits of message types. matches: whether a topic is wanted. full: show payloads. calls: what it takes to
        tell which response answers which request, and of whom.
        nodeid: the neighbour, -1 for each. clients: links of clients, too. names: of services; none is each.
        dropped: records that it was too slow for, since its last one.
    """

    __slots__ = ("calls", "clients", "dropped", "full", "matches", "names", "nodeid", "types")

    def __init__(self, request: Request) -> None:
        self.types: int = request.field("typemask", int)
        self.matches: Callable[[str], object] | None = matcher(request.field("topic_glob", str))
        self.full: bool = request.field("full", bool, False)
        self.calls: bool = request.field("calls", bool, False)
        self.nodeid: int = NONE
        self.clients: bool = False
        self.names: frozenset[str] = frozenset()
        self.dropped: int = 0

    def wants(self, message: Message, topic: str) -> bool:
        """By type and topic; a control message has none, and is seen by tracers of any topic."""
        if self.types and not self.types & message.type:
            return False
        return self.matches is None or (message.type != CONTROL and bool(self.matches(topic)))


class Tracers(Streams[Tracer]):
    """The tracers of one service.

    Args:
        context: the broker. changed: called when the first came, the last went, or their wishes are others.
    """

    def __init__(self, context: Context, changed: Callable[[], None]) -> None:
        super().__init__()
        self._context = context
        self._changed = changed

    @property
    def clients(self) -> bool:
        """One of them wants to see the links of clients."""
        return any(tracer.clients for _, tracer in self)

    def open(self, request: Request, tracer: Tracer) -> None:
        """Tell the sender of ``request`` from now on.

        Raises:
            RpcError: EAGAIN; there are too many.
        """
        if len(self) >= TRACERS_MAX:
            raise RpcError(errno.EAGAIN, f"{TRACERS_MAX} traces are open")
        super().open(request, tracer)
        self._changed()

    def forget(self, sender: bytes) -> None:
        """The sender is gone."""
        if len(self):
            super().forget(sender)
            self._changed()

    def end(self, sender: bytes, matchtag: int) -> None:
        """End one of them with ENODATA."""
        if len(self):
            super().end(sender, matchtag)
            self._changed()

    def tell(
        self, passed: TracedMessage, rank: int, name: str | None, wanted: Callable[[Tracer], bool]
    ) -> None:
        """Tell of a message each tracer that wants to see it: by its filter and ``wanted``."""
        message = passed.message
        topic = topic_of(message)
        if topic == "module.trace" or (topic == "overlay.trace" and message.type == RESPONSE):
            return
        for request, tracer in self:
            if tracer.wants(message, topic) and wanted(tracer):
                self._send(request, tracer, record(passed, topic, rank, name, tracer))

    def _send(self, request: Request, tracer: Tracer, told: dict[str, Any]) -> None:
        link = self._context.sender_of(request.message)
        if link is not None and link.busy:
            tracer.dropped += 1
            return
        if tracer.dropped:
            told["dropped"], tracer.dropped = tracer.dropped, 0
        try:
            request.respond(told)
        except ProtocolError:  # nested as deep as may be, and now one deeper
            request.respond({**told, "payload": None})


def matcher(glob: str) -> Callable[[str], object] | None:
    """The pattern that a topic has to match, as by fnmatch(3); None when every message is wanted.

    Raises:
        ProtocolError: ``glob`` is too long.

    >>> bool(matcher("broker.*")("broker.ping")), matcher("broker.ping")("broker.pings"), matcher("*")
    (True, False, None)
    """
    if len(glob) > GLOB_CHARS:
        raise ProtocolError(f"topic_glob is longer than {GLOB_CHARS}")
    if glob in ("", "*"):
        return None
    if any(mark in glob for mark in "*?["):
        return re.compile(fnmatch.translate(glob)).match
    return glob.__eq__


def topic_of(message: Message) -> str:
    """The topic; of a control message, which has none, what it says."""
    if message.type == CONTROL:
        return f"{_CONTROLS.get(message.aux1, 'unknown')} {message.aux2}"
    return bytes(part_data(message.topic_part) or b"").decode("utf-8", "replace")


def record(passed: TracedMessage, topic: str, rank: int, name: str | None, tracer: Tracer) -> dict[str, Any]:
    """What ``tracer`` is told of one message: the keys of flux-core's answer, and ``monotonic``."""
    message = passed.message
    errnum = message.errnum if message.type == RESPONSE else 0
    data = part_data(message.payload_part)
    size = len(data) if data is not None and not errnum else 0
    whole = tracer.full and data is not None and 0 < size <= FULL_MAX_BYTES
    told = {
        "timestamp": passed.wall,
        "prefix": passed.prefix,
        "rank": rank,
        "name": name,
        "type": message.type,
        "topic": topic,
        "payload_size": size,
        "payload": shown(bytes(data)) if whole and data is not None else None,
        "errnum": errnum,
        "errstr": any_text(message.payload) if errnum and (tracer.full or tracer.calls) else "",
        "monotonic": passed.now,
    }
    if tracer.calls:
        told |= {"flags": message.flags, "userid": message.userid, "matchtag": message.aux2}
        if message.type == EVENT:
            told["sequence"] = message.sequence
    return told


def shown(payload: bytes) -> msgspec.Raw | None:
    """A JSON object as it stands; None when the payload is none."""
    return msgspec.Raw(payload[:-1]) if is_json_object(payload) else None
