"""``/login`` and what its page asks: a one-time link or a token becomes a cookie, a cookie ends, who am I."""

from __future__ import annotations

import errno
from typing import Any

import msgspec
from aiohttp import web

from gateway.codecs.control import reason_of
from gateway.identity.login import LOGIN_COOKIE, set_cookie
from gateway.principal import Principal
from gateway.web import bodies
from gateway.web.app_context import FRONT, PRINCIPAL
from gateway.web.errors import Refusal


class _Shown(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/login``: one of these."""

    once: str | None = None
    token: str | None = None


async def login(request: web.Request) -> web.Response:
    """Exchange the secret of a one-time link, or a token, for a cookie."""
    front = request.app[FRONT]
    body = await bodies.payload_of(request, front.settings.limits.preauth_bytes, "limits.preauth_bytes")
    if request.content_type != bodies.JSON or body is None:
        raise Refusal(415, f"expected a body of {bodies.JSON}", errno.EPROTO)
    try:
        shown = msgspec.json.decode(body[:-1], type=_Shown)
    except msgspec.ValidationError as error:
        raise Refusal(400, reason_of(error), errno.EPROTO) from None
    if (shown.once is None) is (shown.token is None):
        raise Refusal(400, "expected once or token, one of them", errno.EPROTO)
    if shown.token is not None:
        logged_in = await front.identity.login_by_token(request, shown.token)
    else:
        assert shown.once is not None
        logged_in = front.identity.login(request, shown.once)
    await front.identity.share(logged_in)
    response = _said(described(logged_in.principal))
    set_cookie(response, logged_in, front.identity.listeners.client(request), now=front.wall())
    return response


async def logout(request: web.Request) -> web.Response:
    """End the login of the cookie, in all workers, and take the cookie away, whether it still counted or not.

    Other credentials are ended where they were made.
    """
    identity = request.app[FRONT].identity
    client = identity.listeners.client(request)
    cookie = LOGIN_COOKIE.of(request, client)
    if cookie is None:
        principal = await identity.authenticate_request(request)
        kind = "no credential" if principal is None else principal.kind
        raise Refusal(401 if principal is None else 400, f"only a login ends here, and this is {kind}")
    await identity.logout(request, cookie)
    response = web.Response(status=204)
    LOGIN_COOKIE.clear(response, client)
    return response


async def session(request: web.Request) -> web.Response:
    """Who am I."""
    return _said(described(request[PRINCIPAL]))


def described(principal: Principal) -> dict[str, Any]:
    """A user as clients see it."""
    return {
        "user": principal.name,
        "userid": principal.userid,
        "roles": principal.role_names,
        "kind": principal.kind,
        "login": principal.login,
        "expires": principal.expires,
    }


def _said(obj: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(obj), content_type=bodies.JSON)
