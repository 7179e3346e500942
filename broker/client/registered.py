"""The services of one handle: which request goes to which, and what becomes of their names over another link."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING, Final

from broker.client.received import Response
from broker.errors import ProtocolError
from broker.wire.message import NORESPONSE, Message, request, response
from broker.wire.parts import part_data
from broker.wire.payload import encode_json, encode_text
from broker.wire.topic import method_of, service_of

if TYPE_CHECKING:
    from broker.client.connection import Connection
    from broker.client.service import Service

log = logging.getLogger(__name__)

TAKEN_S: Final = 1.0
TAKEN_TRIES: Final = 60
"""A name that is taken when a link comes back is asked for again after so many seconds, so many times: the far end may
still believe in the link before."""


class Services:
    """The services of one link, by name."""

    __slots__ = ("_by_name", "_link", "_losses")

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._by_name: dict[bytes, Service] = {}
        self._losses = 0

    def attach(self, service: Service) -> None:
        """Deliver requests for ``service.name`` to it.

        Raises:
            ProtocolError: EEXIST, this handle serves the name already.
        """
        name = service.name.encode("utf-8", "surrogateescape")
        if name in self._by_name:
            raise ProtocolError(f"service {service.name} is registered by this handle already", errno.EEXIST)
        self._by_name[name] = service

    def detach(self, service: Service) -> None:
        """Deliver no more to it."""
        self._by_name.pop(service.name.encode("utf-8", "surrogateescape"), None)

    def requested(self, message: Message) -> None:
        """A request came from the link."""
        service = self._by_name.get(service_of(bytes(part_data(message.topic_part) or b"")))
        if service is not None:
            service.requested(message)
        elif not message.flags & NORESPONSE:
            topic = message.topic or ""
            text = encode_text(f"Unknown service method '{topic}'") if method_of(topic) else None
            self._link.send(response(message, text, errnum=errno.ENOSYS))

    def restore(self) -> None:
        """There is another link: register every name again."""
        for service in self._by_name.values():
            if service.registered:
                self._register(service, TAKEN_TRIES, self._losses)

    def _register(self, service: Service, tries: int, losses: int) -> None:
        def answered(answer: asyncio.Future[Message]) -> None:
            if answer.cancelled() or answer.exception() is not None:
                return  # the link is lost again
            errnum = answer.result().errnum
            if errnum == errno.EEXIST and tries > 1:  # by ourselves, over the link before
                asyncio.get_running_loop().call_later(TAKEN_S, self._register, service, tries - 1, losses)
            elif errnum:
                log.error(
                    "service %s cannot be registered again: %s",
                    service.name,
                    Response(answer.result()).error(),
                )
                self.detach(service)

        name = service.name.encode("utf-8", "surrogateescape")
        if self._by_name.get(name) is service and losses == self._losses and not self._link.ended:
            asked = self._link.request(request("service.add", encode_json({"service": service.name})))
            asked.add_done_callback(answered)

    def forget(self, name: str) -> None:
        """The far end has taken a name back."""
        self._by_name.pop(name.encode("utf-8", "surrogateescape"), None)

    def link_ended(self) -> None:
        """The link is gone: stop every handler."""
        self._losses += 1
        for service in self._by_name.values():
            service.link_ended()

    async def close(self) -> None:
        """Close every service."""
        for service in list(self._by_name.values()):
            await service.close()
