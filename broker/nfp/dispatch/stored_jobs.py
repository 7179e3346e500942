"""Closed jobs that are in the store only: what is said about one waits until it was read (NFP, "Reliability").

Of such a job memory has the order alone, without body, parts and results. A client's request, or a worker's word, about
it waits for this one job, and is carried out once it was read; whatever the same peer says about other jobs goes on at
once. Jobs are read some at a time, and so is what clients are owed that come back. Waiting is bounded: for each peer,
in all, and in time, since a disk may hang. A duplicate waits longest: to run the job again would be worse.
"""

# compiled: mypyc

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from itertools import chain, islice
from typing import Final, NamedTuple

from broker.holdings import Holdings
from broker.nfp.contract import Peer
from broker.nfp.dispatch.model import FINAL, ORDER_BYTES, PART_BYTES, Client, Order, Part
from broker.nfp.dispatch.results import Results
from broker.nfp.dispatch.state import State
from broker.nfp.dispatch.timers import Timer
from broker.nfp.frames import Packet
from broker.nfp.names import Command
from broker.nfp.records import JobRow

log = logging.getLogger("headgate")

# bounds are read where they are used, not folded by the compiler: tests lower them
READ_AT_ONCE: int = 64
"""Jobs read at a time: a millisecond of the loop."""
READ_MAX_BYTES: int = 4 * 1024 * 1024
"""What they may have in all; the last one may be larger."""
OWED_AT_ONCE: int = 16
"""Jobs that are read for one client that is owed them."""
CALL_BYTES: int = 4096
"""What a call that waits costs beside its body."""
PEER_MAX_BYTES: int = 8 * 1024 * 1024
"""What those of one peer may cost; a single one may be larger."""
WAITING_MAX_BYTES: int = 64 * 1024 * 1024
"""The same of all together."""
PATIENCE_S: float = 2.0
"""How long a request waits for the disk before it ends with an error."""
LONG_PATIENCE_S: float = 60.0
"""The same for a job that is submitted again, and for a worker's word."""
_LOOK_S: Final = 0.5
_ASKS: Final = frozenset({Command.GET, Command.DELETE, Command.PUT})


class HeldRequest(NamedTuple):
    """``act(now)`` comes when the job is read, ``refuse(why)`` when that takes too long, neither once ``peer`` went."""

    peer: Peer | None
    uuid: str
    act: Callable[[float], None]
    refuse: Callable[[str], None]
    until: float
    cost: int = CALL_BYTES


class StoredJobs:
    """What waits for stored jobs, and what comes of it.

    Attributes:
        wanted: called whenever ``to_read`` has something more.
    """

    def __init__(self, state: State, results: Results) -> None:
        self._state = state
        self._results = results
        self._waiting: list[HeldRequest] = []
        self._costs: Holdings[Peer | None] = Holdings()
        self._paying: dict[Client, None] = {}
        self._timer: Timer | None = None
        self.wanted: Callable[[], None] = _nobody

    # -- waiting --------------------------------------------------------------------------------

    def later(self, waiting: HeldRequest, now: float) -> None:
        """Have it wait until its job is read, or refuse it at once: too much waits already."""
        cost, mine, every = waiting.cost, self._costs.of(waiting.peer), self._costs.total
        if (mine and mine + cost > PEER_MAX_BYTES) or (every and every + cost > WAITING_MAX_BYTES):
            waiting.refuse("too many requests wait for the store")
            return
        self._costs.add(waiting.peer, cost)
        self._waiting.append(waiting)
        if self._timer is None:
            self._timer = self._state.timers.at(now + _LOOK_S, self._look, None)
        self.wanted()

    def hold(
        self,
        peer: Peer,
        packet: Packet,
        act: Callable[[float], None],
        refuse: Callable[[str], None],
        now: float,
    ) -> None:
        """The same for what ``peer`` says in ``packet``; a client that could ask again is refused soon."""
        until = now + (PATIENCE_S if packet.command in _ASKS else LONG_PATIENCE_S)
        cost = CALL_BYTES + len(packet.body or b"")
        self.later(HeldRequest(peer, packet.uuid, act, refuse, until, cost), now)

    def gone(self, peer: Peer) -> None:
        """What it said does not wait any more, and nothing is read to be sent to it."""
        client = self._state.clients.at(peer)
        if client is not None:
            self._paying.pop(client, None)
        if self._costs.of(peer):
            self._take_out(lambda waiting: waiting.peer is peer)

    def _look(self, _: None, now: float) -> None:
        """Now and then: who has waited too long?"""
        self._timer = None
        for waiting in self._take_out(lambda waiting: waiting.until <= now):
            waiting.refuse("the store does not answer")
        if self._waiting and self._timer is None:
            self._timer = self._state.timers.at(now + _LOOK_S, self._look, None)

    def _take_out(self, which: Callable[[HeldRequest], bool]) -> list[HeldRequest]:
        out = [waiting for waiting in self._waiting if which(waiting)]
        self._waiting = [waiting for waiting in self._waiting if not which(waiting)]
        for waiting in out:
            self._costs.add(waiting.peer, -waiting.cost)
        return out

    # -- what clients are owed ------------------------------------------------------------------

    def pay(self, client: Client) -> None:
        """Send ``client`` what it is owed, in order, as far as there is room for what can wait.

        The rest goes there when there is more room, or when it was read.
        """
        peer = client.peer
        self._paying.pop(client, None)
        if peer is None:
            return
        for uuid in list(client.owed):
            order = self._state.orders[uuid]
            if order.stored:
                self._paying[client] = None
                self.wanted()
                return
            for name in list(client.owed_of(order)):
                if not peer.roomy():
                    return
                part = order.parts[name]
                client.settle(order, [part])
                self._state.responders.of(client).delivered_again(part)

    # -- reading --------------------------------------------------------------------------------

    def to_read(self) -> list[str]:
        """The jobs to read next; [] when nobody waits for any."""
        chosen: dict[str, None] = {}
        weight = 0
        owed = (uuid for client in self._paying for uuid in islice(client.owed, OWED_AT_ONCE))
        for uuid in chain((waiting.uuid for waiting in self._waiting), filter(self._state.unread, owed)):
            if weight > READ_MAX_BYTES or len(chosen) >= READ_AT_ONCE:
                break
            order = self._state.orders.get(uuid)
            weight += order.size + order.dropped if order is not None and uuid not in chosen else 0
            chosen[uuid] = None
        return list(chosen)

    def was_read(self, uuids: Collection[str], rows: Iterable[JobRow], now: float) -> None:
        """``rows`` is what the store has of ``uuids``; what waits for one of these jobs is done."""
        read = filled(self._state, rows)
        try:
            for uuid in filter(self._state.unread, uuids):
                self._results.lost(self._state.orders[uuid])
            for waiting in self._take_out(lambda waiting: waiting.uuid in uuids):
                self._act(waiting, now)
            for client in list(self._paying):
                self.pay(client)
        finally:
            for order in read:
                order.leave_to_store()

    def _act(self, waiting: HeldRequest, now: float) -> None:
        if waiting.peer is not None and not waiting.peer.alive:
            return
        try:
            waiting.act(now)
        except Exception as error:  # the others must not pay for it
            log.exception("what waited for a job to be read failed")
            waiting.refuse(f"the broker failed: {type(error).__name__}")


def filled(state: State, rows: Iterable[JobRow]) -> list[Order]:
    """Jobs that are in the store only, with what was read of them; they ``leave_to_store`` again right after."""
    read = []
    for row in rows:
        order = state.orders.get(row.added.uuid)
        if order is not None and order.stored:
            order.stored, size = False, order.size
            fill(order, row)
            order.drop_body()
            order.size = size
            read.append(order)
    return read


def fill(order: Order, row: JobRow) -> None:
    """Make ``order`` what the store kept as ``row``; nothing of it is in anybody's hands."""
    order.body, order.size, order.open = row.added.body, ORDER_BYTES + len(row.added.body), 0
    order.told_dispatched |= any(each.workers for each in row.parts)
    for each in row.parts:
        order.parts[each.part] = part = Part(order, each.part, order.added_at)
        for worker, attempt in (*each.workers, *(((each.worker, each.attempt),) if each.worker else ())):
            part.given[worker] = max(attempt, part.given.get(worker, 0))
        part.attempt = max(part.given.values(), default=each.attempt)
        if each.state == FINAL:
            part.settle(each.worker, each.status, each.body)
        order.owner = order.owner or each.owner
        order.size += PART_BYTES + len(part.body)
        order.open += part.state != FINAL


def _nobody() -> None:
    """Nobody reads yet."""
