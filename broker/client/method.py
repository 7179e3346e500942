"""One method of a service: what kind of handler it has, and how its answers leave (RFC 6)."""

from __future__ import annotations

import asyncio
import errno
import inspect
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from broker.client.request import Handler, Request
from broker.identity import Role
from broker.wire.message import NORESPONSE, Message

if TYPE_CHECKING:
    from broker.client.service import Service

OWNER_ONLY_TEXT: Final = "Request requires owner credentials"
DENIED_TEXT: Final = "Request rejected due to insufficient privilege"
YIELD_EVERY: Final = 64
"""Items a generator may produce, or answers that waited may leave, before other tasks get a turn."""

Job: TypeAlias = Callable[[Request], Coroutine[Any, Any, None]]
"""What a task runs for one request."""


class Method:
    """One method of a service.

    Attributes:
        allow: role bits that may call it; OWNER always may.
        ends_requests: True for a handler of ``cancel`` or ``disconnect`` notices.
    """

    __slots__ = ("_handler", "_job", "_service", "_streams", "allow", "ends_requests")

    def __init__(self, service: Service, name: str, handler: Handler, allow: int) -> None:
        self._service = service
        self.ends_requests = name.rpartition(".")[2] in ("cancel", "disconnect")
        self._handler: Any = handler
        self._streams = inspect.isasyncgenfunction(handler)
        self._job: Job | None = (
            self._stream if self._streams else self._answer if _is_async(handler) else None
        )
        self.allow = int(allow | Role.OWNER)  # a plain int: IntFlag arithmetic costs 2 µs a request

    def requested(self, message: Message) -> None:
        """A request for this method came."""
        asked = Request(message, self._service.link.send)
        if not asked.rolemask & self.allow:
            asked.respond_error(errno.EPERM, OWNER_ONLY_TEXT if self.allow == Role.OWNER else DENIED_TEXT)
        elif self._streams and not asked.streaming:  # RFC 6, "Streaming Responses": rejected immediately
            asked.respond_error(
                errno.EPROTO, f"{asked.topic} answers with a stream: flag STREAMING is missing"
            )
        elif self._job is not None:
            self._service.start(asked, self._job)
        elif self._service.roomy or asked.message.head[4] & NORESPONSE:
            self.answer_at_once(asked)
        else:
            self._service.postpone(asked, self)

    def answer_at_once(self, asked: Request) -> None:
        """Run a plain function."""
        try:
            asked.finish(self._handler(asked))
        except Exception as error:
            asked.fail(error)

    async def _answer(self, asked: Request) -> None:
        try:
            result = await self._handler(asked)
            await self._service.link.writable()
            asked.finish(result)
        except Exception as error:
            asked.fail(error)

    async def _stream(self, asked: Request) -> None:
        try:
            async with aclosing(self._handler(asked)) as results:
                count = 0
                async for result in results:
                    await self._service.link.writable()
                    asked.respond(result)
                    count += 1
                    if count % YIELD_EVERY == 0:  # a generator that never waits must not keep the loop
                        await asyncio.sleep(0)
            asked.finish(None)
        except Exception as error:
            asked.fail(error)


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
