"""What ``broker.calls`` tells, checked as a whole before anything of it counts: for whoever adds brokers up (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Positive = Annotated[int, Meta(gt=0, le=(1 << 63) - 1)]
Name = Annotated[str, Meta(max_length=255)]
Errno = Annotated[str, Meta(pattern=r"^[0-9]{1,10}\Z")]


class LastError(Struct):
    """The newest error of a method; ``time`` in seconds since 1970."""

    errnum: Count
    text: str
    userid: Count
    time: float


class MethodReport(Struct):
    """One method: since it was begun, but for ``open``, which is now."""

    calls: Count
    open: Count
    errors: Annotated[dict[Errno, Count], Meta(max_length=64)]
    buckets: Annotated[list[Count], Meta(max_length=64)] = []
    last_error: LastError | None = None


class ServiceReport(Struct):
    """One service of the broker, or of a client of it."""

    builtin: bool
    provider: str = ""


class CallReport(Struct):
    """All of one broker: its methods by topic, and by kind what else has figures, such as events."""

    bounds_ns: Annotated[list[Positive], Meta(min_length=1, max_length=64)]
    services: dict[str, ServiceReport]
    methods: dict[str, MethodReport]
    others: Annotated[dict[Name, dict[str, MethodReport]], Meta(max_length=8)] = {}
    silent: list[Name] = []
    """Parts of the broker that told nothing."""


def quantile(buckets: Mapping[int, int], bounds_ns: Sequence[int], part: float) -> tuple[int, bool] | None:
    """The bound under which ``part`` of all are and False, or the last one and True: above it; None: there are none.

    >>> quantile({1: 9, 2: 1}, [10, 20], 0.5), quantile({1: 9, 2: 1}, [10, 20], 0.99), quantile({}, [], 0.5)
    ((20, False), (20, True), None)
    """
    left = sum(buckets.values()) * part
    if not left or not bounds_ns:
        return None
    for at, bound in enumerate(bounds_ns):
        left -= buckets.get(at, 0)
        if left <= 0:
            return bound, False
    return bounds_ns[-1], True
