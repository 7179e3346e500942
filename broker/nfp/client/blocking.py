"""The client library for ordinary threads: the names of ``broker.nfp.client``, every call waits.

::

    from broker.nfp.client.blocking import BlockingClient

    with BlockingClient("me") as nfp:          # the broker and its key on this machine; elsewhere broker=, server_key=
        print(nfp.run("dummy", "ping", target="any"))
        job = nfp.submit("dummy", "upgrade", args=["r1"])
        for event in job.events():
            print(event.worker, event.kind, event.message)
            if event.input_id:
                job.answer(event.input_id, True)
        print(job.result())

A client runs an event loop in a thread of its own and may be used from any number of other threads at once; a reader of
events or of a stream by one at a time. Ctrl-C in a waiting call raises KeyboardInterrupt there and ends the waiting (of
``run``: the job, too). Errors are those of ``broker.nfp.client``.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from broker.loopthread import Items, LoopThread, Mirror, OpenItems, waits
from broker.nfp.client.client import NfpClient
from broker.nfp.client.events import Event, Subscription
from broker.nfp.client.job import Job


class BlockingJob(Mirror[Job]):
    """A job; each name is that of ``broker.nfp.client.job.Job``, and each call waits."""

    def __init__(self, job: Job, loop: LoopThread) -> None:
        super().__init__(job, loop)
        self.uuid = job.uuid
        self.service = job.service
        self.task = job.task
        self.timeout_s = job.timeout_s
        self.stream: Items[bytes] = Items(job.stream, loop)

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def done(self) -> bool:
        """True once the job is over."""
        return self._source.done

    @property
    def status(self) -> str:
        """The status: new, queued, dispatched, started, waiting, then done, failed, cancelled or expired."""
        return self._source.status

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that were given the job."""
        return self._source.workers

    @property
    def results(self) -> dict[str, Any]:
        """The results that have come so far."""
        return self._loop.call(lambda: self._source.results)

    @property
    def error(self) -> Exception | None:
        """Why the job did not end well; None while it runs, and when it ended well."""
        return self._source.error

    result = waits(Job.result)
    wait = waits(Job.wait)
    cancel = waits(Job.cancel)
    answer = waits(Job.answer)

    def put(self, value: Any, *, worker: str = "") -> None:
        """Send ``value`` to the running task."""
        self._loop.call(self._source.put, value, worker=worker)

    def events(self, *, from_start: bool = True) -> Items[Event]:
        """Read what happens to the job until it is over."""
        return Items(self._source.events(from_start=from_start), self._loop)


class BlockingSubscription(OpenItems[Event]):
    """Gives events of the broker: ``with nfp.subscribe() as events: for event in events``."""

    def __init__(self, subscription: Subscription, loop: LoopThread) -> None:
        super().__init__(subscription, loop)
        self._subscription = subscription

    @property
    def lost(self) -> int:
        """How many events were dropped because nobody read them in time."""
        return self._subscription.lost


class BlockingClient(Mirror[NfpClient]):
    """A client, ``with BlockingClient(...) as nfp``; it takes the arguments of ``NfpClient``."""

    def __init__(self, name: str = "", **options: Any) -> None:
        super().__init__(NfpClient(name, **options), None)
        self.name = self._source.name

    def __enter__(self) -> Self:
        loop = LoopThread()
        try:
            loop.run(self._source.__aenter__())
        except BaseException:
            loop.stop()
            raise
        self._thread = loop
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave and end the thread. Harmless twice."""
        loop, self._thread = self._thread, None
        if loop is not None:
            try:
                loop.run(self._source.close())
            finally:
                loop.stop()

    @property
    def is_connected(self) -> bool:
        """True while there is a session with a broker."""
        return self._source.is_connected

    wait_connected = waits(NfpClient.wait_connected)
    run = waits(NfpClient.run)
    mmi = waits(NfpClient.mmi)
    inventory = waits(NfpClient.inventory)
    services = waits(NfpClient.services)
    workers = waits(NfpClient.workers)
    jobs = waits(NfpClient.jobs)
    fetch = waits(NfpClient.fetch)
    list_files = waits(NfpClient.list_files)
    file_details = waits(NfpClient.file_details)

    def submit(self, service: str, task: str, **options: Any) -> BlockingJob:
        """Have ``task`` run and return its job; options as ``NfpClient.submit`` takes them."""
        return BlockingJob(self._loop.run(self._source.submit(service, task, **options)), self._loop)

    def attach(self, uuid: str, **options: Any) -> BlockingJob:
        """Return a job that was submitted before; options as ``NfpClient.attach`` takes them."""
        return BlockingJob(self._loop.run(self._source.attach(uuid, **options)), self._loop)

    def unfinished(self) -> list[BlockingJob]:
        """Return the jobs that have not ended, those of an earlier life of this client, too."""
        return [BlockingJob(job, self._loop) for job in self._loop.run(self._source.unfinished())]

    def subscribe(self, **wanted: Any) -> BlockingSubscription:
        """Subscribe to events, for the time of a ``with`` block; options as ``NfpClient.subscribe`` takes them."""
        return BlockingSubscription(self._source.subscribe(**wanted), self._loop)
