"""Where clients come in: the listeners of one broker, and new keys for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.errors import ConfigError
from broker.schemes import capabilities_of
from broker.transport.link import Accept, Listener, Options
from broker.transport.registry import listen


class Listeners:
    """All listeners for clients, in the order in which they were opened."""

    def __init__(self) -> None:
        self._open: list[Listener] = []
        self._curve: list[int] = []
        self._own: list[int] = []

    async def open(self, uri: str, accept: Accept, options: Options) -> str:
        """Listen at ``uri``; returns what a peer dials.

        Raises:
            ConfigError: as of ``Transport.listen``.
        """
        listener = await listen(uri, accept, options)
        if "curve" in options.extra:
            self._curve.append(len(self._open))
        elif capabilities_of(uri).protection == "own":
            self._own.append(len(self._open))
        self._open.append(listener)
        return listener.contact_address

    async def stop(self) -> None:
        """Accept no more; links that exist stay."""
        for listener in self._open:
            await listener.stop()

    def renew(self, extra: Mapping[str, Any]) -> list[str]:
        """Show another CURVE certificate from now on; returns a line for each listener that cannot."""
        return self._renewed(self._curve, extra)

    def renew_own(self) -> list[str]:
        """Have transports with a protection of their own read their files again; a line for each that cannot."""
        return self._renewed(self._own, {})

    def _renewed(self, indexes: list[int], extra: Mapping[str, Any]) -> list[str]:
        failed = []
        for index in indexes:
            try:
                self._open[index] = self._open[index].renew(extra)
            except ConfigError as error:
                failed.append(str(error))
        return failed
