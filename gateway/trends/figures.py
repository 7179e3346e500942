"""What brokers answer -> figures (pure): what the tables of ranks and of calls share. Charts have them by name:

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

from collections.abc import Mapping, Sequence
from typing import Any

from broker.call_report import quantile

Answer = Mapping[str, Any]
Figures = dict[str, float]


def quantile_ms(buckets: Mapping[int, int], bounds_ns: Sequence[int], part: float) -> float | None:
    """The bound under which ``part`` of all are; None when there are none, twice the last bound above it.

    >>> quantile_ms({1: 9, 2: 1}, [10**6, 2 * 10**6], 0.5), quantile_ms({1: 9, 2: 1}, [10**6, 2 * 10**6], 0.99)
    (2.0, 4.0)
    """
    found = quantile(buckets, bounds_ns, part)
    return found and found[0] * (1 + found[1]) / 1e6
