"""``/livez`` (and ``/healthz``): this process answers. ``/readyz``: clients are welcome and the broker is there."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from broker.identity import Role
from gateway.principal import Denied
from gateway.web.answers import json_answer
from gateway.web.app_context import FRONT, AppContext

AWAY: Final = "upstream is away"
"""All that anybody is told of the upstream: its address and paths are not for everybody."""


async def livez(_request: web.Request) -> web.Response:
    """Say that the process lives; never asks the upstream, or a lost broker would have gateways restarted."""
    return json_answer({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """200 once the upstream is joined; 503 until then, and while leaving; why is for owners and admins."""
    front = request.app[FRONT]
    told = not front.delivery.upstream.joined and await _is_admin(request, front)
    return _ready(front, front.delivery.upstream.reason if told else AWAY)


async def open_readyz(request: web.Request) -> web.Response:
    """The same with the reason, where only this machine reaches the listener."""
    front = request.app[FRONT]
    return _ready(front, AWAY if front.settings.gateway.metrics_insecure else front.delivery.upstream.reason)


async def _is_admin(request: web.Request, front: AppContext) -> bool:
    try:
        principal = await front.identity.authenticate_request(request)
    except Denied:
        return False  # health is nobody's secret: who is refused is told what anybody is
    return principal is not None and bool(principal.roles & (Role.OWNER | Role.ADMIN))


def _ready(front: AppContext, reason: str) -> web.Response:
    if front.draining:
        return json_answer({"status": "leaving", "reason": "the gateway is shutting down"}, 503)
    if not front.delivery.upstream.joined:
        return json_answer({"status": "not joined", "reason": reason.partition("\n")[0][:200]}, 503)
    return json_answer({"status": "ok"})
