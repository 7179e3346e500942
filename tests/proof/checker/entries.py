"""What the lines of a run are about: connections, calls, events, jobs, with all that was written of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.proof.checker.places import Way
from tests.proof.checker.trouble import FOREVER

Line = Mapping[str, Any]

ANY: Final = 0xFFFFFFFF
LATE_S: Final = 2.0
"""How much later than it happened a busy party may write down that its connection has ended."""


@dataclass(slots=True)
class Held:
    """Something a connection had for a time: a service, or a subscription (``but``: what is denied below it)."""

    name: str
    begin: float
    end: float = FOREVER
    but: tuple[str, ...] = ()

    def covers(self, begin: float, end: float) -> bool:
        """Whether it was there all that time."""
        return self.begin <= begin and end <= self.end


@dataclass(slots=True)
class Conn:
    """One connection of a party.

    Attributes:
        end: when it ended, at the earliest; FOREVER while nothing says so.
        said: whether its party wrote that down itself.
        why: in its party's words.
        heard: events and gaps in the order in which they came: lines.
        served: what it served, in order. resumed: the line that says where it went on.
    """

    name: str
    who: str
    at: int | str
    userid: int
    roles: int
    begin: float
    way: Way
    kind: str
    ordered: bool = True
    end: float = FOREVER
    said: bool = False
    why: str = ""
    provides: list[Held] = field(default_factory=list)
    subscriptions: list[Held] = field(default_factory=list)
    heard: list[Line] = field(default_factory=list)
    served: list[Call] = field(default_factory=list)
    resumed: Line | None = None

    def covers(self, begin: float, end: float) -> bool:
        """Whether it lasted all that time."""
        return self.begin <= begin and end <= self.end


@dataclass(slots=True)
class Call:
    """One request and what became of it. Casts and notifications are calls without answer, of another ``kind``.

    Attributes:
        serves: (line, provider) of each time it was served. answers: lines, in order. ends: the last answers and the
            line of giving up.
    """

    id: str
    kind: str
    conn: Conn
    to: str
    n: int
    t: float
    node: int = ANY
    stream: int | None = None
    expect: str | None = None
    noresponse: bool = False
    serves: list[tuple[Line, Conn]] = field(default_factory=list)
    answers: list[Line] = field(default_factory=list)
    ends: list[Line] = field(default_factory=list)


@dataclass(slots=True)
class Event:
    """One event and what became of it.

    Attributes:
        seq: its number, 0 while unknown. known: when somebody first knew that number. seen: (line, subscriber).
        ends: how often its publisher was told what became of it; ended: when first. refused: the errno, if so.
    """

    id: str
    conn: Conn
    topic: str
    private: bool
    expect: str | None
    t: float
    seq: int = 0
    known: float = FOREVER
    acknowledged: bool = False
    refused: int | None = None
    ends: int = 0
    ended: float = FOREVER
    seen: list[tuple[Line, Conn]] = field(default_factory=list)


@dataclass(slots=True)
class Job:
    """One job of NFP and what became of it: lines."""

    id: str
    conn: Conn
    to: str
    workers: tuple[str, ...] | None
    once: bool
    t: float
    kept: float = FOREVER
    done: list[Line] = field(default_factory=list)
    recorded: list[Line] = field(default_factory=list)
    runs: list[Line] = field(default_factory=list)
