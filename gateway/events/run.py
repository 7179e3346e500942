"""A batch of consecutive events for the same receivers, so that each encoded form is made once and shared.

What a link writes for a run is the same bytes for every receiver with the same codec. The first one makes them and
keeps them in ``Run.forms``; with 500 receivers the other 499 append a reference.
"""

# compiled: mypyc

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.transport.link import Link
    from broker.wire.message import Message


class Run:
    """One or more stamped and numbered events, in order.

    Attributes:
        messages: the events; at least one, never changed afterwards.
        forms: name of a codec -> the bytes that go onto the wire: complete WebSocket frames, or the text of SSE.
    """

    __slots__ = ("forms", "messages")

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.forms: dict[str, bytes] = {}

    @property
    def first(self) -> int:
        """Sequence of the first event."""
        return self.messages[0].sequence

    @property
    def last(self) -> int:
        """Sequence of the last event."""
        return self.messages[-1].sequence

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        return f"<run of {len(self.messages)} events, {self.first} to {self.last}>"


SendRun: TypeAlias = "Callable[[Run], None]"
"""Queues a run on one link; never waits, never raises (``Link.send``)."""


def sender(link: Link) -> SendRun:
    """What takes runs for ``link``: its own ``send_run``, or one ``send`` per event where it has none."""
    own: SendRun | None = getattr(link, "send_run", None)
    if own is not None:
        return own

    def send_each(run: Run) -> None:
        send = link.send
        for message in run.messages:
            send(message)

    return send_each
