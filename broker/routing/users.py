"""Limits of one user over all its links, beside those of the instance; and the caps on open calls of each user, of all
guests and of the broker: beyond a cap, links above an equal share are refused first.
"""

# compiled: mypyc

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.errors import RpcError
from broker.identity import Credentials
from broker.routing.port import CLIENT, Port, User

if TYPE_CHECKING:
    from broker.routing.router import Router


@dataclass(frozen=True)
class UserLimits:
    """Limits of one user's links together; the owner's are bound by the limits of the instance alone."""

    calls: int = 131_072
    """Open calls."""
    services: int = 1024
    """Registered names."""
    subscriptions: int = 16_384
    """Prefixes of every link, each counted once a link."""
    connections: int = 1 << 31


class Users:
    """Everybody who has a link to this broker.

    Attributes:
        limits: of each guest.
    """

    __slots__ = ("_users", "limits")

    def __init__(self, limits: UserLimits) -> None:
        self.limits: UserLimits = limits
        self._users: dict[tuple[int, bool], User] = {}

    def __iter__(self) -> Iterator[User]:
        return iter(self._users.values())

    def attach(self, port: Port) -> None:
        """A client has come."""
        key = (port.cred.userid, port.owner)
        user = self._users.get(key)
        if user is None:
            user = self._users[key] = User(*key)
        user.ports[port] = None
        port.user = user

    def refuse_more(self, user: User, what: str) -> None:
        """Hold a cap of ``user`` before it gets one more of ``services`` or ``subscriptions``.

        Raises:
            RpcError: EAGAIN; it has as many as a guest may.
        """
        held: int = getattr(user, what)
        most: int = getattr(self.limits, what)
        # the owner is bound by the limits of the instance alone
        if held >= most and not user.owner:
            raise RpcError(
                errno.EAGAIN, f"userid {user.userid} has {held} {what}, the limit of one user is {most}"
            )

    def refusal(self, cred: Credentials) -> str:
        """Why a peer with ``cred`` gets no further connection; "" when it may have one."""
        if cred.owner:
            return ""
        user = self._users.get((cred.userid, False))
        held, most = len(user.ports) if user is not None else 0, self.limits.connections
        if held < most:
            return ""
        return f"userid {cred.userid} has {held} connections, limits.connections_per_user allows {most}"

    def detach(self, port: Port) -> None:
        """The link has gone; the tables that counted what it held take that back themselves."""
        user = port.user
        user.ports.pop(port, None)
        key = (user.userid, user.owner)
        if not user.ports and self._users.get(key) is user:
            del self._users[key]


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
    # links that have few calls open must not pay for one that has many
    if total > most:
        share = max(1, most // sum(count > 0 for count in counts))
        for port in ports:
            port.pending_max = min(port.pending_max, share)
    return total
