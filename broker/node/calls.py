"""The broker's own requests and their answers: matchtags, streams, cancellation."""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.routing.router import Router
from broker.wire.message import NORESPONSE, STREAMING, UPSTREAM, Message, request
from broker.wire.payload import encode_json
from broker.wire.topic import replace_last_word

OnResponse = Callable[[Message], None]


class OwnCall:
    """A call under way; see ``services.context.Call``."""

    __slots__ = ("_calls", "flags", "matchtag", "nodeid", "on_response", "streaming", "topic")

    def __init__(
        self,
        calls: OwnCalls,
        matchtag: int,
        topic: str,
        nodeid: int,
        on_response: OnResponse | None,
        flags: int,
    ) -> None:
        self._calls, self.matchtag, self.topic, self.nodeid = calls, matchtag, topic, nodeid
        self.on_response, self.flags, self.streaming = on_response, flags, bool(flags & STREAMING)

    def cancel(self) -> None:
        """Want no more responses; a stream's provider is told."""
        self._calls.cancel(self)


class OwnCalls:
    """Open calls of one broker by matchtag; tags are used again only when their call has ended (RFC 6).

    Args:
        router: takes the requests, as its own port's. post: see ``Broker.post``.
    """

    def __init__(self, router: Router, post: Callable[[Callable[[Any], object], Any], None]) -> None:
        self.send: Callable[[Message], None] = self._send
        """Puts a request into routing; a tracer may stand in front of it (see ``tracing``)."""
        self._router = router
        self._post = post
        self._open: dict[int, OwnCall] = {}
        self._last = 0

    def call(
        self,
        topic: str,
        payload: bytes | None,
        on_response: OnResponse | None,
        *,
        nodeid: int,
        flags: int = 0,
    ) -> OwnCall:
        """Send a request; every response goes to ``on_response`` (None sets NORESPONSE)."""
        tag = 0
        if on_response is None:
            flags |= NORESPONSE
        else:
            tag = self._free_tag()
        call = OwnCall(self, tag, topic, nodeid, on_response, flags)
        if tag:
            self._open[tag] = call
        cred = self._router.own.cred
        message = request(
            topic,
            payload,
            nodeid=nodeid,
            matchtag=tag,
            flags=flags,
            userid=cred.userid,
            rolemask=cred.rolemask,
        )
        self._post(self.send, message)
        return call

    def answered(self, message: Message) -> None:
        """A response to one of our calls."""
        call = self._open.get(message.matchtag)
        if call is None or call.on_response is None:
            return
        # RFC 6, "Matchtags": an error is the last response of a stream, whatever its flags say
        if message.errnum or not call.streaming:
            del self._open[message.matchtag]
        call.on_response(message)

    def cancel(self, call: OwnCall) -> None:
        """Forget a call; tell a stream's provider (RFC 6, "Cancellation")."""
        if self._open.pop(call.matchtag, None) is not None and call.streaming:
            topic = replace_last_word(call.topic, "cancel")
            payload = encode_json({"matchtag": call.matchtag})
            self.call(topic, payload, None, nodeid=call.nodeid, flags=call.flags & UPSTREAM)

    def _send(self, message: Message) -> None:
        self._router.request(self._router.own, message)

    def _free_tag(self) -> int:
        while True:
            self._last = self._last % 0xFFFFFFFF + 1
            if self._last not in self._open:
                return self._last
