"""What stands on every answer, those of aiohttp itself included."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from gateway.sessions.controls import SERVER

SECURITY: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; connect-src 'self'; img-src 'self' data:; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""On every answer; the dashboard has no inline script and asks no other site for anything."""

STREAMED: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""On every answer that has no end yet: nginx, too, passes on what there is at once."""


def secure(response: web.StreamResponse) -> None:
    """Add our name, and what browsers must not do with the answer."""
    response.headers["Server"] = SERVER
    for name, value in SECURITY.items():
        response.headers.setdefault(name, value)
