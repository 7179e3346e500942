"""What every worker answers of itself: tasks, and ``mmi.service.worker``.

Tasks are those that clients of deployed NorFab expect of every worker; a worker's own of the same name replaces one.
There is none that runs commands of a shell.

``mmi.service.worker`` is what may be asked of a worker itself (NFP, "Worker Management Interface"). The broker passes
such requests on and asks its rules before: without any, show_* is for users and owners, restart, shutdown and
disconnect are for owners, and guests get nothing. A resident worker, one that lives in its broker's process, leaves
with the broker and not before.
"""

from __future__ import annotations

import asyncio
import inspect
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.nfp.bodies import read_request, token_client, write
from broker.nfp.client.client import FETCHED
from broker.nfp.client.fetch import delete
from broker.nfp.frames import Packet
from broker.nfp.opening import read_any
from broker.nfp.rendering import render
from broker.nfp.self_report import LAST_DEFAULT, versions
from broker.nfp.worker.run import TIMEOUT_S, JobContext
from broker.nfp.worker.store import COMPLETED, FAILED, FINISHED, LISTED, StoredRun
from broker.nfp.worker.tasks import Task, make

if TYPE_CHECKING:
    from broker.nfp.worker.worker import Worker

OF_THE_PROCESS: Final = {
    "get_logs",
    "get_watchdog_configuration",
    "delete_fetched_files",
    "jinja2_render_templates",
}
NF_TEXT: Final = {"jinja2_render_templates": ["templates"]}
_LEAVE_AFTER_S: Final = 0.1
"""So that the answer leaves first."""
_PACKAGES: Final = ("headgate", "pyzmq", "msgspec")


def tasks_of(worker: Worker) -> dict[str, Task]:
    """The built-in tasks, by name; what tells of the process is not the business of a resident."""
    found = inspect.getmembers(_Builtin(worker), inspect.ismethod)
    return {
        name: make(function, nf_text=NF_TEXT.get(name, ()))
        for name, function in found
        if not name.startswith("_") and not (worker.resident and name in OF_THE_PROCESS)
    }


class _Builtin:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def get_worker_status(self) -> dict[str, Any]:
        """Who this worker is and how it is connected."""
        return _status(self._worker)

    async def get_stats(self) -> dict[str, Any]:
        """Counts of messages and jobs, and what the process takes."""
        return _stats(self._worker)

    async def get_inventory(self) -> Any:
        """What the broker's inventory has for this worker."""
        return self._worker.inventory

    async def get_version(self) -> dict[str, str]:
        """Versions of this worker's software."""
        return {"python": platform.python_version(), "platform": sys.platform} | versions(_PACKAGES)

    async def list_tasks(self, name: str | None = None, brief: bool = False) -> list[Any]:
        """The tasks of this worker: their names (brief), the schema of one, or all schemas."""
        tasks = self._worker.session.tasks
        if brief:
            return sorted(tasks)
        if name is not None and name not in tasks:
            raise LookupError(f"no task {name[:64]!r}")
        return [task.schema() for task in tasks.values() if name in (None, task.name)]

    async def get_logs(
        self,
        last: int = LAST_DEFAULT,
        level: str | None = None,
        logger: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> list[dict[str, Any]]:
        """The latest log records of this worker's process, oldest first; times in UTC."""
        read = self._worker.log.read
        return read(last=last, level=level or "", logger=logger or "", since=since or "", until=until or "")

    async def get_watchdog_configuration(self) -> dict[str, Any]:
        """How this worker watches the memory of its process."""
        return self._worker.watchdog

    def delete_fetched_files(self, filepath: str = "*") -> dict[str, list[str]]:
        """Remove the files fetched for tasks whose path below their folder matches a glob pattern."""
        return delete(self._worker.folder / FETCHED, filepath)

    def jinja2_render_templates(
        self, templates: str | list[str], context: dict[str, Any] | None = None
    ) -> str:
        """Render Jinja2 templates, each a text or the ``nf://`` URL of one, and join them by line ends."""
        texts = [templates] if isinstance(templates, str) else templates
        return "\n".join(
            render(text, f"template {number}", context or {}) for number, text in enumerate(texts, 1)
        )

    async def echo(
        self,
        job: JobContext,
        raise_error: bool | int | str | None = None,
        sleep: float | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Say what was asked, after ``sleep`` seconds; with ``raise_error``, fail with it."""
        if sleep:
            await asyncio.sleep(float(sleep))
        if raise_error:
            raise RuntimeError(raise_error)
        return {
            "juuid": job.uuid,
            "client_address": job.client,
            "timeout": job.timeout_s,
            "task": job.task,
            "args": args,
            "kwargs": kwargs,
        }

    async def job_list(
        self,
        pending: bool | None = True,
        completed: bool | None = True,
        task: str | None = None,
        last: int | None = None,
        client: str | None = None,
        uuid: str | None = None,
    ) -> list[dict[str, Any]]:
        """This worker's jobs, newest first."""
        most = last if isinstance(last, int) and last > 0 else LISTED
        worker = {"worker": self._worker.name, "service": self._worker.service}
        found = [
            {**row, **worker}
            for row in map(_row, self._worker.session.known_jobs())
            if uuid in (None, row["uuid"])
            and task in (None, row["task"])
            and client in (None, row["client_address"])
            and (uuid or (completed if row["status"] in (COMPLETED, FAILED) else pending) in (None, True))
        ]
        return found[:most]

    async def job_details(
        self, uuid: str | None = None, result: bool = True, events: bool = True
    ) -> dict[str, Any]:
        """Everything about one job."""
        session = self._worker.session
        running = session.jobs.get(uuid or "")
        job = running.as_stored() if running is not None else await session.store.find(uuid or "")
        if job is None:
            raise LookupError(f"no job {(uuid or '')[:64]!r}")
        asked = read_request(job.body)
        return {
            **_row(job),
            "args": list(asked.args),
            "kwargs": asked.kwargs,
            "timeout": asked.timeout_s or TIMEOUT_S,
            "result_data": read_any(job.result) if result and job.result else None,
            "job_events": read_any(job.events) if events and job.events else [],
        }


def _row(job: StoredRun) -> dict[str, Any]:
    times = (job.received_s, job.started_s, job.ended_s)
    received, started, ended = (time.ctime(seconds) if seconds else None for seconds in times)
    return {
        "uuid": job.uuid,
        "client_address": token_client(job.client),
        "task": job.task,
        "status": job.shown,
        "received_timestamp": received or time.ctime(0),
        "started_timestamp": started,
        "completed_timestamp": ended,
    }


def _status(worker: Worker) -> dict[str, Any]:
    session = worker.session
    return {
        "name": worker.name,
        "role": "worker",
        "service": worker.service,
        "status": "stopping" if worker.ending else "active",
        "broker": session.channel.broker,
        "connected": session.registered,
        "directories": {"base_dir": str(worker.folder) if worker.job_file() is not None else ""},
    }


def _stats(worker: Worker) -> dict[str, Any]:
    """Fields as deployed NorFab's."""
    session, running = worker.session, len(worker.session.running)
    traffic = session.channel.traffic
    return {
        "schema_version": "1.0",
        "name": worker.name,
        "role": "worker",
        "status": "stopping" if worker.ending else "active",
        "process": worker.process.read(),
        "messaging": {
            "sent": traffic.sent,
            "received": traffic.received,
            "events_received": 0,
            "send_failures": traffic.refused,
            "receive_failures": traffic.invalid,
        },
        "service": worker.service,
        "broker": session.channel.broker,
        "reconnects": max(0, traffic.connections - 1),
        "running_jobs": running,
        "jobs": {
            "total_jobs": session.open + session.done + session.failed,
            "jobs_by_status": {
                "PENDING": session.open - running,
                "STARTED": running,
                COMPLETED: session.done,
                FAILED: session.failed,
            },
        },
        "watchdog_runs": worker.watchdog_runs,
        "max_concurrent_jobs": worker.slots,
        "keepalives_sent": session.keepalives_sent,
        "keepalives_received": session.keepalives_received,
        "sid_inventory_status": worker.inventory_status,
    }


# -- mmi.service.worker -----------------------------------------------------------------------------


def answer_mmi(worker: Worker, packet: Packet) -> bytes:
    """The JSON that answers ``packet``; an unknown function is answered with the list of known ones."""
    asked = read_request(packet.data).task
    function = _FUNCTIONS.get(asked)
    if function is None:
        return write({"error": f"no function {asked[:64]!r}, expected one of {', '.join(_FUNCTIONS)}"})
    return write(function(worker))


def show_broker(worker: Worker) -> dict[str, Any]:
    """The broker as this worker sees it."""
    session = worker.session
    return {
        "endpoint": session.channel.broker,
        "connected": session.registered,
        "trouble": session.channel.trouble,
        "opened": session.opened,
        "keepalive_ms": session.said.keepalive_ms,
        "multiplier": session.said.multiplier,
        "holdtime": round(session.hold_s, 1),
        "keepalives_sent": session.keepalives_sent,
        "keepalives_received": session.keepalives_received,
        "connections": session.channel.traffic.connections,
    }


def show_workers(worker: Worker) -> list[dict[str, Any]]:
    """This worker: status and statistics."""
    return [{**_status(worker), "stats": _stats(worker), "resources": worker.resources}]


def show_clients(worker: Worker) -> list[dict[str, Any]]:
    """Clients whose jobs are known here, with their numbers."""
    jobs = worker.session.known_jobs()
    every = Counter(token_client(job.client) for job in jobs)
    unfinished = Counter(token_client(job.client) for job in jobs if job.state not in FINISHED)
    return [{"name": name, "jobs": count, "unfinished": unfinished[name]} for name, count in every.items()]


def restart(worker: Worker) -> dict[str, str]:
    """Finish what runs, then start anew."""
    return _leave(worker, "restarting", worker.stop, "restart")


def shutdown(worker: Worker) -> dict[str, str]:
    """Finish what runs, then end."""
    return _leave(worker, "shutting down", worker.stop, "shutdown")


def disconnect(worker: Worker) -> dict[str, str]:
    """Say goodbye to the broker and connect anew, once the answer has left."""
    session = worker.session

    def leave() -> None:
        session.disconnect()
        session.loop.call_later(_LEAVE_AFTER_S, session.channel.reopen, "asked to by management")

    return _leave(worker, "disconnecting", leave)


def _leave(worker: Worker, status: str, leave: Callable[..., None], *how: str) -> dict[str, str]:
    if worker.resident:
        return {"error": "this worker lives in its broker's process and leaves with the broker"}
    worker.session.loop.call_later(_LEAVE_AFTER_S, leave, *how)
    return {"status": status}


_FUNCTIONS: dict[str, Callable[[Worker], Any]] = {
    function.__name__: function
    for function in (show_broker, show_workers, show_clients, restart, shutdown, disconnect)
}
