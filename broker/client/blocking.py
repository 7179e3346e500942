"""The client for ordinary threads: the names of ``broker.client``, every call waits.

::

    import broker.client.blocking

    with broker.client.blocking.connect() as h:
        print(h.rpc("attr.get", {"name": "size"}).json()["value"])
        with h.subscribe("job.") as events:
            for event in events:
                print(event.sequence, event.topic, event.text)

A handle runs an event loop in a thread of its own and may be used from any number of other threads at once;
a stream or subscription by one at a time. Ctrl-C in a waiting call raises KeyboardInterrupt there and
cancels the call; the ``with`` blocks around it leave cleanly. Errors are those of ``broker.client``.

Methods of services are ordinary functions: each request runs in a thread of the service's pool. A generator function
streams. A thread cannot be interrupted: when the caller cancels or goes away, the answer is dropped, a generator gets
``close()`` at its next step, and a long function may look at ``request.done``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, overload

from broker.client.calls import Response
from broker.client.dialing import connect as connect_async
from broker.client.handle import Handle as AsyncHandle
from broker.client.service import table
from broker.client.subscriptions import Event
from broker.errors import LinkClosed
from broker.identity import Role
from broker.loopthread import LoopThread, Mirror, OpenItems, calls, waits
from broker.serving.request import RequestMessage
from broker.transport.link import Flusher, Options
from broker.wire.message import NODEID_ANY, Message
from broker.wire.payload import Payload, encode

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Mapping
    from types import TracebackType

    from broker.client.calls import Stream as AsyncStream
    from broker.client.connection import Limits
    from broker.client.reconnecting import Reconnect
    from broker.client.service import Service as AsyncService
    from broker.client.subscriptions import Overflow, Since
    from broker.client.subscriptions import Subscription as AsyncSubscription
    from broker.errors import LinkError
    from broker.loopthread import LoopThread
    from broker.serving.request import Handler, Result
    from broker.serving.request import Request as AsyncRequest
    from broker.wire.payload import Payload

THREADS: Final = 8
"""Requests of one service that run at a time; the others wait, and so does a stream's next step."""
_END: Final = object()


class Request(RequestMessage):
    """One request for a method of ours, for use in the handler's thread; see
    ``broker.serving.request.Request``.
    """

    __slots__ = ("_asked", "_loop", "_writable")

    def __init__(
        self, asked: AsyncRequest, loop: LoopThread, writable: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(asked.message)
        self._asked = asked
        self._loop = loop
        self._writable = writable

    @property
    def done(self) -> bool:
        """True once the last response was given, or the caller is gone or cancelled."""
        return self._asked.done

    def respond(self, payload: Payload = None) -> None:
        """Send a response, the last one unless ``streaming``; waits while the broker reads slowly."""
        with contextlib.suppress(LinkClosed):  # the handle has been closed meanwhile: nobody can be answered
            self._loop.run(self._respond(encode(payload)))

    async def _respond(self, data: bytes | None) -> None:
        await self._writable()
        self._asked.respond(data)

    def respond_error(self, errnum: int, text: str = "") -> None:
        """Send the last response: POSIX ``errnum``, not 0, and a short text."""
        if errnum == 0:
            raise ValueError("errnum 0 is success: use respond()")
        self._loop.post(self._asked.respond_error, errnum, text)


ThreadHandler: TypeAlias = Callable[[Request], "Result | Iterator[Payload]"]
"""A function or generator function of one Request."""


class _Steps:
    """A generator that several threads step in turn."""

    def __init__(self, items: Any) -> None:
        self._items = items
        self._lock = threading.Lock()

    def step(self) -> Any:
        with self._lock:
            return next(self._items, _END)

    def close(self) -> None:
        with self._lock:
            self._items.close()


class Service:
    """A registered name: ``with h.service("calc", {"add": add}):`` or ``calc = h.serve("calc", {...})``.

    ::

        def add(request):
            numbers = request.json()
            return {"sum": numbers["a"] + numbers["b"]}

    Methods decorated inside the block may miss requests that came before: name them in the mapping, or
    decorate before entering.
    """

    def __init__(
        self,
        service: AsyncService,
        loop: LoopThread,
        methods: Mapping[str, ThreadHandler | tuple[ThreadHandler, int]],
        threads: int = THREADS,
    ) -> None:
        self._service = service
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"service {service.name}")
        for name, handler, allow in table(methods):
            self.add(name, handler, allow=allow)

    @property
    def name(self) -> str:
        """The service's name, a topic's first word."""
        return self._service.name

    def method(self, name: str, *, allow: int = Role.OWNER) -> Callable[[ThreadHandler], ThreadHandler]:
        """Decorate the handler of ``SERVICE.name``; ``allow`` is a mask of roles, OWNER always included."""

        def decorate(handler: ThreadHandler) -> ThreadHandler:
            self.add(name, handler, allow=allow)
            return handler

        return decorate

    def add(self, name: str, handler: ThreadHandler, *, allow: int = Role.OWNER) -> None:
        """Let ``handler`` answer ``SERVICE.name``; replaces an earlier one."""
        wrapped = self._streaming(handler) if inspect.isgeneratorfunction(handler) else self._single(handler)
        self._loop.call(self._service.add, name, wrapped, allow=allow)

    def _single(self, handler: Any) -> Handler:
        async def answer(asked: AsyncRequest) -> Result:
            loop = asyncio.get_running_loop()
            result: Result = await loop.run_in_executor(self._pool, handler, self._request(asked))
            return result

        return answer

    def _streaming(self, handler: Any) -> Handler:
        async def answers(asked: AsyncRequest) -> AsyncIterator[Payload]:
            loop = asyncio.get_running_loop()
            steps = _Steps(handler(self._request(asked)))
            try:
                while (item := await loop.run_in_executor(self._pool, steps.step)) is not _END:
                    yield item
            finally:
                self._pool.submit(steps.close)

        return answers

    def _request(self, asked: AsyncRequest) -> Request:
        return Request(asked, self._loop, self._service.link.writable)

    def open(self) -> Self:
        """Register the name.

        Raises:
            RpcError: EEXIST 17 taken, EPERM 1 a guest's name lacks its ``UID-`` prefix. LinkError: the link
            ended.
        """
        try:
            self._loop.run(self._service.open())
        except BaseException:
            self._pool.shutdown(wait=False, cancel_futures=True)
            raise
        return self

    def close(self) -> None:
        """Remove the name; callers in flight are answered ECANCELED; threads that run are not waited for."""
        try:
            self._loop.run(self._service.close())
        finally:
            self._pool.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Stream(OpenItems[Response]):
    """A streaming call: ``with h.stream(...) as s: for response in s``; see
    ``broker.client.calls.Stream``.
    """

    def __init__(self, stream: AsyncStream, loop: LoopThread) -> None:
        self._stream = stream
        super().__init__(stream, loop)

    def cancel(self) -> None:
        """Ask the service to end the stream; go on iterating to see its end."""
        self._loop.run(self._stream.cancel())


class Subscription(OpenItems[Event]):
    """Events: ``with h.subscribe("job.") as events: for event in events``; see
    ``broker.client.subscriptions``.
    """

    def __init__(self, subscription: AsyncSubscription, loop: LoopThread) -> None:
        self._subscription = subscription
        super().__init__(subscription, loop)

    @property
    def lost(self) -> int:
        """Events lost to a full buffer since the subscription began."""
        return self._subscription.lost

    @property
    def epoch(self) -> str:
        """Whose numbers the events have, where it began with those of before; else ""."""
        return self._subscription.epoch


class Handle(Mirror[AsyncHandle]):
    """A connection to a broker for ordinary threads: each name is that of ``broker.client.handle.Handle``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the link and end the thread; harmless twice."""
        try:
            if self._source.ended is None:
                self._loop.run(self._source.close())
        finally:
            self._loop.stop()

    @property
    def ended(self) -> LinkError | None:
        """None while the link lives, then why it ended."""
        return self._source.ended

    @overload
    def rpc(
        self,
        topic: str,
        payload: Payload = None,
        *,
        nodeid: int = NODEID_ANY,
        upstream: bool = False,
        anywhere: bool = False,
        timeout_s: float | None = None,
        noresponse: Literal[False] = False,
    ) -> Response: ...
    @overload
    def rpc(
        self,
        topic: str,
        payload: Payload = None,
        *,
        nodeid: int = NODEID_ANY,
        upstream: bool = False,
        anywhere: bool = False,
        timeout_s: float | None = None,
        noresponse: Literal[True],
    ) -> None: ...
    def rpc(self, topic: str, payload: Payload = None, **options: Any) -> Response | None:
        """Call ``topic`` and wait for its one response."""
        response: Response | None = self._loop.run(self._source.rpc(topic, payload, **options))
        return response

    def request(self, message: Message) -> concurrent.futures.Future[Message]:
        """Send a request built by hand; the future gets its response message, whatever its errnum."""

        async def asked() -> Message:
            return await self._source.request(message)

        return self._loop.start(asked())

    send = calls(AsyncHandle.send)

    def stream(
        self,
        topic: str,
        payload: Payload = None,
        *,
        nodeid: int = NODEID_ANY,
        upstream: bool = False,
        anywhere: bool = False,
        cancel_topic: str | None = None,
        buffer_msgs: int | None = None,
    ) -> Stream:
        """Call ``topic`` for many responses."""
        stream = self._source.stream(
            topic,
            payload,
            nodeid=nodeid,
            upstream=upstream,
            anywhere=anywhere,
            cancel_topic=cancel_topic,
            buffer_msgs=buffer_msgs,
        )
        return Stream(stream, self._loop)

    publish = waits(AsyncHandle.publish)
    publish_nowait = calls(AsyncHandle.publish_nowait)

    def subscribe(
        self,
        *prefixes: str,
        since: Since | None = None,
        overflow: Overflow = "raise",
        buffer_msgs: int | None = None,
    ) -> Subscription:
        """Events whose topic begins with one of ``prefixes`` (none: every event), perhaps with those of before."""
        subscription = self._source.subscribe(
            *prefixes, since=since, overflow=overflow, buffer_msgs=buffer_msgs
        )
        return Subscription(subscription, self._loop)

    def service(
        self,
        name: str,
        methods: Mapping[str, ThreadHandler | tuple[ThreadHandler, int]] | None = None,
        *,
        threads: int = THREADS,
    ) -> Service:
        """A service whose methods are ordinary functions, run by ``threads`` threads; see Service."""
        return Service(self._source.service(name), self._loop, methods or {}, threads)

    def serve(self, name: str, methods: Mapping[str, ThreadHandler | tuple[ThreadHandler, int]]) -> Service:
        """Register a service until its ``close()`` or the handle's end."""
        return self.service(name, methods).open()

    attr = waits(AsyncHandle.attr)
    rank = waits(AsyncHandle.rank)
    size = waits(AsyncHandle.size)
    log = waits(AsyncHandle.log)


def connect(
    uri: str | None = None,
    *,
    options: Options | None = None,
    limits: Limits | None = None,
    retries: int | None = None,
    reconnect: Reconnect | bool = True,
) -> Handle:
    """Connect to a broker and return a Handle to close, best with ``with``; arguments as
    ``broker.client.connect``.

    Raises:
        LinkRefused, LinkBroken, ConfigError: as ``broker.client.connect``.
    """
    # a flusher belongs to one loop, and this handle gets one of its own
    own = Options() if options is None else replace(options, flusher=Flusher())

    async def connected() -> AsyncHandle:
        return await connect_async(uri, options=own, limits=limits, retries=retries, reconnect=reconnect)

    loop = LoopThread()
    try:
        return Handle(loop.run(connected()), loop)
    except BaseException:
        loop.stop()
        raise
