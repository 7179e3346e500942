"""A node proxy beside rank 0, with its bridge on that broker: what ``headgate broker``, ``start`` and ``up`` add when
the configuration has ``[oslo]``.

Both are processes of their own (``children``): the proxy's loop is another one than the broker's, and the corridor has
nothing of their work in it. They end with the broker, which goes on without one that cannot be kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.oslo.node import DIR_VARIABLE
from broker.settings import OsloSection, Settings

if TYPE_CHECKING:
    from broker.cli.oslo.children import Children
    from broker.node.assembly import Node


class OsloWing:
    """The processes of ``[oslo]``.

    Args:
        section: its settings.
        settings: of rank 0, whose owner we are.
    """

    def __init__(self, section: OsloSection, settings: Settings) -> None:
        self._section = section
        self._settings = settings
        self._children: Children | None = None
        self._node: Node | None = None

    async def start(self, node: Node) -> None:
        """Start the proxy, then its bridge; they go by the settings of ``node``, the broker, when it reads them again.

        Raises:
            ConfigError: a setting cannot be followed; HeadgateError: one of them ended; TimeoutError: too slow.
        """
        from broker.cli.oslo.children import Children, orders

        broker = self._settings.broker
        uri = (broker.local_uri or "") if self._section.bridge else ""
        journal = self._settings.journal
        self._children = Children(orders(self._section, uri, log_level=broker.log_level, journal=journal))
        await self._children.start()
        self._node = node
        node.reloaded.append(self.renew)

    async def stop(self) -> None:
        """End them; harmless twice."""
        if self._node is not None:
            self._node.reloaded.remove(self.renew)
            self._node = None
        children, self._children = self._children, None
        if children is not None:
            await children.stop()

    def renew(self, settings: Settings) -> None:
        """The broker's settings were read again: so are ours."""
        if settings.oslo is not None and self._children is not None:
            self._children.renew(settings.oslo)

    def where(self) -> list[str]:
        """Lines that say how applications find it."""
        from broker.cli.oslo import plan

        if self._children is None:
            return plan.where(self._section, plan.planned(self._section))
        return [*plan.where(self._section, self._children.endpoints), "  headgate oslo status"]

    def variables(self) -> dict[str, str]:
        """What the environment of another terminal has to say, so that applications find it."""
        from broker.cli.oslo import plan

        return {DIR_VARIABLE: plan.ipc_dir(self._section)}
