"""The routes as an aiohttp application: who is it, may its page ask, which headers go with every answer.

Around every handler, from the outside in: errors become problem bodies; a leaving gateway refuses; the credential is
checked (``request[CALLER]``) unless the route is public. Headers are added where an answer begins, so that
streams and pages have them, too.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from broker.errors import HeadgateError
from gateway.identity.proxies import UNIX
from gateway.principal import Denied, refused
from gateway.web import health, metrics
from gateway.web.answers import Refusal, of_denied, of_http, problem, secure
from gateway.web.app_context import CALLER, FRONT, AppContext, Caller
from gateway.web.connections import connection_of
from gateway.web.routes import ROUTES, Handler, Route
from gateway.web.static import Dashboard

log = logging.getLogger("headgate")

CORS_METHODS: Final = "GET, POST"
CORS_HEADERS: Final = "Authorization, Content-Type, Last-Event-ID"
CORS_AGE_S: Final = 600
OF_BODY: Final = (b"content-length", b"content-type", b"transfer-encoding")
"""Headers that no check of a credential looks at, and that differ from call to call."""
REMEMBERED: Final = ("token", "cookie")
"""Kinds of principals (``Principal.kind``) of which ``Authenticator.holds`` knows all that they depend on: behind a JWT
are the keys of others, behind a certificate lists that get too old."""


def build(front: AppContext, dashboard: Dashboard | None) -> web.Application:
    """The application of a public listener; ``dashboard`` None serves the protocols only."""
    app = _empty(front)
    prefix = front.settings.gateway.prefix
    for below in dict.fromkeys(("", prefix)):
        for route in ROUTES:
            app.router.add_route(route.method, below + route.path, _handler(route))
        if dashboard is not None:
            for path, name in dashboard.paths().items():
                app.router.add_get(below + path, dashboard.handler(name))
    if prefix and dashboard is not None:
        # without the slash relative addresses of the page would be looked for beside the prefix
        app.router.add_get(prefix, _to_folder)
    return app


async def _to_folder(request: web.Request) -> web.StreamResponse:
    """Relative addresses in a page need the slash at the end of its own."""
    return web.Response(status=308, headers={"Location": f"{request.path}/"})


def build_inner(front: AppContext) -> web.Application:
    """The application of ``gateway.metrics_listen``: counts and health without login."""
    app = _empty(front)
    app.middlewares.append(_named)
    app.router.add_get("/metrics", metrics.open_metrics)
    for path, handler in (
        ("/livez", health.livez),
        ("/healthz", health.livez),
        ("/readyz", health.open_readyz),
    ):
        app.router.add_get(path, handler)
    return app


def _empty(front: AppContext) -> web.Application:
    app = web.Application(middlewares=[answer_errors], client_max_size=front.settings.limits.message_bytes)
    app[FRONT] = front
    app.on_response_prepare.append(_headers)
    return app


def _handler(route: Route) -> Handler:
    """The route's handler behind the checks it asks for."""

    async def handle(request: web.Request) -> web.StreamResponse:
        front = request.app[FRONT]
        if front.draining and route.path.startswith("/v1/"):
            raise Refusal(503, "the gateway is shutting down", errno.ESHUTDOWN)
        if route.path == "/metrics" and front.settings.gateway.metrics_public:
            _check_host(request)
        elif not route.public:
            await _identify(request, front)
        return await route.handler(request)

    return handle


async def _identify(request: web.Request, front: AppContext) -> None:
    """Find out who sends a request. It is the caller of the last request over this connection, where the head is the
    same and nothing that its check depends on has changed since.
    """
    identity, connection = front.identity, connection_of(request)
    # the whole head, cookies and Origin among it: whatever a check may look at makes it another one
    head = (request.method, *(each for each in request.raw_headers if each[0].lower() not in OF_BODY))
    caller = None if connection is None else connection.caller
    try:
        known = caller is not None and caller.head == head and identity.holds(caller.principal, caller.epoch)
    except Denied:
        known = False  # the whole check says why, and has it logged
    if caller is None or not known:
        epoch = identity.epoch
        principal = await identity.authenticate_request(request)
        if principal is None:
            raise refused("no credential", "a credential is needed")
        caller = Caller(head, epoch, principal, identity.listeners.client(request).address)
        if connection is not None:
            connection.belongs_to(principal.name)
            connection.caller = caller if principal.kind in REMEMBERED else None
    request[CALLER] = caller


# ---------------------------------------------------------------- around every handler

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def answer_errors(request: web.Request, handler: Next) -> web.StreamResponse:
    """Tell the connection that the head is there, and answer preflights of allowed origins. Whatever goes wrong is a
    problem body; what is our fault is logged, and the client learns no more than that.
    """
    if (connection := connection_of(request)) is not None:
        connection.arrived()
    # Fetch standard: preflights carry no credential, so they are answered before anybody is asked for one
    if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
        return _preflight(request)
    try:
        return await handler(request)
    except Refusal as refusal:
        return refusal.answer()
    except Denied as denied:
        return of_denied(denied).answer()
    except web.HTTPException as error:
        return of_http(error)
    except HeadgateError as error:
        log.warning("%s %s: %s", request.method, request.path, error)
        return problem(502, "the gateway cannot do this now", error.errno)
    except ConnectionError:
        raise  # the client has gone: nobody to answer
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return problem(500, "a fault of the gateway; its log has the reason", errno.EIO)


@web.middleware
async def _named(request: web.Request, handler: Next) -> web.StreamResponse:
    _check_host(request)
    return await handler(request)


def _check_host(request: web.Request) -> None:
    """Let no page whose name resolves to this machine (DNS rebinding) read figures that need no login; programs say no
    other name.

    Raises:
        Denied: it is one (403).
    """
    identity = request.app[FRONT].identity
    client = identity.listeners.client(request)
    # a trusted proxy passes on the name by which it is reached: that is not this machine's, and need not be
    if client.address != UNIX and client.address == client.peer and "Host" in request.headers:
        identity.origins.check_host(request, client)


async def _headers(request: web.Request, response: web.StreamResponse) -> None:
    secure(response)
    if "Origin" in request.headers and (origin := _allowed_origin(request)):
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Allow-Credentials"] = "true"  # which its WebSocket may bring, too
        response.headers["Access-Control-Expose-Headers"] = "Retry-After"
        # RFC 9110, section 12.5.5: a cache must not give one page's leave to another
        response.headers["Vary"] = "Origin"


def _allowed_origin(request: web.Request) -> str | None:
    """The page's origin, if it is one of ``access.allowed_origins``; pages of our own need no leave."""
    said = request.headers.get("Origin")
    if said is None:
        return None
    return said if request.app[FRONT].identity.origins.allows(said) else None


def _preflight(request: web.Request) -> web.Response:
    if _allowed_origin(request) is None:
        return problem(403, "this page may not ask", errno.EPERM)
    headers = {
        "Access-Control-Allow-Methods": CORS_METHODS,
        "Access-Control-Allow-Headers": CORS_HEADERS,
        "Access-Control-Max-Age": str(CORS_AGE_S),
    }
    return web.Response(status=204, headers=headers)
