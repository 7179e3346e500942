"""The read views: what management and people see of the tables."""

from __future__ import annotations

from collections import Counter

from broker.nfp.dispatch.config import DispatchConfig
from broker.nfp.dispatch.model import EXPECTED, FINAL, OPEN, Client, Order, Part, Service, Worker
from broker.nfp.dispatch.roster import Roster
from broker.nfp.dispatch.views import ClientView, JobView, ResultView, ServiceView, SlotView, WorkerView
from broker.nfp.names import Dialect
from broker.nfp.outcome import END_STATES


def worker_view(worker: Worker, roster: Roster, config: DispatchConfig, now: float) -> WorkerView:
    """One worker."""
    box = roster.mailboxes.get(worker.name)
    ended = roster.ended.get(worker.name, Counter())
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
        {state: ended[state] for state in END_STATES},
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
        client.dialect,
        client.peer is not None,
        client.peer is not None and (client.dialect is Dialect.NORFAB or "push" in client.peer.features),
        client.open,
        client.kept,
        now - client.seen if client.seen >= 0 else -1.0,
    )


def job_view(order: Order, result_ttl_s: float, now: float) -> JobView:
    """One job."""
    until = order.deadline if order.state == OPEN else order.closed_at + result_ttl_s
    parts = order.parts.values()
    return JobView(
        order.uuid,
        order.service,
        order.task,
        order.target,
        order.holder,
        order.userid,
        order.client.name,
        order.state,
        now - order.added_at,
        max(0.0, until - now),
        tuple(part.run.worker.name for part in parts if part.asked is not None and part.run is not None),
        tuple(slot_view(part) for part in parts),
        (order.closed_at if order.state != OPEN else now) - order.added_at,
        order.body,
    )


def slot_view(part: Part) -> SlotView:
    """One worker's part of a job."""
    return SlotView(
        part.name, part_worker(part), part.attempt, part.state, part.status, len(part.body), part.ended
    )


def part_worker(part: Part) -> str:
    """Who has a part, had it last or finished it; "" when nobody yet."""
    if part.run is not None:
        return part.run.worker.name
    return part.worker or next(reversed(part.given), "")


def result_views(order: Order) -> list[ResultView]:
    """What is recorded of a job."""
    return [
        ResultView(part.worker or part.name, part.status, part.body)
        for part in order.parts.values()
        if part.state == FINAL
    ]
