"""Where this broker stands between start and goodbye (``state-machine.get``, ``wait``, ``monitor``), and the end of the
instance, as ``flux shutdown`` asks for it (``shutdown.start``).

A child broker monitors its parent: any state from cleanup on makes it shut down, too. So at ``shutdown.start`` rank 0
drains and leaves as at SIGTERM; the brokers below follow its state, and leave first, the leaves of the tree before
their parents. A caller that asked by a stream is sent what is logged meanwhile.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Final

from broker.errors import RpcError
from broker.identity import Role
from broker.services.context import Context
from broker.services.log import Log
from broker.services.service import Service, Services, Streams, method
from broker.serving.request import LATER, Later, Request
from broker.wire.log_entry import Entry

STATES: Final = (
    "load-builtins",
    "join",
    "config-sync",
    "init",
    "quorum",
    "run",
    "cleanup",
    "shutdown",
    "finalize",
    "goodbye",
)
"""All states in order; ``monitor`` sends the number, which is the place in here."""
RUN: Final = STATES.index("run")
NO_FINAL: Final = -1
"""``final`` of a monitor that wants every state."""


class StateMachine(Service):
    """Tells the state of this broker."""

    name = "state-machine"

    def __init__(self, context: Context, services: Services) -> None:
        super().__init__(context, services)
        self._monitors: Streams[int] = self.keep(Streams())
        self._waiters: Streams[None] = self.keep(Streams())

    def start(self) -> None:
        """Have changes of state told."""
        self.context.lifecycle.watchers.append(self._entered)

    @method("get", allow=Role.USER)
    def get(self, request: Request) -> Mapping[str, object]:
        """-> ``{"state", "duration"}``: its name, and seconds since it began."""
        lifecycle = self.context.lifecycle
        return {"state": lifecycle.state, "duration": lifecycle.in_state_s()}

    @method("wait", allow=Role.USER)
    def wait(self, request: Request) -> Later | None:
        """Answered, empty, when the broker runs; EINVAL when it did and is on its way down."""
        number = STATES.index(self.context.lifecycle.state)
        if number == RUN:
            return None
        if number > RUN:
            raise RpcError(errno.EINVAL, "broker has surpassed RUN state")
        self._waiters.open(request, None)
        return LATER

    @method("monitor")
    def monitor(self, request: Request) -> Later:
        """``{"final"}`` (may be left out) -> ``{"state": number}`` now and, streaming, at each change up to that state.

        The stream ends with ENODATA behind the state ``final``. A request that is no stream is answered once.
        """
        final = request.field("final", int, NO_FINAL) if request.message.payload_part else NO_FINAL
        number = STATES.index(self.context.lifecycle.state)
        # a state at or behind ``final`` ends the stream with its first answer: nothing is kept open
        if request.streaming and not self._over(number, final):
            self._monitors.open(request, final)
        self._tell(request, number, final)
        return LATER

    @staticmethod
    def _over(number: int, final: int) -> bool:
        return final != NO_FINAL and number >= final

    def _tell(self, request: Request, number: int, final: int) -> None:
        """Send ``number`` unless it is beyond ``final``, and the end of the stream if it is not before."""
        if final == NO_FINAL or number <= final:
            request.respond({"state": number})
            if not request.streaming:
                return
        if self._over(number, final):
            request.respond_error(errno.ENODATA)

    def _entered(self, state: str) -> None:
        number = STATES.index(state)
        for request, final in self._monitors:
            if self._over(number, final):
                self._monitors.take(request.sender, request.message.matchtag)
            self._tell(request, number, final)
        if number < RUN:
            return
        for request, _ in self._waiters:
            self._waiters.take(request.sender, request.message.matchtag)
            if number == RUN:
                request.respond()
            else:
                request.respond_error(errno.EINVAL, "broker has surpassed RUN state")


class Shutdown(Service):
    """Ends the instance."""

    name = "shutdown"

    def __init__(self, context: Context, services: Services) -> None:
        super().__init__(context, services)
        self._begun = False
        self._listeners: Streams[int] = self.keep(Streams())

    def start(self) -> None:
        """Hear of log lines and of the end."""
        self.services.find(Log).watchers.append(self._logged)
        self.context.lifecycle.watchers.append(self._entered)

    @method("start")
    def begin(self, request: Request) -> Later | None:
        """``{"loglevel"}``: rank 0 ends the instance. Streaming -> ``{"log"}``, a line each, no less severe than that,
        then ENODATA when the broker says goodbye; otherwise answered, empty, at once.
        """
        level = request.field("loglevel", int)
        state = self.context.lifecycle.state
        if self._begun:
            raise RpcError(errno.EINVAL, "shutdown is already in progress")
        if state != "run":
            raise RpcError(errno.EINVAL, f"shutdown cannot be initiated in state {state}")
        if self.context.rank != 0:
            raise RpcError(errno.EINVAL, "shutdown may only be initiated on rank 0")
        errnum = self.context.leave(f"shutdown by userid {request.message.userid}")
        if errnum:
            raise RpcError(errnum, "this broker is ended by the program that runs it")
        self._begun = True
        if not request.streaming:
            return None
        self._listeners.open(request, level)
        return LATER

    def _logged(self, entry: Entry) -> None:
        for request, level in self._listeners:
            if entry.severity <= level:
                request.respond({"log": f"{entry.short()}\n"})

    def _entered(self, state: str) -> None:
        if state != "goodbye":
            return
        for request, _level in self._listeners:
            self._listeners.end(request.sender, request.message.matchtag)
