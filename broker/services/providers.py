"""Clients that provide services (``service.add``, ``service.remove``), and where they are (``service.providers``).

The refusals of add and remove carry no text, as deployed: only the numbers reach the client.

A broker knows what its own clients provide, and what each child announced last: the names and ranks of its whole
subtree (``ServiceLocations``: pure state, no I/O, no clock). It announces both to its own parent
(``service.announce``): all of it after each change, at most once in ``GATHER_S`` and one message at a time, however
often it changes, within bounds; names that begin with a digit, as those of guests do, are left out before others. A
parent that refuses, as deployed ones do, gets no more until the next join. Built-in services are the same everywhere
and not announced.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from broker.errors import ProtocolError, RpcError
from broker.identity import NOBODY, Role
from broker.services.context import CHILD, Call, Context, Sender
from broker.services.event import change_link
from broker.services.groups import COMING, PRESENT
from broker.services.overlay import GONE
from broker.services.service import Service, Services, method
from broker.serving.request import Later, Request
from broker.wire.message import UPSTREAM, Message
from broker.wire.payload import encode_json
from broker.wire.topic import check_service, service_of

log = logging.getLogger("headgate")

NAMES_MAX: Final = 1024
"""Names that one broker announces."""
RANKS_MAX: Final = 16
"""Ranks that it announces of one name, the nearest ones."""
LEFT_OUT_MAX: Final = 1 << 53
ALWAYS_ANSWERED: Final = frozenset((errno.EPROTO, errno.EEXIST, errno.ENOENT))
"""Errnos that a deployed connector refuses by itself, and so even where no response is wanted; the rest is its
broker's."""
GATHER_S: Final = 0.1
"""The least time between two messages to the parent."""
NAMED_RANKS: Final = 3
"""Ranks that the text of an ENOSYS names."""


class SubtreeServices(NamedTuple):
    """The announcement of one broker: the services at it and everything below it."""

    services: dict[str, list[int]]
    """Name -> ranks, the nearest first."""
    left_out: int
    """Pairs of a name and a rank that are beyond the bounds, here or below."""


class ServiceLocations:
    """The services that one broker knows, by child.

    Args:
        rank: its own. size: of the instance.
        parent: the parent of a rank; below 0 for the root.
        names_max, ranks_max: the bounds of what it announces and accepts.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        parent: Callable[[int], int],
        names_max: int = NAMES_MAX,
        ranks_max: int = RANKS_MAX,
    ) -> None:
        self._rank = rank
        self._size = size
        self._parent = parent
        self._names_max = names_max
        self._ranks_max = ranks_max
        self._own: set[str] = set()
        self._children: dict[int, SubtreeServices] = {}
        self._hops: dict[int, int] = {}

    def provide(self, name: str, there: bool) -> None:
        """A client of this broker provides ``name`` from now on, or nobody does any more."""
        (self._own.add if there else self._own.discard)(name)

    def set_child(self, child: int, services: Mapping[str, Any], left_out: int) -> None:
        """A child announced its subtree; this replaces what it announced before.

        Raises:
            ProtocolError: it cannot be true; then nothing of what the child announced counts any more.
        """
        self._children.pop(child, None)
        if len(services) > self._names_max or not 0 <= left_out <= LEFT_OUT_MAX:
            raise ProtocolError(
                f"{len(services)} names, {left_out} left out: expected {self._names_max} names"
            )
        checked = {name: self._checked(child, name, ranks) for name, ranks in services.items()}
        if checked or left_out:
            self._children[child] = SubtreeServices(checked, left_out)

    def _checked(self, child: int, name: str, ranks: Any) -> list[int]:
        check_service(name)
        if not isinstance(ranks, list) or not 0 < len(ranks) <= self._ranks_max:
            raise ProtocolError(f"{name}: expected a list of 1 to {self._ranks_max} ranks")
        for rank in ranks:
            if type(rank) is not int or not 0 <= rank < self._size or child not in self._way_up(rank):
                raise ProtocolError(f"{name}: {str(rank)[:16]} is no rank at or below {child}")
        if len(set(ranks)) < len(ranks):
            raise ProtocolError(f"{name}: a rank stands there twice")
        return ranks

    def forget(self, child: int) -> bool:
        """A child is gone, with all that it announced; False when that was nothing."""
        return self._children.pop(child, None) is not None

    # -- what is known -------------------------------------------------------------------------

    def ranks(self, name: str, near: int | None = None) -> list[int]:
        """The ranks that provide ``name``, the nearest to rank ``near`` (default: ours) first."""
        found = [rank for child in self._children.values() for rank in child.services.get(name, ())]
        if name in self._own:
            found.append(self._rank)
        hops = self._distance if near is None else self._distances_from(near)
        return sorted(found, key=lambda rank: (hops(rank), rank))

    def nearest(self, name: str, near: int) -> tuple[list[int], int]:
        """The same, and how many at its head are equally near."""
        ranks, hops = self.ranks(name, near), self._distances_from(near)
        return ranks, sum(hops(rank) == hops(ranks[0]) for rank in ranks)

    def subtree(self) -> SubtreeServices:
        """The announcement of this broker: the services at it and everything below it, within the bounds."""
        names = self._own.union(*(child.services for child in self._children.values()))
        kept: dict[str, list[int]] = {}
        left_out = sum(child.left_out for child in self._children.values())
        for name in sorted(names, key=lambda name: (name[:1].isdecimal(), name)):
            ranks = self.ranks(name)
            if len(kept) < self._names_max:
                kept[name] = ranks[: self._ranks_max]
                left_out += len(ranks) - len(kept[name])
            else:
                left_out += len(ranks)
        return SubtreeServices(kept, min(left_out, LEFT_OUT_MAX))

    # -- the tree ------------------------------------------------------------------------------

    def _way_up(self, rank: int) -> Iterator[int]:
        """``rank`` and those above it, as far as this broker, which is the last unless ``rank`` is not below it."""
        while rank >= 0:
            yield rank
            if rank == self._rank:
                return
            rank = self._parent(rank)

    def _distance(self, rank: int) -> int:
        """Hops from us to a rank below."""
        hops = self._hops.get(rank)
        if hops is None:
            hops = self._hops[rank] = sum(1 for _ in self._way_up(rank)) - 1
        return hops

    def _distances_from(self, near: int) -> Callable[[int], int]:
        """The hops from rank ``near``, by the lowest broker above both; from us when it is not below us."""
        above = {rank: hops for hops, rank in enumerate(self._way_up(near))}

        def far(rank: int) -> int:
            below = (up + above[at] for up, at in enumerate(self._way_up(rank)) if at in above)
            return next(below, self._distance(rank))

        return far


NO_SERVICES: Final = SubtreeServices({}, 0)


class Providers(Service):
    """Registers clients as providers of a service, and knows the other providers at this broker and below it."""

    name = "service"

    def __init__(self, context: Context, services: Services) -> None:
        super().__init__(context, services)
        self._where = ServiceLocations(context.rank, context.size, context.topology.parent)
        self._joined = False
        self._parent_refuses = False
        """The parent has refused an announcement."""
        self._pausing = False
        self._call: Call | None = None
        self._announced: SubtreeServices | None = NO_SERVICES
        """The announcement that the parent has; None: nobody knows which."""
        self._announcements = 0

    def start(self) -> None:
        """Follow registrations, the tree and the broker's own state."""
        self.context.on_provided(self._provided)
        self.context.on_unregistered(self.find_elsewhere)
        self.context.on_tree_change(self._tree_changed)
        self.context.lifecycle.watchers.append(self._entered)
        self._entered(self.context.lifecycle.state)

    @method("add", allow=Role.USER)
    def add(self, request: Request) -> Later:
        """``{"service"}``: EINVAL for an unfit name, EEXIST, EPERM for a guest's name without ``USERID-``."""

        def change(sender: Sender) -> int:
            name = request.field("service", str)
            check_name(name, request.message.userid, request.message.rolemask)
            return self.context.add_service(sender, name.encode())

        return change_link(self.context, request, change, ALWAYS_ANSWERED)

    @method("remove", allow=Role.USER)
    def remove(self, request: Request) -> Later:
        """``{"service"}``: ENOENT unless this client provides it."""

        def change(sender: Sender) -> int:
            return self.context.remove_service(sender, request.field("service", str).encode())

        return change_link(self.context, request, change, ALWAYS_ANSWERED)

    @method("providers", allow=Role.USER)
    def providers(self, request: Request) -> Mapping[str, object]:
        """``{["service", "rank"]}`` -> ``{"services": {NAME: [ranks]}, "left_out"}``: what clients provide at this
        broker and below it, the nearest ranks first; rank 0 knows all. Every user may see all names.

        ``left_out``: pairs of a name and a rank beyond the bounds (see ``service_locations``). With ``service`` that
        one, the nearest to ``rank`` (default: this broker) first, and ``nearest``: how many at the head are equally
        near.
        """
        name = request.field("service", str, None) if request.message.payload_part else None
        if name is None:
            return self._where.subtree()._asdict()
        near = request.field("rank", int, self.context.rank)
        if not 0 <= near < self.context.size:
            raise RpcError(errno.EINVAL, f"rank {near}: expected 0 to {self.context.size - 1}")
        ranks, nearest = self._where.nearest(name, near)
        return {"services": {name: ranks} if ranks else {}, "nearest": nearest}

    def find_elsewhere(self, topic: str) -> str:
        """The hint in the answer to a request that nobody serves here: where the service is; "" when that is not
        known.
        """
        name = service_of(topic)
        ranks = self._where.ranks(name)
        if not ranks:
            return ""
        more = f" and {len(ranks) - NAMED_RANKS} more" if len(ranks) > NAMED_RANKS else ""
        one = "rank" if len(ranks) == 1 else "ranks"
        return f"{name} is on {one} {', '.join(map(str, ranks[:NAMED_RANKS]))}{more}"

    # -- up the tree ---------------------------------------------------------------------------

    @method("announce")
    def announce(self, request: Request) -> None:
        """``{"services": {NAME: [ranks]}, "left_out"}`` of a direct child: all that there is at it and below it.

        EPROTO when it cannot be true; then nothing that the child said holds. ENOSYS for a broker that is no direct
        child: one between us that knows nothing of this has passed it on.
        """
        sender = self.context.sender_of(request.message)
        if sender is None or sender.kind != CHILD:
            raise RpcError(errno.EPERM, "only brokers announce what is below them")
        # a child announces with its own rank as nodeid: another one means that a broker between us passed it on
        if request.message.nodeid != sender.rank:
            raise self.unknown(request)
        try:
            self._where.set_child(
                sender.rank, request.field("services", dict), request.field("left_out", int, 0)
            )
        except ProtocolError as error:
            self._where.forget(sender.rank)
            log.warning("%s of rank %d: %s", request.topic, sender.rank, error)
            raise
        finally:
            self._changed()

    def _provided(self, name: str, there: bool) -> None:
        self._where.provide(name, there)
        self._changed()

    def _changed(self) -> None:
        """Announce the change, unless it is too early or the parent has not answered; then that leads here again."""
        if not self._joined or self._parent_refuses or self._pausing or self._call is not None:
            return
        services = self._where.subtree()
        if services == self._announced:
            return
        self._announced = services
        self._announcements += 1
        self._pausing = True
        asyncio.get_running_loop().call_later(GATHER_S, self._pause_ended)

        def answered(message: Message) -> None:
            if self._call is call:
                self._call, self._parent_refuses = None, bool(message.errnum)
                self._changed()

        call = self._call = self.context.call(
            "service.announce",
            encode_json(services._asdict()),
            answered,
            nodeid=self.context.rank,
            flags=UPSTREAM,
        )

    def _pause_ended(self) -> None:
        self._pausing = False
        self._changed()

    def _entered(self, state: str) -> None:
        """A parent that we joined (again) gets all there is, even nothing where it may know something else."""
        if self.context.rank == 0:
            return
        if state in COMING:
            self._announced = None if self._announcements and not self._parent_refuses else NO_SERVICES
            self._joined, self._parent_refuses, self._call = False, False, None
        elif state in PRESENT and not self._joined:
            self._joined = True
            self._changed()

    def _tree_changed(self) -> None:
        """A child that is gone provides nothing."""
        gone = [child["rank"] for child in self.context.tree.child_health() if child["status"] in GONE]
        if sum(map(self._where.forget, gone)):
            self._changed()

    def stats(self) -> Mapping[str, Any]:
        """How many names are known here, and how many announcements were made."""
        known = self._where.subtree()
        return {"names": len(known.services), "left_out": known.left_out, "announced": self._announcements}


def check_name(name: str, userid: int, rolemask: int) -> None:
    """Accept ``name`` as one that this user may register.

    Raises:
        RpcError: EINVAL, unfit for a service; EPERM, a guest's name must begin with its userid and a dash, and who is
            nobody has none.
    """
    try:
        check_service(name)
    except ProtocolError as error:
        raise RpcError(errno.EINVAL) from error
    if not rolemask & Role.OWNER and (userid == NOBODY or not name.startswith(f"{userid}-")):
        raise RpcError(errno.EPERM)
