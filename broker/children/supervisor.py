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

    def begin(self) -> None:
        """Start each once those that it depends on are ready, see ``join``."""
        for child in self.children.values():
            self._start(child)

    def _start(self, child: Child) -> None:
        child.start([self.children[name] for name in child.program.depends_on])

    async def join(self, seconds: float) -> None:
        """Return once nobody is ``missing``, once one is ``lost``, or once all are to leave.

        Raises:
            TimeoutError: none of it within so many ``seconds``; it says who is missing.
        """
        try:
            async with asyncio.timeout(seconds):
                while self.missing() and not self.lost() and not self.leaving.is_set():
                    self.changed.clear()
                    await first_of(self.changed.wait(), self.leaving.wait())
        except TimeoutError:
            raise TimeoutError(f"{named(self.missing())} not ready within {seconds:g} s") from None

    def missing(self) -> list[Child]:
        """Who is not ready."""
        return [child for child in self.children.values() if not child.ready]

    def lost(self) -> list[Child]:
        """Who is not started again."""
        return [child for child in self.children.values() if child.left.is_set()]

    async def start(self) -> None:
        """Start one after the other, those behind one that is needed when it is ready; returns once each is ready, or
        left.
        """
        for at, child in enumerate(self.children.values()):
            if at and self._interval_s:
                await asyncio.sleep(self._interval_s)
            self._start(child)
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


def named(children: Sequence[Child]) -> str:
    """Names of ``children`` in a sentence, of the first 16 of them: ``rank 1, rank 2``."""
    return ", ".join([child.program.name for child in children[:16]] + ["..."] * (len(children) > 16))
