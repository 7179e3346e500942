"""Searches for jobs are taken step by step; between two steps the loop does something else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from broker.nfp.contract import NotStored
from broker.nfp.dispatch.search import JobSearch

_Then = Callable[[JobSearch | NotStored], None]


class Searches:
    """Those under way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """End them. Harmless twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def finish(self, search: JobSearch, then: _Then) -> None:
        """Take the steps of ``search`` and call ``then`` with it, or why it failed; at once where one is enough."""
        steps = search.steps()
        if _step(steps, search, then):
            task = asyncio.get_running_loop().create_task(self._go_on(steps, search, then), name="nfp search")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _go_on(self, steps: Iterator[None], search: JobSearch, then: _Then) -> None:
        more = True
        while more:
            await asyncio.sleep(0)
            more = _step(steps, search, then)


def _step(steps: Iterator[None], search: JobSearch, then: _Then) -> bool:
    """Take one; True: there are more."""
    try:
        next(steps)
    except StopIteration:
        then(search)
    except NotStored as error:
        then(error)
    else:
        return True
    return False
