"""``GET /metrics``: one answer for the whole gateway, whichever worker process it reaches."""

from __future__ import annotations

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from broker.identity import Role
from gateway.settings.rules import METRICS
from gateway.web.app_context import FRONT, PRINCIPAL
from gateway.web.errors import Refusal
from gateway.web.samples import merged, render


async def metrics(request: web.Request) -> web.Response:
    """The counts of all workers; on public listeners for owners, admins and whom a rule lets call ``METRICS``, unless
    ``gateway.metrics_public``.
    """
    front = request.app[FRONT]
    principal = request.get(PRINCIPAL)
    may = (
        principal is None
        or principal.roles & (Role.OWNER | Role.ADMIN)
        or front.hub.access.allows(principal.roles, "call", METRICS)
    )
    if not may and not front.settings.gateway.metrics_public:
        raise Refusal(
            403, f"reading the metrics needs the role owner or admin, or a rule for calling {METRICS}", 1
        )
    return await open_metrics(request)


async def open_metrics(request: web.Request) -> web.Response:
    """The same without asking who reads: for ``gateway.metrics_listen``."""
    text = render(merged(await request.app[FRONT].snapshots()))
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST, "Cache-Control": "no-store"})
