"""What the page and the picture of a report share: the lines of their charts, and the sentence on order (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from gateway.history.charts import Line
from gateway.pipeline.reportwords import short

TONES: Final = {
    "request": "request", "response": "response", "event": "event", "control": "control", "nfp": "ok", "oslo": "pink",
    "other": "control", "done": "ok", "completed": "ok", "running": "request", "failed": "bad", "expired": "response",
    "cancelled": "control", "debug": "control", "audit": "ok", "info": "response", "sample": "request", "warn": "warn",
    "error": "bad", "critical": "ink",
}  # fmt: skip
"""Series that have a colour of their own."""
PALETTE: Final = ("request", "response", "event", "ok", "pink", "olive", "control", "ink")
"""Colours of all others: the first that nobody has yet."""
PERCENTILES: Final = (
    ("p50_ns", "median", "ok"),
    ("p95_ns", "95 %", "request"),
    ("p99_ns", "99 %", "response"),
    ("max_ns", "longest", "bad"),
)
"""Column, name and colour of each line of latencies."""


def toned(names: Iterable[str]) -> list[str]:
    """The colour of each series, no two alike as long as there are enough.

    >>> toned(["request", "lab", "oslo", "store"])
    ['request', 'response', 'pink', 'event']
    """
    given = [TONES.get(name.lower(), "") for name in names]
    free = [tone for tone in PALETTE if tone not in given]
    return [tone or (free.pop(0) if free else PALETTE[at % len(PALETTE)]) for at, tone in enumerate(given)]


def traffic_lines(answer: dict[str, Any]) -> list[Line]:
    """Messages per second of each series of the answer ``traffic``."""
    series, step = answer["series"], answer["step_s"]
    tones = toned(each["name"] for each in series)
    return [
        Line(each["name"], tone, [n / step for n in each["n"]])
        for each, tone in zip(series, tones, strict=True)
    ]


def latency_lines(answer: dict[str, Any]) -> list[Line]:
    """Nanoseconds of each percentile of the answer ``latency``."""
    return [Line(name, tone, answer[key]) for key, name, tone in PERCENTILES]


def stacked_lines(answer: dict[str, Any]) -> list[Line]:
    """Counts of each series of the answers ``jobs`` and ``notifications``."""
    series = answer["series"]
    return [
        Line(each["name"], tone, each["n"])
        for each, tone in zip(series, toned(each["name"] for each in series), strict=True)
    ]


def verdict(answer: dict[str, Any]) -> tuple[str, str]:
    """What the answer ``order`` says: its mood (ok, bad, none) and a sentence."""
    if not answer["pairs"]:
        return "none", 'Nothing was checked: that needs deliveries, too, journal.capture = "both".'
    faults = answer["out_of_order"] + answer["missing"]
    result = (
        f"{answer['out_of_order']} out of order, {answer['missing']} missing." if faults else "all in order."
    )
    checked = (
        f"{short(answer['messages'])} messages between {answer['pairs']} pairs of endpoints were checked"
    )
    return "bad" if faults else "ok", f"{checked}: {result}"
