"""Subscriptions of attached clients, publishing by request, and the events of a while ago (``event.subscribe``,
``unsubscribe``, ``publish``, ``since``).

The broker a client is attached to answers the first two, whatever nodeid says (``change_link``, which ``service.add``
and ``service.remove`` share). What deployed connectors answer themselves they answer even where no response is wanted;
so do we, but for links that asked for their text (RFC 3: responses to such a request are suppressed). Deployed brokers
answer them with flag STREAMING clear, so that a call that wants a stream ends; so do we.

Publishing is rank 0's: events are numbered there, and the answer follows the event on the same links (see
``routing.events``): a client that has the answer knows that its own broker has delivered the event to its subscribers.
So is the answer of ``since``: whoever subscribed before it asked has every event that is newer than the answer, and
goes on without a hole.
"""

from __future__ import annotations

import asyncio
import binascii
import errno
from base64 import b64decode, b64encode
from collections.abc import Callable, Container, Mapping
from typing import Final

from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from broker.services.context import CLIENT, Context, Sender
from broker.services.dispatch import failure_of
from broker.services.service import Service, method
from broker.serving.request import LATER, Later, Request
from broker.wire.event_history import follower
from broker.wire.message import PRIVATE, STREAMING, event
from broker.wire.payload import encode_reason
from broker.wire.topic import RESERVED_TEXT, is_reserved

PAGE_BYTES: Final = 256 << 10
"""Of frames in one answer of ``event.since``; what is larger comes in pieces."""
PAGE_MSGS: Final = 1024
"""The same in events: finding and joining them takes less than a millisecond."""

RESTORED_S: Final = 8.0
"""How long an answer of ``event.since`` waits for events that are read from the journal."""


def attached(context: Context, request: Request) -> Sender:
    """The client that sent ``request``, attached to this broker.

    Raises:
        RpcError: EPERM; the request came from elsewhere, where its sender has to ask.
    """
    sender = context.sender_of(request.message)
    if sender is None or sender.kind != CLIENT:
        raise RpcError(errno.EPERM, "only a client attached to this broker may ask for this")
    return sender


def change_link(
    context: Context,
    request: Request,
    change: Callable[[Sender], int],
    always_answered: Container[int] | None = None,
) -> Later:
    """Make a change to the sender's link and answer with its errno.

    Args:
        context: the broker.
        request: the one that asks for the change.
        change: makes the change; returns an errno or raises what a handler may raise.
        always_answered: errnos that are answered even when the request wants no response; None is all of them,
            success (0) included.
    """
    message = request.message
    message.set_flags(message.flags & ~STREAMING)  # which its answer repeats
    try:
        errnum, text = change(attached(context, request)), ""
    except UnicodeEncodeError:  # half a surrogate pair in the JSON
        errnum, text = errno.EPROTO, ""
    except (ProtocolError, RpcError) as error:
        errnum, text = failure_of(error)
    sender = context.sender_of(message)
    as_deployed = sender is not None and sender.kind == CLIENT and not sender.strict
    always = as_deployed and (always_answered is None or errnum in always_answered)
    context.respond(message, encode_reason(text), errnum, always)
    return LATER


class Event(Service):
    """Subscriptions of clients, and events that come as requests."""

    name = "event"

    @method("subscribe", allow=Role.USER)
    def subscribe(self, request: Request) -> Later:
        """``{"topic"}``: a plain prefix; "" is everything."""
        return change_link(
            self.context, request, lambda sender: self.context.subscribe(sender, _prefix(request))
        )

    @method("unsubscribe", allow=Role.USER)
    def unsubscribe(self, request: Request) -> Later:
        """``{"topic"}``: takes one subscription back; ENOENT when there is none."""
        return change_link(
            self.context, request, lambda sender: self.context.unsubscribe(sender, _prefix(request))
        )

    @method("publish", allow=Role.USER)
    def publish(self, request: Request) -> Mapping[str, object]:
        """``{"topic", "flags"[, "payload"]}`` -> ``{"seq"}``; the event carries the request's credentials.

        Flags are 0 or PRIVATE (32); the payload is base64 and holds all bytes, the NUL of JSON included. EPERM: the
        topic is the owner's (`is_reserved`).
        """
        self._check_root()
        topic, flags = request.field("topic", str), request.field("flags", int)
        if flags not in (0, PRIVATE):
            raise ProtocolError(f"event flags {flags}, expected 0 or {PRIVATE}")
        if not topic or "\0" in topic:
            raise ProtocolError("a topic has at least one byte, and no NUL")
        if is_reserved(topic.encode(errors="surrogatepass"), request.rolemask):
            raise RpcError(errno.EPERM, RESERVED_TEXT)
        payload = decode_base64(request.field("payload", str, "")) or None
        cred = {"userid": request.userid, "rolemask": request.rolemask}
        return {"seq": self.context.publish(event(topic, payload, flags=flags, **cred))}

    @method("since")
    async def since(self, request: Request) -> Mapping[str, object]:
        """``{"epoch", "sequence"[, "offset"]}`` or ``{"age_s"}``: what rank 0 keeps of the events behind a position, or
        of the last seconds; private ones, too: whoever passes them on has to judge for each receiver.

        -> ``{"epoch", "first", "last", "behind", "missing", "rest", "events"}``: whose numbers these are; the oldest
        that is kept and the newest there is; the events behind number ``behind``, framed, as base64, and none when
        nothing is behind it. ``missing``: some that were asked for may be gone, or are another epoch's.

        What does not fit one answer is had by asking again, behind the last one that came. Of an event that is larger
        than an answer a piece comes; ``rest`` bytes of it are had by asking for the same position once more, with the
        bytes that came as ``offset``. Nothing is left out in front of what is ``missing``: it begins at 0. ENOSYS:
        none are kept.
        """
        self._check_root()
        restoring = self.context.restoring
        if restoring is not None:  # whoever asks right after a start gets what is still being read, too
            await asyncio.wait([restoring], timeout=RESTORED_S)
        history = self.context.event_history
        if history is None:
            raise RpcError(errno.ENOSYS, "rank 0 keeps no events: events.history_bytes is 0")
        age_s = request.field("age_s", (int, float), None)
        if age_s is not None:
            when_s = asyncio.get_running_loop().time() - age_s
            sequence = history.number_at(when_s)
            missing = not history.holds_since(when_s)
        else:
            sequence = request.field("sequence", int)
            missing = not history.covers(request.field("epoch", str, history.epoch), sequence)
        behind = history.before if missing else sequence
        offset = 0 if missing else request.field("offset", int, 0)
        data, rest = _page(history.since(behind, PAGE_MSGS), offset)
        return {
            "epoch": history.epoch,
            "first": follower(history.before),
            "last": history.last,
            "behind": behind,
            "missing": missing,
            "rest": rest,
            "events": b64encode(data).decode(),
        }

    def _check_root(self) -> None:
        if self.context.rank != 0:  # number and text as deployed
            raise RpcError(errno.EPROTO, "this service is only available on rank 0")


def _page(frames: list[bytes], offset: int) -> tuple[bytes, int]:
    """What fits an answer of ``frames``, the first ``offset`` bytes left out, and how much of the first is not in it.

    Raises:
        ProtocolError: the first one has no such place.
    """
    if not 0 <= offset <= (len(frames[0]) if frames else 0):
        raise ProtocolError(f"offset {offset} is not within an event")
    page: list[bytes] = []
    room = PAGE_BYTES
    for frame in frames:
        if page and len(frame) > room:
            break
        piece = frame[offset : offset + room]
        page.append(piece)
        room -= len(piece)
        if offset + len(piece) < len(frame):
            return piece, len(frame) - offset - len(piece)
        offset = 0
    return b"".join(page), 0


def _prefix(request: Request) -> bytes:
    topic: str = request.field("topic", str)
    return topic.encode()


def decode_base64(text: str) -> bytes:
    """The bytes of ``text``; missing padding is forgiven, as deployed software does.

    Raises:
        ProtocolError: EPROTO; not base64.
    """
    try:
        return b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(f"payload is not base64: {error}") from error
