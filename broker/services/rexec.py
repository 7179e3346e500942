"""Remote execution, which is off: every method is refused with a text that says so."""

from __future__ import annotations

import errno
from typing import Final

from broker.errors import RpcError
from broker.services.service import Service
from broker.serving.request import Request
from broker.serving.runner import OWNER_TEXT

OFF_TEXT: Final = "remote execution is off: this broker starts no processes"


class Rexec(Service):
    """Remote execution is off: every method is refused with EPERM.

    What deployed brokers know here is for owners, so guests hear that first.
    """

    name = "rexec"

    def unknown(self, request: Request) -> RpcError:
        """EPERM, whatever the method."""
        return RpcError(errno.EPERM, OFF_TEXT if request.owner else OWNER_TEXT)
