"""What passes a node's proxy, on its way to the journal: one feed for all rooms of a process.

What the records are, ``journal`` says.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from broker.journal.feed import Feed
from broker.journal.options import JournalOptions
from broker.journal.recorder import CLOSE_S
from broker.oslo.reactor import Reactor

if TYPE_CHECKING:
    from broker.oslo.proxy.journal import PipelineJournal


class Recording(Feed):
    """The feed of one proxy process.

    Args:
        options: where to, and what. reactor: for timers; open before ``start``.

    Attributes:
        journals: may hold something back until ``done``.
        reported_by: the room whose STATUS tells of it, for all of this process.
    """

    def __init__(self, options: JournalOptions, reactor: Reactor) -> None:
        super().__init__(
            options, reactor, lambda state: reactor.say(logging.ERROR, "the journal is %s", (state,))
        )
        self.journals: list[PipelineJournal] = []
        self.reported_by = ""

    def status(self, room: str) -> dict[str, Any]:
        """For the STATUS of a room: state and figures of the recorder under ``journal``; {} unless it is the one."""
        if room != self.reported_by:
            return {}
        recorder = self.recorder
        figures = {} if recorder is None else recorder.figures._asdict()
        return {"journal": {"state": "off" if recorder is None else recorder.state, **figures}}

    def stop(self) -> None:
        """Hand everything over and wait for the writer, ``CLOSE_S`` at most. Harmless twice."""
        if self.recorder is not None:
            for journal in self.journals:
                journal.done()
        recorder = self.end("the proxy is stopping")
        if recorder is not None:
            recorder.close(CLOSE_S)
