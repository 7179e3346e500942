"""The services inside the broker (``module.list``, ``trace``), as ``flux module list`` and ``trace`` show it.

The built-in services are its modules. None can be loaded or removed at run time: a service of one's own is a client
that registers it (``service.add``).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from typing import Final

from broker.errors import RpcError
from broker.identity import Role
from broker.services.context import Context, TracedMessage
from broker.services.service import Service, Services, method
from broker.services.tracers import NONE, Tracer, Tracers
from broker.serving.request import LATER, Later, Request

RUNNING: Final = 1
"""Status of a module that runs, in deployed numbers."""


class Module(Service):
    """Lists the built-in services, itself included."""

    name = "module"

    def __init__(self, context: Context, services: Services) -> None:
        super().__init__(context, services)
        self._tracers = self.keep(Tracers(context, self._watch))

    @method("list", allow=Role.USER)
    def mods(self, request: Request) -> Mapping[str, object]:
        """-> ``{"mods": [{"name", "path", "idle", "status", "services", "sendqueue", "recvqueue"}]}``."""
        return {"mods": [self._row(service) for service in self.services]}

    def _row(self, service: Service) -> dict[str, object]:
        return {
            "name": service.name,
            "path": "builtin",
            "idle": int(asyncio.get_running_loop().time() - service.last_used),
            "status": RUNNING,
            "services": [service.name],
            "sendqueue": 0,
            "recvqueue": 0,
        }

    @method("load")
    def load(self, request: Request) -> None:
        """``{"path"}``: always ENOENT."""
        request.field("path", str)
        raise RpcError(
            errno.ENOENT, "module not found: services of this broker are built in, others are clients"
        )

    @method("remove")
    def remove(self, request: Request) -> None:
        """``{"name"}``: EPERM for what is built in, ENOENT without a text for the rest."""
        name = request.field("name", str)
        if any(service.name == name for service in self.services):
            raise RpcError(errno.EPERM, f"{name} is built in")
        raise RpcError(errno.ENOENT)

    # -- what passes ---------------------------------------------------------------------------

    @method("trace", streaming=True)
    def trace(self, request: Request) -> Later:
        """``{"names", "typemask", "topic_glob"[, "full"]}`` -> for each message that one of these services gets or
        sends, or any when none is named, what ``overlay.trace`` says; ``name`` is the service's.
        """
        tracer = Tracer(request)
        tracer.names = frozenset(name for name in request.field("names", list) if isinstance(name, str))
        self._tracers.open(request, tracer)
        return LATER

    def _watch(self) -> None:
        """Look on for as long as somebody wants to know."""
        self.context.tracing.watch_services(self._passed if len(self._tracers) else None)

    def _passed(self, passed: TracedMessage) -> None:
        """All that services say and hear begins with the name of one; what the broker itself does is its own."""
        name = (passed.message.topic or "").partition(".")[0]
        if all(service.name != name for service in self.services):
            name = "broker"
        self._tracers.tell(passed, NONE, name, lambda tracer: not tracer.names or name in tracer.names)
