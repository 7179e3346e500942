"""The objects that HTTP handlers share, kept in the aiohttp application under the key ``FRONT``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from gateway.principal import Principal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.rates import Buckets
    from gateway.history.reader import History
    from gateway.identity.authenticate import Authenticator
    from gateway.sessions.delivery import Delivery
    from gateway.sessions.requests import GatewayService
    from gateway.sessions.sessions import Sessions
    from gateway.settings.schema import GatewaySettings
    from gateway.web.metrics import Snapshot


@dataclass(slots=True)
class AppContext:
    """The rooms behind the handlers of one process.

    Attributes:
        sessions: opened here. delivery, administration: what a session needs besides.
        identity: who is it, for every request.
        rates: how many HTTP calls a user may make in a second, over whatever connections.
        websocket: the handler of ``GET /v1/ws``.
        snapshots: the counts of all worker processes, this one among them.
        history: what the pipeline made of the journal.
        wall: seconds since 1970.
        draining: True once the gateway leaves: nothing new is accepted.
    """

    settings: GatewaySettings
    sessions: Sessions
    delivery: Delivery
    administration: GatewayService
    identity: Authenticator
    rates: Buckets
    websocket: Callable[[web.Request], Awaitable[web.StreamResponse]]
    snapshots: Callable[[], Awaitable[list[Snapshot]]]
    history: History
    wall: Callable[[], float]
    draining: bool = False


class Caller(NamedTuple):
    """Who sent a request."""

    head: tuple[object, ...]
    """All that it said which may tell: method and headers."""
    epoch: tuple[object, ...]
    """What was known (``Authenticator.epoch``) before its principal was checked."""
    principal: Principal
    address: str
    """Where the client is."""


FRONT = web.AppKey("front", AppContext)
CALLER = web.RequestKey("caller", Caller)
"""Missing on routes that need no credential."""
