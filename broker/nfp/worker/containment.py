"""What a task starts in the loop may end that task, not the worker.

asyncio lets ``SystemExit`` and ``KeyboardInterrupt`` of any of its tasks through to whoever runs the loop: one
``sys.exit()`` in a ``TaskGroup`` or a ``gather`` of one job would end all the jobs of its worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

from broker.safe_text import about

_in_job: ContextVar[bool] = ContextVar("in_job", default=False)


def enter_job() -> None:
    """The running asyncio task is a job's: so is what it starts."""
    _in_job.set(True)


def contain(loop: asyncio.AbstractEventLoop) -> None:
    """Have ``loop`` make such an end an error of the job, for good; harmless twice."""
    before: Any = loop.get_task_factory()
    if getattr(before, "contains", False):
        return

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        if _in_job.get() and asyncio.iscoroutine(coro):
            coro = _contained(coro)
        return asyncio.Task(coro, loop=loop, **options) if before is None else before(loop, coro, **options)

    factory.contains = True  # type: ignore[attr-defined]
    loop.set_task_factory(factory)


async def _contained(coro: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coro
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the task raised {about(error)}") from error
