"""One life of a worker: from opening its store to closing its connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.errors import HeadgateError
from broker.nfp.client.client import NfpClient
from broker.nfp.logs import LogBuffer
from broker.nfp.opening import DIALECT
from broker.nfp.peer.channel import Channel
from broker.nfp.process_stats import ProcessStats
from broker.nfp.store.peers import Retention
from broker.nfp.worker import builtin
from broker.nfp.worker.fetched_files import fetch, localise
from broker.nfp.worker.job_run import COMPLETED, FAILED, PENDING, STARTED
from broker.nfp.worker.jobs import Jobs
from broker.nfp.worker.shared_loop import LoopWatch
from broker.nfp.worker.store import RunStore, StoredRun
from broker.nfp.worker.tasks import Task
from broker.tasks import first_of

if TYPE_CHECKING:
    from broker.nfp.worker.worker import Worker

log = logging.getLogger("headgate")
FEATURES: Final = ("recorded", "delete", "jobs")
"""What our OPEN asks for (see ``contract.FEATURES``)."""
INVENTORY_S: Final = 10.0
"""One attempt to get the inventory; deployed NorFab's workers wait 30 s and then go on without."""
RETRY_S: Final = 1.0
"""Between two attempts."""
VERSIONS: Final = "versions"
"""Folder of files that arguments name, in the worker's."""


class Session:
    """See the module.

    Args:
        worker: whose life it is. channel: to its brokers.
        make_client: makes the worker's own client; None: it has none, so neither inventory nor files.

    Attributes:
        inventory: of this worker, {} until there is one. ending: "" or why it ends: shutdown or restart.
        log: the latest records of this process.
    """

    def __init__(self, worker: Worker, channel: Channel, make_client: Callable[[], NfpClient] | None) -> None:
        self.worker = worker
        self.channel = channel
        self.name = channel.name
        self.service = worker.service
        self.loop = asyncio.get_running_loop()
        self.inventory: dict[str, Any] = {}
        self.inventory_status: str | None = None
        self.job_file = worker.job_file()
        self.store = RunStore(self.job_file, retention=Retention(keep_s=worker.keep_s))
        self.ending = ""
        self.log = LogBuffer(self.name, role="worker")
        self.files_folder = worker.folder / VERSIONS
        self.tasks = dict(worker.tasks)
        builtin.offer(self.tasks, self)
        self.jobs = Jobs(
            channel,
            worker.service,
            self.tasks,
            self.store,
            slots=worker.slots,
            manage=lambda packet: builtin.answer_mmi(self, packet),
            localise=self._localise,
            inventory=self.inventory,
        )
        self.drain_s = worker.drain_s
        self._make_client = make_client
        self._process = ProcessStats()
        self.watchdog = Watchdog(self.name, self._process, self.stop)
        self._loop_watch = LoopWatch(self.jobs)
        self._leave = asyncio.Event()
        self._client: NfpClient | None = None
        self._entering = asyncio.Lock()

    def stop(self, ending: str = "shutdown") -> None:
        """Finish what runs and leave; ``ending`` is shutdown or restart."""
        self.ending = self.ending or ending
        self._leave.set()

    async def work(self, ready: Callable[[], object]) -> str:
        """Until ``stop``; returns how to go on. ``ready`` is called before the first READY."""
        unrecorded = await self.store.load()
        try:
            if not self.worker.resident:
                _listen(self.log)
            self.jobs.restore(unrecorded)
            if self.worker.ask_inventory:
                self.inventory_status = "initialising"
                if not await first_of(self._ask_inventory(), self._leave.wait()):
                    return self.ending
            ready()
            if not self.worker.resident:  # else the broker itself is blocked
                self.watchdog.start(self.inventory)
                self._loop_watch.start()
            self.channel.start(self.jobs, self._open_body)
            try:
                await self._leave.wait()
                log.info("%s: leaves (%s)", self.name, self.ending)
            finally:
                await self.jobs.drain(self.drain_s if self.ending else 0.0)
                await self.channel.close()
        finally:
            self.watchdog.stop()
            self._loop_watch.stop()
            logging.getLogger().removeHandler(self.log)
            if self._client is not None:
                await self._client.close()
            await self.store.close()
        return self.ending

    def _open_body(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dialect": DIALECT,
            "features": FEATURES,
            "credits": self.worker.slots,
            "resources": list(self.worker.resources),
            "tasks": {task.name: {"idempotent": task.idempotent} for task in self.tasks.values()},
            "jobs": self.jobs.listed(),
        }

    # -- inventory and files ----------------------------------------------------------------------

    async def client(self) -> NfpClient:
        """The worker's own client, ``NAME-NFPClient``, connected when it is first needed."""
        if self._make_client is None:
            raise RuntimeError(f"worker {self.name} has no client of its own")
        async with self._entering:  # jobs that need it at once get the same one, and not before it is open
            if self._client is None:
                client = self._make_client()
                await client.__aenter__()
                self._client = client
        return self._client

    async def _ask_inventory(self) -> None:
        """Ask until the broker answers."""
        client = await self.client()
        while True:
            began = self.loop.time()
            try:
                async with asyncio.timeout(INVENTORY_S):
                    found = await client.inventory(self.name)
            except (TimeoutError, HeadgateError) as error:
                log.warning("%s: no inventory yet: %s", self.name, str(error) or "no answer")
                await asyncio.sleep(max(0.0, began + RETRY_S - self.loop.time()))
            else:
                self.inventory.update(found if isinstance(found, dict) else {})
                self.inventory_status = "completed"
                return

    async def _localise(
        self, task: Task, args: list[Any], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Fetch the files that arguments name; their paths take the place of the URLs."""
        if self._make_client is None:
            return args, kwargs

        async def fetched(url: str) -> Path:
            return await fetch(await self.client(), self.files_folder, url)

        return await localise((args, kwargs), fetched, as_text=task.nf_text)

    # -- for people -------------------------------------------------------------------------------

    def known_jobs(self) -> list[StoredRun]:
        """The jobs in the store, at most ``LISTED``, and those in memory, newest first."""
        known = {job.uuid: job for job in reversed(self.store.listing())}
        known.update((job.uuid, job.as_stored()) for job in self.jobs.table)
        return list(reversed(known.values()))

    def status(self) -> dict[str, Any]:
        """Who this worker is and how it is connected."""
        return {
            "name": self.name,
            "role": "worker",
            "service": self.service,
            "status": "stopping" if self.ending else "active",
            "broker": self.channel.broker,
            "connected": self.jobs.heartbeat.registered,
            "directories": {"base_dir": str(self.worker.folder) if self.job_file is not None else ""},
        }

    def stats(self) -> dict[str, Any]:
        """Counts of messages and jobs, and what the process takes; fields as deployed NorFab's."""
        table, traffic, heartbeat = self.jobs.table, self.channel.traffic, self.jobs.heartbeat
        return {
            "schema_version": "1.0",
            "name": self.name,
            "role": "worker",
            "status": "stopping" if self.ending else "active",
            "process": self._process.read(),
            "messaging": {
                "sent": traffic.sent,
                "received": traffic.received,
                "events_received": 0,
                "send_failures": traffic.refused,
                "receive_failures": traffic.invalid,
            },
            "service": self.service,
            "broker": self.channel.broker,
            "reconnects": max(0, traffic.connections - 1),
            "running_jobs": self.jobs.running,
            "jobs": {
                "total_jobs": table.open + table.done + table.failed,
                "jobs_by_status": {
                    PENDING: table.open - self.jobs.running,
                    STARTED: self.jobs.running,
                    COMPLETED: table.done,
                    FAILED: table.failed,
                },
            },
            "watchdog_runs": self.watchdog.runs,
            "max_concurrent_jobs": self.worker.slots,
            "keepalives_sent": heartbeat.sent,
            "keepalives_received": heartbeat.received,
            "sid_inventory_status": self.inventory_status,
        }


class Watchdog:
    """Looks now and then at how much memory the process takes, as the watchdog of deployed NorFab's workers does.

    The worker's inventory may say ``watchdog_interval`` (seconds, default 30), ``memory_threshold_mbyte`` (default
    1000) and ``memory_threshold_action``: "log" (the default), or "shutdown", which lets running jobs end.

    Args:
        name: of the worker. process: what is read. shut_down: called once it is too much, for the second action.

    Attributes:
        configuration: keys and values as deployed NorFab's ``get_watchdog_configuration``. runs: looks so far.
    """

    def __init__(self, name: str, process: ProcessStats, shut_down: Callable[[], None]) -> None:
        self.runs = 0
        self.configuration: dict[str, Any] = {
            "watchdog_interval": 30,
            "memory_threshold_mbyte": 1000,
            "memory_threshold_action": "log",
        }
        self._name = name
        self._process = process
        self._shut_down = shut_down
        self._timer: asyncio.TimerHandle | None = None

    def start(self, inventory: Mapping[str, Any]) -> None:
        """Begin, as ``inventory`` says."""
        for name, usual in self.configuration.items():
            said = inventory.get(name, usual)
            number = isinstance(said, (int, float)) and said > 0
            if number if isinstance(usual, int) else said in ("log", "shutdown"):
                self.configuration[name] = said
        self._wait()

    def stop(self) -> None:
        """End the looks. Harmless twice."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.configuration["watchdog_interval"], self._look)

    def _look(self) -> None:
        self._wait()
        self.runs += 1
        taken, most = self._process.read()["memory_rss_mbyte"], self.configuration["memory_threshold_mbyte"]
        if taken is None or taken <= most:
            return
        log.warning("%s: takes %g MiB, more than %g", self._name, taken, most)
        if self.configuration["memory_threshold_action"] == "shutdown":
            self._shut_down()


def _listen(buffer: LogBuffer) -> None:
    """Let ``buffer`` hold what the process logs; what Python shows of it without any handler it goes on showing."""
    root = logging.getLogger()
    if not root.handlers and logging.lastResort is not None:
        root.addHandler(logging.lastResort)
    root.addHandler(buffer)
