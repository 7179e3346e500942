"""How long, and when, as people write it and configurations do: ``30s``, ``10m``, ``2026-01-31T12:00`` (pure)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_SPAN: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|min|h|d|w)")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def seconds_of(word: str) -> float | None:
    """The seconds of ``100ms``, ``30s``, ``10m`` (or ``10min``), ``2h``, ``1d``, ``1w``; None of anything else.

    >>> seconds_of("1.5m"), seconds_of("1w"), seconds_of("7"), seconds_of("soon")
    (90.0, 604800.0, None, None)
    """
    found = _SPAN.fullmatch(word.strip())
    return None if found is None else float(found[1]) * _SECONDS[found[2]]


def ns_of(word: str) -> int:
    """Ns since 1970 of ISO 8601; UTC, unless it says otherwise.

    Raises:
        ValueError: it is none.

    >>> ns_of("1970-01-01T00:00:01")
    1000000000
    """
    moment = datetime.fromisoformat(word.strip())
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(microseconds=1) * 1000
