"""Service name -> the port that provides it (RFC 3, "Request Message Type": the first word names the service)."""

# compiled: mypyc

from __future__ import annotations

import errno
from collections.abc import Callable

from broker.routing.port import CLIENT, Port


class ServiceTable:
    """Names registered on this rank.

    Built-in services belong to the broker's own port; clients add and remove theirs while they are attached.

    Attributes:
        on_client: told of each name that a client begins (True) or ceases (False) to provide.
    """

    __slots__ = ("_ports", "on_client")

    def __init__(self) -> None:
        self._ports: dict[bytes, Port] = {}
        self.on_client: Callable[[str, bool], object] | None = None

    def find(self, name: bytes) -> Port | None:
        """The provider of ``name``; None when nobody registered it."""
        return self._ports.get(name)

    def add(self, name: bytes, port: Port) -> int:
        """Register; returns 0 or EEXIST (17)."""
        if name in self._ports:
            return errno.EEXIST
        self._ports[name] = port
        port.services.add(name)
        port.user.services += 1
        port.provided = True
        self._tell(name, port, True)
        return 0

    def remove(self, name: bytes, port: Port) -> int:
        """Take back; returns 0 or ENOENT (2) when ``port`` does not provide ``name``."""
        if self._ports.get(name) is not port:
            return errno.ENOENT
        del self._ports[name]
        port.services.discard(name)
        port.user.services -= 1
        self._tell(name, port, False)
        return 0

    def _tell(self, name: bytes, port: Port, there: bool) -> None:
        if self.on_client is not None and port.kind == CLIENT:
            self.on_client(name.decode("utf-8", "replace"), there)

    def names(self) -> list[tuple[str, Port]]:
        """All (name, provider), sorted by name."""
        return sorted(
            ((name.decode("utf-8", "replace"), port) for name, port in self._ports.items()),
            key=lambda e: e[0],
        )
