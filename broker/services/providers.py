"""Clients that provide services (``service.add``, ``service.remove``), and who knows of them (``service.providers``).

The refusals of add and remove carry no text, as deployed: only the numbers reach the client.

Each broker announces to its parent what clients provide at it or below it (``service.announce``): all of it after each
change, at most once in ``GATHER_S`` and one message at a time, however often it changes. A parent that refuses, as
deployed ones do, gets no more until the next join. Built-in services are the same everywhere and not announced.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Mapping
from typing import Any, Final

from broker.errors import ProtocolError, RpcError
from broker.identity import NOBODY, Role
from broker.services.attachment import change_link
from broker.services.context import CHILD, Call, Context, Sender
from broker.services.groups import COMING, PRESENT
from broker.services.overlay import GONE
from broker.services.service import Service, Services, method
from broker.services.service_locations import ServiceLocations, SubtreeServices
from broker.serving.request import Later, Request
from broker.wire.message import UPSTREAM, Message
from broker.wire.payload import encode_json
from broker.wire.topic import check_service, service_of

log = logging.getLogger("headgate")

ALWAYS_ANSWERED: Final = frozenset((errno.EPROTO, errno.EEXIST, errno.ENOENT))
"""What a deployed connector refuses itself, and so even where no response is wanted; the rest is its broker's."""
GATHER_S: Final = 0.1
"""The least time between two messages to the parent."""
NAMED_RANKS: Final = 3
"""Ranks that the text of an ENOSYS names."""
NO_SERVICES: Final = SubtreeServices({}, 0)


class Providers(Service):
    """Registers clients as providers of a service, and knows who else provides one at this broker or below it."""

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
        """What the answer to a request that nobody here serves says more than that; "" for nothing."""
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
