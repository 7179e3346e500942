"""Clients that provide services (``service.add``, ``service.remove``).

Their refusals carry no text, as deployed: only the numbers reach the client.
"""

from __future__ import annotations

import errno
from typing import Final

from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from broker.services.attachment import settle
from broker.services.context import Sender
from broker.services.service import Done, Request, Service, method
from broker.wire.topic import check_service

UNASKED: Final = frozenset((errno.EPROTO, errno.EEXIST, errno.ENOENT))
"""What a deployed connector refuses itself, and so even where no response is wanted; the rest is its broker's."""


class Providers(Service):
    """Registers clients as providers of a service."""

    name = "service"

    @method("add", allow=Role.USER)
    def add(self, request: Request) -> Done:
        """``{"service"}``: EINVAL for an unfit name, EEXIST, EPERM for a guest's name without ``USERID-``."""

        def change(sender: Sender) -> int:
            name = request.field("service", str)
            check_name(name, request.message.userid, request.message.rolemask)
            return self.context.add_service(sender, name.encode())

        return settle(request, change, UNASKED)

    @method("remove", allow=Role.USER)
    def remove(self, request: Request) -> Done:
        """``{"service"}``: ENOENT unless this client provides it."""

        def change(sender: Sender) -> int:
            return self.context.remove_service(sender, request.field("service", str).encode())

        return settle(request, change, UNASKED)


def check_name(name: str, userid: int, rolemask: int) -> None:
    """Accept ``name`` as one that this user may register.

    Raises:
        RpcError: EINVAL, unfit for a service; EPERM, a guest's name must begin with its userid and a dash.
    """
    try:
        check_service(name)
    except ProtocolError as error:
        raise RpcError(errno.EINVAL) from error
    if not rolemask & Role.OWNER and not name.startswith(f"{userid}-"):
        raise RpcError(errno.EPERM)
