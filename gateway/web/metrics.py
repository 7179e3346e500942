"""``GET /metrics``: one answer for the whole gateway, whichever worker process it reaches."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from broker.identity import Role
from gateway.web.app_context import FRONT, PRINCIPAL
from gateway.web.errors import Refusal
from gateway.web.samples import merged, render

RULE: Final = "gateway.metrics"
"""What a rule allows a user to call, who is to read the metrics."""


async def metrics(request: web.Request) -> web.Response:
    """The counts of all workers; on public listeners for owners, admins and whom a rule lets call ``RULE``, unless
    ``gateway.metrics_public``.
    """
    front = request.app[FRONT]
    principal = request.get(PRINCIPAL)
    may = (
        principal is None
        or principal.roles & (Role.OWNER | Role.ADMIN)
        or front.hub.access.allows(principal.roles, "call", RULE)
    )
    if not may and not front.settings.gateway.metrics_public:
        raise Refusal(
            403, f"reading the metrics needs the role owner or admin, or a rule for calling {RULE}", 1
        )
    return await open_metrics(request)


async def open_metrics(request: web.Request) -> web.Response:
    """The same without asking who reads: for ``gateway.metrics_listen``."""
    text = render(merged(await request.app[FRONT].snapshots()))
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST, "Cache-Control": "no-store"})
