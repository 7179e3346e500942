"""The processes of ``headgate nfp up``: the broker begins and ends the others; without it there are none."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Final

from broker import supervision
from broker.children.child import Child, Program, Tell
from broker.children.supervisor import HURRY_S, Step, Supervisor, all_left
from broker.endings import CONFIG, FAILED, OK, USAGE
from broker.tasks import first_of

KILL_S: Final = 10.0
"""How long a process may live after the time that it has for its end."""


class Processes(Supervisor):
    """The processes of a broker and of its workers.

    Args:
        programs: in the order of their start. tell: see ``Tell``; ``up`` and ``leaving`` have the name "".
            folder: for sockets. interval_s: between two starts.
            patience_s: how long all but those that are needed, and then these, may take to leave.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        tell: Tell,
        folder: str,
        *,
        interval_s: float = 0.0,
        patience_s: float = KILL_S,
    ) -> None:
        super().__init__(
            [Child(each, tell, os.path.join(folder, str(at))) for at, each in enumerate(programs)],
            interval_s,
        )
        self._tell = tell
        self._patience_s = patience_s

    async def run(self) -> int:
        """Run until told to leave, or until what matters is left; returns an exit code."""
        self.on_signals()
        loop = asyncio.get_running_loop()
        supervision.watch(loop.call_later)
        children = self.children.values()
        first = [child for child in children if child.program.needed]
        await first_of(self._begin(), all_left(first or children), self.leaving.wait())
        told = self.leaving.is_set()
        self.leaving.set()
        if any(not child.left.is_set() for child in children):
            self._tell("", "leaving", "ends all, workers first")
        supervision.leaving(2 * (self._patience_s + HURRY_S))
        for share in ([child for child in children if child not in first], first):
            await self.end(share, Step(share, signal.SIGTERM, self._patience_s))
        codes = {child.code for child in first or children}
        if told or codes == {OK}:
            return OK
        return CONFIG if codes <= {CONFIG, USAGE} else FAILED

    async def _begin(self) -> None:
        """Start all, tell what is there, and do not end by itself."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.start()
        ready = [name for name, child in self.children.items() if child.ready]
        absent = [name for name in self.children if name not in ready]
        said = f"up after {loop.time() - began:.2f} s: {', '.join(ready) or 'nobody'}"
        self._tell("", "up", f"{said}; not there: {', '.join(absent)}" if absent else said)
        supervision.announce(loop.call_later, "READY=1")
        await self.leaving.wait()
