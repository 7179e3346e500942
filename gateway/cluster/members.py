"""One member of a cluster as a process: started, looked at, paused, killed, started again.

A member says itself when it is ready, by sd_notify(3), as to any service manager: that somebody listens where it will
be tells nothing, for that may be somebody else.

One that has been ready and ends in any other way than by leaving in order (exit code 0) or for a wrong command line or
configuration (2, 78) is started again after a second, and after twice as long each time it did not last; like a service
that is restarted on failure. One that was killed to stay away is not. One that never was ready is told to whoever makes
the cluster.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from broker.children.child import Child, Program, Restarts, telling

log = logging.getLogger("headgate")

RESTARTS: Final = Restarts(first_s=1.0, ends_max=1)
_APPENDED: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC

State = Literal["running", "paused", "partitioned", "exited", "starting"]
"""``starting``: it runs, and is not ready yet. ``paused`` goes before ``partitioned``."""


@dataclass(frozen=True)
class Member:
    """What there is to say about one process of a cluster.

    Attributes:
        name: ``rank-3``, ``gateway``.
        rank: of a broker; None of the gateway.
        state: see ``State``. It is the supervisor's view; what the tree thinks of a rank is for the tree to say.
        id: process id as text; "" while there is none.
        uri: how clients on this machine reach it (``local:///...``, ``http://...``).
        since: seconds since 1970 of its last change of state.
        why: why it is in this state where that is not plain: ``ended with code 78``.
        restarts: how often it was started again by itself.
        said: what it last said of itself (STATUS of sd_notify(3)): ``rank 3 of 7, state run, ...``; "" nothing.
    """

    name: str
    rank: int | None
    state: State
    id: str
    uri: str
    since: float
    why: str = ""
    restarts: int = 0
    said: str = ""


class Process(Child):
    """A member and its process, which changes when it is started again.

    Args:
        name: as of ``Member``.
        rank: of a broker; None of the gateway.
        words: makes its command line, before each life.
        output: file that its output is appended to; made with mode 0600.
        uri: where it is reached, once it is ready.
        place: path of the socket on which it says that it is.
        restarts: when it is started again; None: as ``RESTARTS``.

    Attributes:
        partitioned: what ``status`` says of it while it runs: the links are others' to cut.
    """

    def __init__(
        self,
        name: str,
        rank: int | None,
        words: Callable[[], Sequence[str]],
        output: Path,
        uri: str,
        place: Path,
        restarts: Restarts | None = None,
    ) -> None:
        program = Program(
            name,
            words,
            output=functools.partial(os.open, output, _APPENDED, 0o600),
            follow=signal.SIGKILL,  # a paused process follows no milder one
            restarts=restarts or RESTARTS,
        )
        super().__init__(program, telling(log), str(place))
        self.rank = rank
        self.uri = uri
        self.partitioned = False
        self._paused = False
        self._since = time.time()

    # -- what it is ----------------------------------------------------------------------------

    def member(self) -> Member:
        """What there is to say about it."""
        return Member(
            name=self.program.name,
            rank=self.rank,
            state=self._state(),
            id=str(self.pid or ""),
            uri=self.uri,
            since=self._since,
            why=self.why,
            restarts=self.restarts,
            said=self.said,
        )

    def _state(self) -> State:
        if not self.pid:
            return "exited"
        if self._paused:
            return "paused"
        if not self.ready:
            return "starting"
        return "partitioned" if self.partitioned else "running"

    # -- what is done to it --------------------------------------------------------------------

    def kill(self, *, stay: bool) -> None:
        """SIGKILL; with ``stay`` it is not started again by itself. Harmless when it does not run."""
        if stay:
            self.expect_end()
        self.send_signal(signal.SIGKILL)

    def pause(self) -> bool:
        """SIGSTOP; False when it does not run."""
        if self.send_signal(signal.SIGSTOP):
            self._paused = True
            self._since = time.time()
        return self._paused

    def resume(self) -> None:
        """SIGCONT; harmless when it is not paused."""
        if self._paused and self.send_signal(signal.SIGCONT):
            self._paused = False
            self._since = time.time()

    # -- its life ------------------------------------------------------------------------------

    def tell(self, event: str, text: str) -> None:
        """Tell of what happens, see ``Child``."""
        if event != "ready":  # another process, or none
            self._paused = False
        self._since = time.time()
        super().tell(event, text)
