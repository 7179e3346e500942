"""Logging in at an identity provider: where the browser is sent, and the pages that it sees when it comes back.

Every answer to the way back is a page of ours, never a redirect: only what a page of ours asks for next carries the
cookie of the login (``SameSite=Strict``). A page says who the provider is, what went wrong, and how to go on; what the
provider or a stranger wrote into the address is on none of them.
"""

from __future__ import annotations

from html import escape
from typing import Final

import msgspec
from aiohttp import web

from gateway.identity.login import BEGUN_COOKIE, set_cookie
from gateway.identity.oidc import BEGUN_S
from gateway.principal import Denied
from gateway.web import bodies
from gateway.web.app_context import FRONT, AppContext

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
    links = front.hub.settings.access.login_links != "off"
    return web.Response(body=msgspec.json.encode({"oidc": rows, "links": links}), content_type=bodies.JSON)


async def begin(request: web.Request) -> web.Response:
    """Send the browser to the provider."""
    identity, name = request.app[FRONT].identity, request.match_info["name"]
    try:
        with identity.counted(request) as client:
            identity.origins.check(request, client, kind="cookie")
            place, sealed = await identity.user_logins.providers.begin(name, client)
    except Denied as denied:
        return _refused(request.app[FRONT], name, denied, "../../../")
    response = web.Response(status=303, headers={"Location": place, "Cache-Control": "no-store"})
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
    headers = {"Cache-Control": "no-store"}
    return web.Response(status=status, text=text, content_type="text/html", charset="utf-8", headers=headers)
