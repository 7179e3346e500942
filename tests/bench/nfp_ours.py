"""Our worker and client, driven as ``tests/live/norfab_side.py`` drives NorFab's.

::

    python -m tests.bench.nfp_ours worker ENDPOINT KEY NAME FOLDER [SLOTS]
    python -m tests.bench.nfp_ours client ENDPOINT KEY NAME FOLDER

The client takes ``{"do": "sequence" | "many", "task": ..., "count": N, "kwargs": {...}, "workers": "any"}`` a line and
answers each with a line. ``many`` first tells ``{"submitted": N}`` once every job is accepted.
"""

import asyncio
import json
import sys
import time
from typing import Any

from broker.nfp.client import NfpClient
from broker.nfp.worker import JobContext, Worker

SERVICE = "dummy"
TIMEOUT_S = 120.0


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def run_worker(endpoint: str, key: str, name: str, folder: str, slots: str = "") -> None:
    limits = {"jobs_at_a_time": int(slots)} if slots else {}
    worker = Worker(
        SERVICE,
        name=name,
        broker=endpoint,
        server_key=key,
        state_dir=folder,
        inventory=False,
        **limits,
    )

    @worker.task
    async def ping(n: int = 0) -> dict[str, object]:
        return {"n": n, "worker": name}

    @worker.task
    async def nap(job: JobContext, seconds: float = 0.1, marker: str = "") -> str:
        if marker:
            with open(marker, "a", encoding="utf-8") as file:  # noqa: ASYNC230 - a line of a test
                file.write(f"{job.uuid}\n")
        await asyncio.sleep(seconds)
        return "slept"

    @worker.starting
    def ready(_worker: Worker) -> None:
        say(ready=name)

    raise SystemExit(worker.main())


async def obey(nfp: NfpClient, words: dict[str, Any]) -> dict[str, Any]:
    task, kwargs, target = words["task"], words.get("kwargs", {}), words.get("workers", "any")
    began = time.perf_counter()
    if words["do"] == "sequence":
        results = [
            await nfp.run(SERVICE, task, kwargs=kwargs, target=target, timeout_s=TIMEOUT_S)
            for _ in range(words["count"])
        ]
    else:
        jobs = await asyncio.gather(
            *(
                nfp.submit(SERVICE, task, kwargs=kwargs, target=target, timeout_s=TIMEOUT_S)
                for _ in range(words["count"])
            )
        )
        say(submitted=len(jobs))
        results = [await job.result() for job in jobs]
    return {"seconds": time.perf_counter() - began, "results": results}


async def run_client(endpoint: str, key: str, name: str, folder: str) -> None:
    loop = asyncio.get_running_loop()
    async with NfpClient(name, broker=endpoint, server_key=key, state_dir=folder) as nfp:
        await nfp.wait_connected(30)
        say(ready=name)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            try:
                say(ok=await obey(nfp, json.loads(line)))
            except Exception as error:
                say(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        run_worker(*sys.argv[2:])
    else:
        asyncio.run(run_client(*sys.argv[2:]))
