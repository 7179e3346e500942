"""A captured session sent again: requests and events in the order in which they came, at their pace or another.

What is sent again are accepted (``in``) Flux requests and events of clients. Left out and counted by reason:

- what the broker made itself or had from another broker's housekeeping (peers of role ``own``, service ``overlay``):
  the receiving broker makes its own;
- requests that change a link (``service.add``, ``event.subscribe`` and their kind): they would make the replaying link
  a provider or a subscriber;
- ``event.publish``: the event that came of it was captured, too, and is published;
- ``SERVICE.disconnect``: the links it speaks of are not there;
- requests that were refused for want of rights (``refused_then``): whoever sends them again may have those rights.

Userid and rolemask stay as they were stamped: a broker keeps them on an owner's link (LOCAL only where it stands in the
stamp) and stamps them anew on a guest's. Matchtags are new; ``SERVICE.cancel`` names the new one of its call. A payload
that was not captured cannot be sent.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

import msgspec

from broker.errors import DecodeError, ProtocolError
from broker.identity import USERID_UNKNOWN
from broker.journal.reading.records import Record
from broker.wire.message import NORESPONSE, PRIVATE, STREAMING, UPSTREAM, USER1, Message, event, request
from broker.wire.payload import decode_json, encode_json

WINDOW: Final = 1024
"""Requests that may wait for their answers before the next one is sent."""
ANSWER_S: Final = 5.0
PAUSE_MAX_S: Final = 60.0
"""A longer pause is cut: a clock that was set, or the night between two runs, would make hours of it."""
TAGS_MAX: Final = 1 << 16
"""Requests whose new matchtag is known to a later ``cancel``."""
OPEN_MAX: Final = 1 << 16
"""Requests that may come between one and its refusal."""
_LINK_TOPICS: Final = frozenset(
    {"service.add", "service.remove", "event.subscribe", "event.unsubscribe", "event.mute", "event.unmute"}
)
_REQUEST_FLAGS: Final = NORESPONSE | UPSTREAM | STREAMING | USER1


class Sent(NamedTuple):
    """What became of one message."""

    matchtag: int
    answer: Awaitable[int] | None
    """The errnum of the last answer; None where none is to come."""


Send = Callable[[Message], Awaitable[Sent]]
"""Sends a message in order, waiting as long as the link is choked."""
RoleOf = Callable[[Record], str]


class Outcome(msgspec.Struct):
    """What a replay did."""

    requests: int = 0
    events: int = 0
    ok: int = 0
    error: int = 0
    none: int = 0
    """Requests whose answer did not come in time."""
    unasked: int = 0
    """Events, and requests that want no answer."""
    stripped: int = 0
    """Messages sent without the payload they had: it was not captured."""
    errors: dict[int, int] = {}
    """errnum -> answers."""
    skipped: dict[str, int] = {}
    """Why -> records that were not sent."""
    seconds: float = 0.0

    @property
    def sent(self) -> int:
        """Messages."""
        return self.requests + self.events


def speed_of(text: str) -> float:
    """Times as fast as captured; 0 for ``max``.

    Raises:
        ValueError: it is neither ``max`` nor a number above 0.

    >>> speed_of("2.5x"), speed_of("1"), speed_of("max")
    (2.5, 1.0, 0.0)
    """
    if text == "max":
        return 0.0
    factor = float(text.removesuffix("x"))
    if not 0 < factor < float("inf"):
        raise ValueError(f"speed {text}")
    return factor


class Replay:
    """One replay.

    Args:
        send: sends one message.
        speed: times as fast as captured; 0: as fast as answers come.
        topics: patterns (``kvs.*``); a record counts when one of them matches. None: all.
        as_owner: send every message without credentials, so that it is ours; else they are kept as they were stamped.
        refused: numbers of requests that are not sent (see ``refused_then``).
        role_of: role of a record's peer, as the journal says.
        answer_s: how long the last answers may take.
        progress: called now and then.
    """

    def __init__(
        self,
        send: Send,
        *,
        speed: float = 0.0,
        topics: Sequence[str] | None = None,
        as_owner: bool = False,
        refused: Collection[int] = (),
        role_of: RoleOf | None = None,
        answer_s: float = ANSWER_S,
        progress: Callable[[Outcome], None] | None = None,
    ) -> None:
        self._send = send
        self._speed = speed
        self._topics = topics
        self._as_owner = as_owner
        self._refused = refused
        self._role_of: RoleOf = role_of or (lambda _record: "")
        self._answer_s = answer_s
        self._progress: Callable[[Outcome], object] = progress or (lambda _outcome: None)
        self._waiting: set[asyncio.Task[int]] = set()
        self._tags: OrderedDict[tuple[str | None, int | None], int] = OrderedDict()
        self._skipped: Counter[str] = Counter()
        self._errors: Counter[int] = Counter()
        self._begun: tuple[float, int] | None = None
        self.outcome = Outcome()

    async def run(self, records: Iterable[Record]) -> Outcome:
        """Send what counts of ``records`` and wait for the answers.

        Raises:
            Whatever ``send`` raises: the link ended. ``outcome`` says how far it went.
        """
        began = time.monotonic()
        try:
            for record in records:
                if why := self._unfit(record):
                    self._skipped[why] += 1
                else:
                    await self._one(record)
            if self._waiting:
                await asyncio.wait(self._waiting, timeout=self._answer_s)
        finally:
            for task in self._waiting:
                task.cancel()
            await asyncio.gather(*self._waiting, return_exceptions=True)
            self.outcome.seconds = time.monotonic() - began
            self.outcome.skipped, self.outcome.errors = dict(self._skipped), dict(self._errors)
            self._progress(self.outcome)
        return self.outcome

    # -- which ---------------------------------------------------------------------------------

    def _unfit(self, record: Record) -> str:
        """Why a record is not sent; empty when it is."""
        if record.kind != "flux":
            return "no flux message"
        if record.direction != "in":
            return "not accepted" if record.direction == "denied" else "a delivery"
        if record.type not in ("request", "event"):
            return "a response"
        if self._topics is not None and not any(fnmatchcase(record.topic, each) for each in self._topics):
            return "another topic"
        if record.service == "overlay" or self._role_of(record) == "own":
            return "a broker's own"
        if record.seq in self._refused:
            return "refused then"
        if record.type == "request":
            return _unfit_request(record.topic)
        return ""

    # -- one -----------------------------------------------------------------------------------

    async def _one(self, record: Record) -> None:
        try:
            message = self._remade(record)
        except DecodeError:
            self._skipped["damaged"] += 1
            return
        await self._due(record.ts_ns)
        sent = await self._send(message)
        outcome = self.outcome
        if record.stripped and (record.flags or 0) & 2:
            outcome.stripped += 1
        if record.type == "event":
            outcome.events += 1
        else:
            outcome.requests += 1
            if record.matchtag:
                self._tags[record.origin, record.matchtag] = sent.matchtag
                if len(self._tags) > TAGS_MAX:
                    self._tags.popitem(last=False)
        if sent.answer is None:
            outcome.unasked += 1
        else:
            self._await(sent.answer)
        self._progress(outcome)
        if len(self._waiting) >= WINDOW:
            await self._room()

    async def _room(self) -> None:
        """Wait for an answer; when none comes in time, none of those waited for will."""
        done, late = await asyncio.wait(
            self._waiting, timeout=self._answer_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            for task in late:
                task.cancel()
            await asyncio.wait(late)

    def _remade(self, record: Record) -> Message:
        """The message as a client would send it: no routes, no matchtag, no sequence."""
        old = record.message()
        payload = old.payload
        userid, rolemask = (USERID_UNKNOWN, 0) if self._as_owner else (old.userid, old.rolemask)
        if record.type == "event":
            return event(record.topic, payload, flags=old.flags & PRIVATE, userid=userid, rolemask=rolemask)
        if record.topic.endswith(".cancel"):
            payload = self._cancelling(record, payload)
        return request(
            record.topic,
            payload,
            nodeid=old.nodeid,
            flags=old.flags & _REQUEST_FLAGS,
            userid=userid,
            rolemask=rolemask,
        )

    def _cancelling(self, record: Record, payload: bytes | None) -> bytes | None:
        """The payload of a cancellation with the new matchtag of the call it names."""
        try:
            content = decode_json(payload) if payload is not None else None
        except ProtocolError:
            return payload
        if not isinstance(content, dict) or not isinstance(content.get("matchtag"), int):
            return payload
        tag = self._tags.get((record.origin, content["matchtag"]))
        return payload if tag is None else encode_json({**content, "matchtag": tag})

    async def _due(self, ts_ns: int) -> None:
        if self._speed:
            now = time.monotonic()
            if self._begun is None:
                self._begun = (now, ts_ns)
            wait = self._begun[0] + (ts_ns - self._begun[1]) / 1e9 / self._speed - now
            if wait > PAUSE_MAX_S:
                self._begun = (self._begun[0] - (wait - PAUSE_MAX_S), self._begun[1])
                wait = PAUSE_MAX_S
            if wait > 0:
                await asyncio.sleep(wait)

    # -- answers -------------------------------------------------------------------------------

    def _await(self, answer: Awaitable[int]) -> None:
        task = asyncio.get_running_loop().create_task(_errnum(answer), name="an answer to what is replayed")
        self._waiting.add(task)
        task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[int]) -> None:
        self._waiting.discard(task)
        if task.cancelled() or task.exception() is not None:
            self.outcome.none += 1
        elif errnum := task.result():
            self.outcome.error += 1
            self._errors[errnum] += 1
        else:
            self.outcome.ok += 1


def refused_then(records: Iterable[Record]) -> frozenset[int]:
    """Numbers of the requests that were refused with EPERM, of one writer, in order.

    That was the broker itself: it recorded the request as accepted, then the refusal (``denied``). Or somebody further
    on: the first response says so.
    """
    refused: set[int] = set()
    waiting: OrderedDict[tuple[str, str | None, int | None, str], list[int]] = OrderedDict()
    for record in records:
        if record.kind != "flux" or record.direction == "out":
            continue
        key = (record.run, record.origin, record.matchtag, record.topic)
        if record.type == "request" and record.direction == "in":
            waiting.setdefault(key, []).append(record.seq)
            waiting.move_to_end(key)
            if len(waiting) > OPEN_MAX:
                waiting.popitem(last=False)
            continue
        open_ones = waiting.get(key)
        if not open_ones:
            continue
        denied = record.direction == "denied" and record.reason == errno.EPERM
        answered = record.direction == "in" and record.type == "response"
        if denied or (answered and record.errnum == errno.EPERM):
            refused.add(open_ones.pop())
        if answered or not open_ones:
            del waiting[key]
    return frozenset(refused)


async def _errnum(answer: Awaitable[int]) -> int:
    return await answer


def _unfit_request(topic: str) -> str:
    if topic in _LINK_TOPICS:
        return "changes a link"
    if topic == "event.publish":
        return "its event is published"
    return "of a link that is gone" if topic.endswith(".disconnect") else ""
