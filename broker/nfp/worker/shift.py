"""One life of a worker: from opening its store to closing its connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.errors import HeadgateError
from broker.nfp.figures import ProcessFigures
from broker.nfp.names import Dialect
from broker.nfp.opening import DIALECT
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

log = logging.getLogger("headgate")
FEATURES: Final = ("recorded", "delete", "jobs")
"""What our OPEN asks for (see ``contract.FEATURES``)."""
INVENTORY_S: Final = 10.0
"""One attempt to get the inventory; deployed NorFab's workers wait 30 s and then go on without."""
RETRY_S: Final = 1.0
"""Between two attempts."""
VERSIONS: Final = "versions"
"""Folder of files that arguments name, in ``base_dir``."""


class Means(NamedTuple):
    """What a shift works with.

    ``client`` makes the worker's own client, None: it has none, so neither inventory nor files. ``slots``: jobs at a
    time. ``inventory``: whether it is asked for before READY. ``base_dir``: where state is kept, "" for nowhere.
    ``resident``: it lives in its broker's process, and management cannot end it.
    """

    channel: Channel
    service: str
    tasks: Tasks
    store: SqliteJobStore
    resources: Sequence[str]
    slots: int
    drain_s: float
    inventory: bool
    client: Callable[[], NfpClient] | None
    base_dir: str = ""
    accept_after_s: float | None = None
    resident: bool = False


class Shift:
    """See the module.

    Attributes:
        inventory: of this worker, {} until there is one. how: "" or why it ends: shutdown or restart.
    """

    def __init__(self, means: Means) -> None:
        self.channel = means.channel
        self.name = means.channel.name
        self.service = means.service
        self.resources = means.resources
        self.dialect = Dialect.NORFAB
        self.loop = asyncio.get_running_loop()
        self.inventory: dict[str, Any] = {}
        self.inventory_status: str | None = None
        self.store = means.store
        self.resident = means.resident
        self.how = ""
        self.tasks = Tasks()
        for task in means.tasks:
            self.tasks.add(task)
        builtin.offer(self.tasks, self)
        timing = {} if means.accept_after_s is None else {"accept_after_s": means.accept_after_s}
        self.duty = Duty(means.channel, means.service, self.tasks, means.store, self._manage, **timing)
        self._means = means
        self._process = ProcessFigures()
        self._leave = asyncio.Event()
        self._client: NfpClient | None = None
        self._entering = asyncio.Lock()
        self.duty.runner = self.duty.admission.runner = self.runner = Runner(
            self.tasks,
            self.duty.delivery,
            means.slots,
            self.duty.admission.begin,
            self.duty.ended,
            self._localise,
            self.inventory,
        )

    def stop(self, how: str = "shutdown") -> None:
        """Finish what runs and leave; ``how`` is shutdown or restart."""
        self.how = self.how or how
        self._leave.set()

    async def work(self, ready: Callable[[], object] = lambda: None) -> str:
        """Until ``stop``; returns how to go on. ``ready`` is called before the first READY."""
        unrecorded = await self.store.open()
        try:
            self.duty.restore(unrecorded)
            if self._means.inventory and not await self._take_inventory():
                return self.how
            ready()
            self.channel.start(self.duty, self._open_body)
            try:
                await self._leave.wait()
                log.info("%s: leaves (%s)", self.name, self.how)
            finally:
                await self.duty.drain(self._means.drain_s if self.how else 0.0)
                await self.channel.close()
        finally:
            if self._client is not None:
                await self._client.close()
            await self.store.close()
        return self.how

    def _open_body(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dialect": DIALECT,
            "features": FEATURES,
            "credits": self._means.slots,
            "resources": list(self.resources),
            "tasks": {task.name: {"idempotent": task.idempotent} for task in self.tasks},
            "jobs": self.duty.held(),
        }

    def _manage(self, packet: Packet) -> bytes:
        return management.answer(self, packet)

    # -- inventory and files ----------------------------------------------------------------------

    async def client(self) -> NfpClient:
        """The worker's own client, ``NAME-NFPClient``, connected when it is first needed."""
        if self._means.client is None:
            raise RuntimeError(f"worker {self.name} has no client of its own")
        async with self._entering:  # jobs that need it at once get the same one, and not before it is open
            if self._client is None:
                client = self._means.client()
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
        if self._means.client is None or not any(_mentions(value) for value in (*args, *kwargs.values())):
            return args, kwargs
        from broker.nfp.files.fetching import localise
        from broker.nfp.worker.versions import Versions

        client = await self.client()
        folder = (client.state_dir or Path.cwd()) / VERSIONS
        return await localise((args, kwargs), Versions(client, folder).fetch, as_text=task.nf_text)

    # -- for people -------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Who this worker is and how it is connected."""
        return {
            "name": self.name,
            "role": "worker",
            "service": self.service,
            "status": "stopping" if self.how else "active",
            "broker": self.channel.broker,
            "connected": self.duty.presence.registered,
            "directories": {"base_dir": self._means.base_dir},
        }

    def stats(self) -> dict[str, Any]:
        """Counts of messages and jobs, and what the process takes; fields as deployed NorFab's."""
        jobs, traffic, presence = self.duty.jobs, self.channel.traffic, self.duty.presence
        return {
            "schema_version": "1.0",
            "name": self.name,
            "role": "worker",
            "status": "stopping" if self.how else "active",
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
            "max_concurrent_jobs": self._means.slots,
            "keepalives_sent": presence.sent,
            "keepalives_received": presence.received,
            "sid_inventory_status": self.inventory_status,
        }


def _mentions(value: Any) -> bool:
    """Whether ``value`` may hold an ``nf://`` URL: a quick look, before the thorough one."""
    if isinstance(value, str):
        return value.startswith(SCHEME)
    return isinstance(value, (list, tuple, dict))
