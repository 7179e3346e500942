"""Client library: have tasks run by workers, follow them, fetch files (NFP, "NFP/Client").

::

    import asyncio
    from broker.nfp.client import NfpClient

    async def main():
        async with NfpClient("me") as nfp:     # the broker and its key on this machine; elsewhere broker=, server_key=
            print(await nfp.run("dummy", "ping", kwargs={"n": 1}))      # {worker: result}
            job = await nfp.submit("dummy", "upgrade", args=["r1"], target="any", timeout_s=60)
            async for event in job.events():
                print(event.worker, event.kind, event.message)
                if event.input_id:
                    await job.answer(event.input_id, True)
            print(await job)
            await nfp.fetch("nf://configs/a.txt", to="a.txt")

    asyncio.run(main())

A client with a name keeps the jobs that it submits in ``store_path`` and finds them again after a restart
(``unfinished``, ``attach``); ``store=False`` keeps none, nor does a client without a name.

::

    client         NfpClient: connect, submit, ask; send, send again, poll, deadlines, another broker
    job            one job: its result, events, stream; cancel, answer; one question; limits of a client
    events         events of jobs, bounded, for any number of readers; subscriptions to those of all jobs
    fetch          files by ``nf://``: who has it, what is here already, one on its way
    store          the jobs of a named client on disk: they survive its restart
    errors         what it raises
    blocking       the same for ordinary threads (BlockingClient; loaded when it is asked for)

Works with our broker, which pushes results, and with deployed NorFab's, where a finished job is asked for. Every
request is sent again under its uuid until somebody answers, also to the next broker of the list: brokers and workers
know a uuid when they see it again.
"""

from typing import TYPE_CHECKING, Any

from broker.nfp.client.client import NfpClient
from broker.nfp.client.errors import (
    FetchFailed,
    JobCancelled,
    JobError,
    JobFailed,
    JobTimeout,
    RequestFailed,
    TaskFailed,
)
from broker.nfp.client.events import Event, Subscription
from broker.nfp.client.fetch import Fetched
from broker.nfp.client.job import Job, Limits

if TYPE_CHECKING:
    from broker.nfp.client.blocking import BlockingClient

__all__ = [
    "BlockingClient",
    "Event",
    "FetchFailed",
    "Fetched",
    "Job",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobTimeout",
    "Limits",
    "NfpClient",
    "RequestFailed",
    "Subscription",
    "TaskFailed",
]


def __getattr__(name: str) -> Any:
    """Load what brings threads with it only for those who want it."""
    if name == "BlockingClient":
        from broker.nfp.client.blocking import BlockingClient

        return BlockingClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
