"""From which pages a browser may come.

A browser adds a cookie or a client certificate by itself, whoever wrote the page that asks: such *ambient*
credentials prove a user, but not that the user wants this. What the browser says about the page decides (`Origin`,
RFC 6454, and `Sec-Fetch-Site`); a page cannot forge it.

    an Origin that is neither ours nor in allowed_origins      refused, with any credential or none
    ambient, a WebSocket or a method that changes something    needs an Origin when it is a cookie; a program with a
                                                               certificate sends none, browsers always do
    ambient, Sec-Fetch-Site says another site                  refused, unless the Origin was allowed
    ambient, by a loopback listener, Host is no name of ours   refused: a name of somebody else that resolves to
                                                               127.0.0.1 (DNS rebinding)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from gateway.closes import BAD_CREDENTIAL
from gateway.identity.proxies import Client, host_name, is_local_host
from gateway.principal import Denied

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110, section 9.2.1)."""
_PORTS: Final = {"http": 80, "https": 443}


class Origins:
    """The check for one gateway.

    Args:
        allowed: ``access.allowed_origins``.
        names: host names besides ``localhost`` under which loopback listeners are asked for.
    """

    def __init__(self, allowed: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        self._allowed = frozenset(filter(None, map(normal, allowed)))
        self._names = {host_name(name) for name in names} | {
            host_name(urlsplit(each).netloc) for each in self._allowed
        }
        self._names.discard("")

    def check(self, request: web.BaseRequest, client: Client, *, kind: str | None = None) -> None:
        """Refuse a request of a page that may not ask.

        Args:
            request: what was sent, for its headers and method.
            client: who sent it (see ``proxies``).
            kind: how the user proved itself (``Principal.kind``); None: not, or not yet.

        Raises:
            Denied: 403, do not reconnect.
        """
        origin = self._origin(request, client)
        if kind not in ("cookie", "tls"):
            return
        self.check_host(request, client)
        if origin is not None:
            return
        if kind == "cookie" and (_is_websocket(request) or request.method not in SAFE_METHODS):
            raise _denied("a cookie without an Origin, expected one on whatever changes something")
        site = request.headers.get("Sec-Fetch-Site", "none")
        if site not in ("same-origin", "none"):
            raise _denied(f"Sec-Fetch-Site {site[:32]!r} with an ambient credential, expected same-origin")

    def _origin(self, request: web.BaseRequest, client: Client) -> str | None:
        """The origin of the page, when it may ask."""
        said = request.headers.getall("Origin", [])
        if not said:
            return None
        origin = normal(said[0]) if len(said) == 1 else None
        own = normal(f"{client.scheme}://{request.headers.get('Host', '')}")
        if origin is None or (origin != own and origin not in self._allowed):
            raise _denied(f"Origin {said[0][:128]!r}, expected {own!r} or one of access.allowed_origins")
        return origin

    def check_host(self, request: web.BaseRequest, client: Client) -> None:
        """Refuse what asks a listener that only this machine reaches for another name (DNS rebinding).

        Raises:
            Denied: 403, do not reconnect.
        """
        host = request.headers.get("Host", "")
        if client.loopback_listener and not is_local_host(host) and host_name(host) not in self._names:
            raise _denied(f"Host {host[:128]!r} on a loopback listener, expected localhost or 127.0.0.1")


def normal(origin: str) -> str | None:
    """An origin with a small host and without its default port; None for what is no origin, ``null`` for one.

    >>> normal("HTTPS://Dash.example.org:443"), normal("null"), normal("https://a@b")
    ('https://dash.example.org', None, None)
    """
    try:
        parts = urlsplit(origin.strip())
        port = parts.port
    except ValueError:
        return None
    host = parts.hostname
    if (
        parts.scheme not in _PORTS
        or not host
        or parts.path
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        return None
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + ("" if port in (None, _PORTS[parts.scheme]) else f":{port}")


def _is_websocket(request: web.BaseRequest) -> bool:
    return request.headers.get("Upgrade", "").strip().lower() == "websocket"


def _denied(text: str) -> Denied:
    return Denied(text, public="this page may not connect here", status=403, close=BAD_CREDENTIAL)
