"""Subscriptions of attached clients, and publishing by request (``event.subscribe``, ``unsubscribe``, ``publish``).

The broker a client is attached to answers the first two, whatever nodeid says and even when no response is wanted, as
deployed brokers do. Publishing is rank 0's: events are numbered there, and the answer follows the event on the same
links (see ``routing.events``): who has it knows that the own broker has delivered the event to its subscribers.
"""

from __future__ import annotations

import binascii
import errno
from base64 import b64decode
from collections.abc import Mapping

from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from broker.services.attachment import change_link
from broker.services.service import Service, method
from broker.serving.request import Later, Request
from broker.wire.message import PRIVATE, event
from broker.wire.topic import RESERVED_TEXT, is_reserved


class Event(Service):
    """What clients subscribe to, and events that come as requests."""

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
        if self.context.rank != 0:  # number and text as deployed
            raise RpcError(errno.EPROTO, "this service is only available on rank 0")
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
