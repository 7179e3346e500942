"""Answers -> SVG texts for pages without a program: lines, or bars that stand on each other; times in UTC (pure).

Colours are classes (``tone-NAME``), the page's style sheet has them. Each step has a ``<title>``, which browsers show
under the pointer.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Final, NamedTuple

WIDTH: Final = 720
HEIGHT: Final = 190
LEFT: Final = 64
RIGHT: Final = 10
TOP: Final = 8
BOTTOM: Final = 22
POINT: Final = 1.5
"""Radius of a value alone; the line around it makes it a point."""
FINE_S: Final = 3 * 3600
"""In a shorter time, what was when is told to the second."""
MARKS: Final = 7
"""Times that are marked, at most."""
_EVERY_S: Final = (
    10,
    20,
    30,
    60,
    120,
    300,
    600,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
    172800,
    604800,
    1209600,
)


class Line(NamedTuple):
    """One series: ``values`` has one for each step, None where nothing is known."""

    name: str
    tone: str
    values: Sequence[float | None]


class Frame(NamedTuple):
    """Where things are: first time, seconds of a step, steps, the top of the scale, and the size of the picture."""

    begin: float
    step: float
    steps: int
    top: float
    width: float = WIDTH
    height: float = HEIGHT

    def x(self, at: float) -> float:
        """Of the begin of step ``at``."""
        return LEFT + at / self.steps * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Of a value."""
        return self.height - BOTTOM - value / self.top * (self.height - TOP - BOTTOM)


def chart(
    title: str,
    times: Sequence[float],
    step: float,
    lines: Sequence[Line],
    form: Callable[[float], str],
    *,
    bars: bool = False,
    zeros: bool = False,
    place: tuple[float, float, float, float] | None = None,
) -> str:
    """An SVG element; "" when there is nothing to draw.

    Args:
        title: what it is called for those who do not see it.
        times: begins of the steps.
        step: seconds of each.
        lines: what is drawn, in this order.
        form: a value as text.
        bars: bars that stand on each other; lines otherwise.
        zeros: a 0 is something to draw, too: a time that is too short to be told, not a count of nothing.
        place: x, y, width and height of the element in another picture; None: it is a picture of its own.
    """
    if not any(value or (zeros and value is not None) for line in lines for value in line.values):
        return ""
    most = max(_tops(lines, len(times), bars))
    marks = scale(most or 1)
    wide, high = (WIDTH, HEIGHT) if place is None else place[2:]
    frame = Frame(times[0], step, len(times), marks[-1], wide, high)
    parts = [_grid(frame, marks, form)]
    below = [0.0] * len(times)
    for line in lines:
        drawn = _bars(frame, line.values, below) if bars else _line(frame, line.values)
        kind = "bar" if bars else "line"
        parts.append(f'<path class="{kind} tone-{escape(line.tone)}" d="{drawn}"/>')
    parts += [_hint(frame, at, lines, form, zeros) for at in range(len(times))]
    where = "" if place is None else f'x="{place[0]:g}" y="{place[1]:g}" width="{wide:g}" height="{high:g}" '
    return (
        f'<svg {where}viewBox="0 0 {wide:g} {high:g}" role="img" aria-label="{escape(title)}">'
        + "".join(parts)
        + "</svg>"
    )


def scale(most: float) -> list[float]:
    """Marks from 0 to at least ``most``, round ones.

    >>> scale(7), scale(0.9)
    ([0.0, 2.5, 5.0, 7.5], [0.0, 0.5, 1.0])
    """
    rough = max(most, 1e-9) / 3
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough * 0.999), 10 * power)
    return [step * at for at in range(math.ceil(most / step * 0.999) + 1)]


def moment(seconds: float, *, fine: bool = False) -> str:
    """A time in UTC, like ``2 Mar 12:30``; with its seconds when it is ``fine``."""
    stamp = dt.datetime.fromtimestamp(seconds, dt.UTC)
    return f"{stamp.day} {stamp:%b} {stamp:{'%H:%M:%S' if fine else '%H:%M'}}"


def bounds(answer: dict[str, Any]) -> str:
    """The time an answer is about, with its seconds where they say anything."""
    short = answer["until"] - answer["since"] <= FINE_S
    fine = short and bool(answer["since"] % 60 or answer["until"] % 60)
    return f"{moment(answer['since'], fine=fine)} to {moment(answer['until'], fine=fine)} UTC"


def _tops(lines: Sequence[Line], steps: int, bars: bool) -> list[float]:
    """The highest point of each step, or of each line."""
    if bars:
        return [sum(line.values[at] or 0 for line in lines) for at in range(steps)]
    return [max((value for value in line.values if value is not None), default=0) for line in lines]


def _grid(frame: Frame, marks: Sequence[float], form: Callable[[float], str]) -> str:
    parts = []
    for value in marks:
        y = frame.y(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{frame.width - RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(form(value))}</text>')
    span = frame.step * frame.steps
    every = next((each for each in _EVERY_S if span / each <= MARKS), math.ceil(span / MARKS / 86400) * 86400)
    at = math.ceil(frame.begin / every) * every
    while at < frame.begin + span:
        stamp = dt.datetime.fromtimestamp(at, dt.UTC)
        clock = "%H:%M" if every % 60 == 0 else "%H:%M:%S"
        text = f"{stamp.day} {stamp:%b}" if at % 86400 == 0 else f"{stamp:{clock}}"
        x = min(frame.x((at - frame.begin) / frame.step), frame.width - (20 if every % 60 == 0 else 28))
        parts.append(
            f'<text class="when" x="{x:.1f}" y="{frame.height - 5:g}" text-anchor="middle">{text}</text>'
        )
        at += every
    return "".join(parts)


_CIRCLE: Final = f"a{POINT} {POINT} 0 1 0 {2 * POINT} 0a{POINT} {POINT} 0 1 0 {-2 * POINT} 0"


def _line(frame: Frame, values: Sequence[float | None]) -> str:
    """A line through the middles of the steps; a value alone between unknown ones is a point."""
    path, drawing = "", False
    for at, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        alone = not drawing and (at + 1 == len(values) or values[at + 1] is None)
        path += (
            f"{'L' if drawing else 'M'}{frame.x(at + 0.5) - (POINT if alone else 0):.1f} {frame.y(value):.1f}"
        )
        path += _CIRCLE if alone else ""
        drawing = True
    return path


def _bars(frame: Frame, values: Sequence[float | None], below: list[float]) -> str:
    """Bars on those that stand there already; ``below`` grows."""
    wide = max(1.0, frame.x(1) - LEFT - 1)
    path = ""
    for at, value in enumerate(values):
        if value:
            foot = frame.y(below[at])
            below[at] += value
            high = max(1.0, foot - frame.y(below[at]))
            path += f"M{frame.x(at):.1f} {foot:.1f}v{-high:.1f}h{wide:.1f}v{high:.1f}z"
    return path


def _hint(
    frame: Frame, at: int, lines: Sequence[Line], form: Callable[[float], str], zeros: bool = False
) -> str:
    """An unseen column that tells its values; none where all of them are unknown, or 0 unless that says something."""
    known = [
        (line.name, value) for line in lines if (value := line.values[at]) is not None and (value or zeros)
    ]
    if not known:
        return ""
    values = " · ".join(f"{name} {form(value)}" for name, value in known)
    wide, high = frame.x(1) - LEFT, frame.height - TOP - BOTTOM
    when = moment(frame.begin + at * frame.step, fine=frame.step < 60)
    return (
        f'<rect class="hint" x="{frame.x(at):.1f}" y="{TOP}" width="{wide:.1f}" height="{high:g}">'
        f"<title>{escape(when)} UTC: {escape(values)}</title></rect>"
    )
