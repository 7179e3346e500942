"""``GET /v1/ws``: from an HTTP request to a session with a WebSocket link.

A request that may not become a WebSocket is answered over HTTP, with words. A refusal that a browser's page has to see
comes as an error object and a close code instead: pages see neither status nor body of a failed handshake. So that is
how a cookie, a certificate or a token in the first message is refused; a bearer token in a header gets a status.

A client is in no table of sessions before its credential was accepted. Until then its link belongs to a
``PreAuthReceiver``, which takes one auth object within ``handshake_s`` and frames up to ``preauth_bytes``.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from typing import TYPE_CHECKING, Any, Final, Literal

from aiohttp import web

from broker.awake import Deadline
from broker.identity import PeerInfo
from gateway import notices
from gateway.closes import AUTH_TIMEOUT, BAD_CREDENTIAL, BUSY, INTERNAL, SHUTDOWN
from gateway.codecs import CODECS, choose, new_codec
from gateway.codecs.contract import Refused
from gateway.principal import Denied
from gateway.web.admission import Admission, key_of
from gateway.web.answers import Refusal
from gateway.web.requests import overflow_of
from gateway.websocket import deflate, handshake
from gateway.websocket.keepalive import Keepalive
from gateway.websocket.link import Turn, WebSocketLink
from gateway.websocket.outbox import with_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.errors import LinkError
    from broker.transport.link import Link, Options
    from broker.wire.message import Message
    from gateway.codecs.contract import Codec
    from gateway.identity.authenticate import Authenticator
    from gateway.principal import Principal
    from gateway.sessions.delivery import Delivery
    from gateway.sessions.requests import GatewayService
    from gateway.sessions.sessions import Sessions
    from gateway.web.admission import Pool, Slot


log = logging.getLogger("headgate")


class PreAuthReceiver:
    """The receiver of a link until its client is known; takes one auth object.

    While the credential is checked nothing is read. What the same read brought behind the auth object is held and goes
    to the session, in order.

    Attributes:
        check: the task that checks the credential, once there is one to check.
        slot: among those who have shown none; a newer one may end this, also while a refused client's close lingers.
    """

    __slots__ = ("_address", "_cut", "_deadline", "_endpoint", "_held", "check", "link", "slot")

    def __init__(self, endpoint: Endpoint, link: WebSocketLink, address: str) -> None:
        self._endpoint = endpoint
        self._address = address
        self._held: list[Message | dict[str, Any] | Refused] = []
        self.link = link
        loop, limit_s = asyncio.get_running_loop(), endpoint.sessions.settings.limits.handshake_s
        late = functools.partial(link.close_with, AUTH_TIMEOUT)
        self._deadline = Deadline(loop, loop.time() + limit_s, limit_s, late)
        self.check: asyncio.Task[None] | None = None
        self.slot = link.slot
        self._cut, self.slot.abort = self.slot.abort, self._give_way

    def received(self, link: Link, messages: list[Message]) -> None:
        """Messages may only follow the auth object."""
        self._hold(messages)

    def refused(self, message: Message, text: str) -> None:
        """What is no message may follow it as messages may."""
        self._hold([Refused(message, text)])

    def _hold(self, items: Sequence[Message | Refused]) -> None:
        if self.check is not None:
            # a client may send its first requests right behind the auth object, and spare a way there and back
            self._held += items
        else:
            self.link.close_with(BAD_CREDENTIAL, "the first message must be an auth object")

    def control(self, obj: dict[str, Any]) -> None:
        """Take the auth object."""
        if self.check is not None:
            self._held.append(obj)
        elif obj.get("type") == "auth":
            # nothing further is read before it is known who asks: its messages may be many, and nobody has to answer
            # for them yet
            self.link.pause()
            self.slot.set_busy()
            self.check = asyncio.get_running_loop().create_task(
                self._authenticate(obj["token"]), name=f"auth {self.link.peer.address}"
            )
        else:
            self.link.close_with(BAD_CREDENTIAL, "the first message must be an auth object")

    def link_ended(self, link: Link, error: LinkError) -> None:
        """The client left, or was refused: nothing of it stays but its connection, which counts until it has gone."""
        self._deadline.cancel()
        if not self.slot.idle:
            self.slot.set_idle()
        self.slot.abort = self._cut
        self._held = []
        self._endpoint.preauth.discard(self)
        if self.check is not None and self.check is not asyncio.current_task():
            self.check.cancel()

    def link_choked(self, link: Link, choked: bool) -> None:
        """Nothing is sent to a client at the door, so nothing can wait for it."""

    def _give_way(self) -> None:
        """End at once, for a newer one: with a word, but without waiting until it is read."""
        self.link.close_with(BUSY)
        self._cut()

    async def _authenticate(self, token: str) -> None:
        try:
            principal = await self._endpoint.identity.authenticate_token(token, address=self._address)
            self._enter(principal)
        except Denied as denied:
            self.link.close_with(denied.close, denied.public)
        except Exception:
            log.exception("%s: a fault while checking its credential", self.link.peer.address)
            self.link.close_with(INTERNAL)

    def _enter(self, principal: Principal) -> None:
        link = self.link
        if link.ended is not None or not self._endpoint.enter(link, self._address, principal):
            return
        self._deadline.cancel()
        self.slot.release()
        self.slot.abort = self._cut
        self._endpoint.preauth.discard(self)
        held, self._held = self._held, []
        link.hand_over(held)
        link.resume()


Policy = Literal["disconnect", "drop"]
_numbers = itertools.count(1)


class Endpoint:
    """The WebSockets of one process.

    Args:
        sessions: opened here; their settings count. delivery, administration: what a session needs besides.
        identity: who is it.
        admission: where connections are counted that are no session's, and end for newer ones; None is one of its own.

    Attributes:
        admission: as above. preauth: clients without a credential yet.
        keepalive: pings all links, also those.
    """

    def __init__(
        self,
        sessions: Sessions,
        delivery: Delivery,
        administration: GatewayService,
        identity: Authenticator,
        admission: Admission | None = None,
    ) -> None:
        limits = sessions.settings.limits
        self.sessions = sessions
        self._delivery = delivery
        self._administration = administration
        self.identity = identity
        self.preauth: set[PreAuthReceiver] = set()
        self._turn = Turn()
        self.admission = Admission(limits) if admission is None else admission
        self.keepalive = Keepalive(limits.ping_s, limits.pong_s, stopped=sessions.stopped)
        self._options = {policy: with_policy(sessions.options, policy) for policy in ("disconnect", "drop")}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer ``GET /v1/ws``.

        Raises:
            Refusal, Denied: it is answered over HTTP.
        """
        key = handshake.check(request)
        codec = self._codec(request)
        deflates = self.sessions.settings.gateway.deflate and deflate.agreed(
            request.headers.getall("Sec-WebSocket-Extensions", [])
        )
        policy = self._policy(request, codec)
        # told as a status here, while HTTP can still carry it; it is asked again when the credential was checked
        if self.sessions.full:
            raise Refusal(503, "too many connections (limits.connections)")
        principal: Principal | None = None
        refused: Denied | None = None
        try:
            # a page with a token of its own means that one, whatever cookie its browser adds, and however that fares
            if request.query.get("auth") == "message":
                self.identity.check_page(request)
            else:
                principal = await self.identity.authenticate_request(request)
        except Denied as denied:
            if denied.status == 403 or "Authorization" in request.headers:
                raise  # no page sends this header with a WebSocket: a program reads the status
            refused = denied
        # ZWS peers speak frames of ZeroMQ from the first byte on
        if principal is None and refused is None and not _has_control(codec):
            raise Refusal(401, f"{codec.name} has no auth object: bring a credential with the handshake")
        address = self.identity.listeners.client(request).address
        taken = handshake.take_over(request, self.admission)
        if taken is not None:  # else the client left while its credential was checked
            answer = handshake.answer(key, codec.name, deflate.AGREED if deflates else "")
            link = self._link(taken, codec, address, self._options[policy], deflates, answer)
            try:
                self._admit(link, address, principal, refused)
            except Exception:
                log.exception("%s: a fault while opening its session", link.peer.address)
                link.close_with(INTERNAL)
        return handshake.Switched()

    def _codec(self, request: web.Request) -> Codec:
        name = choose(handshake.offered(request))
        if name is None:
            spoken = ", ".join(CODECS)
            raise Refusal(
                400, f"Sec-WebSocket-Protocol: none of the offered is spoken here, which are {spoken}"
            )
        return new_codec(name, self.sessions.settings.limits.message_bytes)

    def _policy(self, request: web.Request, codec: Codec) -> Policy:
        asked = overflow_of(request)
        if (asked or self.sessions.settings.limits.slow_policy) == "disconnect":
            return "disconnect"
        if _has_control(codec):
            return "drop"
        if asked:
            raise Refusal(400, f"overflow: {codec.name} has no gap notice, so it cannot drop")
        return "disconnect"

    def _link(
        self,
        taken: handshake.Taken,
        codec: Codec,
        address: str,
        options: Options,
        deflates: bool,
        answer: bytes,
    ) -> WebSocketLink:
        peer = PeerInfo(f"ws://{address}#{next(_numbers)}")
        most = self.sessions.settings.limits.preauth_bytes
        link = WebSocketLink(
            taken, self._turn, codec, peer, options, max_bytes=most, deflates=deflates, answer=answer
        )
        link.reader.setting = "limits.preauth_bytes"
        link.place = self.keepalive.add(link)
        return link

    def _admit(
        self, link: WebSocketLink, address: str, principal: Principal | None, refused: Denied | None
    ) -> None:
        """Decide what a fresh link is: a session, a client at the door, or refused."""
        link.lingers = functools.partial(_count, link.slot, self.admission.strangers, key_of(address))
        if refused is not None:
            link.close_with(refused.close, refused.public)
        elif not self.sessions.accepting:  # nobody may wait at a door that ``close`` has been to
            link.close_with(SHUTDOWN)
        elif principal is None:
            receiver = PreAuthReceiver(self, link, address)
            self.preauth.add(receiver)
            link.start(receiver)
            self.admission.strangers.enter(link.slot, key_of(address))
        elif self.enter(link, address, principal):
            link.resume()

    def enter(self, link: WebSocketLink, address: str, principal: Principal) -> bool:
        """Make ``link`` a session of ``principal`` and welcome it; False when it was refused and closed."""
        try:
            session = self.sessions.open(
                self._delivery,
                self._administration,
                principal,
                link,
                kind=link.codec.name,
                address=address,
            )
        except Denied as denied:
            link.close_with(denied.close, denied.public)
            return False
        link.lingers = functools.partial(_count, link.slot, self.admission.users, principal.name)
        link.reader.max_bytes = self.sessions.settings.limits.message_bytes
        link.reader.setting = "limits.message_bytes"
        link.receiver = session.receiver
        link.tell(session.welcome())
        return True

    async def close(self) -> None:
        """Turn away who is still at the door, and ping nobody any more; sessions are for ``Sessions`` to close."""
        self.keepalive.stop()
        checks = [each.check for each in self.preauth if each.check is not None]
        for receiver in [*self.preauth]:
            receiver.link.close_with(SHUTDOWN)
        await asyncio.gather(*checks, return_exceptions=True)


def _count(slot: Slot, pool: Pool, key: str | None) -> None:
    """A link has ended: while its client may still read why, the connection counts, and ends for a newer one."""
    if slot.pool is None and not pool.enter(slot, key):
        slot.abort()


def _has_control(codec: Codec) -> bool:
    """Whether the subprotocol has a place for control objects."""
    return codec.encode_control(_ANY) is not None


_ANY: Final = notices.gap(0, 0, 0)
