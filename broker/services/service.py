"""What a service is.

A service is a class with a ``name`` and methods marked ``@method``, in a file of this folder, where it is found (see
``registry``). A handler gets a ``Request`` and returns a payload
(a mapping becomes JSON, a str a NUL-terminated string, bytes stay), None for an empty response, or ``LATER`` when it
answers itself with ``request.respond``. Plain functions run inline, in order; for ``async def`` and generators see
``broker.serving.runner``. Raise ``RpcError(errnum, text)`` to refuse.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from broker.errors import RpcError
from broker.identity import Role
from broker.services.context import Context
from broker.services.streams import Streams
from broker.serving.method import Method
from broker.serving.request import Request

Handler = TypeVar("Handler", bound=Callable[..., Any])
Kept = TypeVar("Kept", bound=Streams[Any])


def method(name: str, *, allow: int = Role.NONE, streaming: bool = False) -> Callable[[Handler], Handler]:
    """Mark a handler for ``SERVICE.name``.

    Args:
        name: everything after the service's name and its dot.
        allow: role bits that may call it besides OWNER, who always may; 0 is owner only.
        streaming: requests without the STREAMING flag are refused with EPROTO (RFC 6, "Streaming Responses").
    """

    def mark(handler: Handler) -> Handler:
        handler.__dict__["headgate_method"] = (name, int(allow), streaming)
        return handler

    return mark


class Service:
    """Base of every built-in service.

    Args:
        context: the broker.
        services: all services of this broker; while they are made, those that were made before.

    Attributes:
        name: the first word of its topics.
        root_only: it is there at rank 0 only.
        last_used: monotonic seconds of the last request, at first of the start.
        debug_flags: what ``SERVICE.debug`` set; every service gives its bits a meaning of its own, or none.
    """

    name: str = ""
    root_only: bool = False

    def __init__(self, context: Context, services: Services) -> None:
        self.context: Context = context
        self.services: Services = services
        self.last_used: float = 0.0
        self.debug_flags: int = 0
        self._streams: list[Streams[Any]] = []

    def start(self) -> None:
        """Called once, before the first request: time to look at the broker and to ask for callbacks."""

    def methods(self) -> dict[str, Method]:
        """By name, which is what follows the service's own and a dot."""
        marks = {
            attribute: getattr(getattr(type(self), attribute), "__dict__", {}).get("headgate_method")
            for attribute in dir(type(self))
        }
        return {
            mark[0]: Method(getattr(self, attribute), mark[1], streaming=mark[2])
            for attribute, mark in marks.items()
            if mark is not None
        }

    def unknown(self, request: Request) -> RpcError:
        """What a request for a method that is not there is answered with."""
        return RpcError(errno.ENOSYS, f"Unknown service method '{request.topic}'")

    def keep(self, streams: Kept) -> Kept:
        """Have each of ``streams``, now and later, end with its sender, and when its sender cancels it."""
        self._streams.append(streams)
        return streams

    def disconnected(self, sender: bytes) -> None:
        """The sender with this route stack is gone: drop what is kept for it. Called once per sender."""
        for streams in self._streams:
            streams.forget(sender)

    def cancelled(self, sender: bytes, matchtag: int) -> None:
        """The sender wants no more responses to its request with ``matchtag``: a stream ends with ENODATA."""
        for streams in self._streams:
            streams.end(sender, matchtag)

    def stats(self) -> Mapping[str, Any]:
        """What ``SERVICE.stats-get`` answers."""
        return {}

    def clear_stats(self) -> None:
        """``SERVICE.stats-clear``."""


Kind = TypeVar("Kind", bound=Service)


class Services:
    """The built-in services of one broker, in the order in which they are made and started.

    Args:
        context: the broker.
        kinds: their classes.
    """

    def __init__(self, context: Context, kinds: Iterable[type[Service]]) -> None:
        self._by_class: dict[type[Service], Service] = {}
        for kind in kinds:
            if context.rank == 0 or not kind.root_only:
                self._by_class[kind] = kind(context, self)

    def __iter__(self) -> Iterator[Service]:
        return iter(self._by_class.values())

    def find(self, kind: type[Kind]) -> Kind:
        """The service of this class.

        Raises:
            KeyError: there is none.
        """
        found = self._by_class[kind]
        assert isinstance(found, kind)
        return found
