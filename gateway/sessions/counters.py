"""What the sessions of one gateway process have done, in numbers."""

# compiled: mypyc

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, Final


@dataclass
class Counters:
    """Counts since the start of the process; ``gateway.stats`` and ``/metrics`` read them.

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

    requests: int = 0
    responses: int = 0
    published: int = 0
    delivered: int = 0
    refused: int = 0
    denied: int = 0
    limited: int = 0
    late: int = 0
    forged: int = 0
    missed: int = 0
    faults: int = 0
    events_dropped: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    opened: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    ended: Counter[int] = field(default_factory=Counter)

    def plain(self) -> dict[str, Any]:
        """All of them as a JSON object."""
        found: dict[str, Any] = {name: getattr(self, name) for name in PLAIN}
        found.update(dropped=dict(self.dropped), opened=dict(self.opened), refusals=dict(self.refusals))
        found["ended"] = {str(code): count for code, count in self.ended.items()}
        return found


PLAIN: Final = tuple(each.name for each in fields(Counters) if each.default == 0)[:-1]
"""The plain numbers of ``Counters``; ``events_dropped`` counts with the outboxes."""
