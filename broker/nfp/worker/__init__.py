"""The worker library: functions that clients of a broker, ours or deployed NorFab's, can call.

::

    from broker.nfp.worker import Worker

    worker = Worker("dummy", name="w1")    # the broker and its key on this machine; elsewhere broker=, server_key=

    @worker.task
    def ping(n=1):                         # an ordinary function runs in a thread
        return {"pong": n}

    @worker.task(idempotent=False)
    async def upgrade(job, device):        # an asynchronous one in the loop
        job.resources.append(device)
        job.progress("copying", resource=device)
        if not await job.ask(f"reload {device}?"):
            return "not reloaded"
        return "reloaded"

    worker.main()                          # until SIGTERM; or `await worker.run()`

A class of workers, and a task that is entered with valid input only, else the result says which field is wrong::

    class Port(msgspec.Struct):            # or a dataclass, or a pydantic model
        device: str
        vlan: int = 1

    class Lab(Worker):
        @task(input=Port)
        def port(self, job, device, vlan):
            ...

How a job goes through the room::

    worker         Worker: what it is called, settings, tasks, run and main
    session        one life of a worker: store, inventory, connection, end; its watchdog
    jobs           a job from its POST until its result is safe: when its task may be entered, its slot, its result
    job_run        one of them, what is known of it; the table of those that go on
    heartbeat      READY, KEEPALIVE, the broker's silence
    shared_loop    what one task does to the loop that all share: it ends, or blocks, itself alone

    tasks          the functions and their schemas
    models         their input models
    context        JobContext, ThreadContext: what a task sees of its job
    results        Result: what a task brings, in NorFab's form
    fetched_files  files that arguments name: one path for each content
    store          all jobs, in SQLite
    builtin        tasks that every worker has, and mmi.service.worker
"""

from broker.nfp.client.errors import JobCancelled
from broker.nfp.worker.context import JobContext, ThreadContext
from broker.nfp.worker.results import Result
from broker.nfp.worker.tasks import InvalidInput, task
from broker.nfp.worker.worker import Worker

__all__ = ["InvalidInput", "JobCancelled", "JobContext", "Result", "ThreadContext", "Worker", "task"]
