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
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from broker.client.blocking_service import THREADS, Service, ThreadHandler
from broker.client.dialing import connect as connect_async
from broker.client.received import Event, Response
from broker.loopthread import LoopThread, OpenItems
from broker.transport.link import Flusher, Options
from broker.wire.message import NODEID_ANY, Message

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Mapping
    from types import TracebackType

    from broker.client.calls import Stream as AsyncStream
    from broker.client.handle import Handle as AsyncHandle
    from broker.client.limits import Limits
    from broker.client.reconnecting import Reconnect
    from broker.client.subscriptions import Overflow
    from broker.client.subscriptions import Subscription as AsyncSubscription
    from broker.errors import LinkError
    from broker.wire.payload import Payload


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


class Handle:
    """A connection to a broker for ordinary threads; see ``broker.client.handle.Handle`` for what each name
    does.
    """

    def __init__(self, handle: AsyncHandle, loop: LoopThread) -> None:
        self._handle = handle
        self._loop = loop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the link and end the thread; harmless twice."""
        try:
            if self._handle.ended is None:
                self._loop.run(self._handle.close())
        finally:
            self._loop.stop()

    @property
    def ended(self) -> LinkError | None:
        """None while the link lives, then why it ended."""
        return self._handle.ended

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
        response: Response | None = self._loop.run(self._handle.rpc(topic, payload, **options))
        return response

    def request(self, message: Message) -> concurrent.futures.Future[Message]:
        """Send a request built by hand; the future gets its response message, whatever its errnum."""

        async def asked() -> Message:
            return await self._handle.request(message)

        return self._loop.start(asked())

    def send(self, message: Message) -> None:
        """Queue any message as it is."""
        self._loop.call(self._handle.send, message)

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
        stream = self._handle.stream(
            topic,
            payload,
            nodeid=nodeid,
            upstream=upstream,
            anywhere=anywhere,
            cancel_topic=cancel_topic,
            buffer_msgs=buffer_msgs,
        )
        return Stream(stream, self._loop)

    def publish(
        self, topic: str, payload: Payload = None, *, private: bool = False, delivered: bool = True
    ) -> int:
        """Publish an event; once it is delivered, return its sequence number: what is called next comes after it."""
        return self._loop.run(self._handle.publish(topic, payload, private=private, delivered=delivered))

    def publish_nowait(self, topic: str, payload: Payload = None, *, private: bool = False) -> None:
        """Publish an event without an answer from the broker."""
        self._loop.call(self._handle.publish_nowait, topic, payload, private=private)

    def subscribe(
        self, *prefixes: str, overflow: Overflow = "raise", buffer_msgs: int | None = None
    ) -> Subscription:
        """Events whose topic begins with one of ``prefixes`` (none: every event)."""
        subscription = self._handle.subscribe(*prefixes, overflow=overflow, buffer_msgs=buffer_msgs)
        return Subscription(subscription, self._loop)

    def service(
        self,
        name: str,
        methods: Mapping[str, ThreadHandler | tuple[ThreadHandler, int]] | None = None,
        *,
        threads: int = THREADS,
    ) -> Service:
        """A service whose methods are ordinary functions, run by ``threads`` threads; see Service."""
        return Service(self._handle.service(name), self._loop, methods or {}, threads)

    def serve(self, name: str, methods: Mapping[str, ThreadHandler | tuple[ThreadHandler, int]]) -> Service:
        """Register a service until its ``close()`` or the handle's end."""
        return self.service(name, methods).open()

    def attr(self, name: str, *, nodeid: int = NODEID_ANY) -> str:
        """A broker attribute; immutable ones are asked for once."""
        return self._loop.run(self._handle.attr(name, nodeid=nodeid))

    def rank(self) -> int:
        """Rank of the broker this handle is connected to."""
        return self._loop.run(self._handle.rank())

    def size(self) -> int:
        """Number of brokers of the instance."""
        return self._loop.run(self._handle.size())

    def log(self, severity: int | str, text: str, *, app: str | None = None) -> None:
        """Append to the broker's log, unanswered."""
        self._loop.run(self._handle.log(severity, text, app=app))


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
