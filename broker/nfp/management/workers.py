"""Workers as ``show_workers`` and ``get_stats`` tell them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.nfp.dispatch.views import WorkerView

NOBODY = {"name": "", "service": "", "status": ""}
"""What deployed NorFab tells instead of an empty list."""


def status_of(worker: WorkerView) -> str:
    """``alive`` or ``dead``: there are no others in deployed NorFab."""
    return "alive" if worker.status == "alive" else "dead"


def chosen(workers: Iterable[WorkerView], service: str, status: str) -> list[WorkerView]:
    """Those of ``service`` ("" or all: every one) that are ``status`` (alive or dead; anything else: both)."""
    return [
        worker
        for worker in workers
        if service in ("", "all", worker.service)
        and (status not in ("alive", "dead") or status_of(worker) == status)
    ]


def record(worker: WorkerView) -> dict[str, str]:
    """As deployed NorFab's clients print it, all texts; ``resources`` is an addition of ours."""
    return {
        "name": worker.name,
        "service": worker.service,
        "status": status_of(worker),
        "holdtime": str(round(max(0.0, worker.holdtime_s), 1)),
        "keepalives tx/rx": f"{worker.keepalives_sent} / {worker.keepalives_received}",
        "alive (s)": str(int(worker.alive_s)),
        "resources": ", ".join(worker.resources),
    }


def detailed(worker: WorkerView, *, owner: bool) -> dict[str, Any]:
    """As our own clients get it: the record, with numbers and lists; keys and jobs are for owners."""
    told: dict[str, Any] = {
        "name": worker.name,
        "service": worker.service,
        "status": status_of(worker),
        "state": worker.status,
        "holdtime": round(max(0.0, worker.holdtime_s), 1),
        "alive_s": round(worker.alive_s, 1),
        "keepalives": {"sent": worker.keepalives_sent, "received": worker.keepalives_received},
        "dialect": worker.dialect.value,
        "features": sorted(worker.features),
        "credits": worker.credits,
        "busy": worker.busy,
        "waiting": worker.waiting,
        **worker.ended,
        "resources": list(worker.resources),
        "tasks": list(worker.tasks),
    }
    if owner:
        told |= {"key": worker.key, "holder": worker.holder, "jobs": list(worker.jobs)}
    return told


def figures(worker: WorkerView) -> dict[str, Any]:
    """As in deployed NorFab's ``get_stats``."""
    return {
        "name": worker.name,
        "service": worker.service,
        "status": status_of(worker),
        "holdtime_seconds": round(max(0.0, worker.holdtime_s), 1),
        "uptime_seconds": int(worker.alive_s),
        "keepalives_sent": worker.keepalives_sent,
        "keepalives_received": worker.keepalives_received,
    }
