"""NorFab's ``NFPClient`` and ``NFPJobFuture`` over ``broker.nfp.client.BlockingClient``, and of its inventory what
they need.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from errno import EINVAL, ENOENT
from pathlib import Path
from typing import Any

import msgspec

from broker.errors import LinkClosed
from broker.nfp.client import FetchFailed, JobError, JobFailed, JobTimeout, RequestFailed
from broker.nfp.client.blocking import BlockingClient, BlockingJob
from broker.nfp.client.fetch import delete
from broker.nfp.inventory import Datastore
from broker.nfp.names import Code
from broker.nfp.peer.keys import PLAINTEXT, default_base_dir, found_broker_key
from broker.nfp.worker.run import Result

log = logging.getLogger("headgate")


class Inventory:
    """NorFab's inventory, from a YAML file or a mapping.

    Attributes:
        path: of the file; None for a mapping. base_dir: its folder. broker, workers, topology, hooks: its sections.

    Raises:
        ConfigError: the file cannot be used; file, line and what is wrong.
    """

    def __init__(
        self,
        path: str | None = None,
        data: Mapping[str, Any] | None = None,
        base_dir: str | None = None,
    ) -> None:
        self.path = None if data else os.path.abspath(path or "inventory.yaml")
        self.base_dir = os.path.abspath(
            base_dir or (os.path.dirname(self.path) if self.path else os.getcwd())
        )
        if self.path:
            datastore = Datastore(self.path)
            datastore.load()
            data = datastore.whole()
        self.data = dict(data or {})
        self.broker: dict[str, Any] = self.data.get("broker") or {}
        self.workers: dict[str, Any] = self.data.get("workers") or {}
        self.topology: dict[str, Any] = self.data.get("topology") or {}
        self.hooks: dict[str, Any] = self.data.get("hooks") or {}

    def server_key(self) -> str | None:
        """The broker's key: the shared one, else that of our broker, else that of NorFab's beside the inventory."""
        if self.broker.get("zmq_auth") is False:
            return PLAINTEXT
        if self.broker.get("shared_key") or found_broker_key(default_base_dir()):
            return self.broker.get("shared_key") or None
        theirs = Path(self.base_dir, "__norfab__", "files", "broker", "public_keys", "broker.key")
        return str(theirs) if theirs.exists() else None


class NFPJobFuture:
    """A job that was submitted, as NorFab's future of this name.

    Attributes:
        uuid, service, task, workers, timeout, kwargs: as submitted.
    """

    def __init__(
        self, job: BlockingJob, workers: str | list[str], timeout: float, kwargs: dict[str, Any]
    ) -> None:
        self.uuid, self.service, self.task = job.uuid, job.service, job.task
        self.workers, self.timeout, self.kwargs = workers, timeout, kwargs
        self._job = job
        self._events = job.events()

    def events(self, timeout: float | None = None) -> Iterator[dict[str, Any]]:
        """Events of the workers until the job is over, or nothing has come for ``timeout`` seconds."""
        while True:
            try:
                event = self._events.next(timeout)
            except (StopIteration, TimeoutError):
                return
            if isinstance(event.body, dict) and "event_type" in event.body:
                yield event.body

    def result(self, timeout: float | None = None, markdown: bool = False) -> Any:
        """{worker: result}; None when the job failed, or is not over within ``timeout`` seconds.

        A worker without a result at the job's own timeout has one that says so (``status`` "timeout").
        """
        wait_s = None if timeout is None or timeout >= self.timeout else timeout
        results: dict[str, Any] | None = None
        try:
            results = self._job.result(timeout_s=wait_s)
        except (JobError, LinkClosed) as error:
            log.error("job %s (%s.%s): %s", self.uuid, self.service, self.task, error)
            # its time is over, whoever noticed first: we, or the broker
            if isinstance(error, JobTimeout) or (
                isinstance(error, JobFailed) and error.status == Code.TIMEOUT
            ):
                results = self._add_late(error)
        except TimeoutError:
            pass  # it goes on
        return write_markdown(self, results) if markdown else results

    def _add_late(self, error: JobError) -> dict[str, Any]:
        asked = [self.workers] if isinstance(self.workers, str) else self.workers
        late = Result(failed=True, errors=[str(error)], task=self.task, juuid=self.uuid, service=self.service)
        late.status = "timeout"
        return {worker: msgspec.to_builtins(late) for worker in self._job.workers or asked} | error.results

    def send_response(
        self,
        input_id: str,
        value: Any,
        worker: str | None = None,
        cancel: bool = False,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Answer what a worker asks (event_type "input_request")."""
        self._job.answer(input_id, value, worker=worker or "", cancel=cancel, metadata=metadata)


class NFPClient:
    """NorFab's client of this name. Made by ``NorFab.make_client``; ``destroy`` ends it.

    Args:
        inventory: whose broker's key is used. broker: its address. name: our identity.
        exit_event: ends what waits once it is set; not needed here.
    """

    def __init__(self, inventory: Inventory, broker: str, name: str, exit_event: object = None) -> None:
        self.inventory, self.broker, self.name, self.zmq_name = inventory, broker, name, name
        self.base_dir = os.path.join(inventory.base_dir, "__norfab__", "files", "client", name)
        plain = inventory.broker.get("zmq_auth") is False
        self._nfp = BlockingClient(name, broker=broker, server_key=inventory.server_key(), insecure=plain)
        self._nfp.__enter__()

    @property
    def job_futures(self) -> dict[str, NFPJobFuture]:
        """The jobs that are not over, those of an earlier life of this client, too, by uuid."""
        jobs = self._nfp.unfinished()
        return {job.uuid: NFPJobFuture(job, "all", job.timeout_s, {}) for job in jobs}

    def submit_job(
        self,
        service: str,
        task: str,
        uuid: str | None = None,
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        workers: str | list[str] = "all",
        timeout: float = 600,
    ) -> NFPJobFuture:
        """Have ``task`` run by workers of ``service``; returns at once."""
        about: dict[str, Any] = {"args": args or (), "kwargs": kwargs, "target": workers}
        job = self._nfp.submit(service, task, uuid=uuid or "", timeout_s=timeout, **about)
        return NFPJobFuture(job, workers, timeout, kwargs or {})

    def run_job(
        self,
        service: str,
        task: str,
        uuid: str | None = None,
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        workers: str | list[str] = "all",
        timeout: float = 600,
        markdown: bool = False,
        nowait: bool = False,
    ) -> Any:
        """``submit_job`` and ``result``; with ``nowait`` the job's uuid and service at once."""
        future = self.submit_job(service, task, uuid, args, kwargs, workers, timeout)
        if nowait:
            return {"uuid": future.uuid, "service": service}
        return future.result(markdown=markdown)

    def mmi(
        self,
        service: str,
        task: str | None = None,
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        workers: str | list[str] = "all",
        uuid: str | None = None,
        timeout: float = 30,
    ) -> dict[str, Any]:
        """Ask a service of the broker: {"status", "results", "errors"}; status "408": no answer within ``timeout``."""
        words: dict[str, Any] = {"service": service, "args": args or (), "kwargs": kwargs, "target": workers}
        try:
            answer = self._nfp.mmi(task or "", timeout_s=timeout, **words)
        except RequestFailed as error:
            return {"status": str(error.status), "results": {"error": str(error)}, "errors": [str(error)]}
        except TimeoutError as error:
            late = {"status": "MMI Request Timeout"}
            return {"status": str(Code.TIMEOUT.value), "results": late, "errors": [str(error)]}
        return {"status": "200", "results": answer, "errors": []}

    def fetch_file(
        self,
        url: str | list[str],
        chunk_size: int = 256_000,
        pipeline: int = 10,
        timeout: float = 600,
        read: bool = False,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Fetch nf:// files: {"status", "content", "error"} of each; content is a path, or the text with ``read``."""
        if isinstance(url, str):
            return self._fetch_one(url, timeout, read)
        return [self._fetch_one(each, timeout, read) for each in url]

    def _fetch_one(self, url: str, timeout: float, read: bool) -> dict[str, Any]:
        to = os.path.join(self.base_dir, "fetchedfiles", *url.removeprefix("nf://").split("/"))
        try:
            path = self._nfp.fetch(url, to, timeout_s=timeout).path
        except FetchFailed as error:
            status = {ENOENT: "404", EINVAL: "500"}.get(error.errno or 0, "400")
            return {"status": status, "content": None, "error": str(error)}
        except JobError as error:
            return {"status": "404", "content": None, "error": str(error)}
        content = path.read_text(encoding="utf-8") if read else str(path)
        return {"status": "200", "content": content, "error": None}

    def delete_fetched_files(self, filepath: str = "*") -> dict[str, list[str]]:
        """Delete fetched files and folders that fit the glob ``filepath``: {"deleted", "errors"}."""
        return delete(Path(self.base_dir, "fetchedfiles"), filepath)

    def get_status(self) -> dict[str, Any]:
        """Who we are, and whether the broker answers."""
        told = {"name": self.name, "role": "client", "zmq_name": self.name, "broker": self.broker}
        return {**told, "status": "active" if self._nfp.is_connected else "starting"}

    def destroy(self) -> None:
        """Leave; what waits ends. Harmless twice."""
        self._nfp.close()


def write_markdown(future: NFPJobFuture, results: Mapping[str, Any] | None) -> str:
    """Results as Markdown: a heading for each worker, and under it all that its task has brought, as JSON."""
    lines = [f"# {future.service} {future.task}", "", f"Job `{future.uuid}`, keyword arguments:"]
    for heading, value in (("", future.kwargs), *(results or {}).items()):
        lines += [*(["", f"## {heading}"] if heading else []), "", "```json"]
        lines += [json.dumps(value, indent=2, default=str), "```"]
    return "\n".join(lines if results else [*lines, "", "No results."]) + "\n"
