"""What runs beside rank 0 when it has ``[nfp]`` or ``[oslo]``: for ``headgate broker``, ``start`` and ``up``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Self

from broker.settings import Settings

if TYPE_CHECKING:
    from broker.node.assembly import Node


class Wing(Protocol):
    """A part that is started with rank 0, or told of where rank 0 is another process."""

    async def start(self, node: Node) -> None:
        """Start it beside ``node``, whose socket answers."""

    async def stop(self) -> None:
        """End it; harmless twice."""

    def where(self) -> list[str]:
        """Lines that say how it is found: where it listens, or, before it does, is to listen."""

    def variables(self) -> dict[str, str]:
        """What the environment of another terminal has to say, so that it is found."""


def wings_of(settings: Settings) -> list[Wing]:
    """The wings that settings of one rank ask for, in the order of their start; none off rank 0."""
    found: list[Wing] = []
    if settings.broker.rank != 0:
        return found
    if settings.nfp is not None:
        from broker.cli.nfp import embedded as nfp

        found.append(nfp.wing_of(settings.nfp, settings))
    if settings.oslo is not None:
        from broker.cli.oslo import embedded as oslo

        found.append(oslo.OsloWing(settings.oslo, settings))
    return found


class Beside(contextlib.AsyncExitStack):
    """For ``bootstrap.run``: what is started beside a broker; it leaves in reverse order.

    Args:
        node: the broker.
    """

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def start(self) -> None:
        """Start the wings that the broker's settings ask for."""
        await self.add(wings_of(self.node.settings))

    async def add(self, wings: Sequence[Wing]) -> None:
        """Start ``wings``, and see to it that they leave."""
        for wing in wings:
            await wing.start(self.node)
            self.push_async_callback(wing.stop)
