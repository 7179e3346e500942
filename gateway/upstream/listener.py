"""The interface that the upstream calls on ``gateway.hub.Hub``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.client.request import Handler
    from broker.wire.message import Message
    from gateway.events.history import History


class UpstreamListener(Protocol):
    """Who gets what the upstream sends; every method is called on the event loop and must not wait."""

    @property
    def history(self) -> History:
        """The last events; the upstream begins it, breaks it and adds to it."""

    @property
    def service(self) -> Mapping[str, Handler | tuple[Handler, int]]:
        """The methods of the service ``gateway`` that others may call through the upstream."""

    def answered(self, message: Message) -> None:
        """A response whose top route is a session's hop."""

    def requested(self, message: Message) -> bool:
        """A request; False when no session serves its name."""

    def published(self, messages: list[Message]) -> None:
        """Events in order, numbered without a hole since the last ``upstream_joined``; the history has them."""

    def cut(self, front: bytes, reason: str) -> None:
        """The link that carried the calls of one session, whose requests' route stack is ``front``, ended."""

    def upstream_lost(self, reason: str) -> None:
        """The link to the upstream ended: whatever waited for it will not be answered."""

    def upstream_joined(self, epoch_changed: bool, missed: int | None) -> None:
        """The upstream is there, or events were missed while it was.

        Args:
            epoch_changed: the instance's rank 0 is another one, numbers begin anew; also at the first time.
            missed: events nobody here saw, 0 for none, None when that cannot be known.
        """

    def upstream_choked(self, choked: bool) -> None:
        """The upstream reads slowly (True), or does again (False)."""

    def upstream_shut(self, shut: bool) -> None:
        """Events have to wait (True), or move on again (False)."""

    def reregister(self) -> None:
        """A fresh link: the services of web sessions have to be registered again."""
