"""``GET /v1/events?prefix=A&prefix=B``: events as server-sent events (WHATWG HTML, "Server-sent events").

The first thing on a stream is ``welcome``, or ``resumed`` where the client brought ``Last-Event-ID``: both carry the
position in the numbers of rank 0, so that a client that reconnects before any event came misses nothing either.
``recovered`` is true exactly when every event since then that the client may have follows.

A stream is a Link; its events are written once per run and shared by all streams, like WebSocket frames::

    id: EPOCH:SEQUENCE          what Last-Event-ID brings back after a broken connection
    event: message              an event; ``gap``, ``upstream``, ``error`` and others are control objects
    data: {"type":"event",...}  one line of JSON, as ``flux.v1.json`` has it
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aiohttp import web

from broker.identity import PeerInfo
from broker.transport.link import Options
from broker.wire import message as wire
from broker.wire.message import EVENT, RESPONSE, Message
from broker.wire.payload import encode_json
from gateway import closes, notices
from gateway.codecs import jsonview
from gateway.events.run import Run
from gateway.sessions import answers
from gateway.web.answers import ONE_LINE, STREAMED, Refusal, of_response
from gateway.web.app_context import CALLER, FRONT, AppContext
from gateway.web.requests import overflow_of
from gateway.web.rpc import ExchangeLink, open_session, take_rate
from gateway.websocket.outbox import with_policy

if TYPE_CHECKING:
    from gateway.notices import Notice
    from gateway.principal import Principal
    from gateway.sessions.session import Session


FORM: Final = "sse"
"""Key of the shared text in ``Run.forms``."""
WRITE_BYTES: Final = 256 << 10
"""Texts are joined up to this size for one write."""
COMMENT: Final = b": still here\n\n"
"""Keepalive: proxies cut connections that say nothing."""


class StreamLink(ExchangeLink):
    """The link of one event stream; ``options.limits.event_policy`` says what happens to events that do not fit.

    Args:
        epoch: asks for the epoch of the events that come now.

    Attributes:
        answers: responses to the subscriptions, which the handler takes before the stream begins.
    """

    __slots__ = ("_epoch", "_room", "answers")

    def __init__(self, peer: PeerInfo, options: Options, epoch: Callable[[], str]) -> None:
        super().__init__(peer, options)
        self._epoch = epoch
        self._room = options.limits.event_bytes
        self.answers: list[Message] = []

    def send(self, message: Message) -> None:
        """Keep an event or an answer; see ``Link.send``."""
        if message.head[3] == EVENT:
            self.send_run(Run([message]))
        elif message.head[3] == RESPONSE:
            self.answers.append(message)
            self._news.set()

    def send_run(self, run: Run) -> None:
        """Keep events; what does not fit is dropped and told, or ends the stream."""
        if self.ended is not None:
            self.outbox.discarded += len(run)
            return
        form = _shared(run, self._epoch())
        if len(form) > self._room and len(run) > 1:  # as many as fit, then the policy
            for message in run.messages:
                self._enqueue(Run([message]))
        else:
            self._enqueue(run)
        self._news.set()

    def _enqueue(self, run: Run) -> None:
        if self.ended is None:
            self.outbox.enqueue_events(_shared(run, self._epoch()), len(run), run.first, run.last)

    def tell(self, obj: Notice) -> None:
        """Keep a control object, as an event named by its type."""
        if self.ended is None:
            text = control_text(obj)
            self.outbox.enqueue(text, len(text))
            self._news.set()

    async def wait_answers(self, count: int) -> list[Message]:
        """Wait for ``count`` answers; fewer when the link has ended. Each request is answered, so this ends."""
        while len(self.answers) < count and self.ended is None:
            self._news.clear()
            await self._news.wait()
        self._news.set()  # what waits besides is still to be written
        answers, self.answers = self.answers, []
        return answers

    async def take_texts(self) -> list[bytes]:
        """What waits, in order, as much as one write may hold; [] once the link has ended."""
        while self.ended is None:
            forms: list[bytes] = self.outbox.oldest(WRITE_BYTES) if self.outbox.queue else []
            for _ in forms:
                self.outbox.dequeue()
            gap = self.outbox.take_gap()
            if gap is not None:
                self.tell(notices.gap(*gap))
            if forms:
                self._took(len(forms))
                return forms
            if not self.outbox.queue:
                self._news.clear()
                await self._news.wait()
        return []


def _shared(run: Run, epoch: str) -> bytes:
    """The text of a run, made once for all streams."""
    form = run.forms.get(FORM)
    if form is None:
        form = run.forms[FORM] = text_of(run, epoch)
    return form


def text_of(run: Run, epoch: str) -> bytes:
    """The events of a run as text."""
    return b"".join(
        b"id: %b:%d\nevent: message\ndata: %b\n\n"
        % (epoch.encode(), message.sequence, jsonview.encode(message).translate(ONE_LINE))
        for message in run.messages
    )


def control_text(obj: Notice) -> bytes:
    """A control object as text; one that tells a position (``welcome``, ``resumed``) has it as its id."""
    mark = ""
    if (obj["type"] == "welcome" or obj["type"] == "resumed") and obj["epoch"]:
        mark = f"id: {obj['epoch']}:{obj['sequence']}\n"
    return f"{mark}event: {obj['type']}\ndata: ".encode() + notices.encode(obj) + b"\n\n"


MEDIA_TYPE: Final = "text/event-stream"
RETRY_MS: Final = 1000
"""How long a browser waits before it connects again."""
PREFIXES_A_CALL: Final = 16
"""So many prefixes of a stream cost what a call does."""


async def events(request: web.Request) -> web.StreamResponse:
    """Handle one stream."""
    front = request.app[FRONT]
    caller = request[CALLER]
    prefixes = list(dict.fromkeys(request.query.getall("prefix", [""])))
    position = _position(request)
    options = with_policy(front.sessions.options, overflow_of(request))
    take_rate(request, calls=1 + len(prefixes) // PREFIXES_A_CALL)
    if position is not None:
        _charge_replay(front, caller.principal)
    link = StreamLink(PeerInfo(caller.address), options, lambda: front.delivery.history.epoch)
    session = open_session(request, link, "sse")
    try:
        if position is None:
            await _subscribe(link, prefixes)
            link.tell(session.welcome())
        else:
            await _resume(session, link, position, prefixes)
        response = web.StreamResponse(headers={"Content-Type": MEDIA_TYPE, **STREAMED})
        await response.prepare(request)
        # WHATWG HTML, section 9.2.6: browsers choose some seconds of their own else
        await response.write(f"retry: {RETRY_MS}\n\n".encode())
        await _pump(response, link, front.settings.limits.ping_s)
        return response
    finally:
        link.close("the stream is over")


def _position(request: web.Request) -> tuple[str, int] | None:
    """Epoch and number of ``Last-Event-ID``; None when there is none, or an empty one as of a client without any."""
    said = request.headers.get("Last-Event-ID")
    if not said:
        return None
    epoch, _, number = said.rpartition(":")
    if not (number.isascii() and number.isdecimal() and len(number) <= 10 and int(number) < 2**32):
        raise Refusal(400, f"Last-Event-ID: saw {said[:64]!r}, expected EPOCH:SEQUENCE")
    return epoch, int(number)


def _charge_replay(front: AppContext, principal: Principal) -> None:
    """Begin a replay at the expense of ``principal``.

    Raises:
        Refusal: 429, the user had as much replayed as allowed.
    """
    wait_s = front.delivery.replays.wait_s(principal)
    if wait_s:
        rate = front.settings.limits.replay_msgs_per_s
        text = f"more than {rate:g} events a second replayed (limits.replay_msgs_per_s)"
        raise Refusal(429, text, retry_s=wait_s)


async def _subscribe(link: StreamLink, prefixes: list[str]) -> None:
    """Subscribe as any client does; returns once all of it is live.

    Raises:
        Refusal: one prefix may not be, or the upstream did not come back in time.
    """
    for number, prefix in enumerate(prefixes, 1):
        message = _subscription(prefix, number)
        if link.receiver is not None and link.ended is None:
            link.receiver.received(link, [message])
    for answer in await link.wait_answers(len(prefixes)):
        if answer.errnum:
            raise of_response(answer, prefixes[answer.matchtag - 1])


def _subscription(prefix: str, number: int) -> Message:
    return wire.request("event.subscribe", encode_json({"topic": prefix}), matchtag=number)


async def _resume(session: Session, link: StreamLink, position: tuple[str, int], prefixes: list[str]) -> None:
    """Continue behind ``position``; ``resumed`` is told where the live events begin.

    Raises:
        Refusal: the user may not subscribe to one of the prefixes; it is told and recorded as if it had tried to.
    """
    sessions = session.sessions
    for prefix in prefixes:
        name = prefix.encode("utf-8", "surrogateescape")
        if not sessions.access.allows_pattern(session.roles, name):
            answers.deny(session, _subscription(prefix, 1), "subscribe", name)
        elif sessions.hook is not None:
            said = await sessions.hook.ask(session.principal, "subscribe", name)
            if not said.allowed:
                message = _subscription(prefix, 1)
                answers.disallow(session, message, "subscribe", name, said.errnum, said.text)
        if link.answers:
            raise of_response(link.answers[0], prefix)
    # an EventSource brings back an id and nothing else: position and prefixes say it all, the session is a new one
    token = session.welcome()["resume"]
    session.control(
        {
            "type": "resume",
            "token": token,
            "epoch": position[0],
            "sequence": position[1],
            "subscriptions": prefixes,
        }
    )


async def _pump(response: web.StreamResponse, link: StreamLink, ping_s: float) -> None:
    """Write what comes until the session ends; a client that goes away cancels this."""
    while True:
        items: list[bytes] | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ping_s):
                items = await link.take_texts()
        if items is None:
            await response.write(COMMENT)
        elif items:
            await response.write(b"".join(items))
        else:
            break
    code = link.code or closes.SLOW
    with contextlib.suppress(ConnectionError):
        await response.write(control_text(notices.error(code, str(link.ended))))
        await response.write_eof()
