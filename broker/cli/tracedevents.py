"""Events, hop by hop and subscriber by subscriber, from what brokers and gateways tell, for ``trace`` (pure)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.identity import USERID_UNKNOWN
from broker.safe_text import one_line
from broker.wire.message import EVENT, PRIVATE

_ANY = -1
"""The rank of a link of a client, and of what goes to all children."""


@dataclass(slots=True)
class TracedHop:
    """What one broker or gateway did with one event.

    Attributes:
        time: seconds since 1970. where: "rank 2", or the name of a gateway's process.
        sequence: its number; 0: it has none yet. userid: its sender's; None: nobody has stamped it yet.
        outcome: received or sent by a broker; of a gateway delivered, withheld, dropped, waiting, closed, or nobody.
        peer: from or to whom. why: what kept it away; "" nothing did.
    """

    time: float
    where: str
    topic: str
    sequence: int
    userid: int | None
    private: bool
    outcome: str
    peer: str
    why: str = ""

    @property
    def lost(self) -> bool:
        """Whether somebody who subscribed to it did not get it."""
        return self.outcome in ("withheld", "dropped", "closed")

    def value(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "time": self.time,
            "where": self.where,
            "topic": self.topic,
            "sequence": self.sequence,
            "userid": self.userid,
            "private": self.private,
            "outcome": self.outcome,
            "peer": self.peer,
            "why": self.why,
        }

    def text(self) -> str:
        """One line for people."""
        clock = time.strftime("%H:%M:%S", time.localtime(self.time))
        number = f"#{self.sequence}" if self.sequence else "#-"
        private = "  private" if self.private else ""
        said = f"{self.outcome}  {one_line(self.peer)}" if self.peer else self.outcome
        line = f"{clock}.{int(self.time % 1 * 1000):03}  {one_line(self.topic)}  {number}{private}"
        line += f"  {self.where}  {said}"
        return f"{line}: {one_line(self.why)}" if self.why else line


class TracedEvents:
    """Counts hops as they are made of what was told.

    Attributes:
        outcomes: outcome -> hops.
    """

    def __init__(self, prefixes: tuple[str, ...]) -> None:
        self._prefixes = prefixes
        self.outcomes: Counter[str] = Counter()

    def take(self, rank: int, told: Mapping[str, Any]) -> list[TracedHop]:
        """One record of the broker ``rank`` (``overlay.trace``)."""
        if told["type"] != EVENT or not told["topic"].startswith(self._prefixes):
            return []
        arrives = told["prefix"] == "rx"
        if told["name"] is not None:
            peer = told["name"]
        else:
            peer = "its children" if told["rank"] == _ANY else f"rank {told['rank']}"
        hop = TracedHop(
            told["timestamp"],
            f"rank {rank}",
            told["topic"],
            told["sequence"],
            None if told["userid"] == USERID_UNKNOWN else told["userid"],
            bool(told["flags"] & PRIVATE),
            "received" if arrives else "sent",
            f"from {peer}" if arrives else f"to {peer}",
        )
        return self._counted([hop])

    def take_subscribers(self, told: Mapping[str, Any]) -> list[TracedHop]:
        """One record of a gateway (``NAME.trace``): a hop for each subscriber."""

        def hop(outcome: str, peer: str, why: str) -> TracedHop:
            return TracedHop(
                told["at"],
                told["gateway"],
                told["topic"],
                told["sequence"],
                told["userid"],
                told["private"],
                outcome,
                peer,
                why,
            )

        rows = told["subscribers"]
        hops = [hop(row["outcome"], f"{row['user']} (session {row['session']})", row["why"]) for row in rows]
        if not rows:
            count = told["unsubscribed"]
            hops.append(
                hop("nobody", "", f"none of its {count} sessions has a subscription that begins the topic")
            )
        if told["more"]:
            hops.append(hop("delivered", f"{told['more']} more subscribers", "or not: they have no row"))
        return self._counted(hops)

    def _counted(self, hops: list[TracedHop]) -> list[TracedHop]:
        self.outcomes.update(hop.outcome for hop in hops)
        return hops

    def summary(self) -> str:
        """What was seen, for people."""
        return ", ".join(f"{outcome}: {count:,}" for outcome, count in self.outcomes.items()) or "no event"
