"""Service name -> the port that provides it (RFC 3, "Request Message Type": the first word names the service)."""

from __future__ import annotations

import errno

from broker.routing.port import Port


class ServiceTable:
    """Names registered on this rank.

    Built-in services belong to the broker's own port; clients add and remove theirs while they are attached.
    """

    __slots__ = ("_ports",)

    def __init__(self) -> None:
        self._ports: dict[bytes, Port] = {}

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
        return 0

    def remove(self, name: bytes, port: Port) -> int:
        """Take back; returns 0 or ENOENT (2) when ``port`` does not provide ``name``."""
        if self._ports.get(name) is not port:
            return errno.ENOENT
        del self._ports[name]
        port.services.discard(name)
        port.user.services -= 1
        return 0

    def names(self) -> list[tuple[str, Port]]:
        """All (name, provider), sorted by name."""
        return sorted(
            ((name.decode("utf-8", "replace"), port) for name, port in self._ports.items()),
            key=lambda e: e[0],
        )
