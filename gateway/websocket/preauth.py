"""Receives for a WebSocket until its first message has authenticated the client, where the handshake brought no
credential.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from broker.awake import Deadline
from gateway.closes import AUTH_TIMEOUT, BAD_CREDENTIAL, BUSY, INTERNAL
from gateway.codecs.contract import Refused
from gateway.principal import Denied

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.errors import LinkError
    from broker.transport.link import Link
    from broker.wire.message import Message
    from gateway.principal import Principal
    from gateway.websocket.endpoint import Endpoint
    from gateway.websocket.link import WebSocketLink

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
        loop, limit_s = asyncio.get_running_loop(), endpoint.hub.settings.limits.handshake_s
        self._deadline = Deadline(loop, loop.time() + limit_s, limit_s, self._late)
        self.check: asyncio.Task[None] | None = None
        self.slot = link.slot
        self._cut, self.slot.abort = self.slot.abort, self._give_way

    def _late(self) -> None:
        self.link.close_with(AUTH_TIMEOUT)

    def received(self, link: Link, messages: list[Message]) -> None:
        """Messages may only follow the auth object."""
        self._hold(messages)

    def refused(self, message: Message, text: str) -> None:
        """What is no message may follow it as messages may."""
        self._hold([Refused(message, text)])

    def _hold(self, items: Sequence[Message | Refused]) -> None:
        if self.check is not None:
            self._held += items
        else:
            self.link.close_with(BAD_CREDENTIAL, "the first message must be an auth object")

    def control(self, obj: dict[str, Any]) -> None:
        """Take the auth object."""
        if self.check is not None:
            self._held.append(obj)
        elif obj.get("type") == "auth":
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
