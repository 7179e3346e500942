"""After a restart nothing is read from clients until the local servers are registered again, so that nothing is lost.

A pipeline writes down which processes are registered, and with how much each (``PIPELINE.servers`` in the node's
folder). The next proxy reads that. It keeps its frontends closed, and announces nothing, until all of these processes
that still run have registered as much, ``RESTART_S`` at most: the directory goes on listing what the former proxy has
announced, for a lease, and clients hold what they have.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable
from typing import Any, Final

from broker import atomic
from broker.oslo.names import Pipeline, roster_file
from broker.oslo.reactor import Reactor, Timer

# read where it is used, not folded by the compiler: tests shorten it
RESTART_S: float = 3.0
"""Processes that do not come back within so long are not waited for; a lease is longer."""
LOOK_S: Final = 0.1
SAVE_S: Final = 0.05
"""Between a registration and its note: many that come together are noted once."""
REST_S: Final = 0.5
"""Between two notes: each is a file that is replaced, and a thousand listeners may open one after another."""
ROSTER_BYTES_MAX: Final = 1 << 20

REJOINING: Final = "servers have to register again"
STOPPING: Final = "the proxy is stopping"
"""Why a frontend is paused."""

Registered = Callable[[], dict[int, int]]
"""Returns how much each process has registered, by pid; 0 is no pid."""


class RestartGate:
    """One pipeline's wait for its servers, and the note of who they are.

    Args:
        reactor: whose timers.
        folder: of the node.
        pipeline: whose servers.
        registered: says who is registered now.
        done: called once, when the frontends may be read: from ``begin``, or later.

    Attributes:
        waiting: something is waited for.
    """

    def __init__(
        self,
        reactor: Reactor,
        folder: str,
        pipeline: Pipeline,
        registered: Registered,
        done: Callable[[], None],
    ) -> None:
        self.waiting = False
        self._reactor = reactor
        self._path = os.path.join(folder, roster_file(pipeline))
        self._pipeline = pipeline
        self._registered = registered
        self._done = done
        self._expected: dict[int, int] = {}
        self._until_s = self._not_before = 0.0
        self._look_timer: Timer | None = None
        self._save_timer: Timer | None = None

    def begin(self) -> None:
        """Wait for those that the former proxy had, if they still run."""
        self._expected = {pid: size for pid, size in self._read().items() if runs(pid)}
        self._until_s = self._reactor.now() + RESTART_S
        self.waiting = True
        self._look()

    def changed(self) -> None:
        """A server has registered, or has ended: note it, and open the frontends if all are back."""
        self._save_soon()
        if self.waiting:
            self._look()

    def close(self, *, forget: bool) -> None:
        """No more timers; ``forget``: the next proxy need not wait for anybody."""
        for timer in (self._look_timer, self._save_timer):
            if timer is not None:
                timer.cancel()
        if forget:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        elif self._save_timer is not None and not self.waiting:
            self._write()

    def status(self) -> dict[str, Any]:
        """How many processes are waited for."""
        return {"rejoining": len(self._expected) if self.waiting else 0}

    # ------------------------------------------------------------ waiting

    def _look(self) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        here = self._registered() if self._expected else {}
        missing = {pid for pid, size in self._expected.items() if here.get(pid, 0) < size and runs(pid)}
        if missing and self._reactor.now() < self._until_s:
            self._look_timer = self._reactor.call_later(LOOK_S, self._look)
            return
        if missing:
            text = "%s: %d server processes have not registered again within %g s: going on without them"
            self._reactor.say(logging.WARNING, text, (self._pipeline, len(missing), RESTART_S))
        self.waiting = False
        if self._expected:
            self._save_soon()  # nothing was noted meanwhile
        self._expected = {}
        self._done()

    # ------------------------------------------------------------ the note

    def _save_soon(self) -> None:
        if self._save_timer is None:
            wait_s = max(self._not_before - self._reactor.now(), SAVE_S)
            self._save_timer = self._reactor.call_later(wait_s, self._save)

    def _save(self) -> None:
        self._save_timer = None
        self._not_before = self._reactor.now() + REST_S
        if not self.waiting:  # who is not back yet must not be forgotten by another restart
            self._write()

    def _write(self) -> None:
        note = {str(pid): size for pid, size in self._registered().items() if pid and size}
        try:
            atomic.write(self._path, json.dumps(note).encode())
        except OSError as error:
            text = "%s: who is registered could not be noted, a restart may lose messages: %s"
            self._reactor.say(logging.WARNING, text, (self._pipeline, error))

    def _read(self) -> dict[int, int]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, encoding="ascii") as file:
                note = json.loads(file.read(ROSTER_BYTES_MAX))
            return {int(pid): int(size) for pid, size in note.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}


def runs(pid: int) -> bool:
    """Whether a process of that number is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
