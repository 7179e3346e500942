"""What the sessions of one process have done, in plain numbers: ``gateway.stats`` and ``/metrics`` read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.sessions.session import Session

PLAIN = (
    "requests",
    "responses",
    "published",
    "delivered",
    "refused",
    "denied",
    "limited",
    "late",
    "forged",
    "missed",
    "faults",
)


class Counters:
    """Counts since the start of the process.

    Attributes:
        requests: forwarded upstream.
        responses: handed to clients.
        published: events sent upstream for clients.
        delivered: requests handed to web providers.
        refused: requests answered here with an error.
        denied: attempts without the right.
        limited: messages above the rate limit.
        late: responses to no open call, dropped.
        forged: responses of providers to nothing they were delivered, dropped.
        missed: events of the upstream that never came, as far as they could be counted.
        faults: messages whose handling raised.
        events_dropped: events that slow clients missed that have left; those of sessions are at their outboxes.
        dropped: reason -> messages that were dropped for it.
        opened: kind -> sessions.
        refusals: kind and status -> sessions that were not opened.
        ended: close code -> sessions this side ended, whoever of it: the session or its link.
    """

    __slots__ = (*PLAIN, "dropped", "ended", "events_dropped", "opened", "refusals")

    requests: int
    responses: int
    published: int
    delivered: int
    refused: int
    denied: int
    limited: int
    late: int
    forged: int
    missed: int
    faults: int

    def __init__(self) -> None:
        for name in PLAIN:
            setattr(self, name, 0)
        self.events_dropped = 0
        self.dropped: Counter[str] = Counter()
        self.opened: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.ended: Counter[int] = Counter()

    def plain(self) -> dict[str, Any]:
        """All of them as a JSON object."""
        found: dict[str, Any] = {name: getattr(self, name) for name in PLAIN}
        found.update(dropped=dict(self.dropped), opened=dict(self.opened), refusals=dict(self.refusals))
        found["ended"] = {str(code): count for code, count in self.ended.items()}
        return found

    @staticmethod
    def by_kind(sessions: Iterable[Session]) -> dict[str, int]:
        """Kind -> how many of ``sessions`` are of it."""
        return dict(Counter(session.kind for session in sessions))
