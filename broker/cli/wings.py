"""What runs beside rank 0 when its configuration has ``[nfp]`` or ``[oslo]``: for ``headgate broker`` and ``start``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from broker.settings import Settings

if TYPE_CHECKING:
    from broker.node.assembly import Node


def wanted(settings: Settings) -> bool:
    """Whether there is anything beside the broker."""
    return settings.nfp is not None or settings.oslo is not None


@contextlib.asynccontextmanager
async def beside(node: Node) -> AsyncIterator[None]:
    """For ``bootstrap.run``: each wing that the settings ask for; they leave in reverse order."""
    async with contextlib.AsyncExitStack() as stack:
        if node.settings.nfp is not None:
            from broker.cli.nfp import inside as nfp

            await stack.enter_async_context(nfp.beside(node))
        if node.settings.oslo is not None:
            from broker.cli.oslo import inside as oslo

            await stack.enter_async_context(oslo.beside(node))
        yield
