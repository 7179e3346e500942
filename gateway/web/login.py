"""Logging in and out over HTTP: a one-time link or a token becomes a cookie, a cookie ends, who am I; and the way to an
identity provider and back.

Every answer to the way back is a page of ours, never a redirect: only what a page of ours asks for next carries the
cookie of the login (``SameSite=Strict``). A page says who the provider is, what went wrong, and how to go on; what the
provider or a stranger wrote into the address is on none of them.
"""

from __future__ import annotations

import errno
from html import escape
from typing import Any, Final

import msgspec
from aiohttp import web

from gateway.codecs.control import reason_of
from gateway.identity.login import BEGUN_COOKIE, LOGIN_COOKIE, set_cookie
from gateway.identity.oidc import BEGUN_S
from gateway.principal import Denied, Principal
from gateway.web.answers import JSON, Refusal, json_answer
from gateway.web.app_context import CALLER, FRONT, AppContext
from gateway.web.requests import payload_of


class _Shown(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/login``: one of these."""

    once: str | None = None
    token: str | None = None


async def login(request: web.Request) -> web.Response:
    """Exchange the secret of a one-time link, or a token, for a cookie."""
    front = request.app[FRONT]
    body = await payload_of(request, front.settings.limits.preauth_bytes, "limits.preauth_bytes")
    if request.content_type != JSON or body is None:
        raise Refusal(415, f"expected a body of {JSON}", errno.EPROTO)
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
    response = json_answer(described(logged_in.principal))
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
    return json_answer(described(request[CALLER].principal))


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


HOME: Final = "../../../../"
"""From the callback to ``/``, behind any prefix of a path."""
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">{refresh}
  <title>Headgate: log in</title>
  <link rel="icon" href="{home}favicon.svg" type="image/svg+xml">
  <link rel="stylesheet" href="{home}styles/tokens.css">
  <link rel="stylesheet" href="{home}styles/page.css">
</head>
<body>
  <header class="bar"><h1 class="brand">Headgate</h1></header>
  <main><section class="login card"><h2>Log in</h2>{body}</section></main>
</body>
</html>
"""


async def list_providers(request: web.Request) -> web.Response:
    """How people can log in here, besides tokens."""
    front = request.app[FRONT]
    providers = front.identity.user_logins.providers.by_name.values()
    rows = [{"name": each.entry.name, "title": each.title} for each in providers]
    links = front.settings.access.login_links != "off"
    return json_answer({"oidc": rows, "links": links})


async def begin(request: web.Request) -> web.Response:
    """Send the browser to the provider."""
    identity, name = request.app[FRONT].identity, request.match_info["name"]
    try:
        with identity.counted(request) as client:
            identity.origins.check(request, client, kind="cookie")
            place, sealed = await identity.user_logins.providers.begin(name, client)
    except Denied as denied:
        return _refused(request.app[FRONT], name, denied, "../../../")
    response = web.Response(status=303, headers={"Location": place})
    BEGUN_COOKIE.set(response, sealed, client, BEGUN_S)
    return response


async def callback(request: web.Request) -> web.Response:
    """Take the provider's answer: a login, or a page that says why not."""
    front, name = request.app[FRONT], request.match_info["name"]
    identity = front.identity
    query = {key: value for key, value in request.query.items() if request.query.getall(key) == [value]}
    try:
        with identity.counted(request) as client:
            cookie = BEGUN_COOKIE.of(request, client)
            account = await identity.user_logins.providers.finish(name, query, cookie, client)
            logged_in = await identity.user_logins.by_provider(name, account)
            await identity.share(logged_in)
    except Denied as denied:
        response = _refused(front, name, denied, HOME)
    else:
        refresh = f'\n  <meta http-equiv="refresh" content="0; url={HOME}">'
        response = _page(
            200, f'<p>You are logged in. <a href="{HOME}">Go on to the dashboard</a></p>', refresh
        )
        set_cookie(response, logged_in, client, now=front.wall())
    BEGUN_COOKIE.clear(response, identity.listeners.client(request))
    return response


def _refused(front: AppContext, name: str, denied: Denied, home: str) -> web.Response:
    provider = front.identity.user_logins.providers.by_name.get(name)
    title = "there" if provider is None else f"with {provider.title}"
    again = "" if provider is None else f'<a href="{home}v1/login/oidc/{name}">Try again</a> · '
    body = (
        f"<p>Logging in {escape(title)} did not work: {escape(denied.public)}.</p>"
        f'<p>{again}<a href="{home}">Other ways to log in</a></p>'
    )
    response = _page(denied.status, body, "", home)
    if denied.status in (429, 503):
        response.headers["Retry-After"] = "5"
    return response


def _page(status: int, body: str, refresh: str, home: str = HOME) -> web.Response:
    text = _PAGE.format(home=home, refresh=refresh, body=body)
    return web.Response(status=status, text=text, content_type="text/html", charset="utf-8")
