"""The cap on open calls of all links together: who has too many gets no more until there is room."""

from __future__ import annotations

from broker.routing.port import CLIENT
from broker.routing.router import Router


def ration(router: Router) -> int:
    """Hold ``router.pending_total``, called now and then; returns how many calls are open.

    While there are more, no port may have more than an equal share: those above it are answered EAGAIN until they
    fall below, the others notice nothing.
    """
    counts = [len(port.pending) + len(port.untagged) for port in router.ports]
    total, share = sum(counts), router.pending_total
    if total > share:
        share = max(1, share // sum(count > 0 for count in counts))
    for port in router.ports:
        port.pending_max = min(share, router.pending_max) if port.kind == CLIENT else share
    return total
