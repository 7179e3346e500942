"""The end of the instance, as ``flux shutdown`` asks for it (``shutdown.start``).

Rank 0 drains and leaves as at SIGTERM; the brokers below follow its state, and leave first, the leaves of the tree
before their parents. Whoever asked by a stream hears what is logged meanwhile.
"""

from __future__ import annotations

import errno

from broker.errors import RpcError
from broker.services.context import Context
from broker.services.log import Log
from broker.services.ring import Entry
from broker.services.service import Service, Services, method
from broker.services.streams import Streams
from broker.serving.request import LATER, Later, Request


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
