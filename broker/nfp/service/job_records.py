"""What a request with STREAMING is told of its job, in order."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from broker.nfp.client.events import Event
from broker.nfp.client.job import Job
from broker.nfp.service.payloads import results_of

Record = dict[str, Any]


async def tell_records(job: Job) -> AsyncGenerator[Record, None]:
    """What comes of ``job`` until it is over.

    Events and streams that a slow reader has no room for are dropped, the oldest first, and a record ``gap`` stands in
    their place; results are all told.
    """
    told: set[str] = set()
    accepted, lost = False, 0
    events = job.events(once=True)
    async for event in events:
        if events.lost > lost:
            yield {"type": "gap", "lost": events.lost - lost}
            lost = events.lost
            if not accepted:  # that, too, was dropped, and the caller has to know the uuid
                accepted = True
                yield _tell_accepted(job, "dispatched", job.workers)
        if event.kind in ("queued", "dispatched"):
            accepted = True
            workers = event.body.get("workers") if event.kind == "dispatched" else ()
            yield _tell_accepted(job, event.kind, workers or ())
        elif event.kind == "stream":
            yield {"type": "stream", "data": b64encode(event.body).decode()}
        elif event.kind in ("finished", "failed", "cancelled"):
            for record in _tell_settled(job, told):
                yield record
        else:
            yield _tell_event(event)
    for record in _tell_settled(job, told, every=True):
        yield record


def _tell_accepted(job: Job, status: str, workers: Any) -> Record:
    record: Record = {"type": "accepted", "uuid": job.uuid, "status": status, "workers": list(workers)}
    return record | ({"missing": list(job.missing)} if job.missing else {})


def _tell_settled(job: Job, told: set[str], *, every: bool = False) -> Iterator[Record]:
    """Results and errors of workers that were not ``told``; one without a name may have one at the end."""
    for worker, result in results_of(job).items():
        if worker not in told and (worker or every):
            told.add(worker)
            yield {"type": "result", "worker": worker, "result": result}
    for worker, failure in job.outcome.failures.items():
        if worker not in told:
            told.add(worker)
            yield {"type": "failed", "worker": worker, "status": failure.status, "error": failure.text}


def _tell_event(event: Event) -> Record:
    body = None if event.kind == "accepted" else event.body
    return {
        "type": "event",
        "worker": event.worker,
        "kind": event.kind,
        "message": event.message,
        "event": body,
    }
