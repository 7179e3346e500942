"""What clients ask: POST, GET and DELETE of the text, PUT of deployed NorFab (NFP, "POST", "GET", "DELETE"); and what
is passed to workers and is no job, their management.

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
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

from broker.nfp import bodies
from broker.nfp.contract import Peer
from broker.nfp.frames import Packet, answer_packet
from broker.nfp.jobs import told
from broker.nfp.jobs.model import Job, Part, Relay, WorkerEntry
from broker.nfp.jobs.registry import EVERY_SERVICE
from broker.nfp.jobs.schedule import MISSPELT, Jobs
from broker.nfp.names import FINAL_CODES, Command, Sender
from broker.nfp.outcome import STATUS_WORDS, job_state
from broker.nfp.principal import Principal
from broker.nfp.records import JobAdded, PartAdded
from broker.nfp.targets import Target

RELAYS_MAX: Final = 4096
"""Passed requests that wait for answers; management by people stays far below."""
RELAYS_PER_CLIENT: Final = 256
"""Of one holder."""
_UNKNOWN: Final = "this job is not known here"
_IN_USE: Final = "this uuid is in use"


# -- POST -------------------------------------------------------------------------------------------


def post(jobs: Jobs, peer: Peer, packet: Packet, now: float) -> None:
    """Make a job of a POST, or say of one that is known how far it is."""
    assert packet.target is not None
    known = jobs.by_uuid.get(packet.uuid)
    if known is not None:
        _again(jobs, known, peer, packet, now)
        return
    who, head = peer.principal, bodies.read_head(packet.body)
    plan = _plan(jobs, who, packet.service, packet.target, head.task)
    refusal = _refusal(jobs, who.holder, packet, head, plan)
    if refusal is None:
        _accept(jobs, peer, packet, head, plan, now)
        return
    code, text, errnum = refusal
    jobs.tasks.refused(packet.service, head.task, errnum, text, who.userid, now)
    _refuse(jobs, peer, packet, code, text, errnum)


def _refusal(
    jobs: Jobs, holder: str, packet: Packet, head: bodies.Head, plan: Plan
) -> tuple[int, str, int] | None:
    """Why a new job is not taken: status, text and errno."""
    longest_s = jobs.config.job_ttl_s
    if packet.uuid in jobs.relays:
        return 400, _IN_USE, errno.EEXIST
    if jobs.journal.broken:
        return 500, f"the broker cannot store jobs: {jobs.journal.broken}", errno.EIO
    if plan.denied:
        return 400, plan.denied, errno.EPERM
    if head.timeout_s and head.timeout_s > longest_s:
        text = (
            f"timeout {head.timeout_s:g} s: a job of this broker has {longest_s:g} s at most (nfp.job_ttl_s)"
        )
        return 400, text, errno.EINVAL
    full = jobs.full(packet.service, plan.parts, holder)
    return (500, full, errno.EAGAIN) if full else None


def _refuse(jobs: Jobs, peer: Peer, packet: Packet, code: int, error: str, errnum: int) -> None:
    jobs.counts.denied += 1
    jobs.on_refused(errnum)
    told.refused(peer, packet, code, error)


def _accept(jobs: Jobs, peer: Peer, packet: Packet, head: bodies.Head, plan: Plan, now: float) -> None:
    who, config = peer.principal, jobs.config
    assert packet.target is not None
    added = JobAdded(
        packet.uuid,
        packet.service,
        head.task,
        packet.target,
        packet.data,
        peer.identity,
        peer.dialect,
        who.holder,
        who.userid,
        head.timeout_s or min(config.job_timeout_s, config.job_ttl_s),
        plan.parts,
    )
    job = Job(added, jobs.registry.client_of(peer, now), who, now)
    job.told_dispatched, job.missing = plan.there, plan.missing
    jobs.by_uuid[job.uuid] = job
    jobs.count_open(job)
    jobs.counts.submitted += 1
    jobs.journal.put(added)
    parts = jobs.make_parts(job, plan.parts, now)
    job.after = jobs.journal.position
    jobs.watch(job, now)
    jobs.tell("submitted", job, size=len(job.body))
    told.submitted(peer, job)
    misspelt_at = jobs.misspelt_at(job.service) if plan.missing else inf
    for part in parts:
        if now >= misspelt_at and part.name in plan.missing:
            jobs.fail(part, 400, MISSPELT.format(part.name), now)
        else:
            jobs.place(part, now)
    if not parts:
        jobs.gather(job, now)
    if job.waiting:
        jobs.check_at(job, max(now, misspelt_at))
        jobs.tell("queued", job)


def _again(jobs: Jobs, job: Job, peer: Peer, packet: Packet, now: float) -> None:
    """A job that is known: answered from its state when it is the same, by the same holder.

    What comes of it goes to ``peer`` from now on: REQ clients come back under a new identity.
    """
    same = (
        peer.principal.holds(job.holder)
        and job.service == packet.service
        and job.target == packet.target
        and job.has_body(packet.data)
    )
    if not same:
        _refuse(jobs, peer, packet, 400, _IN_USE, errno.EEXIST)
        return
    jobs.counts.duplicates += 1
    old, new = job.client, jobs.registry.client_of(peer, now)
    if old is not new:
        job.client = new
        if job.state == "open":
            old.open, new.open = old.open - 1, new.open + 1
        else:
            old.kept, new.kept = old.kept - 1, new.kept + 1
        old.owed.pop(job.uuid, None)
        jobs.registry.tidy_client(old)
    told.submitted(peer, job)
    for part in job.parts.values():
        if part.state == "final":
            told.again(part)


# -- targets ----------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """Whom a request is for; ``denied`` is why it must not be, else ""."""

    parts: tuple[str, ...] = ()
    """Names of parts; () waits for the first worker of the service."""
    there: bool = False
    """Somebody of them is, or was, there: 202 rather than 300."""
    missing: tuple[str, ...] = ()
    """Lost workers of all, which get no part; names that nobody ever had, whose parts fail."""
    denied: str = ""


def _plan(jobs: Jobs, who: Principal | None, service: str, target: Target, task: str) -> Plan:
    """Whom ``target`` means now. ``who`` None: nobody's rights are known, only ``service`` itself is allowed."""
    every = service == EVERY_SERVICE
    access, registry = jobs.access, jobs.registry
    if not every and who is not None and not access.may_call(who, service, task):
        return Plan(denied=access.denial(who, service, task))
    if target.kind == "any" and not every:
        found = registry.services.get(service)
        return Plan(("",), found is not None and bool(found.workers))
    if target.names:
        return _plan_named(jobs, who, service, target.names, task)
    every_one = registry.targets(service)
    meant = [worker for worker in every_one if worker.state != "lost"]
    lost = tuple(worker.name for worker in every_one if worker.state == "lost") if meant else ()
    meant = meant or list(every_one)
    if target.kind == "any":
        # one worker of each service: whose turn it is, else any
        services = {worker.service: worker for worker in reversed(meant)}
        meant, lost = [next(iter(each.idle), worker) for each, worker in services.items()], ()
    names = tuple(each.name for each in meant if not _denied(jobs, who, service, each, task))
    if meant and not names:
        return Plan(denied=f"not allowed: no service here lets this client call {task[:64]}")
    return Plan(names, bool(names), lost)


def _plan_named(jobs: Jobs, who: Principal | None, service: str, names: tuple[str, ...], task: str) -> Plan:
    registry, meant, missing = jobs.registry, dict[str, None](), []
    for name in names:
        workers = registry.named(name, service)
        for worker in workers:
            if denied := _denied(jobs, who, service, worker, task):
                return Plan(denied=denied)
            meant[worker.name] = None
        if not workers:
            meant[name] = None
            if not registry.knows(name):
                missing.append(name)
    there = len(missing) < len(names) or registry.began(service) < inf
    return Plan(tuple(meant), there, tuple(missing))


def _denied(jobs: Jobs, who: Principal | None, service: str, worker: WorkerEntry, task: str) -> str:
    """Why this worker must not be used: it is of another service, or its service's rules do not allow it."""
    offered = worker.service.name
    if offered == service:
        return ""
    if service != EVERY_SERVICE:
        return f"not allowed: worker {worker.name} does not offer {service}"
    if who is None:
        return f"not allowed: worker {worker.name} offers {offered}"
    return "" if jobs.access.may_call(who, offered, task) else jobs.access.denial(who, offered, task)


def settle_gathered(jobs: Jobs, worker: WorkerEntry, now: float) -> None:
    """``worker`` has come: requests for all of its service, made while there was nobody, are settled."""
    for service_name in (worker.service.name, EVERY_SERVICE):
        service = jobs.registry.services.get(service_name)
        for job in list(service.gathering) if service is not None else ():
            plan = _plan(jobs, job.principal, job.service, job.target, job.task)
            if not plan.parts:
                continue
            jobs.stop_gathering(job)
            for name in plan.parts:
                jobs.journal.put(PartAdded(job.uuid, name))
            parts = jobs.make_parts(job, plan.parts, now)
            job.after = jobs.journal.position  # a restarted broker must know whom we name
            for part in parts:
                jobs.place(part, now)


# -- GET, DELETE, PUT -------------------------------------------------------------------------------


def _find(jobs: Jobs, peer: Peer, packet: Packet, may: Callable[[str], bool], now: float) -> Job | None:
    """The job, for whom it is waiting for it by the connection that submitted it, and whoever else may see it.

    Its client is at ``peer`` from now on.
    """
    job = jobs.by_uuid.get(packet.uuid)
    if job is not None and not (job.client.peer is peer or may(job.holder)):
        job = None
    jobs.registry.client_of(peer, now)
    jobs.counts.unroutable += job is None
    return job


def get(jobs: Jobs, peer: Peer, packet: Packet, now: float) -> None:
    """GET: from the record."""
    who, access = peer.principal, jobs.access
    job = _find(jobs, peer, packet, lambda holder: access.may_read(who, holder), now)
    if job is None:
        told.refused(peer, packet, 400, _UNKNOWN)
        return
    assert packet.target is not None
    parts = job.named(packet.target.names)
    if told.results(peer, job, parts) and job.client.peer is peer:
        job.client.settle(job, parts)


def delete(jobs: Jobs, peer: Peer, packet: Packet, now: float) -> None:
    """DELETE: what has no result yet ends at once; workers that understand it are told. What is over stays so."""
    job = _find(jobs, peer, packet, peer.principal.may_see, now)
    if job is None:
        told.refused(peer, packet, 400, _UNKNOWN)
        return
    assert packet.target is not None
    if not job.parts and not packet.target.names:
        jobs.settle_nowhere(job, now)
    meant = job.named(packet.target.names)
    if not meant:
        jobs.counts.unroutable += 1
        told.refused(peer, packet, 400, told.NOT_GIVEN)
        return
    parts = [part for part in meant if part.state != "final"]
    running = [part.current.worker.name for part in parts if part.current is not None]
    for part in parts:
        jobs.withdraw(part)
        jobs.fail(part, 417, "cancelled", now)
    status = "CANCELLED" if parts else STATUS_WORDS[job_state(part.ended for part in meant)]
    told.cancelled(peer, job, running, status, jobs.journal.position)


def put(jobs: Jobs, peer: Peer, packet: Packet, now: float) -> None:
    """PUT: to the workers that run it. There is no answer: a deployed client would take an error for the end."""
    job = _find(jobs, peer, packet, peer.principal.may_see, now)
    if job is None or packet.target is None:
        return
    parts: list[Part] = job.named(packet.target.names)
    sent = [part.current.request(Command.PUT, packet.body) for part in parts if part.current is not None]
    jobs.counts.unroutable += not any(sent)


# -- the store fails --------------------------------------------------------------------------------


def unread(jobs: Jobs, peer: Peer, packet: Packet, why: str) -> None:
    """A request about a closed job that cannot be read; PUT has no answer."""
    if packet.command is Command.PUT:
        jobs.counts.unroutable += 1
    else:
        _refuse(jobs, peer, packet, 500, f"this job cannot be read at present: {why}", errno.EIO)


def unstored(jobs: Jobs, uuid: str, error: str) -> None:
    """The store refused the job for good: as if it had never come, but for the 500."""
    job = jobs.by_uuid.pop(uuid, None)
    if job is None:
        return
    for part in job.parts.values():
        jobs.withdraw(part)
        attempt = part.current
        if attempt is not None:
            if attempt.worker.cancels:
                attempt.request(Command.DELETE, b"")
            jobs.move(attempt, "lose")
    if not job.parts:
        jobs.stop_gathering(job)
    jobs.remove(job)
    jobs.counts.submitted -= 1
    jobs.counts.denied += 1
    asked = Packet(Sender.CLIENT, Command.POST, service=job.service, target=job.target, uuid=uuid)
    told.refused(job.client, asked, 500, f"the broker cannot store jobs: {error}")


# -- passed to workers ------------------------------------------------------------------------------


def manage(jobs: Jobs, peer: Peer, packet: Packet, now: float) -> None:
    """A request for ``mmi.service.worker``: one answer, an object of what each worker said.

    It is remembered until every worker has answered, or has had time enough; nothing else that a worker says about such
    an id goes anywhere.
    """
    workers, target, error = jobs.registry.workers, packet.target, ""
    if target is not None and target.names:
        meant = [workers[name] for name in target.names if name in workers]
    else:
        meant = [worker for worker in workers.values() if worker.peer is not None]
        meant = meant[:1] if target is not None and target.kind == "any" else meant
    managed = [worker for worker in meant if worker.peer is not None and worker.managed]
    if packet.uuid in jobs.relays or packet.uuid in jobs.by_uuid:
        error = _IN_USE
    elif len(jobs.relays) >= RELAYS_MAX or jobs.relaying.of(peer.principal.holder) >= RELAYS_PER_CLIENT:
        error = "too many requests wait for workers"
    elif not managed:
        error = "none of the workers named is there and has a management interface"
    if error:
        told.refused(peer, packet, 400, error)
        return
    relay = jobs.relays[packet.uuid] = Relay(peer, packet)
    jobs.relaying.add(peer.principal.holder)
    token = bodies.make_token(peer.identity, 0)
    for worker in managed:
        if worker.request(Command.MMI, packet.uuid, token, packet.body):
            relay.unanswered[worker.name] = None
            worker.sent = now

    def over(_relay: Relay, _now: float) -> None:
        _end(jobs, relay)

    relay.timer = jobs.timers.at(now + jobs.config.relay_s, over, relay)
    if not relay.unanswered:
        _end(jobs, relay)


def answered(jobs: Jobs, worker: WorkerEntry, packet: Packet) -> bool:
    """A RESPONSE of ``worker``: True when it belongs to a passed request."""
    relay = jobs.relays.get(packet.uuid)
    if relay is None or worker.name not in relay.unanswered:
        return False
    if packet.status in FINAL_CODES:  # else there is more to come
        said = packet.data
        if jobs.relayed_bytes + len(said) > jobs.config.open_max_bytes:
            said = bodies.encode({"error": f"{len(said)} bytes: the broker has no room for this answer"})
        relay.size += len(said)
        jobs.relayed_bytes += len(said)
        relay.answers[worker.name] = said
        _answer_no_more(jobs, relay, worker)
    return True


def will_not_answer(jobs: Jobs, worker: WorkerEntry) -> None:
    """``worker`` is gone."""
    for relay in [relay for relay in jobs.relays.values() if worker.name in relay.unanswered]:
        _answer_no_more(jobs, relay, worker)


def _answer_no_more(jobs: Jobs, relay: Relay, worker: WorkerEntry) -> None:
    del relay.unanswered[worker.name]
    if not relay.unanswered:
        _end(jobs, relay)


def _end(jobs: Jobs, relay: Relay) -> None:
    """Answer by RESPONSE; a request by the command MMI by MMI as well, which deployed clients wait for."""
    jobs.timers.cancel(relay.timer)
    asked, peer = relay.packet, relay.peer
    del jobs.relays[asked.uuid]
    jobs.relaying.add(peer.principal.holder, -1)
    jobs.relayed_bytes -= relay.size
    if not relay.answers:
        told.refused(peer, asked, 408, f"no worker answered within {jobs.config.relay_s:g} s")
        return
    body, commands = bodies.aggregate(relay.answers), [Command.RESPONSE]
    if asked.command is Command.MMI:
        commands.append(Command.MMI)
    for command in commands:
        peer.send(answer_packet(command, asked.dialect, asked.service, asked.uuid, 200, body))
