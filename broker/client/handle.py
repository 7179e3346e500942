"""The Handle: what a program asks of a broker, by calls, streams, events, services and attributes.

What is below, the link and its end, is its Connection.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import time
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Literal, overload

import msgspec

from broker.bounded_queue import BoundedQueue
from broker.client.calls import Response, Stream, same_error
from broker.client.connection import Connection
from broker.client.nearby import Nearby
from broker.client.service import Service, table
from broker.client.subscriptions import Event, Overflow, Past, Since, Subscription
from broker.errors import LinkEnded, Missed
from broker.inbox import Inbox
from broker.tasks import within
from broker.wire import message as wire
from broker.wire.log_entry import compose, severity_number
from broker.wire.message import NODEID_ANY, Message
from broker.wire.payload import Payload, encode
from broker.wire.topic import encode_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.client.connection import Limits
    from broker.client.reconnecting import Reconnecting
    from broker.serving.request import Handler
    from broker.transport.link import Link

_IMMUTABLE: Final = 1
"""Flag of an attribute: the value never changes."""


class _Attribute(msgspec.Struct):
    """Response of ``attr.get``."""

    value: str
    flags: int = 0


class _Published(msgspec.Struct):
    """Response of ``event.publish``."""

    seq: int


class Handle(Connection):
    """A connection to a broker; made by ``connect``, ended by leaving its ``async with`` block.

    Over ``ws://`` and ``wss://`` a link that is lost is followed by another one (``connect(reconnect=...)``). When the
    last link has ended, whatever waits raises LinkClosed (we left), LinkEnded (the broker did) or LinkBroken.

    Attributes:
        nearby: which ranks have which service, as brokers said.
    """

    def __init__(
        self, link: Link, limits: Limits | None = None, reconnecting: Reconnecting | None = None
    ) -> None:
        self._attributes: dict[str, str] = {}
        self.nearby = Nearby(
            lambda topic, payload, rank: self.rpc(topic, payload, nodeid=rank),
            self.rank,
            asyncio.get_running_loop().time,
        )
        super().__init__(link, limits, reconnecting)

    def _reconnected(self, link: Link) -> None:
        self._attributes.clear()  # the gateway may have another broker behind it now
        super()._reconnected(link)

    # -- calls ---------------------------------------------------------------------------------

    @overload
    async def rpc(
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
    async def rpc(
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
    async def rpc(
        self,
        topic: str,
        payload: Payload = None,
        *,
        nodeid: int = NODEID_ANY,
        upstream: bool = False,
        anywhere: bool = False,
        timeout_s: float | None = None,
        noresponse: bool = False,
    ) -> Response | None:
        """Call ``topic`` and wait for its one response (RFC 6).

        ::

            size = (await h.rpc("attr.get", {"name": "size"})).json()["value"]

        Args:
            topic: ``SERVICE.METHOD``.
            payload: a mapping (JSON), text, bytes, or None.
            nodeid: a rank, or NODEID_ANY: the nearest broker towards rank 0 that has the service.
            upstream: skip the broker of rank ``nodeid`` (ours, when that is NODEID_ANY) and ask above it.
            anywhere: ask the nearest client that provides the service, wherever in the tree it is; those that are
                equally near take turns. What such a client was asked before it died is answered EHOSTUNREACH, later
                calls go to the next one.
            timeout_s: seconds to wait; None waits until the link ends.
            noresponse: send only, ask for no response, return None.

        Raises:
            RpcError: the response has a nonzero errnum. TimeoutError: no response in time.
            LinkError: the link ended. HeadgateError: EAGAIN, too many calls wait.
            ValueError: ``nodeid`` is no rank; 0xFFFFFFFE, libflux's FLUX_NODEID_UPSTREAM, is ``upstream`` here.
                ``anywhere`` beside ``nodeid`` or ``upstream``. ``timeout_s`` is nan.
        """
        _check_anywhere(anywhere, nodeid, upstream)
        deadline = None if timeout_s is None else within(timeout_s)
        flags = (wire.NORESPONSE if noresponse else 0) | (wire.UPSTREAM if upstream else 0)
        message = wire.request(topic, encode(payload), nodeid=nodeid, flags=flags)
        asking = self.nearby.call(message, self._ask) if anywhere else self._ask(message)
        if deadline is None:
            return await asking
        try:
            async with deadline:
                return await asking
        except TimeoutError as error:
            raise TimeoutError(f"{topic}: no response within {timeout_s:g} s") from error

    async def _ask(self, message: Message) -> Response | None:
        await self.writable()
        flags = message.head[4]
        if flags & wire.UPSTREAM and message.nodeid == NODEID_ANY:
            message.set_aux1(await self.rank())
        if flags & wire.NORESPONSE:
            self._send_alive(message)
            return None
        response = Response(await self.request(message))
        if response.message.errnum:
            raise response.error()
        return response

    def _send_alive(self, message: Message) -> None:
        if self._calls.ended is not None:
            raise same_error(self._calls.ended)
        if self._lost:
            raise LinkEnded("the connection is lost, and another one is not there yet")
        self.send(message)

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
        """Call ``topic`` for many responses (RFC 6, "Streaming Responses"); see Stream.

        ::

            async with h.stream("log.dmesg", {"follow": True}) as lines:
                async for line in lines:
                    print(line.text)

        Args:
            topic: as for ``rpc``.
            payload: as for ``rpc``.
            nodeid: as for ``rpc``.
            upstream: as for ``rpc``, and ``nodeid`` is needed with it.
            anywhere: as for ``rpc``.
            cancel_topic: what ends it early; None is ``SERVICE.cancel``.
            buffer_msgs: responses buffered for a slow reader; None is ``Limits.stream_msgs``.

        Raises:
            LinkError: on entering the block: the link has ended. ValueError: ``upstream`` without ``nodeid``,
                ``anywhere`` beside either, or ``nodeid`` is no rank.
        """
        _check_anywhere(anywhere, nodeid, upstream)
        if upstream and nodeid == NODEID_ANY:
            raise ValueError("upstream=True needs nodeid: the rank of the broker to skip")
        flags = wire.STREAMING | (wire.UPSTREAM if upstream else 0)
        message = wire.request(topic, encode(payload), nodeid=nodeid, flags=flags)
        inbox: Inbox[Response] = Inbox(buffer_msgs or self._limits.stream_msgs, self._limits.stream_bytes)
        nearby = self.nearby if anywhere else None
        return Stream(message, self._calls, self.send, inbox, cancel_topic, nearby)

    # -- events --------------------------------------------------------------------------------

    async def publish(
        self, topic: str, payload: Payload = None, *, private: bool = False, delivered: bool = True
    ) -> int:
        """Publish an event; once it is delivered, return its sequence number (``event.publish`` at rank 0).

        Order. When this returns, our broker has sent the event to all its subscribers, this handle's own among them,
        and whatever is called next comes after it, at every broker: a request passes no broker before the event did.
        So publish the change, then tell by RPC. A real flux-core keeps that order, too.

        Args:
            topic: what subscribers choose by; at most 1024 bytes unless the broker is told otherwise.
            payload: as for ``rpc``.
            private: for its sender's userid and the owner only.
            delivered: False sends an event message as ``publish_nowait`` does, once we are ``writable``, and returns 0.
                That is faster for many events, but the event goes to rank 0 for its number first, and what is called
                next on our own broker overtakes it.

        Raises:
            RpcError: EHOSTUNREACH: the way to rank 0 is lost, also while we wait; nobody knows then whether it was
                published. The others as ``rpc``. LinkError: as ``rpc``.
        """
        if not delivered:
            await self.writable()
            self.publish_nowait(topic, payload, private=private)
            return 0
        encode_topic(topic)
        content: dict[str, object] = {"topic": topic, "flags": wire.PRIVATE if private else 0}
        data = encode(payload)
        if data is not None:
            content["payload"] = base64.b64encode(data).decode()
        return (await self.rpc("event.publish", content, nodeid=0)).json(_Published).seq

    def publish_nowait(self, topic: str, payload: Payload = None, *, private: bool = False) -> None:
        """Publish an event without an answer: nobody tells its number, nor when it is delivered or that it was refused.

        Events of one handle stay in order among themselves, but a call made after this may be ahead of the event: see
        ``publish``. A broker that has lost its parent keeps it until it is back; what is beyond 4 MiB of a user,
        counting 4 KiB more for each event, is lost and counted there.

        Never waits; a program that publishes much awaits ``writable()`` now and then, because an outbox that overflows
        ends its link.

        Raises:
            LinkError: the link has ended, or another one is dialled.
        """
        self._send_alive(wire.event(topic, encode(payload), flags=wire.PRIVATE if private else 0))

    def subscribe(
        self,
        *prefixes: str,
        since: Since | None = None,
        overflow: Overflow = "raise",
        buffer_msgs: int | None = None,
    ) -> Subscription:
        """Events whose topic begins with one of ``prefixes`` (none: every event), each once and in order.

        ::

            async with h.subscribe("job.") as events:
                async for event in events:
                    print(event.sequence, event.topic, event.text)

        Args:
            prefixes: plain text, no patterns: ``job`` matches ``jobs.new`` too.
            since: events of before come first, as far as rank 0 keeps them (``events.history_bytes``): behind a
                number, behind ``(epoch, number)``, which tells numbers of a former rank 0 apart, or of the last
                ``timedelta``. What it does not keep any more is Missed, or ``Event.missed``. For the owner's programs.
                Over ``ws`` the gateway gives its users what they may have, behind a number, with the first subscription
                of a connection. None: those that are published from now on.
            overflow: what a full buffer does with the gap: ``raise`` Overrun there, or ``mark`` it in
                ``Event.lost``. The same of events that may be missing because the link was lost: ``raise`` Missed, or
                ``mark`` it in ``Event.missed``.
            buffer_msgs: events buffered for a slow reader; None is ``Limits.event_msgs``.

        Raises:
            RpcError, LinkError: on entering the block; with ``since`` EPERM, for the owner only, ENOSYS, none are kept,
                or over ``ws`` EBUSY, it is not the first one, and EOPNOTSUPP, of a ``timedelta``.
        """
        room = buffer_msgs or self._limits.event_msgs, self._limits.event_bytes
        past = begin = None
        if since is not None and self.link.replay is not None:
            begin = partial(self._begin_at, since)
        elif since is not None:
            past = Past(self, since, BoundedQueue(*room))
        inbox: Inbox[Event | Missed] = Inbox(*room)
        return Subscription(prefixes or [""], self._subscriptions, inbox, overflow, past, begin)

    def _begin_at(self, since: Since, prefixes: list[str]) -> asyncio.Future[wire.Message]:
        return self._position.begin_at(self.link, since, prefixes)  # the link of when it begins

    # -- services ------------------------------------------------------------------------------

    def service(
        self, name: str, methods: Mapping[str, Handler | tuple[Handler, int]] | None = None
    ) -> Service:
        """A service that others call while its ``async with`` block runs; see Service.

        ::

            async with h.service("echo") as echo:
                @echo.method("run")
                def run(request):
                    return request.payload
                await asyncio.sleep(60)

        Args:
            name: one word; a guest's begins with ``USERID-``.
            methods: method name -> handler (OWNER may call) or (handler, mask of roles that may).

        Raises:
            RpcError, LinkError: on entering the block.
        """
        service = Service(name, self, self._limits.service_tasks, self._limits.service_waiting)
        for method, handler, allow in table(methods or {}):
            service.add(method, handler, allow=allow)
        return service

    async def serve(self, name: str, methods: Mapping[str, Handler | tuple[Handler, int]]) -> Service:
        """Register a service until its ``close()`` or the handle's end; see ``service``."""
        return await self.service(name, methods).open()

    # -- what every broker has -----------------------------------------------------------------

    async def attr(self, name: str, *, nodeid: int = NODEID_ANY) -> str:
        """A broker attribute (``attr.get``); immutable ones of our own broker are asked for once.

        Raises:
            RpcError: ENOENT 2, there is none. LinkError: as ``rpc``.
        """
        known = self._attributes.get(name) if nodeid == NODEID_ANY else None
        if known is not None:
            return known
        answer = (await self.rpc("attr.get", {"name": name}, nodeid=nodeid)).json(_Attribute)
        if answer.flags & _IMMUTABLE and nodeid == NODEID_ANY:
            self._attributes[name] = answer.value
        return answer.value

    async def rank(self) -> int:
        """Rank of the broker this handle is connected to."""
        return int(await self.attr("rank"))

    async def size(self) -> int:
        """Number of brokers of the instance."""
        return int(await self.attr("size"))

    async def log(self, severity: int | str, text: str, *, app: str | None = None) -> None:
        """Append to the broker's log (``log.append``, unanswered).

        Args:
            severity: 0 (emerg) to 7 (debug), or its name: ``await h.log("err", "the disk is full")``.
            text: one line; line ends become spaces, and the whole entry is cut at 2048 bytes.
            app: the program that says so; None is this one's name.

        Raises:
            ProtocolError: no such severity. LinkError: the link has ended.
        """
        number = severity_number(severity)
        name = app or PurePath(sys.argv[0]).name
        entry = compose(number, await self.rank(), name, os.getpid(), text, time.time())
        await self.rpc("log.append", entry.line, noresponse=True)


def _check_anywhere(anywhere: bool, nodeid: int, upstream: bool) -> None:
    if anywhere and (upstream or nodeid != NODEID_ANY):
        raise ValueError("anywhere=True chooses the rank: nodeid and upstream cannot be given beside it")
