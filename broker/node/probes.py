"""Health: whether this broker lives and is ready, over HTTP for probes and as a status line for the service manager.

It *lives* while its loop answers; that never depends on a peer, or the loss of one broker would have others started
again. It is *ready* in the state ``run``: rank 0 once every rank has been seen, the others once their parent has
admitted them and runs itself.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker import supervision
from broker.exposition import Page
from broker.node.lifecycle import Lifecycle
from broker.node.overlay.overlay import Overlay
from broker.routing.router import Router
from broker.routing.topology import NO_PARENT
from broker.services.context import Context
from broker.services.state_machine import RUN
from broker.wire.payload import encode_json

JSON: Final = "application/json"


class Probes:
    """How one broker stands.

    Args:
        router, lifecycle, overlay: of the broker.
    """

    def __init__(self, router: Router, lifecycle: Lifecycle, overlay: Overlay) -> None:
        self._rank = router.rank
        self._topology = router.topology
        self._lifecycle = lifecycle
        self._overlay = overlay

    def standing(self) -> str:
        """One line such as ``rank 3 of 7, state run, parent rank 1 joined``."""
        told = f"rank {self._rank} of {self._topology.size}, state {self._lifecycle.state}"
        above = self._topology.parent(self._rank)
        if above == NO_PARENT:
            return f"{told}, tree {self._overlay.subtree_status()}"
        return f"{told}, parent rank {above} {'joined' if self._overlay.joined() else 'away'}"

    def is_ready(self) -> bool:
        """Whether requests and events reach the whole tree from here."""
        return self._lifecycle.number == RUN and self._overlay.joined()

    def page(self, path: bytes) -> Page | None:
        """``/livez``: 200, the loop turns. ``/readyz``: 200, or 503 with a line that says where the broker stands
        instead. None: nothing else is here.
        """
        if path == b"/livez" or (path == b"/readyz" and self.is_ready()):
            return _page(200, {"status": "ok"})
        if path != b"/readyz":
            return None
        status = "leaving" if self._lifecycle.leaving else "not joined"
        return _page(503, {"status": status, "reason": self.standing()})


def _page(status: int, said: dict[str, str]) -> Page:
    return status, JSON, encode_json(said).rstrip(b"\0")


class StatusReporter:
    """Tells the service manager how a broker stands: ``STATUS`` whenever that changes, ``READY=1`` once.

    A broker is ready for its *manager* as soon as its local socket answers: rank 0 when all that runs beside it has
    started, another rank before its parent is there. Waiting for the parent would let a tree that comes up in any
    order run into the managers' time limits, one level after the other; whether a rank has joined is asked at
    ``/readyz``.
    """

    def __init__(self, probes: Probes, context: Context) -> None:
        self._probes = probes
        self._rank = context.rank
        self._ready = False
        self._told = ""
        context.lifecycle.watchers.append(self._entered)
        context.on_tree_change(self._renew)

    def _entered(self, state: str) -> None:
        if state == "join" and self._rank:  # the doors are open
            self.started()
        else:
            self._renew()

    def _renew(self) -> None:
        told = self._probes.standing()
        if told == self._told:
            return
        if supervision.notify(f"STATUS={told}"):
            self._told = told
        else:  # its queue is full, and this may be the last that there is to tell
            asyncio.get_running_loop().call_later(supervision.RETRY_S, self._renew)

    def started(self) -> None:
        """This broker is ready for its manager, the first time; later only its standing is told."""
        if not self._ready:
            self._ready = True
            self._told = self._probes.standing()
            call_later = asyncio.get_running_loop().call_later
            supervision.announce(call_later, "READY=1", f"STATUS={self._told}")
        else:
            self._renew()
