"""What runs inside the broker (``module.list``), as ``flux module list`` shows it.

The built-in services are its modules. None can be loaded or removed at run time: a service of one's own is a client
that registers it (``service.add``).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from broker.errors import RpcError
from broker.identity import Role
from broker.services.context import Context
from broker.services.service import Done, Request, Service, method

RUNNING: Final = 1
"""Status of a module that runs, in deployed numbers."""


class Module(Service):
    """Lists the built-in services.

    Args:
        context: the broker.
        services: gives all of them, this one included.
    """

    name = "module"

    def __init__(self, context: Context, services: Callable[[], Iterable[Service]]) -> None:
        super().__init__(context)
        self._services = services

    @method("list", allow=Role.USER)
    def mods(self, request: Request) -> Mapping[str, object]:
        """-> ``{"mods": [{"name", "path", "idle", "status", "services", "sendqueue", "recvqueue"}]}``."""
        return {"mods": [self._row(service) for service in self._services()]}

    def _row(self, service: Service) -> dict[str, object]:
        return {
            "name": service.name,
            "path": "builtin",
            "idle": int(self.context.now() - service.last_used),
            "status": RUNNING,
            "services": [service.name],
            "sendqueue": 0,
            "recvqueue": 0,
        }

    @method("load")
    def load(self, request: Request) -> Done:
        """``{"path"}``: always ENOENT."""
        request.field("path", str)
        raise RpcError(
            errno.ENOENT, "module not found: services of this broker are built in, others are clients"
        )

    @method("remove")
    def remove(self, request: Request) -> Done:
        """``{"name"}``: EPERM for what is built in, ENOENT without a text for the rest."""
        name = request.field("name", str)
        if any(service.name == name for service in self._services()):
            raise RpcError(errno.EPERM, f"{name} is built in")
        raise RpcError(errno.ENOENT)
