"""Workers and clients of NFP. The libraries connect again by themselves; a job's id is its uuid."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from broker.errors import LinkClosed
from broker.nfp.client import JobCancelled, JobFailed, JobTimeout, NfpClient
from broker.nfp.client.job import Job
from broker.nfp.worker import JobContext, Worker
from tests.proof.layout import Party, beside
from tests.proof.parties.party import Load, Place, run

SERVICE = "proof"
WORKERS = ("nfp-w1", "nfp-w2")
WORK_S = 0.02
LOOK_S = 0.05
PATIENCE_S = 180.0
"""Longer than any run: a job ends because the broker says so."""
EVERY_S = {"echo": 0.25, "once": 0.9, "both": 1.3}
"""Any worker; any worker and not twice; both workers by name."""


def main(party: Party, place: Place) -> int:
    return run(lambda: (Working if party.kind == "nfp-worker" else Asking)(party, place))


def _up(load: Load, conn: str) -> None:
    load.log.up(conn, load.party.at, load.userid, 0, host=beside(load.party), kind="nfp")


class Working(Load):
    """A worker that says which jobs it runs."""

    async def session(self) -> None:
        worker = Worker(
            SERVICE,
            name=self.party.name,
            broker=self.place.uri,
            server_key=self.place.server_key,
            state_dir=self.place.state,
            files=False,
            drain_s=2.0,
        )

        async def work(job: JobContext) -> str:
            self.log.job_run(job.uuid, self.party.name, job.attempt)
            await asyncio.sleep(WORK_S)
            self.log.job_run(job.uuid, self.party.name, job.attempt, begin=False)
            return job.uuid

        worker.task(name="echo")(work)
        worker.task(name="both")(work)
        worker.task(name="once", idempotent=False)(work)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop, worker)
        telling = loop.create_task(self._tell(worker))
        try:
            await worker.run()
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def _tell(self, worker: Worker) -> None:
        """The library connects again by itself; here it is one connection from the first READY on."""
        while not worker.connected:
            await asyncio.sleep(LOOK_S)
        conn = self.log.conn()
        _up(self, conn)
        await self.leaving.wait()
        self.log.down(conn, "closed")

    def _stop(self, worker: Worker) -> None:
        self._leave()
        worker.stop()


class Asking(Load):
    """A client that submits jobs and waits for their results."""

    def __init__(self, party: Party, place: Place) -> None:
        super().__init__(party, place)
        self._tasks: set[asyncio.Task[None]] = set()

    async def session(self) -> None:
        client = NfpClient(
            self.party.name,
            broker=self.place.uri,
            server_key=self.place.server_key,
            state_dir=self.place.state,
        )
        conn = self.log.conn()
        async with client:
            await client.wait_connected()
            while not set(WORKERS) <= {worker["name"] for worker in await client.workers(SERVICE)}:
                await asyncio.sleep(LOOK_S)  # a job for a name that nobody has had yet has no result
            _up(self, conn)
            for task, every_s in EVERY_S.items():
                self._start(self.every(every_s, lambda n, task=task: self._submit(client, conn, task)))
            await self.leaving.wait()
            self.log.down(conn, "closed")
            for running in self._tasks:
                running.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _submit(self, client: NfpClient, conn: str, task: str) -> None:
        ident = self.log.next_id()
        workers = WORKERS if task == "both" else None
        self.open.add(ident)
        self.log.job(ident, conn, f"{SERVICE}.{task}", workers, once=task == "once")
        job = await client.submit(
            SERVICE, task, target=workers or "any", timeout_s=PATIENCE_S, uuid=ident, keep=False
        )
        self._start(self._follow(job, ident))

    async def _follow(self, job: Job, ident: str) -> None:
        try:
            await job.accepted()
            if not job.done or job.error is None:
                self.log.job_kept(ident)
            for worker in await job.result():
                self.log.job_done(ident, 200, worker=worker)
        except JobFailed as error:
            for worker in error.results:
                self.log.job_done(ident, 200, worker=worker)
            self.log.job_done(ident, error.status)
        except JobTimeout:
            self.log.job_done(ident, 408)
        except JobCancelled:
            self.log.job_done(ident, 417)
        except (LinkClosed, asyncio.CancelledError):
            return
        finally:
            self.ended(ident)
