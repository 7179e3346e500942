"""From a delivered request to its handler: unknown methods, and what every service answers.

Every service answers ``ping``, ``stats-get``, ``stats-clear``, ``rusage``, ``debug``, ``disconnect`` and ``cancel``.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from broker.services.context import Context
from broker.services.service import Service, Services
from broker.serving.request import LATER, Later, Request
from broker.serving.runner import Method, Runner
from broker.wire.message import Message
from broker.wire.parts import encode_part
from broker.wire.payload import encode_text

log = logging.getLogger("headgate")


class BuiltIn(Runner):
    """Runs the handlers of one built-in service.

    Args:
        service: the one with the handlers. context: the broker. tasks_max: asynchronous handlers that run at once;
            beyond it a request is answered EAGAIN.
    """

    ends_streams = False  # as deployed: some answer a request for a stream once, and leave it open

    def __init__(self, service: Service, context: Context, tasks_max: int) -> None:
        super().__init__(service.name, tasks_max, waiting_max=0)
        self.service = service
        self._context = context

    def respond(self, message: Message, payload: bytes | None, errnum: int) -> None:
        """Send a response with the broker's credentials."""
        self._context.respond(message, payload, errnum, False)

    def failure(self, request: Request, error: Exception) -> tuple[int, str]:
        """As ``failure_of``; a mistake of ours is logged."""
        errnum, text = failure_of(error)
        if errnum == errno.EIO:
            log.error("%s: %s: %s", request.topic, type(error).__name__, error)
        return errnum, text

    def denied(self, request: Request) -> None:
        """Tell the journal."""
        self._context.record_refusal(request.message, errno.EPERM)

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that ends with the broker at the latest."""
        return self._context.spawn(name, work)

    def common(self) -> dict[str, Method]:
        """What every service answers.

        Disconnect and cancel are allowed to every role that may call anything: a guest's stream ends with the guest. As
        in deployed software they are not answered when they succeed.
        """
        handlers: dict[str, tuple[Callable[[Request], Any], int]] = {
            "ping": (self._ping, Role.USER),
            "stats-get": (self._stats, Role.USER),
            "stats-clear": (self._clear, Role.NONE),
            "rusage": (_rusage, Role.USER),
            "debug": (self._debug, Role.NONE),
            "disconnect": (self._disconnect, Role.ALL),
            "cancel": (self._cancel, Role.ALL),
        }
        return {name: Method(handler, allow) for name, (handler, allow) in handlers.items()}

    def _ping(self, request: Request) -> Mapping[str, Any]:
        """Any object -> the same with ``route``, ``userid``, ``rolemask`` and ``rank``: the route that the request
        took, the credentials seen, and our rank.
        """
        message = request.message
        hops = [route.decode("utf-8", "replace")[:8] for route in reversed(message.routes)]
        return request.json() | {
            "route": "!".join([*hops, self._context.uuid[:8]]),
            "userid": message.userid,
            "rolemask": message.rolemask,
            "rank": self._context.rank,
        }

    def _stats(self, request: Request) -> Mapping[str, Any]:
        """-> the service's own figures."""
        return self.service.stats()

    def _clear(self, request: Request) -> None:
        """Starts the service's counts again."""
        self.service.clear_stats()

    def _debug(self, request: Request) -> Mapping[str, Any]:
        """``{"op": "setbit" | "clrbit" | "set" | "clr", "flags"}`` -> ``{"flags"}``: the service's switches."""
        op, flags, before = request.field("op", str), request.field("flags", int), self.service.debug_flags
        after = {"setbit": before | flags, "clrbit": before & ~flags, "set": flags, "clr": 0}.get(op)
        if after is None:
            raise ProtocolError(f"{request.topic}: op {op[:16]!r} is not known")
        self.service.debug_flags = (after & 0xFFFFFFFF ^ 1 << 31) - (1 << 31)  # a C int
        return {"flags": self.service.debug_flags}

    def _disconnect(self, request: Request) -> Later:
        """Ends all that the sender has begun; it is gone. Not answered."""
        self.disconnect(request.sender)
        self.service.disconnected(request.sender)
        return LATER

    def _cancel(self, request: Request) -> Later:
        """``{"matchtag"}``: ends the sender's request with it, a stream with ENODATA. Not answered itself."""
        matchtag = request.field("matchtag", int)
        self.cancel(request.sender, matchtag)
        self.service.cancelled(request.sender, matchtag)
        return LATER


class Dispatcher:
    """Gives requests to the built-in services of one broker.

    Args:
        context: what handlers get.
        services: whose names must still be registered with the router.
        tasks_max: asynchronous handlers running at once per service; beyond it a request is answered EAGAIN.
    """

    def __init__(self, context: Context, services: Services, tasks_max: int = 256) -> None:
        self._context = context
        self._services = services
        self._methods: dict[bytes, tuple[BuiltIn, Method]] = {}
        self._common: dict[bytes, tuple[BuiltIn, Method]] = {}
        self._runners: dict[str, BuiltIn] = {}
        for service in services:
            runner = self._runners[service.name] = BuiltIn(service, context, tasks_max)
            for table, methods in (
                (self._methods, service.methods()),
                (self._common, runner.common()),
            ):
                for name, method in methods.items():
                    table[encode_part(f"{service.name}.{name}".encode())] = (runner, method)

    def start(self) -> None:
        """Start every service, in the order in which they were made."""
        now = asyncio.get_running_loop().time()
        for service in self._services:
            service.last_used = now
            service.start()

    def deliver(self, message: Message) -> None:
        """Handle one request; never raises for what a peer sent."""
        found = self._methods.get(message.topic_part)
        if found is not None:
            found[0].service.last_used = asyncio.get_running_loop().time()
        else:
            found = self._common.get(message.topic_part)
        if found is not None:
            found[0].run(found[1], message)
        else:
            self._unknown(message)

    def _unknown(self, message: Message) -> None:
        topic = message.topic or ""
        runner = self._runners.get(topic.partition(".")[0])
        if runner is not None:
            request = Request(message, runner.respond)
            runner.fail(request, runner.service.unknown(request))
        else:
            text = encode_text(f"No service matching {topic} is registered")
            self._context.respond(message, text, errno.ENOSYS, False)


def failure_of(error: Exception) -> tuple[int, str]:
    """(errnum, text) with which a handler's exception is answered.

    Deployed EPROTO answers carry no text, and a text that only spells the number is left out.
    """
    if isinstance(error, RpcError):
        text = str(error)
        return error.errno, "" if text == os.strerror(error.errno) else text
    if isinstance(error, ProtocolError):
        return errno.EPROTO, ""
    return errno.EIO, f"{type(error).__name__}"


def _rusage(request: Request) -> Mapping[str, Any]:
    """``{["who"]}``, ``self``, ``children`` or ``thread`` -> what getrusage(2) says of it, times in seconds."""
    return rusage(request.field("who", str, "self") if request.message.payload_part else "self")


_WHO: Final = {
    "self": resource.RUSAGE_SELF,
    "children": resource.RUSAGE_CHILDREN,
    "thread": getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF),
}


def rusage(who: str = "self") -> dict[str, Any]:
    """The result of getrusage(2) for ``self``, ``children`` or ``thread``: times in seconds, its own field names.

    Raises:
        RpcError: EINVAL; another ``who``.
    """
    if who not in _WHO:
        raise RpcError(errno.EINVAL, f"{who[:64]} is unsupported")
    usage = resource.getrusage(_WHO[who])
    return {name[3:]: getattr(usage, name) for name in dir(usage) if name.startswith("ru_")}
