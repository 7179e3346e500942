"""What brokers answer, checked as a whole before anything of it counts (pure): an odd answer hinders no other one. That
of ``broker.calls`` is in ``broker.call_report``.

It becomes figures, which charts have by name:

=============  =======================================================
``calls``      calls of users' services a second, where they entered; ``calls:METHOD`` of one method
``errors``     those of them that failed; ``errors:METHOD``
``p50 p99``    ms within which half, or 99 of 100, were answered; ``p99:METHOD``
``open``       calls that wait for an answer, where they entered
``in``         messages a second that came in, ``in:TYPE`` by type, ``in:RANK`` by broker
``ms:RANK``    round trip from the gateway to a broker
``dropped``    messages a second that brokers dropped
=============  =======================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from broker.call_report import Count, Name

Form = TypeVar("Form")
Answer = Mapping[str, Any]
Counts = dict[Name, Count]
Figures = dict[str, float]


class Stats(Struct):
    """``broker.stats-get``; flux-core's tells ``rx`` and ``tx`` alone."""

    rx: Counts | None = None
    tx: Counts | None = None
    drops: Counts | None = None
    pending: Count | None = None
    links: Count | None = None
    outbox_bytes: Count | None = None
    peers: list[dict[str, Any]] | None = None


class Shape(Struct):
    """``overlay.topology``: a broker and those below it."""

    rank: Count
    children: list[Shape] | None = None


class Health(Struct):
    """``overlay.health`` of one broker, and of its direct children."""

    rank: Count
    status: Name = "unknown"
    error: str | None = None
    duration: float | None = None
    children: list[Health] | None = None


def read(answer: Any, form: type[Form]) -> Form:
    """An answer as ``form``; what that has no place for is left out.

    Raises:
        ValueError: it is another one.
    """
    return msgspec.convert(answer, form)
