"""``POST /v1/rpc/{topic}``: one call, its body the payload, its answer the response's payload; and
``POST /v1/events/{topic}``, a call of ``event.publish``.

With ``stream=1`` the answers come as NDJSON, one ``{"payload": ...}`` (or ``text``, ``data``) a line; the last line is
``{"end": true}`` or says the error. An error before the first answer is a status, as for a plain call.

Plain calls over one connection are made in one session, as long as they are one principal's and are answered. A client
that goes away before that ends the session, and the service gets its disconnect notice. So does silence of
``timeout_s``: services that have one answer give it to a streaming call, too, and then say nothing more. A streaming
call has a session of its own.

``SERVICE.cancel`` and ``SERVICE.disconnect`` are never answered (RFC 6): they are sent, and that is 202.

A session over HTTP has a Link like any other: what it sends waits there until the handler writes it into the response.
Of a plain call the handler waits for its one answer, which needs no queue. What follows the first answer of a stream
the handler takes as fast as its client reads; what waits is counted in the outbox like at any other link of a web
client (``websocket.outbox``): over high water the session is told (``choked``), over its cap, or over the budget of all
clients, the link ends and the client gets an error instead of a silent hole. The link itself writes to no socket.
"""

from __future__ import annotations

import asyncio
import base64
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from broker.errors import HeadgateError, LinkClosed, LinkError, ProtocolError
from broker.identity import PeerInfo
from broker.transport.link import Link, Options
from broker.wire import message as wire
from broker.wire.message import NODEID_ANY, Message
from broker.wire.payload import decode_json, encode_json
from gateway.administration.service import LINK_TOPICS
from gateway.sessions.calls import unanswered
from gateway.web.answers import (
    ONE_LINE,
    STREAMED,
    Refusal,
    described,
    form_of,
    json_answer,
    of_payload,
    of_response,
)
from gateway.web.app_context import CALLER, FRONT
from gateway.web.connections import connection_of
from gateway.web.requests import FLAG, RANK_MAX, choice, payload_of, seconds, topic_of, whole
from gateway.websocket.outbox import WebOutbox

if TYPE_CHECKING:
    from gateway.notices import Notice
    from gateway.sessions.session import Session


TAGS: Final = 2**31
"""Calls of one link before their matchtags begin anew; 0 tells no responses."""


class ExchangeLink(Link):
    """The link of one session over HTTP.

    Attributes:
        session: whose it is, while it is open.
        over: called when it ends.
        code: the close code with which the session ended the exchange; 0 while it lives or when nobody said one.
    """

    __slots__ = ("_answer", "_calls", "_news", "_reading", "_tag", "code", "over", "session")

    outbox: WebOutbox

    def __init__(self, peer: PeerInfo, options: Options) -> None:
        super().__init__(peer, options)
        self.outbox = WebOutbox(self, options.limits, options.budget)
        self._news = asyncio.Event()
        self._reading = asyncio.Event()
        self._calls = 0
        self._tag = b""
        self._answer: asyncio.Future[Message | None] | None = None
        self.code = 0
        self.over: Callable[[], None] | None = None
        self.session: Session | None = None

    # -- from the session ----------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Answer the handler, or keep what follows for it; see ``Link.send``."""
        answer = self._answer
        if self.ended is not None or answer is None or message.tag != self._tag:
            self.outbox.discarded += 1  # what says no to a notice may come behind the end of its request
        elif not answer.done():
            self.outbox.sent += 1
            self.outbox.progress += 1
            answer.set_result(message)
        else:
            self.outbox.enqueue(message, message.size)
            self._news.set()

    def flush(self) -> None:
        """Nothing: the handler takes what is there."""

    def tell(self, obj: Notice) -> None:
        """Take a control object; a plain exchange has no place for any."""

    def pause(self) -> None:
        """The upstream is slow: no further request is sent until ``resume``."""
        self._reading.clear()

    def resume(self) -> None:
        """Requests may be sent again."""
        self._reading.set()

    def close_with(self, code: int, reason: str = "") -> None:
        """End with a close code of ``gateway.closes``."""
        self.code = self.code or code
        self.close(reason)

    def close(self, reason: str = "") -> None:
        """End; what the handler did not take is discarded."""
        self.abort(LinkClosed(reason or "closed"))

    def abort(self, error: LinkError) -> None:
        """End with ``error``; whoever waits for an answer, or in ``take``, hears of it."""
        over, self.over = self.over, None
        if over is not None:
            over()
        self.finish(error)
        self.session = None  # which has this link: a cycle else
        self._news.set()
        self._reading.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    # -- from the handler ----------------------------------------------------------------------

    async def put(self, message: Message) -> asyncio.Future[Message | None]:
        """Send a request, as soon as one may be sent; the one before was answered, or had no answer.

        Returns what will be its response, or the first one of a stream: None when the link ends before.
        """
        await self._reading.wait()
        self._calls = self._calls % (TAGS - 1) + 1
        self._tag = message.tag = self._calls.to_bytes(4, "big")
        self._answer = answer = asyncio.get_running_loop().create_future()
        if self.receiver is not None and self.ended is None:
            self.receiver.received(self, [message])
        elif not answer.done():
            answer.set_result(None)
        return answer

    @property
    def has_answer(self) -> bool:
        """Whether the response to the last request has come, or the first one of a stream."""
        answer = self._answer
        return answer is not None and answer.done() and not answer.cancelled() and answer.result() is not None

    async def take(self) -> Message | None:
        """The oldest message that waits; None once the link has ended."""
        while not self.outbox.queue and self.ended is None:
            self._news.clear()
            await self._news.wait()
        if self.ended is not None:
            return None
        message: Message = self.outbox.dequeue()
        self._took(1)
        return message

    def take_rest(self) -> list[Message]:
        """What else waits, in order."""
        messages: list[Message] = [self.outbox.dequeue() for _ in range(len(self.outbox.queue or ()))]
        self._took(len(messages))
        return messages

    def _took(self, count: int) -> None:
        self.outbox.sent += count
        self.outbox.progress += 1
        self.outbox.drained()


NDJSON: Final = "application/x-ndjson"
LONGEST_S: Final = 86400
"""Longest time that a client may ask us to wait for an answer."""
LASTING: Final = LINK_TOPICS - {"event.publish"}
"""Requests about the connection they come over: over HTTP there are no events, and nobody who answers requests."""


async def call(request: web.Request) -> web.StreamResponse:
    """Handle one call."""
    front = request.app[FRONT]
    topic = topic_of(request)
    if topic in LASTING:
        text = f"{topic} needs a connection that stays: GET /v1/events, or the WebSocket /v1/ws"
        raise Refusal(400, text, errno.EPROTO, topic=topic)
    take_rate(request, topic)
    streaming = choice(request, "stream", FLAG) == "1"
    # the most that the settings let anybody wait; None: for ever
    timeout_s = front.settings.limits.call_s or None
    wanted_s = seconds(
        request, "timeout_s", lambda value: 0 < value <= LONGEST_S, "seconds above 0, at most a day"
    )
    if wanted_s is not None:
        timeout_s = min(wanted_s, timeout_s or wanted_s)
    payload = await payload_of(request, front.settings.limits.message_bytes)
    flags = wire.STREAMING if streaming else 0
    rank = whole(request, "nodeid", 0, RANK_MAX)
    nodeid = NODEID_ANY if rank is None else rank
    message = wire.request(topic, payload, nodeid=nodeid, flags=flags)
    if unanswered(topic.encode("utf-8", "surrogatepass")):
        return await _notify(request, message, timeout_s)
    if streaming:
        return await _stream(request, message, timeout_s)
    return of_payload((await ask(request, message, timeout_s)).payload)


def take_rate(request: web.Request, topic: str = "", *, calls: int = 1) -> None:
    """Count a call, or what is worth so many, of the user: a session costs no more than a connection, so that its own
    rate would bound nobody. Owners have no limit.

    Raises:
        Refusal: 429, with the time after which the next call fits.
    """
    front = request.app[FRONT]
    mine, rate, now = request[CALLER].principal, front.settings.limits.msgs_per_s, front.sessions.clock()
    if not rate or mine.owner:
        return
    bucket = front.rates.of(mine.name, now)
    wait_s = bucket.take(now)
    if wait_s > 0:
        text = f"more than {rate:g} calls a second (limits.msgs_per_s)"
        raise Refusal(429, text, topic=topic, retry_s=wait_s)
    if calls > 1:
        bucket.charge(calls - 1)


async def ask(request: web.Request, message: Message, timeout_s: float | None) -> Message:
    """Make a call in the session of the connection, and wait for its answer.

    Raises:
        Refusal: an error came, or nothing within ``timeout_s`` (None: no limit).
        Denied: there may be no session, or no call.
    """
    link = exchange_of(request)
    try:
        return await _answer_to(link, message, timeout_s)
    finally:
        _leave(request, link, is_over=link.has_answer)


async def _notify(request: web.Request, message: Message, timeout_s: float | None) -> web.Response:
    """Send what has no answer; what the gateway itself refuses is told."""
    link = exchange_of(request)
    is_sent = False
    try:
        async with asyncio.timeout(timeout_s):
            refused = await link.put(message)
        is_sent = True
        if refused.done():
            _checked(link, refused.result())
    except TimeoutError:
        raise _late(message, timeout_s) from None
    finally:
        _leave(request, link, is_over=is_sent)  # other services know its sender, too
    return web.Response(status=202)


def exchange_of(request: web.Request) -> ExchangeLink:
    """The link of the session in which a request is made: its connection's, or where that has none of this principal,
    a fresh one.

    Raises:
        Denied: it must not be; too many connections.
    """
    connection, caller, sessions = connection_of(request), request[CALLER], request.app[FRONT].sessions
    link = None if connection is None else connection.exchange
    if link is not None:
        session = link.session
        woken = session is not None and sessions.wake(session, caller.principal, caller.epoch)
        if woken and link.peer.address == caller.address:
            return link
        link.close("another user calls over this connection")
    link = ExchangeLink(PeerInfo(caller.address), sessions.options)
    open_session(request, link, "http")
    if connection is not None:
        connection.keep(link)
    return link


def _leave(request: web.Request, link: ExchangeLink, *, is_over: bool) -> None:
    """Let the session rest whose call is over: answered, or sent where no answer comes. Another one ends, and the
    service hears of it.
    """
    connection = connection_of(request)
    if not is_over or connection is None or connection.exchange is not link:
        link.close("the exchange is over")
    elif link.session is not None:
        request.app[FRONT].sessions.rest(link.session)


def open_session(request: web.Request, link: ExchangeLink, kind: str) -> Session:
    """Open a session for this request and start its link.

    Raises:
        Denied: it must not be; too many connections.
    """
    front, caller = request.app[FRONT], request[CALLER]
    session = link.session = front.sessions.open(
        front.delivery,
        front.administration,
        caller.principal,
        link,
        kind=kind,
        address=caller.address,
        epoch=caller.epoch,
    )
    if kind != "http" and (connection := connection_of(request)) is not None:
        link.over = connection.lingers
    link.start(session.receiver)
    return session


async def _answer_to(link: ExchangeLink, message: Message, timeout_s: float | None) -> Message:
    """Send a request and wait for its first response.

    Raises:
        Refusal: an error came, or nothing within ``timeout_s`` (None: no limit).
    """
    try:
        async with asyncio.timeout(timeout_s):
            first = await (await link.put(message))
    except TimeoutError:
        raise _late(message, timeout_s) from None
    return _checked(link, first)


def _late(message: Message, timeout_s: float | None) -> Refusal:
    return Refusal(504, f"no answer within {timeout_s:g} s", topic=message.topic or "")


def _checked(link: ExchangeLink, first: Message | None) -> Message:
    if first is None:
        raise _ended(link)
    if first.errnum and first.errnum != errno.ENODATA:
        raise of_response(first, first.topic or "")
    return first


def _ended(link: ExchangeLink) -> Refusal:
    """What the client hears when its session ended before the answer."""
    error = link.ended
    text = str(error) if isinstance(error, HeadgateError) else "the session ended"
    return Refusal(503, text, errno.ECONNRESET)


# ---------------------------------------------------------------- streams


async def _stream(request: web.Request, message: Message, silence_s: float | None) -> web.StreamResponse:
    """Make a streaming call in a session of its own, and write what comes."""
    link = ExchangeLink(PeerInfo(request[CALLER].address), request.app[FRONT].sessions.options)
    open_session(request, link, "ndjson")
    try:
        return await _write(request, link, await _answer_to(link, message, silence_s), silence_s)
    finally:
        link.close("the exchange is over")


async def _write(
    request: web.Request, link: ExchangeLink, first: Message, silence_s: float | None
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": NDJSON, **STREAMED})
    await response.prepare(request)
    message: Message | None = first
    while message is not None:
        lines, over = _lines([message, *link.take_rest()])
        await response.write(b"".join(lines))
        if over:
            break
        try:
            async with asyncio.timeout(silence_s):
                message = await link.take()
        except TimeoutError:
            text = f"no response within {silence_s:g} s; the call was ended"
            await response.write(_line(described(errno.ETIMEDOUT, text)))
            break
    else:
        refusal = _ended(link)
        await response.write(_line(described(refusal.errnum, refusal.text)))
    await response.write_eof()
    return response


def _lines(messages: list[Message]) -> tuple[list[bytes], bool]:
    """Lines of the responses, and whether the last of them has come."""
    lines = []
    for message in messages:
        if message.errnum == errno.ENODATA:
            lines.append(_line({"end": True}))
            return lines, True
        if message.errnum:
            refusal = of_response(message, message.topic or "")
            lines.append(_line(described(refusal.errnum, refusal.text)))
            return lines, True
        lines.append(_line(form_of(message.payload)))
    return lines, False


def _line(obj: dict[str, object]) -> bytes:
    return msgspec.json.encode(obj).translate(ONE_LINE) + b"\n"


async def publish(request: web.Request) -> web.StreamResponse:
    """Handle one event."""
    front = request.app[FRONT]
    topic = topic_of(request)
    take_rate(request, topic)
    flags = wire.PRIVATE if choice(request, "private", FLAG) == "1" else 0
    content: dict[str, object] = {"topic": topic, "flags": flags}
    payload = await payload_of(request, front.settings.limits.message_bytes)
    if payload is not None:
        content["payload"] = base64.b64encode(payload).decode()
    message = wire.request("event.publish", encode_json(content), nodeid=0)
    answer = await ask(request, message, front.settings.limits.call_s or None)
    try:
        number = int(decode_json(answer.payload)["seq"])
    except (ProtocolError, KeyError, TypeError, ValueError):
        raise Refusal(502, "event.publish answered without a number", errno.EPROTO, topic=topic) from None
    return json_answer({"sequence": number, "epoch": front.delivery.upstream.epoch})
