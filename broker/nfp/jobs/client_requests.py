"""What clients ask: POST, GET and DELETE of the text, PUT of deployed NorFab (NFP, "POST", "GET", "DELETE").

Only whose job it is, and owners, may ask about a job; a setting lets others GET, too ("any other client"). Everybody
else is told what is told about a job that does not exist.

Targets. *any* is one part without a name. Names, and *all* of a service, are one part each, settled at once: such a
job cannot be moved to another worker. *all* means who is there: a worker whose connection is lost at the moment is told
as missing, since nobody knows whether it will be back, and the others' results would wait for it. *all* of a service
that has nobody waits for the first worker and takes who is there then. A named worker is one of the service: a job for
somebody of another service is refused. A name that no worker has may be a resource: it means the workers that announced
it. What is neither is told as missing, and fails as soon as the service's workers have had time to come; a service
without workers is waited for. The service "all" is deployed NorFab's: every worker, or any one of each.
"""

# compiled: mypyc

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Final, NamedTuple

from broker.nfp import bodies
from broker.nfp.contract import Peer
from broker.nfp.frames import Packet
from broker.nfp.jobs.machine import FINAL, LOSE, LOST, OPEN
from broker.nfp.jobs.model import Job, Part, WorkerEntry
from broker.nfp.jobs.registry import EVERY_SERVICE
from broker.nfp.jobs.relays import Relays
from broker.nfp.jobs.responses import NOT_GIVEN
from broker.nfp.jobs.schedule import MISSPELT, Jobs
from broker.nfp.names import Command, Sender
from broker.nfp.outcome import STATUS_WORDS, job_state
from broker.nfp.principal import Principal
from broker.nfp.records import JobAdded, PartAdded
from broker.nfp.targets import Target

_UNKNOWN: Final = "this job is not known here"
_IN_USE: Final = "this uuid is in use"


class Plan(NamedTuple):
    """Whom a request is for; ``denied`` is why it must not be, else ""."""

    parts: tuple[str, ...] = ()
    """Names of parts; () waits for the first worker of the service."""
    there: bool = False
    """Somebody of them is, or was, there: 202 rather than 300."""
    missing: tuple[str, ...] = ()
    """Lost workers of all, which get no part; names that nobody ever had, whose parts fail."""
    denied: str = ""


class ClientRequests:
    """What clients ask of jobs."""

    def __init__(self, jobs: Jobs, relays: Relays) -> None:
        self._jobs = jobs
        self._relays = relays

    def post(self, peer: Peer, packet: Packet, now: float) -> None:
        """Make a job of a POST, or say of one that is known how far it is."""
        assert packet.target is not None
        known = self._jobs.by_uuid.get(packet.uuid)
        if known is not None:
            self._again(known, peer, packet, now)
            return
        head = bodies.read_head(packet.body)
        plan = self._plan(peer.principal, packet.service, packet.target, head.task)
        refusal = self._refusal(peer.principal.holder, packet, head, plan)
        if refusal is not None:
            _, text, errnum = refusal
            self._jobs.tasks.refused(packet.service, head.task, errnum, text, peer.principal.userid, now)
            self._refuse(peer, packet, *refusal)
        else:
            self._accept(peer, packet, head, plan, now)

    def _refusal(
        self, holder: str, packet: Packet, head: bodies.Head, plan: Plan
    ) -> tuple[int, str, int] | None:
        """Why a new job is not taken: status, text and errno."""
        jobs = self._jobs
        longest_s = jobs.config.job_ttl_s
        if packet.uuid in self._relays:
            return 400, _IN_USE, errno.EEXIST
        if jobs.journal.broken:
            return 500, f"the broker cannot store jobs: {jobs.journal.broken}", errno.EIO
        if plan.denied:
            return 400, plan.denied, errno.EPERM
        if head.timeout_s and head.timeout_s > longest_s:
            text = f"timeout {head.timeout_s:g} s: a job of this broker has {longest_s:g} s at most (nfp.job_ttl_s)"
            return 400, text, errno.EINVAL
        names = tuple(name for name in plan.parts if name)
        full = self._jobs.full(packet.service, names, holder)
        return (500, full, errno.EAGAIN) if full else None

    def _refuse(self, peer: Peer, packet: Packet, code: int, error: str, errnum: int) -> None:
        self._jobs.counts.denied += 1
        self._jobs.on_refused(errnum)
        self._jobs.responders.of(peer).refused(peer, packet, code, error)

    def _accept(self, peer: Peer, packet: Packet, head: bodies.Head, plan: Plan, now: float) -> None:
        jobs, who = self._jobs, peer.principal
        client = self._jobs.clients.of(peer, now)
        ttl_s = head.timeout_s or min(jobs.config.job_timeout_s, jobs.config.job_ttl_s)
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
        job = Job(added, client, who, now)
        job.told_dispatched, job.missing = plan.there, plan.missing
        jobs.by_uuid[job.uuid] = job
        client.open += 1
        jobs.open_jobs += 1
        jobs.open_bytes += job.size
        jobs.counts.submitted += 1
        jobs.tasks.submitted(job)
        jobs.journal.put(added)
        parts = self._make_parts(job, plan.parts, now)
        job.after = jobs.journal.position
        self._jobs.watch(job, now)
        jobs.tell("submitted", job, size=len(job.body))
        self._jobs.responders.of(client).submitted(peer, job)
        misspelt_at = self._jobs.misspelt_at(job.service) if plan.missing else inf
        for part in parts:
            if now >= misspelt_at and part.name in plan.missing:
                self._jobs.fail(part, 400, MISSPELT.format(part.name), now)
            else:
                self._jobs.place(part, now)
        if not parts:
            self._jobs.gather(job, now)
        if job.waiting:
            self._jobs.check_at(job, max(now, misspelt_at))
            jobs.tell("queued", job)

    def _make_parts(self, job: Job, names: Iterable[str], now: float) -> list[Part]:
        parts = [Part(job, name, now) for name in names]
        self._jobs.count(job, parts)
        return parts

    # -- the same again -------------------------------------------------------------------------

    def _again(self, job: Job, peer: Peer, packet: Packet, now: float) -> None:
        """A job that is known: answered from its state when it is the same, by the same holder."""
        same = (
            peer.principal.holds(job.holder)
            and job.service == packet.service
            and job.target == packet.target
            and job.has_body(packet.data)
        )
        if not same:
            self._refuse(peer, packet, 400, _IN_USE, errno.EEXIST)
            return
        self._jobs.counts.duplicates += 1
        self._move(job, peer, now)
        responder = self._jobs.responders.of(peer)
        responder.submitted(peer, job)
        for part in job.parts.values():
            if part.state == FINAL:
                responder.delivered_again(part)

    def _move(self, job: Job, peer: Peer, now: float) -> None:
        """What comes of ``job`` goes to ``peer`` from now on: REQ clients come back under a new identity."""
        old, new = job.client, self._jobs.clients.of(peer, now)
        if old is new:
            return
        job.client = new
        for client, by in ((old, -1), (new, 1)):
            if job.state == OPEN:
                client.open += by
            else:
                client.kept += by
        old.owed.pop(job.uuid, None)
        self._jobs.clients.tidy(old)

    # -- targets --------------------------------------------------------------------------------

    def _plan(self, who: Principal | None, service: str, target: Target, task: str) -> Plan:
        """Whom ``target`` means now. ``who`` None: nobody's rights are known, only ``service`` itself is allowed."""
        every = service == EVERY_SERVICE
        access, registry = self._jobs.access, self._jobs.registry
        if not every and who is not None and not access.may_call(who, service, task):
            return Plan(denied=access.denial(who, service, task))
        if target.kind == "any" and not every:
            found = registry.services.get(service)
            return Plan(("",), found is not None and bool(found.workers))
        if target.names:
            return self._named(who, service, target.names, task)
        every_one = list(registry.targets(service))
        meant = [worker for worker in every_one if worker.state != LOST] or every_one
        lost = () if meant is every_one else tuple(each.name for each in every_one if each.state == LOST)
        if target.kind == "any":
            meant, lost = _one_each(meant), ()
        names = tuple(each.name for each in meant if not self._denied(who, service, each, task))
        if meant and not names:
            return Plan(denied=f"not allowed: no service here lets this client call {task[:64]}")
        return Plan(names, bool(names), lost)

    def _named(self, who: Principal | None, service: str, names: tuple[str, ...], task: str) -> Plan:
        registry, meant, missing = self._jobs.registry, dict[str, None](), []
        for name in names:
            workers = registry.named(name, service)
            for worker in workers:
                if denied := self._denied(who, service, worker, task):
                    return Plan(denied=denied)
                meant[worker.name] = None
            if not workers:
                meant[name] = None
                if not registry.knows(name):
                    missing.append(name)
        there = len(missing) < len(names) or registry.began(service) < inf
        return Plan(tuple(meant), there, tuple(missing))

    def _denied(self, who: Principal | None, service: str, worker: WorkerEntry, task: str) -> str:
        """Why this worker must not be used: it is of another service, or its service's rules do not allow it."""
        offered = worker.service.name
        if offered == service:
            return ""
        if service != EVERY_SERVICE:
            return f"not allowed: worker {worker.name} does not offer {service}"
        if who is None:
            return f"not allowed: worker {worker.name} offers {offered}"
        access = self._jobs.access
        return "" if access.may_call(who, offered, task) else access.denial(who, offered, task)

    def gathered(self, worker: WorkerEntry, now: float) -> None:
        """``worker`` has come: requests for all of its service, made while there was nobody, are settled."""
        for name in (worker.service.name, EVERY_SERVICE):
            service = self._jobs.registry.services.get(name)
            if service is None:
                continue
            for job in list(service.gathering):
                plan = self._plan(job.principal, job.service, job.target, job.task)
                if plan.parts:
                    self._jobs.stop_gathering(job)
                    for name in plan.parts:
                        self._jobs.journal.put(PartAdded(job.uuid, name))
                    parts = self._make_parts(job, plan.parts, now)
                    job.after = self._jobs.journal.position  # a restarted broker must know whom we name
                    for part in parts:
                        self._jobs.place(part, now)

    # -- GET, DELETE, PUT -----------------------------------------------------------------------

    def _find(self, peer: Peer, packet: Packet) -> Job | None:
        return self._seen(peer, packet, peer.principal.may_see)

    def _readable(self, peer: Peer, packet: Packet) -> Job | None:
        return self._seen(peer, packet, partial(self._jobs.access.may_read, peer.principal))

    def _seen(self, peer: Peer, packet: Packet, may: Callable[[str], bool]) -> Job | None:
        """The job, for whom it is waiting for it by the connection that submitted it, and whoever else may see it."""
        job = self._jobs.by_uuid.get(packet.uuid)
        return job if job is not None and (job.client.peer is peer or may(job.holder)) else None

    def get(self, peer: Peer, packet: Packet, now: float) -> None:
        """GET: from the record."""
        responder = self._jobs.responders.of(peer)
        job = self._readable(peer, packet)
        self._jobs.clients.known(peer, now)
        if job is not None:
            assert packet.target is not None
            parts = job.named(packet.target.names)
            if responder.results(peer, job, parts) and job.client.peer is peer:
                job.client.settle(job, parts)
        else:
            self._jobs.counts.unroutable += 1
            responder.refused(peer, packet, 400, _UNKNOWN)

    def delete(self, peer: Peer, packet: Packet, now: float) -> None:
        """DELETE: what has no result yet ends at once; workers that understand it are told. What is over stays so."""
        responder = self._jobs.responders.of(peer)
        job = self._find(peer, packet)
        self._jobs.clients.known(peer, now)
        if job is None:
            self._jobs.counts.unroutable += 1
            responder.refused(peer, packet, 400, _UNKNOWN)
            return
        assert packet.target is not None
        if not job.parts and not packet.target.names:
            self._jobs.settle_nowhere(job, now)
        meant = job.named(packet.target.names)
        if not meant:
            self._jobs.counts.unroutable += 1
            responder.refused(peer, packet, 400, NOT_GIVEN)
            return
        parts = [part for part in meant if part.state != FINAL]
        running = [part.current.worker.name for part in parts if part.current is not None]
        for part in parts:
            self._jobs.withdraw(part)
            self._jobs.fail(part, 417, "cancelled", now)
        responder.cancelled(peer, job, running, "CANCELLED" if parts else _end_of(meant))

    def put(self, peer: Peer, packet: Packet, now: float) -> None:
        """PUT: to the workers that run it. There is no answer: a deployed client would take an error for the end."""
        job = self._find(peer, packet)
        self._jobs.clients.known(peer, now)
        sent = False
        if job is not None and packet.target is not None:
            for part in job.named(packet.target.names):
                if part.current is not None:
                    sent |= part.current.request(Command.PUT, packet.body)
        if not sent:
            self._jobs.counts.unroutable += 1

    def unread(self, peer: Peer, packet: Packet, why: str) -> None:
        """A request about a closed job that cannot be read; PUT has no answer."""
        if packet.command is Command.PUT:
            self._jobs.counts.unroutable += 1
        else:
            error = f"this job cannot be read at present: {why}"
            self._refuse(peer, packet, 500, error, errno.EIO)

    def unstored(self, uuid: str, error: str) -> None:
        """The store refused the job for good: as if it had never come, but for the 500."""
        jobs = self._jobs
        job = jobs.by_uuid.pop(uuid, None)
        if job is None:
            return
        for part in job.parts.values():
            self._jobs.withdraw(part)
            attempt = part.current
            if attempt is not None:
                connection = attempt.worker.connection
                if connection is not None and connection.cancels:
                    attempt.request(Command.DELETE, b"")
                self._jobs.move(attempt, LOSE)
        if not job.parts:
            self._jobs.stop_gathering(job)
        self._jobs.remove(job)
        jobs.counts.submitted -= 1
        jobs.counts.denied += 1
        client = job.client
        if client.peer is not None:
            asked = Packet(Sender.CLIENT, Command.POST, service=job.service, target=job.target, uuid=uuid)
            self._jobs.responders.of(client).refused(
                client.peer, asked, 500, f"the broker cannot store jobs: {error}"
            )


def _one_each(workers: Iterable[WorkerEntry]) -> list[WorkerEntry]:
    """One worker of each service: whose turn it is, else any."""
    services = {worker.service: worker for worker in reversed(list(workers))}
    return [next(iter(service.idle), worker) for service, worker in services.items()]


def _end_of(parts: Iterable[Part]) -> str:
    """How these, which are all over, have ended."""
    return STATUS_WORDS[job_state(part.ended for part in parts)]
