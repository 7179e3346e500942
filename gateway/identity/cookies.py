"""The two cookies that browsers get: of a login, and of one that was begun at a provider.

Over https a cookie is ``Secure`` and its name begins with ``__Host-``: browsers take that from this very host and over
https only, so that neither a neighbouring subdomain nor a plain http page can plant one.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from aiohttp import web

from gateway.identity.proxies import Client


class Cookie(NamedTuple):
    """One of them; no script reads it (``HttpOnly``)."""

    name: str
    same_site: Literal["Strict", "Lax"]

    def of(self, request: web.BaseRequest, client: Client) -> str | None:
        """Its value in a request; over https only the one that is bound to this host."""
        return request.cookies.get(self._name(client))

    def set(self, response: web.StreamResponse, value: str, client: Client, max_age: int | None) -> None:
        """Give it to a browser, for so many seconds; None: until the browser ends."""
        response.set_cookie(
            self._name(client),
            value,
            max_age=max_age,
            path="/",
            httponly=True,
            samesite=self.same_site,
            secure=client.scheme == "https",
        )

    def clear(self, response: web.StreamResponse, client: Client) -> None:
        """Take it away again."""
        self.set(response, "", client, 0)

    def _name(self, client: Client) -> str:
        return f"__Host-{self.name}" if client.scheme == "https" else self.name


LOGIN: Final = Cookie("headgate", "Strict")
BEGUN: Final = Cookie("headgate-begun", "Lax")
"""Lax, for the way back begins at the provider's site."""
