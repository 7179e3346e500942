"""The ranks of one tree as children: all start at once, the tree is up when every rank has joined, rank 0 ends it.

Theory of operation. A rank says to its service manager, which is the one who runs this, when it can be used (READY) and
how it stands (STATUS, see ``broker.node.probes``). It has joined in the state ``run``: rank 0 once it has seen every
rank, another one once its parent has admitted it and runs itself. At the end rank 0 is told alone, and the others
follow it, as in a tree of many machines; who has not followed is told, too.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Final

from broker.children.child import Child
from broker.children.supervisor import Step, Supervisor

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
        self._follows: bool | None = None

    async def join(self, seconds: float = START_S) -> None:
        """As of ``Supervisor``; ``START_EACH_S`` longer for each child."""
        await super().join(seconds + START_EACH_S * len(self.children))

    def missing(self) -> list[Child]:
        """Who is not ready, and which rank has not joined."""
        return [child for child in self.ranks if not _joined(child)] + [
            child for child in self.beside if not child.ready
        ]

    def expect_end(self) -> None:
        """Rank 0 leaves, and the others follow it: none is started again, and that they end is nothing to report."""
        if self._follows is None:
            # Nobody follows a rank 0 that was killed, or that they have not all joined yet. Asked now: who leaves
            # already says another state, and SIGTERM while its loop is closed would be a line on stderr.
            self._follows = any(map(_joined, self.ranks if self._root is None else [self._root]))
        for rank in self.ranks:
            rank.expect_end()

    async def down(self) -> None:
        """Have all leave; who is told by ``leave`` meanwhile leaves at once. Harmless twice."""
        self.leaving.set()
        self.expect_end()
        children = list(self.children.values())
        told = [child for child in (*self.beside, self._root) if child is not None]
        first = [Step(told, signal.SIGTERM, LEAVE_S)] if self._follows else []
        await self.end(children, *first, Step(children, signal.SIGTERM, STOP_S - LEAVE_S))


def _joined(rank: Child) -> bool:
    return rank.ready and _JOINED in rank.said
