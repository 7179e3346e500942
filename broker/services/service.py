"""What a service is, and all built-in ones of a broker.

A service is a class with a ``name`` and methods marked ``@method``, in a file of this folder, where ``built_in`` finds
it: a new service is a new file. A handler gets a ``Request`` and returns a payload (a mapping becomes JSON, a str a
NUL-terminated string, bytes stay), None for an empty response, or ``LATER`` when it answers itself with
``request.respond``. Plain functions run inline, in order; for ``async def`` and generators see
``broker.serving.runner``. Raise ``RpcError(errnum, text)`` to refuse.

``Streams`` are the open streaming requests of a service (RFC 6). A stream is known by its sender's whole route stack
and its matchtag. It ends when its sender cancels it or is gone, or when the service has no more to say: with ENODATA in
each case but the second, where nobody listens.
"""

from __future__ import annotations

import errno
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

from broker import services
from broker.errors import RpcError
from broker.holdings import Holdings
from broker.identity import Role
from broker.services.context import Context
from broker.serving.request import Request
from broker.serving.runner import Method
from broker.wire.message import NORESPONSE

STREAMS_MAX: int = 4096
"""Open streams of one service; beyond it a request is refused with EAGAIN. A browser page opens a handful."""
GUEST_STREAMS_MAX: int = 1024
"""Of one userid that is not the owner's."""
GUESTS_STREAMS_MAX: int = 3072
"""Of all but the owner: the rest is kept for it."""

Interest = TypeVar("Interest")


class Streams(Generic[Interest]):
    """The open streams of one service, each with what its caller asked for."""

    def __init__(self) -> None:
        self._by_sender: dict[bytes, dict[int, tuple[Request, Interest]]] = {}
        self._by_guest: Holdings[int] = Holdings()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[Request, Interest]]:
        """Every open stream; ending some on the way is allowed."""
        return iter([entry for tags in self._by_sender.values() for entry in tags.values()])

    def open(self, request: Request, interest: Interest) -> None:
        """Keep ``request`` open. One that wants no response is not kept; one that uses a matchtag again ends the first.

        Raises:
            RpcError: EAGAIN; as many are open as may be, of this user, of all guests or of everybody.
        """
        if request.message.flags & NORESPONSE:
            return
        if request.message.matchtag in self._by_sender.get(request.sender, {}):
            self.end(request.sender, request.message.matchtag)
        else:
            self._refuse_more(request)
        self._by_sender.setdefault(request.sender, {})[request.message.matchtag] = (request, interest)
        self._count += 1
        if not request.owner:
            self._by_guest.add(request.message.userid)

    def _refuse_more(self, request: Request) -> None:
        if self._count >= STREAMS_MAX:
            raise RpcError(errno.EAGAIN, f"{self._count} streams are open")
        if request.owner:
            return
        userid = request.message.userid
        if self._by_guest.of(userid) >= GUEST_STREAMS_MAX:
            raise RpcError(
                errno.EAGAIN, f"userid {userid} has {GUEST_STREAMS_MAX} streams open, the limit of one guest"
            )
        if self._by_guest.total >= GUESTS_STREAMS_MAX:
            raise RpcError(
                errno.EAGAIN, f"guests have {GUESTS_STREAMS_MAX} streams open, the limit of all guests"
            )

    def _forget(self, request: Request) -> None:
        self._count -= 1
        if not request.owner:
            self._by_guest.add(request.message.userid, -1)

    def take(self, sender: bytes, matchtag: int) -> Request | None:
        """Forget one stream; returns its request, still to be answered."""
        tags = self._by_sender.get(sender, {})
        entry = tags.pop(matchtag, None)
        if entry is None:
            return None
        self._forget(entry[0])
        if not tags:
            del self._by_sender[sender]
        return entry[0]

    def end(self, sender: bytes, matchtag: int) -> None:
        """End one stream with ENODATA; an unknown one was never there or is over."""
        request = self.take(sender, matchtag)
        if request is not None:
            request.respond_error(errno.ENODATA)

    def forget(self, sender: bytes) -> None:
        """The sender is gone: drop its streams without a word."""
        for request, _interest in self._by_sender.pop(sender, {}).values():
            self._forget(request)


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
        """The error that answers a request for an unknown method."""
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
            # below rank 0 a request for such a service finds no provider, and goes up by itself (RFC 3)
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


def built_in() -> list[type[Service]]:
    """The class of every built-in service, by file."""
    modules = [
        import_module(f"{services.__name__}.{found.name}")
        for found in pkgutil.iter_modules(services.__path__)
    ]
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        # what a file imports is another file's
        if isinstance(kind, type)
        and issubclass(kind, Service)
        and kind.__module__ == module.__name__
        and kind.name
    ]
