"""POST: who may ask, whom it is for, and what is answered (NFP, "POST"; "SHOULD queue client requests").

Targets. *any* is one part without a name. Names, and *all* of a service, are one part each, settled at once: such a
job cannot be moved to another worker. *all* means who is there: a worker whose connection is lost at the moment is told
as missing, since nobody knows whether it will be back, and the others' results would wait for it. *all* of a service
that has nobody waits for the first worker and takes who is there then. A named worker is one of the service: a job for
somebody of another service is refused. A name that no worker has may be a resource: it means the workers that announced
it. What is neither fails at once when it stands among names that are known, and is waited for when none of them is. The
service "all" is deployed NorFab's: every worker, or any one of each.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import NamedTuple

from broker.nfp import bodies
from broker.nfp.contract import Peer
from broker.nfp.dispatch.answers import Answers
from broker.nfp.dispatch.assignment import Assignment
from broker.nfp.dispatch.model import FINAL, LOST, OPEN, Order, Part, Worker
from broker.nfp.dispatch.relays import Relays
from broker.nfp.dispatch.results import Results
from broker.nfp.dispatch.roster import EVERY_SERVICE
from broker.nfp.dispatch.state import State
from broker.nfp.frames import Packet
from broker.nfp.principal import Principal
from broker.nfp.records import JobAdded, PartAdded
from broker.nfp.targets import Target

_IN_USE = "this uuid is in use"


class Plan(NamedTuple):
    """Whom a request is for; ``denied`` is why it must not be, else ""."""

    parts: tuple[str, ...] = ()
    """Names of parts; () waits for the first worker of the service."""
    there: bool = False
    """Somebody of them is, or was, there: 202 rather than 300."""
    missing: tuple[str, ...] = ()
    """Lost workers of all, which get no part; unknown names in a list, whose parts fail at once."""
    denied: str = ""


class Intake:
    """Accepts jobs."""

    __slots__ = ("_assignment", "_relays", "_results", "_state")

    def __init__(self, state: State, results: Results, assignment: Assignment, relays: Relays) -> None:
        self._state = state
        self._results = results
        self._assignment = assignment
        self._relays = relays

    def post(self, peer: Peer, packet: Packet, now: float) -> None:
        """A POST."""
        state, answers = self._state, self._state.kinds.of(peer)
        known = state.orders.get(packet.uuid)
        if known is not None:
            self._again(known, peer, packet, answers, now)
            return
        if len(self._relays) and packet.uuid in self._relays:
            self._refuse(answers, peer, packet, 400, _IN_USE, errno.EEXIST)
            return
        if state.journal.broken:
            text = f"the broker cannot store jobs: {state.journal.broken}"
            self._refuse(answers, peer, packet, 500, text, errno.EIO)
            return
        assert packet.target is not None
        head = bodies.read_head(packet.body)
        plan = self._plan(peer.principal, packet.service, packet.target, head.task)
        if plan.denied:
            self._refuse(answers, peer, packet, 400, plan.denied, errno.EPERM)
            return
        longest_s = state.config.job_ttl_s
        if head.timeout_s and head.timeout_s > longest_s:
            text = f"timeout {head.timeout_s:g} s: a job of this broker has {longest_s:g} s at most (nfp.job_ttl_s)"
            self._refuse(answers, peer, packet, 400, text, errno.EINVAL)
            return
        names = tuple(name for name in plan.parts if name)
        full = self._assignment.full(packet.service, names, peer.principal.holder)
        if full:
            self._refuse(answers, peer, packet, 500, full, errno.EAGAIN)
            return
        self._accept(peer, packet, head, plan, now)

    def _refuse(
        self, answers: Answers, peer: Peer, packet: Packet, code: int, error: str, errnum: int
    ) -> None:
        self._state.counts.denied += 1
        self._state.refused(errnum)
        answers.refused(peer, packet, code, error)

    def _accept(self, peer: Peer, packet: Packet, head: bodies.Head, plan: Plan, now: float) -> None:
        state, who = self._state, peer.principal
        client = self._state.clients.of(peer, now)
        ttl_s = head.timeout_s or min(state.config.job_timeout_s, state.config.job_ttl_s)
        target = packet.target
        assert target is not None
        added = JobAdded(
            packet.uuid,
            packet.service,
            head.task,
            target,
            packet.data,
            peer.identity,
            peer.dialect,
            who.holder,
            who.userid,
            ttl_s,
            plan.parts,
        )
        order = Order(added, client, who, now)
        order.told, order.missing = plan.there, plan.missing
        state.orders[order.uuid] = order
        client.open += 1
        state.open_orders += 1
        state.open_bytes += order.size
        state.counts.submitted += 1
        state.journal.put(added)
        parts = self._parts(order, plan.parts, now)
        order.after = state.journal.position
        self._state.look_in_time(order, now)
        state.tell("submitted", order, size=len(order.body))
        self._state.kinds.of(client).submitted(peer, order)
        for part in parts:
            if part.name in plan.missing:
                self._results.give_up(part, 400, f"no worker is called {part.name}, and no resource", now)
            else:
                self._assignment.place(part, now)
        if not parts:
            self._assignment.gather(order, now)
        if order.waiting:
            state.tell("queued", order)

    def _parts(self, order: Order, names: Iterable[str], now: float) -> list[Part]:
        parts = [Part(order, name, now) for name in names]
        self._assignment.count(order, parts)
        return parts

    # -- the same again -------------------------------------------------------------------------

    def _again(self, order: Order, peer: Peer, packet: Packet, answers: Answers, now: float) -> None:
        """A job that is known: answered from its state when it is the same, by the same holder."""
        same = (
            order.holder == peer.principal.holder
            and order.service == packet.service
            and order.target == packet.target
            and order.has_body(packet.data)
        )
        if not same:
            self._refuse(answers, peer, packet, 400, _IN_USE, errno.EEXIST)
            return
        self._state.counts.duplicates += 1
        self._move(order, peer, now)
        answers.submitted(peer, order)
        for part in order.parts.values():
            if part.state == FINAL:
                answers.delivered_again(part)

    def _move(self, order: Order, peer: Peer, now: float) -> None:
        """What comes of ``order`` goes to ``peer`` from now on: REQ clients come back under a new identity."""
        old, new = order.client, self._state.clients.of(peer, now)
        if old is new:
            return
        order.client = new
        for client, by in ((old, -1), (new, 1)):
            if order.state == OPEN:
                client.open += by
            else:
                client.kept += by
        for part in order.parts.values():
            old.owed.pop(part, None)
        self._state.clients.tidy(old)

    # -- targets --------------------------------------------------------------------------------

    def _plan(self, who: Principal | None, service: str, target: Target, task: str) -> Plan:
        """Whom ``target`` means now. ``who`` None: nobody's rights are known, only ``service`` itself is allowed."""
        every = service == EVERY_SERVICE
        access, roster = self._state.access, self._state.roster
        if not every and who is not None and not access.may_call(who, service, task):
            return Plan(denied=access.denial(who, service, task))
        if target.kind == "any" and not every:
            found = roster.services.get(service)
            return Plan(("",), found is not None and bool(found.workers))
        if target.names:
            return self._named(who, service, target.names, task)
        every_one = list(roster.targets(service))
        meant = [worker for worker in every_one if worker.state != LOST] or every_one
        lost = () if meant is every_one else tuple(each.name for each in every_one if each.state == LOST)
        if target.kind == "any":
            meant, lost = _one_each(meant), ()
        names = tuple(each.name for each in meant if not self._denied(who, service, each, task))
        if meant and not names:
            return Plan(denied=f"not allowed: no service here lets this client call {task[:64]}")
        return Plan(names, bool(names), lost)

    def _named(self, who: Principal | None, service: str, names: tuple[str, ...], task: str) -> Plan:
        roster, meant, missing = self._state.roster, dict[str, None](), []
        for name in names:
            workers = roster.named(name, service)
            for worker in workers:
                if denied := self._denied(who, service, worker, task):
                    return Plan(denied=denied)
                meant[worker.name] = None
            if not workers:
                meant[name] = None
                if not roster.knows(name):
                    missing.append(name)
        if len(missing) == len(names):
            return Plan(names)
        return Plan(tuple(meant), True, tuple(missing))

    def _denied(self, who: Principal | None, service: str, worker: Worker, task: str) -> str:
        """Why this worker must not be used: it is of another service, or its service's rules do not allow it."""
        offered = worker.service.name
        if offered == service:
            return ""
        if service != EVERY_SERVICE:
            return f"not allowed: worker {worker.name} does not offer {service}"
        if who is None:
            return f"not allowed: worker {worker.name} offers {offered}"
        access = self._state.access
        return "" if access.may_call(who, offered, task) else access.denial(who, offered, task)

    def gathered(self, worker: Worker, now: float) -> None:
        """``worker`` has come: requests for all of its service, made while there was nobody, are settled."""
        for name in (worker.service.name, EVERY_SERVICE):
            service = self._state.roster.services.get(name)
            if service is None:
                continue
            for order in list(service.gathering):
                plan = self._plan(order.principal, order.service, order.target, order.task)
                if plan.parts:
                    self._assignment.stop_gathering(order)
                    for name in plan.parts:
                        self._state.journal.put(PartAdded(order.uuid, name))
                    parts = self._parts(order, plan.parts, now)
                    order.after = self._state.journal.position  # a restarted broker must know whom we name
                    for part in parts:
                        self._assignment.place(part, now)


def _one_each(workers: Iterable[Worker]) -> list[Worker]:
    """One worker of each service: whose turn it is, else any."""
    services = {worker.service: worker for worker in reversed(list(workers))}
    return [next(iter(service.idle), worker) for service, worker in services.items()]
