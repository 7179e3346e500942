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

import os
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from broker.loopthread import LoopThread
from broker.nfp.client.client import NfpClient
from broker.nfp.client.events import Event
from broker.nfp.client.fetching import Fetched
from broker.nfp.client.job import Job
from broker.nfp.client.limits import JOB_TIMEOUT_S
from broker.nfp.client.subscription import Subscription
from broker.nfp.client.transfer import Details, Progress
from broker.tasks import within

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class BlockingIterator(Generic[T_co]):
    """Gives items as they come: ``for item in items``."""

    def __init__(self, source: AsyncIterator[T_co], loop: LoopThread) -> None:
        self._source = source
        self._loop = loop

    def __iter__(self) -> Iterator[T_co]:
        return self

    def __next__(self) -> T_co:
        return self.next()

    def next(self, timeout_s: float | None = None) -> T_co:
        """Return the next item; it waits ``timeout_s`` seconds for it, None: until the end.

        Raises:
            StopIteration: the end. TimeoutError: nothing came; call again to wait on.
        """
        try:
            return self._loop.run(_next(self._source, timeout_s))
        except StopAsyncIteration:
            raise StopIteration from None


async def _next(source: AsyncIterator[T], timeout_s: float | None) -> T:
    try:
        async with within(timeout_s):
            return await anext(source)
    except TimeoutError as error:
        raise TimeoutError(f"nothing came within {timeout_s:g} s") from error


class BlockingJob:
    """A job; each name is that of ``broker.nfp.client.job.Job``, and each call waits."""

    def __init__(self, job: Job, loop: LoopThread) -> None:
        self._job = job
        self._loop = loop
        self.uuid = job.uuid
        self.service = job.service
        self.task = job.task
        self.timeout_s = job.timeout_s
        self.stream: BlockingIterator[bytes] = BlockingIterator(job.stream, loop)

    def __repr__(self) -> str:
        return repr(self._job)

    @property
    def done(self) -> bool:
        """True once the job is over."""
        return self._job.done

    @property
    def status(self) -> str:
        """The status: new, queued, dispatched, started, waiting, then done, failed, cancelled or expired."""
        return self._job.status

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that were given the job."""
        return self._job.workers

    @property
    def results(self) -> dict[str, Any]:
        """The results that have come so far."""
        return self._loop.call(lambda: self._job.results)

    @property
    def error(self) -> Exception | None:
        """Why the job did not end well; None while it runs, and when it ended well."""
        return self._job.error

    def result(self, *, check: bool = False, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the results of all its workers and return them."""
        return self._loop.run(self._job.result(check=check, timeout_s=timeout_s))

    def wait(self) -> None:
        """Return when the job is over, however it ended."""
        self._loop.run(self._job.wait())

    def events(self, *, from_start: bool = True) -> BlockingIterator[Event]:
        """Read what happens to the job until it is over."""
        return BlockingIterator(self._job.events(from_start=from_start), self._loop)

    def cancel(self) -> bool:
        """Ask the broker to end the job; return True when it says that it did."""
        return self._loop.run(self._job.cancel())

    def answer(self, input_id: str, value: Any = None, **options: Any) -> None:
        """Answer an input_request."""
        self._loop.run(self._job.answer(input_id, value, **options))

    def put(self, value: Any, *, worker: str = "") -> None:
        """Send ``value`` to the running task."""
        self._loop.call(lambda: self._job.put(value, worker=worker))


class BlockingSubscription(BlockingIterator[Event]):
    """Gives events of the broker: ``with nfp.subscribe() as events: for event in events``."""

    def __init__(self, subscription: Subscription, loop: LoopThread) -> None:
        self._subscription = subscription
        super().__init__(subscription, loop)

    def __enter__(self) -> Self:
        self._loop.run(self._subscription.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._subscription.__aexit__(kind, error, trace))

    @property
    def lost(self) -> int:
        """How many events were dropped because nobody read them in time."""
        return self._subscription.lost


class BlockingClient:
    """A client, ``with BlockingClient(...) as nfp``; it takes the arguments of ``NfpClient``."""

    def __init__(self, name: str = "", **options: Any) -> None:
        self._client = NfpClient(name, **options)
        self._loop: LoopThread | None = None
        self.name = self._client.name

    def __enter__(self) -> Self:
        loop = LoopThread()
        try:
            loop.run(self._client.__aenter__())
        except BaseException:
            loop.stop()
            raise
        self._loop = loop
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave and end the thread. Harmless twice."""
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.run(self._client.close())
            finally:
                loop.stop()

    @property
    def _thread(self) -> LoopThread:
        if self._loop is None:
            raise RuntimeError("the client is not open: use `with BlockingClient(...)`")
        return self._loop

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            thread = self._thread
        except RuntimeError:
            work.close()
            raise
        return thread.run(work)

    @property
    def is_connected(self) -> bool:
        """True while there is a session with a broker."""
        return self._client.is_connected

    def wait_connected(self, timeout_s: float | None = None) -> str:
        """Wait for a session and return the broker's address."""
        return self._run(self._client.wait_connected(timeout_s))

    def submit(self, service: str, task: str, **options: Any) -> BlockingJob:
        """Have ``task`` run and return its job; options as ``NfpClient.submit`` takes them."""
        return BlockingJob(self._run(self._client.submit(service, task, **options)), self._thread)

    def run(self, service: str, task: str, **options: Any) -> dict[str, Any]:
        """Have ``task`` run and return the results; options as ``NfpClient.run`` takes them."""
        return self._run(self._client.run(service, task, **options))

    def attach(self, uuid: str, *, service: str = "", timeout_s: float = JOB_TIMEOUT_S) -> BlockingJob:
        """Return a job that was submitted before."""
        return BlockingJob(
            self._run(self._client.attach(uuid, service=service, timeout_s=timeout_s)), self._thread
        )

    def unfinished(self) -> list[BlockingJob]:
        """Return the jobs that have not ended, those of an earlier life of this client, too."""
        return [BlockingJob(job, self._thread) for job in self._run(self._client.unfinished())]

    def mmi(self, task: str, *, kwargs: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Ask a service of the broker itself and return its answer; options as ``NfpClient.mmi`` takes them."""
        return self._run(self._client.mmi(task, kwargs=kwargs, **options))

    def inventory(self, name: str = "") -> Any:
        """Return what the broker's inventory has for ``name``."""
        return self._run(self._client.inventory(name))

    def services(self) -> list[dict[str, Any]]:
        """Return the services with their workers."""
        return self._run(self._client.services())

    def workers(self, service: str = "") -> list[dict[str, Any]]:
        """Return the workers as ``show_workers`` tells them."""
        return self._run(self._client.workers(service))

    def jobs(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return jobs of the broker's store."""
        return self._run(self._client.jobs(**wanted))

    def subscribe(
        self, *, uuid: str = "", service: str = "", kinds: Iterable[str] = (), since: int | None = None
    ) -> BlockingSubscription:
        """Subscribe to events of all jobs that we may see, for the time of a ``with`` block."""
        subscription = self._client.subscribe(uuid=uuid, service=service, kinds=kinds, since=since)
        return BlockingSubscription(subscription, self._thread)

    def fetch(
        self,
        url: str,
        to: str | os.PathLike[str] | None = None,
        *,
        progress: Progress | None = None,
        timeout_s: float = JOB_TIMEOUT_S,
    ) -> Fetched:
        """Fetch the file ``nf://PATH`` and return where it is; ``progress`` is called in the client's thread."""
        return self._run(self._client.fetch(url, to, progress=progress, timeout_s=timeout_s))

    def list_files(self, url: str = "nf://", *, timeout_s: float = 60.0) -> list[str]:
        """Return the names in a folder of the shared files."""
        return self._run(self._client.list_files(url, timeout_s=timeout_s))

    def file_details(self, url: str, *, timeout_s: float = 60.0) -> Details:
        """Return size and digests of a shared file."""
        return self._run(self._client.file_details(url, timeout_s=timeout_s))
