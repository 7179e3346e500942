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

from gateway.identity.proxies import Client, host_name, is_local_host
from gateway.principal import Denied, refused
from gateway.settings.addresses import PORTS, normal

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110, section 9.2.1)."""


class Origins:
    """The check for one gateway.

    Args:
        allowed: ``access.allowed_origins``.
        names: host names besides ``localhost`` under which loopback listeners are asked for.
    """

    def __init__(self, allowed: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        self._allowed = frozenset(filter(None, map(normal, allowed)))
        pages = (urlsplit(each) for each in self._allowed)
        self._names = {host_name(name) for name in names} | {
            host_name(page.netloc) for page in pages if page.scheme in PORTS
        }
        self._names.discard("")

    def allows(self, said: str) -> bool:
        """Whether an ``Origin`` is one of ``access.allowed_origins``."""
        return normal(said) in self._allowed

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
        # a token stands in no page of another site: whoever shows one meant to
        if kind not in ("cookie", "tls"):
            return
        self.check_host(request, client)
        # it is ours, or allowed: no further word of the browser is needed
        if origin is not None:
            return
        # browsers send Origin with each of these (Fetch standard): without one it is an old browser, or no page of ours
        if kind == "cookie" and (is_upgrade(request) or request.method not in SAFE_METHODS):
            raise _denied("a cookie without an Origin, expected one on whatever changes something")
        # "none": the user typed the address; a browser that does not know the header has SameSite=Strict alone
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


def is_upgrade(request: web.BaseRequest) -> bool:
    """Whether a request asks for a WebSocket (RFC 6455, section 4.2.1): a GET that changes something."""
    return request.headers.get("Upgrade", "").strip().lower() == "websocket"


def _denied(text: str) -> Denied:
    return refused(text, "this page may not connect here", 403)
