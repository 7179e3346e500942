"""The ranks of one tree as children: all start at once, the tree is up when every rank has joined, rank 0 ends it.

Theory of operation. A rank says to its service manager, which is the one who runs this, when it can be used (READY) and
how it stands (STATUS, see ``broker.node.probes``). It has joined in the state ``run``: rank 0 once it has seen every
rank, another one once its parent has admitted it and runs itself. At the end rank 0 is told alone, and the others
follow it, as in a tree of many machines; who has not followed is told, too.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Final

from broker.children.child import Child
from broker.children.supervisor import Step, Supervisor
from broker.tasks import first_of

START_S: Final = 60.0
"""How long all may take to find together."""
START_EACH_S: Final = 2.0
"""And for each of them more."""
LEAVE_S: Final = 3.0
"""How long the ranks may take to follow rank 0 before each is told to leave."""
STOP_S: Final = 10.0
"""How long all may take to drain and leave before they are told to leave at once."""
_JOINED: Final = ", state run,"


class Tree(Supervisor):
    """The ranks of one tree, and what stands beside them.

    Args:
        ranks: in order. root: rank 0, which is one of them; None: it is elsewhere, and has left before they are to.
        beside: what starts with them and is told with rank 0.

    Attributes:
        ranks, beside: as given.
    """

    def __init__(self, ranks: Sequence[Child], root: Child | None, beside: Sequence[Child] = ()) -> None:
        super().__init__([*ranks, *beside])
        self.ranks = ranks
        self._root = root
        self.beside = beside

    def begin(self) -> None:
        """Start all, see ``join``."""
        for child in self.children.values():
            child.start()

    async def join(self) -> None:
        """Return once every rank has joined and the others are ready, once one is left, or once all are to leave.

        Raises:
            TimeoutError: none of it in time; it says who is missing.
        """
        seconds = START_S + START_EACH_S * len(self.children)
        try:
            async with asyncio.timeout(seconds):
                while self.missing() and not self.lost() and not self.leaving.is_set():
                    self.changed.clear()
                    await first_of(self.changed.wait(), self.leaving.wait())
        except TimeoutError:
            raise TimeoutError(f"{named(self.missing())} not ready within {seconds:g} s") from None

    def missing(self) -> list[Child]:
        """Who has not joined, or is not ready."""
        return [
            child
            for child in self.children.values()
            if not (_joined(child) if child in self.ranks else child.ready)
        ]

    def lost(self) -> list[Child]:
        """Who has ended and is not started again."""
        return [child for child in self.children.values() if child.left.is_set()]

    async def down(self) -> None:
        """Have all leave; who is told by ``leave`` meanwhile leaves at once. Harmless twice."""
        self.leaving.set()
        for rank in self.ranks:
            rank.expect_end()
        children = list(self.children.values())
        told = [child for child in (*self.beside, self._root) if child is not None]
        # nobody follows a rank 0 that was killed, or that they have not all joined yet
        follow = self._root is None or _joined(self._root)
        first = [Step(told, signal.SIGTERM, LEAVE_S)] if follow else []
        await self.end(children, *first, Step(children, signal.SIGTERM, STOP_S - LEAVE_S))


def _joined(rank: Child) -> bool:
    return rank.ready and _JOINED in rank.said


def named(children: Sequence[Child]) -> str:
    """Names of ``children`` in a sentence, of the first 16 of them: ``rank 1, rank 2``."""
    return ", ".join([child.program.name for child in children[:16]] + ["..."] * (len(children) > 16))
