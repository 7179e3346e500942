"""Tasks that clients of deployed NorFab expect of every worker; a worker's own of the same name replaces one.

There is none that runs commands of a shell.
"""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from broker.nfp.bodies import token_client
from broker.nfp.logs import LAST_DEFAULT
from broker.nfp.opening import read_any
from broker.nfp.rendering import render
from broker.nfp.worker.context import JobContext
from broker.nfp.worker.jobs import ASKING, DONE, FAILED, RUNNING, WAITING, Job
from broker.nfp.worker.results import clock_text
from broker.nfp.worker.store import KeptJob
from broker.nfp.worker.tasks import Tasks, make
from broker.nfp.worker.versions import delete

if TYPE_CHECKING:
    from broker.nfp.worker.session import Session

LISTED: Final = 1000
"""Jobs that ``job_list`` shows unless asked for another number."""
_PACKAGES: Final = ("headgate", "pyzmq", "msgspec")
_STATES: Final = {"accepted": WAITING, "started": RUNNING, "done": DONE, "recorded": DONE}


def offer(tasks: Tasks, session: Session) -> None:
    """Add the built-in tasks that ``tasks`` has not; what tells of the process is not the business of a resident."""
    them = _Builtin(session)
    for function in (
        them.get_worker_status,
        them.get_stats,
        them.get_inventory,
        them.get_version,
        them.list_tasks,
        them.echo,
        them.job_list,
        them.job_details,
    ):
        tasks.setdefault(function.__name__, make(function))
    if session.worker.resident:
        return
    for other in (them.get_logs, them.get_watchdog_configuration, them.delete_fetched_files):
        tasks.setdefault(other.__name__, make(other))
    rendering = make(them.jinja2_render_templates, nf_text=["templates"])
    tasks.setdefault(rendering.name, rendering)


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
        found = {"python": platform.python_version(), "platform": sys.platform}
        for package in _PACKAGES:
            try:
                found[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                found[package] = ""
        return found

    async def list_tasks(self, name: str | None = None, brief: bool = False) -> list[Any]:
        """The tasks of this worker: their names (brief), the schema of one, or all schemas."""
        tasks = self._session.tasks
        if brief:
            return list(tasks.names)
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
        return self._session.watchdog.configuration()

    def delete_fetched_files(self, filepath: str = "*") -> dict[str, list[str]]:
        """Remove the files fetched for tasks whose path below their folder matches a glob pattern."""
        return delete(self._session.versions, filepath)

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
        rows = {kept.uuid: _of_kept(kept) for kept in reversed(await self._session.store.listing(LISTED))}
        rows.update((job.uuid, _of_job(job)) for job in self._session.duty.jobs)
        found = [
            {**row, "worker": self._session.name, "service": self._session.service}
            for row in reversed(rows.values())
            if uuid in (None, row["uuid"])
            and task in (None, row["task"])
            and client in (None, row["client_address"])
            and (uuid or (completed in (None, True) if row["status"] == DONE else pending in (None, True)))
        ]
        return found[:most]

    async def job_details(
        self, uuid: str | None = None, result: bool = True, events: bool = True
    ) -> dict[str, Any]:
        """Everything about one job."""
        job = self._session.duty.jobs.get(uuid or "")
        if job is not None:
            about = {**_of_job(job), "status": job.state}
            body, given = job.result, job.body
            told = list(job.events)
        else:
            kept = await self._session.store.find(uuid or "")
            if kept is None:
                raise LookupError(f"no job {(uuid or '')[:64]!r}")
            about, body, given, told = _of_kept(kept), kept.result, kept.body, []
        asked = Job("", None, "", self._session.dialect, given)
        return {
            **about,
            "args": asked.args,
            "kwargs": asked.kwargs,
            "timeout": asked.timeout_s,
            "result_data": read_any(body) if result and body else None,
            "job_events": told if events else [],
        }


def _of_job(job: Job) -> dict[str, Any]:
    status = DONE if job.state in (DONE, FAILED) else WAITING
    return _row(
        job.uuid,
        job.asker,
        job.task,
        status,
        (job.received_s, job.started_s, job.ended_s),
        job.state == ASKING,
    )


def _of_kept(kept: KeptJob) -> dict[str, Any]:
    asker = token_client(kept.client)
    times = (kept.received_s, kept.started_s, kept.ended_s)
    return _row(kept.uuid, asker, kept.task, _STATES.get(kept.state, kept.state), times, asking=False)


def _row(
    uuid: str, asker: str, task: str, status: str, times: tuple[float, float, float], asking: bool
) -> dict[str, Any]:
    received, started, ended = (clock_text(seconds) if seconds else None for seconds in times)
    return {
        "uuid": uuid,
        "client_address": asker,
        "task": task,
        "status": ASKING if asking else status,
        "received_timestamp": received or time.ctime(0),
        "started_timestamp": started,
        "completed_timestamp": ended,
    }
