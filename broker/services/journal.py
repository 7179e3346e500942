"""The journal of this broker (``journal.status``, ``start``, ``stop``, ``denied``): owners only.

A journal is configured at start; at run time it can be turned off and on again, for instance once a full disk has room.
``denied`` is for gateways: what they refuse in the name of the broker belongs into the same record.
"""

from __future__ import annotations

import errno
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from broker.errors import HeadgateError, ProtocolError, RpcError
from broker.identity import USERID_UNKNOWN
from broker.services.context import Denial, JournalControl
from broker.services.service import Service, method
from broker.serving.request import LATER, Later, Request

NONE_TEXT: Final = "no journal is configured: [journal] enabled = true, or --journal DIR"
TEXT_CHARS: Final = 255
"""Characters kept of a name that a gateway reports: as much as a topic or an address needs."""
_KINDS: Final = ("request", "response", "event")
_TRANSPORTS: Final = ("websocket", "none")


class Journal(Service):
    """Shows and switches what records."""

    name = "journal"

    @method("status")
    def status(self, request: Request) -> Mapping[str, Any]:
        """-> ``{"state", "directory", "writer", "capture", ...}``: what records, and where; ENOSYS without one."""
        return self._journal().status()

    @method("start")
    def start_recording(self, request: Request) -> Later:
        """-> as ``status``; harmless when it records already. What hinders it is the errno, and its text."""
        self._switch(request, self._journal().start())
        return LATER

    @method("stop")
    def stop_recording(self, request: Request) -> Later:
        """``{["reason"]}`` -> as ``status``, once everything is written."""
        journal = self._journal()
        reason = request.field("reason", str, "") if request.message.payload_part else ""
        self._switch(request, journal.stop(reason[:TEXT_CHARS]))
        return LATER

    def _switch(self, request: Request, switching: Coroutine[Any, Any, None]) -> None:
        """Answer ``request`` when the journal has been turned on or off."""

        async def work() -> None:
            try:
                await switching
            except (HeadgateError, OSError) as error:
                request.respond_error(error.errno or errno.EIO, str(error))
            else:
                request.respond(self._journal().status())

        self.context.spawn(request.topic, work())

    @method("denied")
    def denied(self, request: Request) -> None:
        """``{"topic", "errno", "userid", "rolemask"[, "claimed", "session", "address", "transport", "type"]}``: a
        message that a gateway refused; ``left_out``: so many before it were not told. It wants no response as a rule.
        """
        self._journal().denied(denial_of(request))

    def _journal(self) -> JournalControl:
        journal = self.context.journal
        if journal is None:
            raise RpcError(errno.ENOSYS, NONE_TEXT)
        return journal


def denial_of(request: Request) -> Denial:
    """What ``journal.denied`` tells.

    Raises:
        ProtocolError: a key is missing, of the wrong type, or out of its range.
    """
    kind = request.field("type", str, "request")
    transport = request.field("transport", str, "websocket")
    if kind not in _KINDS or transport not in _TRANSPORTS:
        raise ProtocolError(f"type {kind[:16]!r} and transport {transport[:16]!r}: one is not known")
    topic: str = request.field("topic", str)
    if "\0" in topic:
        raise ProtocolError("a topic cannot hold a NUL")
    return Denial(
        errnum=_number(request, "errno", 0, 65535),
        topic=topic[:TEXT_CHARS],
        kind=kind,
        userid=_number(request, "userid", 0, USERID_UNKNOWN),
        rolemask=_number(request, "rolemask", 0, 0xFFFFFFFF),
        claimed=_number(request, "claimed", 0, USERID_UNKNOWN, USERID_UNKNOWN),
        transport=transport,
        session=request.field("session", str, "")[:TEXT_CHARS],
        address=request.field("address", str, "")[:TEXT_CHARS],
        left_out=_number(request, "left_out", 0, 0xFFFFFFFF, 0),
    )


def _number(request: Request, key: str, low: int, high: int, default: Any = ...) -> int:
    value: int = request.field(key, int, default)
    if not low <= value <= high:
        raise ProtocolError(f"{request.topic}: {key} is {value}, expected {low} to {high}")
    return value
