"""One life of a worker: from opening its store to closing its connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.errors import HeadgateError
from broker.nfp.logs import LogBuffer
from broker.nfp.names import Dialect
from broker.nfp.opening import DIALECT
from broker.nfp.process_stats import ProcessStats
from broker.nfp.store.shelf import Retention
from broker.nfp.urls import SCHEME
from broker.nfp.worker import builtin, management
from broker.nfp.worker.duty import Duty
from broker.nfp.worker.jobs import DONE, FAILED, RUNNING, WAITING
from broker.nfp.worker.running import Runner
from broker.nfp.worker.store import SqliteJobStore
from broker.nfp.worker.tasks import Task, Tasks

if TYPE_CHECKING:
    from broker.nfp.client.client import NfpClient
    from broker.nfp.frames import Packet
    from broker.nfp.peer.channel import Channel
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
        self.dialect = Dialect.NORFAB
        self.loop = asyncio.get_running_loop()
        self.inventory: dict[str, Any] = {}
        self.inventory_status: str | None = None
        self.job_file = worker.job_file()
        self.store = SqliteJobStore(self.job_file, retention=Retention(keep_s=worker.keep_s))
        self.ending = ""
        self.log = LogBuffer(self.name, role="worker")
        self.versions = worker.folder / VERSIONS
        self.tasks = Tasks(worker.tasks)
        builtin.offer(self.tasks, self)
        self.duty = Duty(channel, worker.service, self.tasks, self.store, self._manage)
        self.drain_s = worker.drain_s
        self._make_client = make_client
        self._process = ProcessStats()
        self.watchdog = Watchdog(self.name, self._process, self.stop)
        self._leave = asyncio.Event()
        self._client: NfpClient | None = None
        self._entering = asyncio.Lock()
        self.duty.runner = self.duty.admission.runner = self.runner = Runner(
            self.tasks,
            self.duty.delivery,
            worker.slots,
            self.duty.admission.begin,
            self.duty.ended,
            self._localise,
            self.inventory,
        )

    def stop(self, ending: str = "shutdown") -> None:
        """Finish what runs and leave; ``ending`` is shutdown or restart."""
        self.ending = self.ending or ending
        self._leave.set()

    async def work(self, ready: Callable[[], object]) -> str:
        """Until ``stop``; returns how to go on. ``ready`` is called before the first READY."""
        unrecorded = await self.store.open()
        try:
            if not self.worker.resident:
                _listen(self.log)
            self.duty.restore(unrecorded)
            if self.worker.ask_inventory and not await self._take_inventory():
                return self.ending
            ready()
            if not self.worker.resident:
                self.watchdog.start(self.inventory)
            self.channel.start(self.duty, self._open_body)
            try:
                await self._leave.wait()
                log.info("%s: leaves (%s)", self.name, self.ending)
            finally:
                await self.duty.drain(self.drain_s if self.ending else 0.0)
                await self.channel.close()
        finally:
            self.watchdog.stop()
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
            "jobs": self.duty.held(),
        }

    def _manage(self, packet: Packet) -> bytes:
        return management.answer(self, packet)

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

    async def _take_inventory(self) -> bool:
        """Ask until the broker answers; False when the worker has to leave before."""
        self.inventory_status = "initialising"
        asking = self.loop.create_task(self._ask_inventory(), name=f"inventory of {self.name}")
        leaving = self.loop.create_task(self._leave.wait(), name=f"end of {self.name}")
        try:
            await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return False
            self.inventory.update(asking.result())
            self.inventory_status = "completed"
            return True
        finally:
            for task in (asking, leaving):
                task.cancel()
            await asyncio.wait((asking, leaving))

    async def _ask_inventory(self) -> dict[str, Any]:
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
                return found if isinstance(found, dict) else {}

    async def _localise(
        self, task: Task, args: list[Any], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Fetch the files that arguments name; their paths take the place of the URLs."""
        if self._make_client is None or not any(_mentions(value) for value in (*args, *kwargs.values())):
            return args, kwargs
        from broker.nfp.files.fetching import localise
        from broker.nfp.worker.versions import Versions

        client = await self.client()
        fetch = Versions(client, self.versions).fetch
        return await localise((args, kwargs), fetch, as_text=task.nf_text)

    # -- for people -------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Who this worker is and how it is connected."""
        return {
            "name": self.name,
            "role": "worker",
            "service": self.service,
            "status": "stopping" if self.ending else "active",
            "broker": self.channel.broker,
            "connected": self.duty.presence.registered,
            "directories": {"base_dir": str(self.worker.folder) if self.job_file is not None else ""},
        }

    def stats(self) -> dict[str, Any]:
        """Counts of messages and jobs, and what the process takes; fields as deployed NorFab's."""
        jobs, traffic, presence = self.duty.jobs, self.channel.traffic, self.duty.presence
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
            "running_jobs": self.runner.running,
            "jobs": {
                "total_jobs": jobs.open + jobs.done + jobs.failed,
                "jobs_by_status": {
                    WAITING: jobs.open - self.runner.running,
                    RUNNING: self.runner.running,
                    DONE: jobs.done,
                    FAILED: jobs.failed,
                },
            },
            "watchdog_runs": self.watchdog.runs,
            "max_concurrent_jobs": self.worker.slots,
            "keepalives_sent": presence.sent,
            "keepalives_received": presence.received,
            "sid_inventory_status": self.inventory_status,
        }


def _mentions(value: Any) -> bool:
    """Whether ``value`` may hold an ``nf://`` URL: a quick look, before the thorough one."""
    if isinstance(value, str):
        return value.startswith(SCHEME)
    return isinstance(value, (list, tuple, dict))


class Watchdog:
    """Looks now and then at how much memory the process takes, as the watchdog of deployed NorFab's workers does.

    The worker's inventory may say ``watchdog_interval`` (seconds, default 30), ``memory_threshold_mbyte`` (default
    1000) and ``memory_threshold_action``: "log" (the default), or "shutdown", which lets running jobs end.

    Args:
        name: of the worker. process: what is read. shut_down: called once it is too much, for the second action.
    """

    def __init__(self, name: str, process: ProcessStats, shut_down: Callable[[], None]) -> None:
        self.runs = 0
        self._name = name
        self._process = process
        self._shut_down = shut_down
        self._timer: asyncio.TimerHandle | None = None
        self._read({})

    def _read(self, inventory: Mapping[str, Any]) -> None:
        def positive(name: str, default: float) -> float:
            said = inventory.get(name)
            return said if isinstance(said, (int, float)) and said > 0 else default

        self._interval_s = positive("watchdog_interval", 30)
        self._threshold_mbyte = positive("memory_threshold_mbyte", 1000)
        self._action = "shutdown" if inventory.get("memory_threshold_action") == "shutdown" else "log"

    def start(self, inventory: Mapping[str, Any]) -> None:
        """Begin, as ``inventory`` says."""
        self._read(inventory)
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def stop(self) -> None:
        """End. Harmless twice."""
        if self._timer is not None:
            self._timer.cancel()

    def configuration(self) -> dict[str, Any]:
        """Keys as in deployed NorFab's ``get_watchdog_configuration``."""
        return {
            "watchdog_interval": self._interval_s,
            "memory_threshold_mbyte": self._threshold_mbyte,
            "memory_threshold_action": self._action,
        }

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)
        self.runs += 1
        taken = self._process.read()["memory_rss_mbyte"]
        if taken is None or taken <= self._threshold_mbyte:
            return
        log.warning("%s: takes %g MiB, more than %g", self._name, taken, self._threshold_mbyte)
        if self._action == "shutdown":
            self._shut_down()


def _listen(buffer: LogBuffer) -> None:
    """Let ``buffer`` hold what the process logs; what Python shows of it without any handler it goes on showing."""
    root = logging.getLogger()
    if not root.handlers and logging.lastResort is not None:
        root.addHandler(logging.lastResort)
    root.addHandler(buffer)
