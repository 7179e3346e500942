"""The dashboard's files, from the installed package: each a route of its own, so no path of a client is ever looked up.

Names carry no version, so browsers may keep a file but ask each time whether it is still the same (ETag, 304).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from aiohttp import web

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}
"""Suffixes that are served; anything else in the folder stays there."""
CACHE: Final = "no-cache"
"""Keep it, but ask before each use."""


class File(NamedTuple):
    """One file in memory: all of them together have a few hundred kilobytes."""

    body: bytes
    content_type: str
    etag: str


class Dashboard:
    """The files below a folder.

    Args:
        folder: of the dashboard; None is the one in this package.
    """

    def __init__(self, folder: Traversable | None = None) -> None:
        self.files: dict[str, File] = {}
        self._collect(folder or resources.files("gateway") / "dashboard", "")

    def _collect(self, folder: Traversable, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                self._collect(entry, f"{prefix}{entry.name}/")
            elif content_type := TYPES.get(entry.name[entry.name.rfind(".") :]):
                body = entry.read_bytes()
                etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
                self.files[prefix + entry.name] = File(body, content_type, etag)

    def paths(self) -> dict[str, str]:
        """Path of a URL -> name of a file: each file, ``/`` the dashboard, ``/login`` the page of login links."""
        found = {f"/{name}": name for name in self.files}
        pages = {"/": "index.html", "/login": "login.html"}
        return found | {path: name for path, name in pages.items() if name in self.files}

    def handler(self, name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        """What serves the file ``name``."""
        file = self.files[name]

        async def serve(request: web.Request) -> web.Response:
            return self._answer(request, file)

        return serve

    def _answer(self, request: web.Request, file: File) -> web.Response:
        headers = {"ETag": file.etag, "Cache-Control": CACHE, "Content-Type": file.content_type}
        if _same(request.headers.get("If-None-Match", ""), file.etag):
            # RFC 9110, section 15.4.5: a 304 describes what the client has, and repeats only what may have changed
            del headers["Content-Type"]
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, headers=headers)


def _same(said: str, etag: str) -> bool:
    """Whether ``If-None-Match`` names this very content (RFC 9110, section 13.1.2: weak comparison)."""
    tags = [tag.strip().removeprefix("W/") for tag in said.split(",")]
    return "*" in tags or etag in tags
