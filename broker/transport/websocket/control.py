"""The words of a gateway beside Flux messages: who we are, when the credential ends, what was lost, why it closes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.errors import ConfigError, DecodeError
from broker.nesting import decoder
from broker.transport.websocket.address import Token, fresh

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("headgate")

LEAD_S: Final = 30.0
"""A credential is refreshed this long before it ends, or after four fifths of what is left of it."""
SOON_S: Final = 0.05
"""Shortest pause before a refresh, so that a token that is always too old does not spin."""

_read: Final = decoder(dict[str, Any])
_encoder = msgspec.json.Encoder()


def _nowhere(_text: bytes) -> None:
    """What is said behind the end is lost."""


class Conversation:
    """The control objects of one link.

    Args:
        address: of the gateway, for log lines.
        token: a function is asked for a fresh token before the one in use expires.
        resume: what to resume with, right after the welcome; None begins anew.

    Attributes:
        send: takes the JSON text of a control object.
        welcomed: the gateway let us in (and resumed).
        welcome: its welcome; empty before.
        resumed: its answer to ``resume``; empty without one.
        on_object: hears each object, after this conversation did.
        said: the text of its last error object, which precedes a close frame; and ``again``, whether it wants us to
            connect again, where it said.
        gaps, lost: notices of dropped events, and events dropped: we read too slowly.
    """

    send: Callable[[bytes], None]

    def __init__(self, address: str, token: Token, resume: Mapping[str, Any] | None) -> None:
        self._address = address
        self._token = token
        self._resume = resume
        self._timer: asyncio.TimerHandle | None = None
        self.welcomed = False
        self.welcome: dict[str, Any] = {}
        self.resumed: dict[str, Any] = {}
        self.said = ""
        self.again: bool | None = None
        self.on_object: Callable[[dict[str, Any]], None] = lambda _obj: None
        self.gaps = 0
        self.lost = 0

    @property
    def message_bytes(self) -> int:
        """Largest WebSocket message that the gateway takes; 0 when it did not say."""
        limits = self.welcome.get("limits")
        found = limits.get("message_bytes") if isinstance(limits, dict) else None
        return found if isinstance(found, int) and found > 0 else 0

    @property
    def ping_s(self) -> float:
        """Seconds between the gateway's pings; 0 when it did not say."""
        found = self.welcome.get("ping_s")
        return float(found) if isinstance(found, int | float) and found > 0 else 0.0

    def received(self, text: bytes) -> None:
        """Take one control object.

        Raises:
            DecodeError: no JSON object.
        """
        try:
            obj = _read(text)
        except ValueError as error:
            raise DecodeError(f"a text message that is no JSON object: {str(error)[:200]}") from error
        handler = _HANDLERS.get(str(obj.get("type")))
        if handler is not None:  # a newer gateway may say more
            handler(self, obj)
        self.on_object(obj)

    def resume(self, **position: Any) -> None:
        """See ``EventReplay.resume``."""
        self.send(_encoder.encode({"type": "resume", **position}))

    def end(self) -> None:
        """The link is gone: no more timers, and nobody to send by."""
        self.send = _nowhere
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_welcome(self, obj: dict[str, Any]) -> None:
        self.welcome = obj
        self._schedule(obj.get("expires"))
        if self._resume is not None:
            self.resume(**self._resume)
        else:
            self.welcomed = True

    def _on_resumed(self, obj: dict[str, Any]) -> None:
        self.resumed = obj
        self.welcomed = True

    def _on_error(self, obj: dict[str, Any]) -> None:
        self.said = str(obj.get("text") or obj.get("name") or "")[:500]
        again = obj.get("reconnect")
        self.again = again if isinstance(again, bool) else None

    def _on_gap(self, obj: dict[str, Any]) -> None:
        lost = obj.get("lost")
        self.gaps += 1
        self.lost += lost if isinstance(lost, int) else 0
        log.warning("%s dropped %s events because we read too slowly", self._address, lost)

    def _on_upstream(self, obj: dict[str, Any]) -> None:
        self.welcome["upstream"] = {key: value for key, value in obj.items() if key != "type"}
        if obj.get("joined"):
            log.info("%s has its broker back", self._address)
        else:
            log.warning("%s lost its broker: %s", self._address, str(obj.get("reason"))[:500])

    def _on_denied(self, obj: dict[str, Any]) -> None:
        log.warning(
            "%s dropped our event %s: %s", self._address, obj.get("topic"), str(obj.get("text"))[:500]
        )

    def _on_unsubscribed(self, obj: dict[str, Any]) -> None:
        log.warning("%s took subscriptions back: %s", self._address, str(obj.get("subscriptions"))[:500])

    def _on_service(self, obj: dict[str, Any]) -> None:
        log.warning(
            "%s gave up our service %s: errno %s", self._address, obj.get("service"), obj.get("errno")
        )

    def _on_shutdown(self, obj: dict[str, Any]) -> None:
        log.info("%s leaves within %s s", self._address, obj.get("in_s"))

    def _on_refreshed(self, obj: dict[str, Any]) -> None:
        self._schedule(obj.get("expires"))

    def _schedule(self, expires: Any) -> None:
        """Refresh the credential in time, when the token can be renewed and ends at all."""
        self._stop()
        if callable(self._token) and isinstance(expires, int | float):
            left_s = expires - time.time()
            pause_s = max(left_s - min(LEAD_S, left_s / 5), SOON_S)
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._refresh)

    def _refresh(self) -> None:
        try:
            token = fresh(self._token)
        except ConfigError as error:
            log.warning("%s: cannot refresh the credential: %s", self._address, error)
        except Exception as error:  # what the caller's function raises must not end the loop's timer
            log.warning("%s: cannot refresh the credential: %s", self._address, type(error).__name__)
        else:
            self.send(_encoder.encode({"type": "refresh", "token": token}))


_HANDLERS: Final[dict[str, Callable[[Conversation, dict[str, Any]], None]]] = {
    "welcome": Conversation._on_welcome,
    "resumed": Conversation._on_resumed,
    "error": Conversation._on_error,
    "gap": Conversation._on_gap,
    "upstream": Conversation._on_upstream,
    "denied": Conversation._on_denied,
    "unsubscribed": Conversation._on_unsubscribed,
    "service": Conversation._on_service,
    "shutdown": Conversation._on_shutdown,
    "refreshed": Conversation._on_refreshed,
}
