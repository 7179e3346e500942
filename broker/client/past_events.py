"""Events of a while ago, page by page, as rank 0 keeps them (``event.since``).

Order. Rank 0's answer goes the way that its events go: who subscribed before it asked has every event that is newer
than a page, behind that page, and goes on without a hole.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from broker.errors import ProtocolError
from broker.wire.event_history import NUMBERS
from broker.wire.framing import Splitter

if TYPE_CHECKING:
    from broker.client.calls import Response
    from broker.wire.message import Message


class Caller(Protocol):
    """Who asks: a Handle."""

    async def rpc(self, topic: str, payload: Any = None, *, nodeid: int, timeout_s: float | None) -> Response:
        """Make a call (``Handle.rpc``)."""


class _Since(msgspec.Struct):
    """Response of ``event.since``."""

    epoch: str
    last: int
    behind: int
    missing: bool
    events: str
    rest: int = 0


class Page(NamedTuple):
    """Some events in a row."""

    epoch: str
    """Whose numbers they have."""
    behind: int
    """The number behind which they begin."""
    last: int
    """The newest number that there was."""
    missing: bool
    """Some that were asked for may be gone; these are the oldest that are kept."""
    events: list[Message]
    """None at the end."""

    @property
    def end(self) -> int:
        """The number behind which the next page begins."""
        return self.events[-1].sequence if self.events else self.last

    @property
    def rest(self) -> dict[str, object]:
        """How the next page is asked for."""
        return {"epoch": self.epoch, "sequence": self.end}

    @property
    def final(self) -> bool:
        """Whether there was nothing behind it."""
        return self.end == self.last


async def past_page(caller: Caller, asked: Mapping[str, object], *, timeout_s: float | None = None) -> Page:
    """The first page behind ``{"epoch", "sequence"}``, or of the last seconds (``{"age_s"}``); of an event that is
    larger than an answer, the pieces put together. Each answer may take ``timeout_s``; None is as long as it takes.

    Raises:
        RpcError: ENOSYS, rank 0 keeps none; EPERM, for the owner only. LinkError: the link ended.
        ProtocolError: what it answers are no events. TimeoutError: as above.
    """
    splitter, size, missing = Splitter(), 0, False
    begun: tuple[str, int] | None = None
    while True:
        found = (await caller.rpc("event.since", asked, nodeid=0, timeout_s=timeout_s)).json(_Since)
        missing |= found.missing
        if begun != (found.epoch, found.behind):  # or what the pieces before were of is kept no more
            splitter, size, begun = Splitter(), 0, (found.epoch, found.behind)
        data = _decoded(found.events)
        events = splitter.feed(data)
        size += len(data)
        if not found.rest or not data or splitter.failure is not None:
            break
        asked = {"epoch": found.epoch, "sequence": found.behind, "offset": size}
    if splitter.failure is not None or splitter.pending_bytes:
        raise ProtocolError(f"event.since: {splitter.failure or 'an event is cut off'}")
    expected = [(found.behind + place) % NUMBERS + 1 for place in range(len(events))]
    if [event.sequence for event in events] != expected:
        raise ProtocolError(f"event.since: numbers are left out behind {found.behind}")
    return Page(found.epoch, found.behind, found.last, missing, events)


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error as error:
        raise ProtocolError(f"event.since: its events are no base64: {error}") from error
