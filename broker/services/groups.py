"""Which brokers belong to a group, such as ``broker.online`` (``groups.get``, ``join``, ``leave``, ``update``).

Each broker knows the members in its own subtree and tells its parent what changes, a short while after it does, so
that many changes travel as one. Rank 0 knows all and answers. A broker that joins the tree tells all it knows at once.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from broker.services import idset
from broker.services.context import Context
from broker.services.overlay import GONE
from broker.services.service import Service, Services, Streams, method
from broker.serving.request import Request
from broker.wire.message import UPSTREAM
from broker.wire.payload import encode_json

ONLINE: Final = "broker.online"
TORPID: Final = "broker.torpid"
COMING: Final = ("load-builtins", "join", "config-sync", "init")
"""States in which the parent does not know us yet."""
PRESENT: Final = ("quorum", "run")
"""States in which this rank is a member of ``broker.online``."""
GATHER_S: Final = 0.05
"""How long changes are gathered before they are told: a wave of brokers coming up arrives as few messages."""


class Groups(Service):
    """Group membership in this broker's subtree."""

    name = "groups"

    def __init__(self, context: Context, services: Services) -> None:
        super().__init__(context, services)
        self._members: dict[str, set[int]] = {}
        self._joined: dict[bytes, set[str]] = {}
        self._watchers: Streams[str] = self.keep(Streams())
        self._changes: dict[str, dict[int, bool]] = {}
        self._gathering = False
        self._announced = context.rank == 0
        self._gone: set[int] = set()

    def start(self) -> None:
        """Follow the tree and the broker's own state."""
        self.context.on_tree_change(self._tree_changed)
        self.context.lifecycle.watchers.append(self._entered)
        self._entered(self.context.lifecycle.state)

    def members(self, group: str) -> frozenset[int]:
        """Ranks of this broker's subtree that belong to ``group``."""
        return frozenset(self._members.get(group, ()))

    # -- requests ------------------------------------------------------------------------------

    @method("get", allow=Role.USER)
    def get(self, request: Request) -> Mapping[str, object]:
        """``{"name"}`` -> ``{"members": idset}``; streaming, again after each change. Rank 0 only."""
        if self.context.rank != 0:
            raise RpcError(errno.EPROTO, "this RPC is only available on rank 0")
        group = request.field("name", str)
        if request.streaming:
            self._watchers.open(request, group)
        return self._answer(group)

    def _answer(self, group: str) -> dict[str, object]:
        return {"members": idset.encode(self._members.get(group, ()))}

    @method("join")
    def join(self, request: Request) -> None:
        """``{"name"}``: this rank joins until it leaves or the caller is gone; EEXIST when it has joined."""
        group = self._local_group(request)
        rank = self.context.rank
        if rank in self._members.get(group, ()):
            raise RpcError(errno.EEXIST, f"rank {rank} is already a member of {group}")
        self._joined.setdefault(request.sender, set()).add(group)
        self._change(group, (rank,), True)

    @method("leave")
    def leave(self, request: Request) -> None:
        """``{"name"}``: this rank leaves; ENOENT when it has not joined."""
        group = self._local_group(request)
        rank = self.context.rank
        if rank not in self._members.get(group, ()):
            raise RpcError(errno.ENOENT, f"rank {rank} is not a member of {group}")
        for groups in self._joined.values():
            groups.discard(group)
        self._change(group, (rank,), False)

    def _local_group(self, request: Request) -> str:
        group: str = request.field("name", str)
        if not request.message.rolemask & Role.LOCAL:
            raise RpcError(errno.EPROTO, f"{request.topic} is restricted to the local broker")
        return group

    @method("update")
    def update(self, request: Request) -> None:
        """``{"update": {group: [{"ranks": idset, "set": bool}]}}`` of a child's subtree, in order."""
        for group, ranks, join in self._parse(request.field("update", dict)):
            self._change(group, ranks, join)

    def _parse(self, groups: Mapping[str, Any]) -> list[tuple[str, set[int], bool]]:
        """All of it before any of it is done, so that a bad update changes nothing."""
        parsed: list[tuple[str, set[int], bool]] = []
        for group, entries in groups.items():
            if not isinstance(entries, list):
                raise ProtocolError(f"groups.update: {group[:64]!r} needs a list")
            parsed.extend((group, *self._move(entry)) for entry in entries)
        return parsed

    def _move(self, entry: Any) -> tuple[set[int], bool]:
        ranks, join = (entry.get("ranks"), entry.get("set")) if isinstance(entry, dict) else (None, None)
        if not isinstance(ranks, str) or not isinstance(join, bool):
            raise ProtocolError("groups.update: an entry needs ranks and set")
        return idset.decode(ranks, self.context.size), join

    # -- changes -------------------------------------------------------------------------------

    def _change(self, group: str, ranks: Iterable[int], join: bool) -> None:
        present = self._members.setdefault(group, set())
        moved = set(ranks) - present if join else present.intersection(ranks)
        if join:
            present |= moved
        else:
            present -= moved
        if not present:
            del self._members[group]
        if moved:
            self._changes.setdefault(group, {}).update(dict.fromkeys(moved, join))
            self._gather()

    def _gather(self) -> None:
        if not self._gathering:
            self._gathering = True
            asyncio.get_running_loop().call_later(GATHER_S, self._tell)

    def _tell(self) -> None:
        """Tell the parent, or at rank 0 the watchers, what has changed since last time."""
        self._gathering = False
        changes, self._changes = self._changes, {}
        if self.context.rank == 0:
            for request, group in self._watchers:
                if group in changes:
                    request.respond(self._answer(group))
        elif self._announced and (
            update := {group: _entries(moved) for group, moved in changes.items() if moved}
        ):
            payload = encode_json({"update": update})
            self.context.call("groups.update", payload, None, nodeid=self.context.rank, flags=UPSTREAM)

    def _entered(self, state: str) -> None:
        """From quorum on this rank is online; a broker that joins (again) owes its new parent everything."""
        if state in COMING and self.context.rank != 0:
            self._announced = False
        elif state in PRESENT:
            self._change(ONLINE, (self.context.rank,), True)
            if not self._announced:
                self._announced = True
                self._changes = {group: dict.fromkeys(ranks, True) for group, ranks in self._members.items()}
                self._gather()

    def _tree_changed(self) -> None:
        """A child that is gone takes its subtree out of every group; a torpid one is a group of its own."""
        for child in self.context.tree.child_health():
            rank = child["rank"]
            gone = child["status"] in GONE
            if gone and rank not in self._gone:  # once: what comes of it afterwards counts
                below = set(self.context.topology.subtree(rank))
                for group in list(self._members):
                    self._change(group, below, False)
            (self._gone.add if gone else self._gone.discard)(rank)
            if not gone:
                self._change(TORPID, (rank,), bool(child.get("torpid")))

    # -- ends ----------------------------------------------------------------------------------

    def stats(self) -> Mapping[str, Any]:
        """The members of every group in this subtree."""
        return {"subtree": {group: idset.encode(ranks) for group, ranks in self._members.items()}}

    def disconnected(self, sender: bytes) -> None:
        """Leave the groups that the sender joined, and end its streams."""
        for group in self._joined.pop(sender, ()):
            self._change(group, (self.context.rank,), False)
        super().disconnected(sender)


def _entries(moved: Mapping[int, bool]) -> list[dict[str, object]]:
    """The moves of one group as an update carries them."""
    sets = ((join, [rank for rank, joined in moved.items() if joined is join]) for join in (True, False))
    return [{"ranks": idset.encode(ranks), "set": join} for join, ranks in sets if ranks]
