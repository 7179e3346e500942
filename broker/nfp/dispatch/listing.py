"""The read views: what management and people see of the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.nfp.dispatch.job import FINAL, OPEN, Job, Slot
from broker.nfp.dispatch.roster import EXPECTED
from broker.nfp.dispatch.views import ClientView, JobView, ResultView, ServiceView, SlotView, WorkerView
from broker.nfp.names import Dialect

if TYPE_CHECKING:
    from broker.nfp.dispatch.clients import Client
    from broker.nfp.dispatch.config import DispatchConfig
    from broker.nfp.dispatch.roster import Roster, Service, Worker


def worker_view(worker: Worker, roster: Roster, config: DispatchConfig, now: float) -> WorkerView:
    """One worker."""
    box = roster.mailboxes.get(worker.name)
    if worker.wire is not None:
        holdtime = worker.heard + config.hold_s - now
    else:
        holdtime = worker.since + (config.hold_s if worker.state == EXPECTED else config.grace_s) - now
    return WorkerView(
        worker.name,
        worker.service.name,
        worker.state,
        worker.dialect,
        worker.key,
        worker.holder,
        worker.features,
        worker.slots,
        min(worker.busy, worker.slots),
        tuple(worker.runs),
        len(box) if box is not None else 0,
        max(0.0, holdtime),
        now - worker.since if worker.wire is not None else 0.0,
        worker.tx,
        worker.rx,
        worker.done,
        worker.failed,
        worker.resources,
        tuple(worker.tasks),
    )


def service_view(service: Service) -> ServiceView:
    """One service."""
    return ServiceView(
        service.name,
        tuple(service.workers),
        service.alive,
        len(service.idle),
        len(service.queue) + len(service.gathering),
        sum(len(worker.runs) for worker in service.workers.values()),
    )


def client_view(client: Client, now: float) -> ClientView:
    """One client."""
    return ClientView(
        client.name,
        client.holder,
        client.answers.dialect,
        client.peer is not None,
        client.peer is not None
        and (client.answers.dialect is Dialect.NORFAB or "push" in client.peer.features),
        client.open,
        client.kept,
        now - client.seen if client.seen >= 0 else -1.0,
    )


def job_view(job: Job, result_ttl_s: float, now: float) -> JobView:
    """One job."""
    until = job.deadline if job.state == OPEN else job.closed_at + result_ttl_s
    slots = job.slots.values()
    return JobView(
        job.uuid,
        job.service,
        job.task,
        job.target,
        job.holder,
        job.userid,
        job.client.name,
        job.state,
        now - job.added_at,
        max(0.0, until - now),
        tuple(slot.run.worker.name for slot in slots if slot.asked is not None and slot.run is not None),
        tuple(slot_view(slot) for slot in slots),
    )


def slot_view(slot: Slot) -> SlotView:
    """One worker's part of a job."""
    worker = slot.run.worker.name if slot.run is not None else slot.worker or next(reversed(slot.given), "")
    return SlotView(slot.name, worker, slot.attempt, slot.state, slot.status, len(slot.body))


def result_views(job: Job) -> list[ResultView]:
    """What is recorded of a job."""
    return [
        ResultView(slot.worker or slot.name, slot.status, slot.body)
        for slot in job.slots.values()
        if slot.state == FINAL
    ]
