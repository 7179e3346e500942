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
from broker.nfp.frames import Packet
from broker.nfp.logs import LAST_DEFAULT
from broker.nfp.opening import read_any
from broker.nfp.process_stats import versions
from broker.nfp.rendering import render
from broker.nfp.worker.context import JobContext
from broker.nfp.worker.fetched_files import delete
from broker.nfp.worker.job_run import ASKING, COMPLETED, FAILED, PENDING, STARTED, TIMEOUT_S
from broker.nfp.worker.store import FINISHED, LISTED, StoredRun
from broker.nfp.worker.tasks import Task, make

if TYPE_CHECKING:
    from broker.nfp.worker.session import Session

OF_THE_PROCESS: Final = {
    "get_logs",
    "get_watchdog_configuration",
    "delete_fetched_files",
    "jinja2_render_templates",
}
NF_TEXT: Final = {"jinja2_render_templates": ["templates"]}
_LEAVE_AFTER_S: Final = 0.1
"""So that the answer leaves first."""
_RESIDENT: Final = {"error": "this worker lives in its broker's process and leaves with the broker"}
_PACKAGES: Final = ("headgate", "pyzmq", "msgspec")
_STATES: Final = {"accepted": PENDING, "started": STARTED, "done": COMPLETED, "recorded": COMPLETED}


def offer(tasks: dict[str, Task], session: Session) -> None:
    """Add the built-in tasks that ``tasks`` has not; what tells of the process is not the business of a resident."""
    for name, function in inspect.getmembers(_Builtin(session), inspect.ismethod):
        if name.startswith("_") or (session.worker.resident and name in OF_THE_PROCESS):
            continue
        tasks.setdefault(name, make(function, nf_text=NF_TEXT.get(name, ())))


class _Builtin:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def get_worker_status(self) -> dict[str, Any]:
        """Who this worker is and how it is connected."""
        return self._session.status()

    async def get_stats(self) -> dict[str, Any]:
        """Counts of messages and jobs, and what the process takes."""
        return self._session.stats()

    async def get_inventory(self) -> Any:
        """What the broker's inventory has for this worker."""
        return self._session.inventory

    async def get_version(self) -> dict[str, str]:
        """Versions of this worker's software."""
        return {"python": platform.python_version(), "platform": sys.platform} | versions(_PACKAGES)

    async def list_tasks(self, name: str | None = None, brief: bool = False) -> list[Any]:
        """The tasks of this worker: their names (brief), the schema of one, or all schemas."""
        tasks = self._session.tasks
        if brief:
            return sorted(tasks)
        if name is None:
            return [task.schema() for task in tasks.values()]
        task = tasks.get(name)
        if task is None:
            raise LookupError(f"no task {name[:64]!r}")
        return [task.schema()]

    async def get_logs(
        self,
        last: int = LAST_DEFAULT,
        level: str | None = None,
        logger: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> list[dict[str, Any]]:
        """The latest log records of this worker's process, oldest first; times in UTC."""
        return self._session.log.read(
            last=last, level=level or "", logger=logger or "", since=since or "", until=until or ""
        )

    async def get_watchdog_configuration(self) -> dict[str, Any]:
        """How this worker watches the memory of its process."""
        return self._session.watchdog.configuration

    def delete_fetched_files(self, filepath: str = "*") -> dict[str, list[str]]:
        """Remove the files fetched for tasks whose path below their folder matches a glob pattern."""
        return delete(self._session.files_folder, filepath)

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
        asking = {job.uuid for job in self._session.jobs.table if job.question is not None}
        rows = [_row(job, ASKING if job.uuid in asking else "") for job in self._session.known_jobs()]
        found = [
            {**row, "worker": self._session.name, "service": self._session.service}
            for row in rows
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
        running = self._session.jobs.table.get(uuid or "")
        job = running.as_stored() if running is not None else await self._session.store.find(uuid or "")
        if job is None:
            raise LookupError(f"no job {(uuid or '')[:64]!r}")
        asked = read_request(job.body)
        return {
            **_row(job, running.shown if running is not None else ""),
            "args": list(asked.args),
            "kwargs": asked.kwargs,
            "timeout": asked.timeout_s or TIMEOUT_S,
            "result_data": read_any(job.result) if result and job.result else None,
            "job_events": read_any(job.events) if events and job.events else [],
        }


def _row(job: StoredRun, state: str = "") -> dict[str, Any]:
    times = (job.received_s, job.started_s, job.ended_s)
    received, started, ended = (time.ctime(seconds) if seconds else None for seconds in times)
    return {
        "uuid": job.uuid,
        "client_address": token_client(job.client),
        "task": job.task,
        "status": state or (FAILED if job.failed else _STATES.get(job.state, job.state)),
        "received_timestamp": received or time.ctime(0),
        "started_timestamp": started,
        "completed_timestamp": ended,
    }


# -- mmi.service.worker -----------------------------------------------------------------------------


def answer_mmi(session: Session, packet: Packet) -> bytes:
    """The JSON that answers ``packet``; an unknown function is answered with the list of known ones."""
    request = read_request(packet.data)
    function = _FUNCTIONS.get(request.task)
    said: Any
    if function is None:
        said = {"error": f"no function {request.task[:64]!r}, expected one of {', '.join(_FUNCTIONS)}"}
    else:
        said = function(session)
    return write(said)


def show_broker(session: Session) -> dict[str, Any]:
    """The broker as this worker sees it."""
    heartbeat = session.jobs.heartbeat
    return {
        "endpoint": session.channel.broker,
        "connected": heartbeat.registered,
        "trouble": session.channel.trouble,
        "opened": session.jobs.opened,
        "keepalive_ms": round(heartbeat.interval_s * 1000),
        "multiplier": heartbeat.multiplier,
        "holdtime": heartbeat.hold_s,
        "keepalives_sent": heartbeat.sent,
        "keepalives_received": heartbeat.received,
        "connections": session.channel.traffic.connections,
    }


def show_workers(session: Session) -> list[dict[str, Any]]:
    """This worker: status and statistics."""
    return [{**session.status(), "stats": session.stats(), "resources": list(session.worker.resources)}]


def show_clients(session: Session) -> list[dict[str, Any]]:
    """Clients whose jobs are known here, with their numbers."""
    jobs = session.known_jobs()
    every = Counter(token_client(job.client) for job in jobs)
    unfinished = Counter(token_client(job.client) for job in jobs if job.state not in FINISHED)
    return [{"name": name, "jobs": count, "unfinished": unfinished[name]} for name, count in every.items()]


def restart(session: Session) -> dict[str, str]:
    """Finish what runs, then start anew."""
    return _leave(session, "restart")


def shutdown(session: Session) -> dict[str, str]:
    """Finish what runs, then end."""
    return _leave(session, "shutdown")


def disconnect(session: Session) -> dict[str, str]:
    """Say goodbye to the broker and connect anew, once the answer has left."""
    if session.worker.resident:
        return _RESIDENT
    session.loop.call_later(_LEAVE_AFTER_S, _reconnect, session)
    return {"status": "disconnecting"}


def _leave(session: Session, how: str) -> dict[str, str]:
    if session.worker.resident:
        return _RESIDENT
    session.loop.call_later(_LEAVE_AFTER_S, session.stop, how)
    return {"status": "restarting" if how == "restart" else "shutting down"}


def _reconnect(session: Session) -> None:
    session.jobs.heartbeat.disconnect()
    session.loop.call_later(_LEAVE_AFTER_S, session.channel.reopen, "asked to by management")


_FUNCTIONS: dict[str, Callable[[Session], Any]] = {
    function.__name__: function
    for function in (show_broker, show_workers, show_clients, restart, shutdown, disconnect)
}
