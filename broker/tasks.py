"""Tasks that somebody looks after: each is kept until it ends, a fault of one is logged, and all end together; the one
that is all of a process (``run_to_end``); and how long somebody waits: for the first of several (``first_of``), in
seconds that a program or a person chose (``within``, ``awaited_seconds``, ``checked_seconds``).
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from math import isfinite, isnan
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("headgate")


class Tasks:
    """The tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` as a task that ``stop`` ends at the latest."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s failed", task.get_name(), exc_info=error)

    async def idle(self) -> None:
        """Return when none runs; waits for those that are begun meanwhile, too."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """Cancel every task and wait for it; harmless twice."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(*works: Coroutine[Any, Any, object], seconds: float | None = None) -> bool:
    """Run ``works`` until one of them has ended, at most so many ``seconds``; the others are cancelled and waited for.

    Returns whether the first of them has ended. Raises what one that has ended raised.
    """
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    return tasks[0] in done


def within(seconds: float | None) -> asyncio.Timeout:
    """``asyncio.timeout``: the block has so long; None and inf: as long as it takes; 0 and less: it never waits.

    Raises:
        ValueError: nan, as ``awaited_seconds``.
    """
    return asyncio.timeout(None if seconds is None else awaited_seconds(seconds))


def awaited_seconds(seconds: float) -> float:
    """How long somebody waits for something; inf: as long as it takes.

    Raises:
        ValueError: nan, which is due neither now nor later and would put the timers of the event loop out of order.
    """
    if isnan(seconds):
        raise ValueError("a timeout of nan s, expected a number of seconds")
    return seconds


def checked_seconds(seconds: float) -> float:
    """What others are told, too, as JSON, which has no word for inf and nan.

    Raises:
        ValueError: it is one of them.

    >>> checked_seconds(1.5)
    1.5
    """
    if not isfinite(seconds):
        raise ValueError(f"a timeout of {seconds} s, expected a finite number of seconds")
    return seconds


def run_to_end(work: Coroutine[Any, Any, T], again: T | None = None) -> T:
    """``asyncio.run`` of what a process lives for: no signal that comes once it has returned changes how the process
    ends. A loop that is closed gives SIGTERM its default back, and a supervisor would see -15 of a process that left
    in order.

    ``again``: what it returns where the process is to begin anew: until then a signal ends it as any other.
    """
    with asyncio.Runner() as runner:
        outcome = runner.run(work)
        for number in () if again is not None and outcome == again else (signal.SIGTERM, signal.SIGINT):
            runner.get_loop().remove_signal_handler(number)
            signal.signal(
                number, lambda _number, _frame: None
            )  # unlike SIG_IGN not handed on to programs it starts
    return outcome
