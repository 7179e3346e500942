"""Children that are looked after together: started in order, ended in order, at once when that is told twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from broker.children.child import Child
from broker.tasks import first_of

HURRY_S: Final = 3.0
"""How long it may take to leave at once, before a child is killed."""
APART_S: Final = 0.1
"""Between two signals to a child at least: of one that still waits for the child the kernel makes no second."""


class Step(NamedTuple):
    """One step of an end: who is told by which signal, and how long all may take then; None: for ever."""

    children: Sequence[Child]
    number: signal.Signals
    seconds: float | None


class Supervisor:
    """Children of this process.

    Args:
        children: in the order of their start. interval_s: between two starts.

    Attributes:
        children: by name. leaving: set once all are to end. changed: set when a child may have changed.
    """

    def __init__(self, children: Sequence[Child], interval_s: float = 0.0) -> None:
        self.children = {child.program.name: child for child in children}
        self.leaving = asyncio.Event()
        self.changed = asyncio.Event()
        for child in children:
            child.changed = self.changed.set
        self._hurry = asyncio.Event()
        self._interval_s = interval_s

    def on_signals(self) -> None:
        """Call ``leave`` for SIGTERM, SIGINT and SIGHUP from now on."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.leave)

    def leave(self) -> None:
        """All are to end; called again: at once. Whoever waits for ``leaving`` ends them."""
        (self._hurry if self.leaving.is_set() else self.leaving).set()

    async def start(self) -> None:
        """Start each once those that it depends on are ready; returns once each is ready, or left."""
        for at, child in enumerate(self.children.values()):
            if at and self._interval_s:
                await asyncio.sleep(self._interval_s)
            child.start([self.children[name] for name in child.program.depends_on])
            if child.program.needed:
                await child.settled.wait()
        for child in self.children.values():
            await child.settled.wait()

    async def end(self, children: Sequence[Child], *steps: Step) -> None:
        """End ``children``: by ``steps``, each as long as it takes at most, then at once, then by force.

        ``leave`` cuts the steps short: who is told a second time leaves at once.
        """
        late = (Step(children, signal.SIGTERM, HURRY_S), Step(children, signal.SIGKILL, None))
        for number, step in enumerate((*steps, *late)):
            if all(child.over for child in children):
                return
            if number:
                await asyncio.sleep(APART_S)
            for child in step.children:
                child.end(step.number)
            cut_short = [self._hurry.wait()] if step in steps else []
            await first_of(all_over(children), *cut_short, seconds=step.seconds)


async def all_over(children: Iterable[Child]) -> None:
    """Return once all of ``children`` are over."""
    for child in children:
        await child.wait()


async def all_left(children: Collection[Child]) -> None:
    """Return once none of ``children`` is started again; those not started yet are to come."""
    while there := [child for child in children if not child.left.is_set()]:
        await there[0].left.wait()
