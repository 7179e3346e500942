"""An NFP worker whose job says how far it is, and stops when it is cancelled.

headgate up --nfp
python render.py
headgate nfp run render frames --target any --kwargs count=50
"""

import asyncio

from broker.nfp.worker import JobContext, Worker

worker = Worker("render", name="render-1")


@worker.task
async def frames(job: JobContext, count: int = 10) -> dict[str, int]:
    done = 0
    try:
        for done in range(1, count + 1):
            await asyncio.sleep(0.02)  # the work
            job.progress(f"frame {done} of {count}", done=done, total=count)
    except asyncio.CancelledError:
        print("cancelled behind frame", done, flush=True)
        raise
    return {"frames": done}


if __name__ == "__main__":
    raise SystemExit(worker.main())
