"""Client library: have tasks run by workers, follow them, fetch files (NFP, "NFP/Client").

::

    async with NfpClient("me", broker=["tcp://127.0.0.1:5555"], server_key=KEY) as nfp:
        results = await nfp.run("dummy", "ping", kwargs={"n": 1})       # {worker: result}
        job = await nfp.submit("dummy", "slow", target="any", timeout_s=60)
        async for event in job.events():
            print(event.worker, event.message)
        results = await job
        await nfp.fetch("nf://configs/a.txt", to="a.txt")

    client         NfpClient: connect, submit, ask
    dialing        the way to a broker, keys, spellings of targets
    job            one job: its result, events, stream; cancel, answer
    desk           all unfinished jobs: send, send again, poll, deadlines, another broker
    outcome        what a job has got so far, and when that is all (no input or output)
    news           events of jobs and subscriptions, bounded, for any number of readers
    requests       management, inventory, events: one question, one answer
    subscription   events of the broker by sequence, gaps told
    fetching       files by ``nf://``: who has it, what is here already
    transfer       one file on its way: credits, order, digest
    keeping        jobs that survive a restart of the client, in ``store``
    store          the database behind it
    limits         how long it waits, how much it holds
    errors         what it raises
    blocking       the same names for ordinary threads (imported on its own: it starts a thread)

Works with our broker, which pushes results, and with deployed NorFab's, where a finished job is asked for. Every
request is sent again under its uuid until somebody answers, also to the next broker of the list: brokers and workers
know a uuid when they see it again.
"""

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
from broker.nfp.client.fetching import Fetched
from broker.nfp.client.job import Job
from broker.nfp.client.limits import Limits
from broker.nfp.client.news import News
from broker.nfp.client.subscription import Subscription

__all__ = [
    "FetchFailed",
    "Fetched",
    "Job",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobTimeout",
    "Limits",
    "News",
    "NfpClient",
    "RequestFailed",
    "Subscription",
    "TaskFailed",
]
