"""Health: whether this broker lives and is ready, over HTTP for probes and as a status line for the service manager.

It *lives* while its loop answers; that never depends on a peer, or the loss of one broker would have others started
again. It is *ready* in the state ``run``: rank 0 once every rank has been seen, the others once their parent has
admitted them and runs itself.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from broker import supervision
from broker.exposition import Page
from broker.routing.topology import NO_PARENT
from broker.services.state_machine import RUN
from broker.wire.payload import encode_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.node.assembly import Node

JSON: Final = "application/json"


def standing(node: Node) -> str:
    """One line such as ``rank 3 of 7, state run, parent rank 1 joined``."""
    told = f"rank {node.rank} of {node.topology.size}, state {node.lifecycle.state}"
    above = node.topology.parent(node.rank)
    if above == NO_PARENT:
        return f"{told}, tree {node.overlay.subtree_status()}"
    return f"{told}, parent rank {above} {'joined' if node.overlay.joined() else 'away'}"


def is_ready(node: Node) -> bool:
    """Whether requests and events reach the whole tree from here."""
    return node.lifecycle.number == RUN and node.overlay.joined()


def livez(_node: Node) -> Page:
    """200: the loop turns."""
    return _page(200, {"status": "ok"})


def readyz(node: Node) -> Page:
    """200, or 503 with a line that says where the broker stands instead."""
    if is_ready(node):
        return _page(200, {"status": "ok"})
    status = "leaving" if node.lifecycle.leaving else "not joined"
    return _page(503, {"status": status, "reason": standing(node)})


def _page(status: int, said: dict[str, str]) -> Page:
    return status, JSON, encode_json(said).rstrip(b"\0")


PAGES: Final[dict[bytes, Callable[[Node], Page]]] = {b"/livez": livez, b"/readyz": readyz}
"""What the metrics listener serves besides the figures."""


class StatusReporter:
    """Tells the service manager how a broker stands: ``STATUS`` whenever that changes, ``READY=1`` once.

    A broker is ready for its *manager* as soon as its local socket answers: rank 0 when all that runs beside it has
    started, another rank before its parent is there. Waiting for the parent would let a tree that comes up in any
    order run into the managers' time limits, one level after the other; who wants to know whether a rank has joined
    asks ``/readyz``.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._ready = False
        self._told = ""
        node.lifecycle.watchers.append(self._entered)
        node.context.on_tree_change(self._renew)

    def started(self) -> None:
        """Everything is up, the parent joined."""
        self._say_ready()

    def _entered(self, state: str) -> None:
        if state == "join" and self._node.rank:  # the doors are open
            self._say_ready()
        else:
            self._renew()

    def _renew(self) -> None:
        told = standing(self._node)
        if told != self._told:
            self._told = told
            supervision.notify(f"STATUS={told}")

    def _say_ready(self) -> None:
        if not self._ready:
            self._ready = True
            self._told = standing(self._node)
            call_later = asyncio.get_running_loop().call_later
            supervision.announce(call_later, "READY=1", f"STATUS={self._told}")
        else:
            self._renew()
