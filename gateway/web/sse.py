"""Server-sent events as a Link: events are written once per run and shared by all streams, like WebSocket frames.

::

    id: EPOCH:SEQUENCE          what Last-Event-ID brings back after a broken connection
    event: message              an event; ``gap``, ``upstream``, ``error`` and others are control objects
    data: {"type":"event",...}  one line of JSON, as ``flux.v1.json`` has it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from broker.identity import PeerInfo
from broker.transport.link import Options
from broker.wire.message import EVENT, RESPONSE, Message
from gateway.codecs import control, jsonview
from gateway.events.run import Run
from gateway.web.exchange import ExchangeLink

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

    def tell(self, obj: dict[str, Any]) -> None:
        """Keep a control object, as an event named by its type."""
        if self.ended is None:
            text = control_text(obj)
            self.outbox.enqueue(text, len(text))
            self._news.set()

    async def answered(self, count: int) -> list[Message]:
        """Wait for ``count`` answers; fewer when the link has ended. Each request is answered, so this ends."""
        while len(self.answers) < count and self.ended is None:
            self._news.clear()
            await self._news.wait()
        self._news.set()  # what waits besides is still to be written
        answers, self.answers = self.answers, []
        return answers

    async def texts(self) -> list[bytes]:
        """What waits, in order, as much as one write may hold; [] once the link has ended."""
        while self.ended is None:
            forms: list[bytes] = self.outbox.oldest(WRITE_BYTES) if self.outbox.queue else []
            for _ in forms:
                self.outbox.dequeue()
            gap = self.outbox.take_gap()
            if gap is not None:
                self.tell(control.gap(*gap))
            if forms:
                self._took(len(forms))
                return forms
            if not self.outbox.queue:
                self._news.clear()
                await self._news.wait()
        return []


ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
"""Payloads are passed on as they came, and JSON may have line ends between its tokens, where a space means the same."""


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


def control_text(obj: dict[str, Any]) -> bytes:
    """A control object as text; one that tells a position (``welcome``, ``resumed``) has it as its id."""
    mark = f"id: {obj['epoch']}:{obj['sequence']}\n" if obj.get("epoch") and "sequence" in obj else ""
    return f"{mark}event: {obj['type']}\ndata: ".encode() + msgspec.json.encode(obj) + b"\n\n"
