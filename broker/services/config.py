"""The configuration as peers may read it (``config.get``).

A deployed child reads its parent's configuration as a stream, and expects the stream to stay open for changes. What may
change in ours while we run (SIGHUP: keys, clients, access) is each broker's own affair: there is one answer and no end.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from broker.errors import ConfigError, RpcError
from broker.identity import Role
from broker.services.context import Context
from broker.services.service import Service, Services, Streams, method
from broker.serving.request import LATER, Later, Request


class Config(Service):
    """Shows the configuration."""

    name = "config"

    def __init__(self, context: Context, services: Services) -> None:
        super().__init__(context, services)
        self._readers: Streams[None] = self.keep(Streams())

    @method("get", allow=Role.USER)
    def get(self, request: Request) -> Mapping[str, Any]:
        """-> the tables as JSON, without secrets. A stream is answered once, too, and stays open."""
        if request.streaming:
            self._readers.open(request, None)
        return self.context.config

    @method("reload")
    def reload(self, request: Request) -> Later:
        """Reads this broker's file again, as at SIGHUP; EINVAL says why nothing has changed. EINVAL below rank 0, too,
        as deployed: the others have files of their own.
        """
        self._only_root()

        async def work() -> None:
            try:
                await self.context.reload()
            except RpcError as error:
                request.respond_error(error.errno, str(error))
            except ConfigError as error:
                request.respond_error(errno.EINVAL, "; ".join(str(error).splitlines()))
            else:
                request.respond()

        # a task of the broker's own, which goes on when the sender is gone: no reload stops halfway
        self.context.spawn(request.topic, work())
        return LATER

    @method("load")
    def load(self, request: Request) -> None:
        """Always refused: EINVAL below rank 0 as deployed, ENOSYS there."""
        self._only_root()
        raise RpcError(
            errno.ENOSYS, "the configuration is in a file: change it there, then flux config reload"
        )

    def _only_root(self) -> None:
        if self.context.rank != 0:
            raise RpcError(errno.EINVAL, "configuration can only be changed on rank 0")
