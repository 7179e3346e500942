"""Which part of the history is asked for (pure)."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from typing import Any, Final

DAY_S: Final = 86400
STEPS_S: Final = (
    10,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
    172800,
    604800,
)
"""Widths of a chart's steps: multiples of a traffic window, and such that people count in."""
POINTS: Final = 120
"""A chart has at most so many steps: more are not told apart."""
LEAST_S: Final = 120
"""What is shown of data that is shorter: twelve steps of a traffic window."""
MINUTE_S: Final = 60
"""Both ends of a range that nobody chose are whole minutes, so that charts of all tables begin and end alike."""
LATEST_S: Final = 4102444800
"""2100-01-01: later times are mistakes, and all earlier ones fit a timestamp."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One question's bounds.

    Attributes:
        since: seconds since 1970, first that counts; a whole second.
        until: first that does not count.
        service: only this service, the topic up to its first dot; None all.
        rank: only this broker; None all.
    """

    since: int
    until: int
    service: str | None = None
    rank: int | None = None

    @classmethod
    def of(
        cls,
        since: float | None,
        until: float | None,
        extent: tuple[int, int],
        *,
        seconds: float = DAY_S,
        **more: Any,
    ) -> Scope:
        """The bounds that were asked for; what was left out comes from the data.

        With neither, it is all there is (``fitted``) unless that is longer than ``seconds``.

        Args:
            since: as asked; None begins ``seconds`` before the end.
            until: as asked; None is the end of ``extent``.
            extent: first second of the data, and the first one behind it.
            seconds: how much is taken when ``since`` is not said.
            more: the filters.

        Raises:
            ValueError: the end is not after the begin, or neither is a time of this century.
        """
        if since is None and until is None and extent[1] - extent[0] <= seconds:
            since, until = fitted(*extent)
        end = extent[1] if until is None else math.ceil(until)
        begin = end - math.ceil(seconds) if since is None else math.floor(since)
        if not 0 <= begin < end <= LATEST_S:
            raise ValueError(f"saw since {begin} and until {end}, expected 0 <= since < until <= {LATEST_S}")
        return cls(begin, end, **more)

    def step(self, least: int = STEPS_S[0]) -> int:
        """Seconds of one step of a chart; ``least`` is the width of the table's own windows.

        >>> Scope(0, 3600).step(), Scope(0, 3600).step(60), Scope(0, 86400 * 31).step()
        (30, 60, 43200)
        """
        return next(
            (each for each in STEPS_S if each >= least and self.steps(each) <= POINTS),
            math.ceil(self.span / POINTS / STEPS_S[-1]) * STEPS_S[-1],
        )

    @property
    def span(self) -> int:
        """Seconds between both ends."""
        return self.until - self.since

    def origin(self, step: int) -> int:
        """Where the first step begins: a multiple of ``step``."""
        return self.since - self.since % step

    def steps(self, step: int) -> int:
        """How many steps of ``step`` seconds the chart has."""
        return max(1, math.ceil((self.until - self.origin(step)) / step))

    def times(self, step: int) -> list[int]:
        """Where each step begins, seconds since 1970."""
        begin = self.origin(step)
        return [begin + at * step for at in range(self.steps(step))]

    @property
    def days(self) -> list[str]:
        """The dates (UTC) it touches, newest first: names of partitions."""
        first, last = self.since // DAY_S, (self.until - 1) // DAY_S
        return [date_of(day * DAY_S) for day in range(last, first - 1, -1)]

    def reaching(self, width: int) -> Scope:
        """The same from ``width`` seconds earlier: where windows begin that reach into it."""
        return Scope(max(0, self.since - width), self.until, self.service, self.rank)

    def whole_days(self) -> Scope:
        """The same with both ends at midnight (UTC), for tables whose rows are of a whole day."""
        first, last = self.since // DAY_S, -(-self.until // DAY_S)
        return Scope(first * DAY_S, last * DAY_S, self.service, self.rank)

    def as_json(self) -> dict[str, Any]:
        """The fields every answer has."""
        return {"since": self.since, "until": self.until, "service": self.service, "rank": self.rank}


def fitted(first: int, end: int) -> tuple[int, int]:
    """What a chart of data from ``first`` until ``end`` shows: a step of room at both sides, and not too little.

    >>> fitted(1200, 1210), fitted(3600, 7200)
    ((1140, 1260), (3540, 7260))
    """
    room = Scope(first, max(end, first + 1)).step()
    since, until = (first - room) // MINUTE_S * MINUTE_S, -(-(end + room) // MINUTE_S) * MINUTE_S
    while until - since < LEAST_S:
        if first - since < until - end:
            since -= MINUTE_S
        else:
            until += MINUTE_S
    return max(0, since), until


def date_of(seconds: float) -> str:
    """The date (UTC) of a time.

    >>> date_of(1767225600)
    '2026-01-01'
    """
    return dt.datetime.fromtimestamp(seconds, dt.UTC).date().isoformat()


def start_of(date: str) -> int:
    """When a date (UTC) begins, seconds since 1970; its counterpart.

    >>> start_of("2026-01-01")
    1767225600
    """
    return int(dt.datetime.fromisoformat(f"{date}T00:00:00+00:00").timestamp())
