"""The tree as this broker sees it (``overlay.health``, ``topology``, ``monitor``, ``trace``, ``disconnect-subtree``,
figures).

A caller walks the tree broker by broker: each answers for itself and its direct children. A streaming ``health``
answers again after each change, which is how ``flux overlay status --wait`` waits.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, Final

from broker.errors import RpcError
from broker.identity import Role
from broker.services.context import CHILD, CLIENT, Context, TracedMessage
from broker.services.service import Service, Services, Streams, method
from broker.services.tracers import NONE, Tracer, Tracers
from broker.serving.request import LATER, Later, Request
from broker.wire.message import EVENT

GONE: Final = ("lost", "offline")
"""Status of a child with which nothing is exchanged."""
HEALTH_KEYS: Final = ("rank", "status", "duration", "error", "joins", "places")

Seen = dict[int, tuple[str, bool]]
"""The last answer to a watcher: child's rank -> (status, torpid)."""


class Overlay(Service):
    """Health and shape of the tree."""

    name = "overlay"

    def __init__(self, context: Context, services: Services) -> None:
        super().__init__(context, services)
        self._waiters: Streams[None] = self.keep(Streams())
        self._monitors: Streams[Seen] = self.keep(Streams())
        self._tracers = self.keep(Tracers(context, self._watch))
        self._last_event = 0

    def start(self) -> None:
        """Have the tree's changes told."""
        self.context.on_tree_change(self._changed)

    def _changed(self) -> None:
        if len(self._waiters):
            health = self._health()
            for request, _ in self._waiters:
                request.respond(health)
        for request, seen in self._monitors:
            self._tell(request, seen)

    # -- health --------------------------------------------------------------------------------

    @method("health", allow=Role.USER)
    def health(self, request: Request) -> Mapping[str, object] | Later:
        """-> ``{"rank", "status", "duration", "children": [{"rank", "status", "duration"[, "error"][, "joins",
        "places"]}]}``: how often the child joined in the last minute where that is more than once, and where from the
        last two times.
        """
        if not request.streaming:
            return self._health()
        self._waiters.open(request, None)
        request.respond(self._health())
        return LATER

    def _health(self) -> dict[str, object]:
        context = self.context
        children = [
            {key: child[key] for key in HEALTH_KEYS if child.get(key) is not None}
            for child in context.tree.child_health()
        ]
        return {
            "rank": context.rank,
            "status": context.tree.subtree_status(),
            "duration": context.tree.status_since(),
            "children": children,
        }

    @method("monitor", streaming=True)
    def monitor(self, request: Request) -> Later:
        """-> ``{"rank", "status", "torpid"}`` for each child that was ever here, then for each change."""
        seen: Seen = {}
        self._monitors.open(request, seen)
        self._tell(request, seen)
        return LATER

    def _tell(self, request: Request, seen: Seen) -> None:
        for child in self.context.tree.child_health():
            rank, now = child["rank"], (child["status"], bool(child.get("torpid")))
            if now != seen.get(rank, ("offline", False)):
                seen[rank] = now
                request.respond({"rank": rank, "status": now[0], "torpid": now[1]})

    # -- shape ---------------------------------------------------------------------------------

    @method("topology", allow=Role.USER)
    def topology(self, request: Request) -> Mapping[str, object]:
        """``{"rank"}``: this broker or a direct child -> ``{"rank", "size", "children": [the same below]}``."""
        rank = request.field("rank", int)
        if rank != self.context.rank and rank not in self.context.topology.children(self.context.rank):
            raise RpcError(errno.ENOENT, "requested rank is not this broker or its direct child")
        return self._below(rank)

    def _below(self, rank: int) -> dict[str, Any]:
        children = [self._below(child) for child in self.context.topology.children(rank)]
        return {"rank": rank, "size": 1 + sum(child["size"] for child in children), "children": children}

    @method("disconnect-subtree")
    def disconnect_subtree(self, request: Request) -> None:
        """``{"rank"}``: sends a direct child and all below it away."""
        rank = request.field("rank", int)
        status = {child["rank"]: child["status"] for child in self.context.tree.child_health()}.get(rank)
        if status is None:
            raise RpcError(errno.ENOENT, "requested rank is not this broker's direct child")
        if status in GONE:
            raise RpcError(errno.EINVAL, f"rank {rank} is already {status}")
        errnum = self.context.tree.disconnect_child(rank, "administrative disconnect")
        if errnum:
            raise RpcError(errnum)

    # -- what passes ---------------------------------------------------------------------------

    @method("trace", streaming=True)
    def trace(self, request: Request) -> Later:
        """``{"typemask", "topic_glob", "nodeid"[, "full", "clients", "calls"]}`` -> for each message that passes a link
        of the tree ``{"timestamp", "prefix", "rank", "name", "type", "topic", "payload_size", "payload", "errnum",
        "errstr", "monotonic"[, "dropped"]}``. ``clients``: those of clients, too; their rank is -1, and ``name`` is
        theirs. ``calls``: with ``"flags", "userid", "matchtag"`` of each message, of events ``"sequence"``, and errors
        with their text.
        """
        tracer = Tracer(request)
        tracer.nodeid = request.field("nodeid", int)
        tracer.clients = request.field("clients", bool, False)
        self._tracers.open(request, tracer)
        return LATER

    def _watch(self) -> None:
        """Look on for as long as somebody wants to know."""
        watcher = self._passed if len(self._tracers) else None
        self.context.tracing.watch_links(watcher, self._tracers.clients)

    def _passed(self, passed: TracedMessage) -> None:
        link = passed.sender
        if link.kind == CLIENT:
            self._tracers.tell(passed, NONE, link.name, lambda tracer: tracer.clients)
            return
        rank = link.rank
        if link.kind == CHILD and passed.prefix == "tx" and passed.message.type == EVENT:
            if passed.message.sequence == self._last_event:
                return  # it goes to every child, and is told once, as deployed
            self._last_event, rank = passed.message.sequence, NONE
        self._tracers.tell(
            passed, rank, None, lambda tracer: NONE in (rank, tracer.nodeid) or rank == tracer.nodeid
        )

    # -- figures -------------------------------------------------------------------------------

    def stats(self) -> Mapping[str, Any]:
        """Children, parent, and the calls that are open with them."""
        links = self.context.figures.links()
        kinds = [link.get("kind") for link in links]
        owed = {
            kind: sum(link.get("pending", 0) for link in links if link.get("kind") == kind) for kind in kinds
        }
        return {
            "child-count": len(self.context.topology.children(self.context.rank)),
            "child-connected": kinds.count("child"),
            "parent-count": kinds.count("parent"),
            "parent-rpc": owed.get("parent", 0),
            "child-rpc": owed.get("child", 0),
            "interthread": {"sendq": 0, "recvq": 0},
        }
