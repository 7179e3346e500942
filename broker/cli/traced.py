"""Calls put together from what brokers tell of messages that pass, and events by hop and subscriber; for ``trace``."""

from __future__ import annotations

import errno
import fnmatch
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.cli.exits import error_name
from broker.cli.screen import local_clock
from broker.identity import USERID_UNKNOWN
from broker.safe_text import one_line
from broker.wire.message import EVENT, MATCHTAG_NONE, NORESPONSE, PRIVATE, REQUEST, RESPONSE, STREAMING

OPEN_MAX: Final = 65_536
"""Calls without an answer so far that are remembered; the oldest are forgotten beyond it."""
FULL_MAX: Final = 1024
"""The same where each has its payload, of up to 64 KiB."""
HOUSEKEEPING: Final = ("cancel", "disconnect")
"""Methods that clients' libraries call by themselves (RFC 6)."""
Key = tuple[int, str, str, int]
"""Rank, link, topic and matchtag of a call."""


@dataclass(slots=True)
class TracedCall:
    """A call that has ended, or wants no answer.

    Attributes:
        time: when it entered, seconds since 1970. rank: where. userid: whose; None: nobody was let in with it.
        client: its link. ms: until the last answer; None: it wants none.
        errnum, error: how it failed; 0: it did not. answers: so many responses.
        payload: the request's, where it was asked for and is JSON.
    """

    time: float
    rank: int
    userid: int | None
    client: str
    topic: str
    payload: Any = None
    ms: float | None = None
    errnum: int = 0
    error: str = ""
    answers: int = 0
    began: float = 0.0

    def value(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "time": self.time,
            "rank": self.rank,
            "userid": self.userid,
            "client": self.client,
            "topic": self.topic,
            "ms": self.ms,
            "errnum": self.errnum,
            "error": self.error,
            "answers": self.answers,
            "payload": self.payload,
        }

    def text(self) -> str:
        """One line for people."""
        user = "user ?" if self.userid is None else f"user {self.userid}"
        took = "wants no answer" if self.ms is None else f"{self.ms:.3f} ms"
        line = f"{local_clock(self.time)}  rank {self.rank}  {user}  {one_line(self.topic)}  {took}"
        if self.errnum:
            line += f"  {error_name(self.errnum)}"
            line += f": {one_line(self.error)[:200]}" if self.error else ""
        elif self.answers > 1:
            line += f"  {self.answers} answers"
        return line


class TracedCalls:
    """Requests and responses of all brokers, put together to calls.

    Args:
        topics: patterns of those that count; none: all but those of the services ``own``.

    Attributes:
        calls, failed: so many have ended. forgotten: were open for so long that they were forgotten.
    """

    def __init__(self, topics: Sequence[str] = (), own: Container[str] = ()) -> None:
        self._topics = topics
        self._own = own
        self._open: dict[Key, TracedCall] = {}
        self.calls = self.failed = self.forgotten = 0

    @property
    def open(self) -> int:
        """Calls that are not answered yet."""
        return len(self._open)

    def take(self, rank: int, told: Mapping[str, Any]) -> TracedCall | None:
        """One record of the broker ``rank``; the call that ends with it, if one does."""
        key = (rank, str(told["name"]), str(told["topic"]), int(told["matchtag"]))
        if (told["prefix"], told["type"]) == ("rx", REQUEST):
            return self._began(key, told) if self._counts(key[2]) else None
        if (told["prefix"], told["type"]) == ("tx", RESPONSE):
            return self._answered(key, told)
        return None

    def _counts(self, topic: str) -> bool:
        if self._topics:
            return any(fnmatch.fnmatchcase(topic, pattern) for pattern in self._topics)
        service, _, method = topic.rpartition(".")
        return service.partition(".")[0] not in self._own and method not in HOUSEKEEPING

    def _began(self, key: Key, told: Mapping[str, Any]) -> TracedCall | None:
        userid = None if told["userid"] == USERID_UNKNOWN else told["userid"]
        call = TracedCall(told["timestamp"], key[0], userid, key[1], key[2], told["payload"])
        call.began = told["monotonic"]
        if told["flags"] & NORESPONSE or key[3] == MATCHTAG_NONE:
            self.calls += 1
            return call
        self._open[key] = call
        if len(self._open) > (OPEN_MAX if call.payload is None else FULL_MAX):
            del self._open[next(iter(self._open))]
            self.forgotten += 1
        return None

    def _answered(self, key: Key, told: Mapping[str, Any]) -> TracedCall | None:
        call = self._open.get(key)
        if call is None:
            return None  # it had begun before we looked
        errnum, streams = told["errnum"], told["flags"] & STREAMING
        call.answers += not errnum
        if streams and not errnum:
            return None
        del self._open[key]
        call.ms = (told["monotonic"] - call.began) * 1000
        if errnum and not (streams and errnum == errno.ENODATA):
            call.errnum, call.error = errnum, told["errstr"]
            self.failed += 1
        self.calls += 1
        return call

    def lost(self, rank: int) -> None:
        """Forget the open calls that entered at ``rank``: its trace has ended."""
        for key in [key for key in self._open if key[0] == rank]:
            del self._open[key]

    def summary(self) -> str:
        """What was seen, for people."""
        parts = [f"calls: {self.calls:,}", f"failed: {self.failed:,}", f"still open: {self.open:,}"]
        if self.forgotten:
            parts.append(f"forgotten, for they were open for too long: {self.forgotten:,}")
        return ", ".join(parts)


def glob_of(topic: str) -> str:
    """The pattern of topics that a word means: a service, a beginning that ends with a dot, a method, or a pattern.

    >>> glob_of("calc"), glob_of("calc."), glob_of("calc.add"), glob_of("*.get")
    ('calc.*', 'calc.*', 'calc.add', '*.get')
    """
    if any(mark in topic for mark in "*?["):
        return topic
    return f"{topic.removesuffix('.')}.*" if "." not in topic or topic.endswith(".") else topic


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
        number = f"#{self.sequence}" if self.sequence else "#-"
        private = "  private" if self.private else ""
        said = f"{self.outcome}  {one_line(self.peer)}" if self.peer else self.outcome
        line = f"{local_clock(self.time)}  {one_line(self.topic)}  {number}{private}"
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
