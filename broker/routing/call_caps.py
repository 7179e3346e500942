"""Caps open calls of each user, of all guests and of the broker: beyond a cap, links above an equal share are
refused first.
"""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Iterable

from broker.routing.port import CLIENT, Port
from broker.routing.router import Router


def hold_call_caps(router: Router) -> int:
    """Hold the caps of each guest, of all guests and of the broker, called now and then; returns how many are open.

    While there are more than a cap allows, no link under it may have more than an equal share: those above it are
    answered EAGAIN until they fall below, the others notice nothing. A quarter of the broker's is kept from guests.
    """
    total = router.pending_total
    for port in router.ports:
        port.pending_max = router.pending_max if port.kind == CLIENT else total
    guests = [user for user in router.users if not user.owner]
    for user in guests:
        _hold(user.ports, router.users.limits.calls)
    _hold([port for user in guests for port in user.ports], total - total // 4)
    return _hold(router.ports, total)


def _hold(ports: Iterable[Port], most: int) -> int:
    counts = [port.open_calls for port in ports]
    total = sum(counts)
    if total > most:
        share = max(1, most // sum(count > 0 for count in counts))
        for port in ports:
            port.pending_max = min(port.pending_max, share)
    return total
