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

    worker         Worker: what it is called, settings, tasks; its life from the store to the end of the connection
    session        what is said to the broker and heard from it: signs of life, and a job from its POST until its
                   result is safe: when its task may be entered, its slot, its result
    run            one job: its states, JobContext and ThreadContext (what its task sees), Result (what it brings)
    store          all jobs, in SQLite
    shared_loop    what one task does to the loop that all share: it ends, or blocks, itself alone

    tasks          the functions, their input models and schemas, the files that arguments name
    builtin        tasks that every worker has, and mmi.service.worker
"""

from broker.nfp.client.errors import JobCancelled
from broker.nfp.worker.run import JobContext, Result, ThreadContext
from broker.nfp.worker.tasks import InvalidInput, task
from broker.nfp.worker.worker import Worker

__all__ = ["InvalidInput", "JobCancelled", "JobContext", "Result", "ThreadContext", "Worker", "task"]
