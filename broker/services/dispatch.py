"""From a delivered request to its handler: allow masks, unknown methods, and what every service answers.

Every service answers ``ping``, ``stats-get``, ``stats-clear``, ``rusage``, ``debug``, ``disconnect`` and ``cancel``.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import resource
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from broker.services.context import Context
from broker.services.service import DONE, LATER, Handler, Request, Service, failure_of
from broker.wire.message import NORESPONSE, Message

OWNER_TEXT: Final = "Request requires owner credentials"
PRIVILEGE_TEXT: Final = "Request rejected due to insufficient privilege"
NO_DATA: Final = errno.ENODATA
"""Good end of a stream (RFC 6)."""


class Method(NamedTuple):
    """One entry of the table of methods."""

    service: Service
    handler: Handler
    allow: int
    streaming: bool
    asynchronous: bool


class Job:
    """One request that an asynchronous handler works on; it may be called off before its task has begun."""

    __slots__ = ("called_off", "request", "task")

    def __init__(self, request: Request) -> None:
        self.request: Request = request
        self.task: asyncio.Task[None] | None = None
        self.called_off: bool = False

    def call_off(self) -> None:
        """End it: at its next await, or before it begins."""
        self.called_off = True
        if self.task is not None:
            self.task.cancel()


class Dispatcher:
    """Runs the built-in services of one broker.

    Args:
        context: what handlers get.
        tasks_max: asynchronous handlers running at once per service; beyond it a request is answered EAGAIN.
    """

    def __init__(self, context: Context, tasks_max: int = 256) -> None:
        self._context = context
        self._tasks_max = tasks_max
        self._methods: dict[str, Method] = {}
        self._services: dict[str, Service] = {}
        self._jobs: dict[str, set[Job]] = {}

    def add(self, services: Iterable[Service]) -> None:
        """Take services into the table; their names must still be registered with the router."""
        for service in services:
            self._services[service.name] = service
            self._jobs[service.name] = set()
            for name, (handler, allow, streaming) in service.methods().items():
                late = inspect.iscoroutinefunction(handler) or inspect.isasyncgenfunction(handler)
                self._methods[f"{service.name}.{name}"] = Method(service, handler, allow, streaming, late)

    def start(self) -> None:
        """Start every service, in the order they were added."""
        for service in list(self._services.values()):
            service.start()

    def services(self) -> Iterable[Service]:
        """All services."""
        return self._services.values()

    def deliver(self, message: Message) -> None:
        """Handle one request; never raises for what a peer sent."""
        request = Request(message, self._context)
        topic = request.topic
        method = self._methods.get(topic)
        if method is None:
            self._common(request, topic)
            return
        method.service.last_used = self._context.now()
        if not self._allowed(request, method.allow):
            return
        if method.streaming and not request.streaming and not message.flags & NORESPONSE:
            request.fail(errno.EPROTO)
        elif method.asynchronous:
            self._start(method, request)
        else:
            self._run(method.handler, request)

    def _allowed(self, request: Request, allow: int) -> bool:
        """RFC 12, "Service Security Policy": OWNER always, others by mask; a denial is never silent."""
        roles = request.message.rolemask
        if roles & (allow | Role.OWNER):
            return True
        self._context.refused(request.message, errno.EPERM)
        request.fail(errno.EPERM, PRIVILEGE_TEXT if allow else OWNER_TEXT)
        return False

    def _run(self, handler: Handler, *arguments: Any) -> None:
        """Run an inline handler; the request is the last of ``arguments``."""
        request: Request = arguments[-1]
        try:
            self._answer(request, handler(*arguments))
        except Exception as error:
            self._refuse(request, error)

    def _refuse(self, request: Request, error: Exception) -> None:
        errnum, text = failure_of(error)
        if errnum == errno.EIO:
            self._context.log(3, f"{request.topic}: {type(error).__name__}: {error}")
        request.fail(errnum, text)

    def _answer(self, request: Request, result: Any) -> None:
        if result is DONE:
            request.respond()
        elif result is not LATER:
            request.respond(result)

    # -- asynchronous handlers -----------------------------------------------------------------

    def _start(self, method: Method, request: Request) -> None:
        name = method.service.name
        jobs = self._jobs[name]
        if len(jobs) >= self._tasks_max:
            request.fail(errno.EAGAIN, f"{name} is busy with {len(jobs)} requests")
            return
        job = Job(request)
        jobs.add(job)
        self._context.spawn(
            f"{request.topic}#{request.message.matchtag}", self._work(method.handler, job, jobs)
        )

    async def _work(self, handler: Handler, job: Job, jobs: set[Job]) -> None:
        request = job.request
        job.task = asyncio.current_task()
        try:
            if job.called_off:
                raise asyncio.CancelledError
            if inspect.isasyncgenfunction(handler):
                await self._stream(handler(request), request)
            else:
                self._answer(request, await handler(request))
        except asyncio.CancelledError:
            request.fail(NO_DATA if request.streaming else errno.ECANCELED)
            raise
        except Exception as error:
            self._refuse(request, error)
        finally:
            jobs.discard(job)

    async def _stream(self, source: AsyncGenerator[Any, None], request: Request) -> None:
        async with aclosing(source):
            async for payload in source:
                request.respond(payload)
        request.fail(NO_DATA)

    # -- what every service answers ------------------------------------------------------------

    def _common(self, request: Request, topic: str) -> None:
        name, _, word = topic.partition(".")
        service = self._services.get(name)
        common = _COMMON.get(word)
        if service is None:
            request.fail(errno.ENOSYS, f"No service matching {topic} is registered")
            return
        if common is None:
            self._refuse(request, service.unknown(request))
            return
        handler, allow = common
        if self._allowed(request, allow):
            self._run(handler, self, service, request)

    def _ping(self, service: Service, request: Request) -> Any:
        """Echo the object with the route it took, the credentials seen and our rank."""
        message = request.message
        hops = [route.decode("utf-8", "replace")[:8] for route in reversed(message.routes)]
        answer = request.json()
        answer.update(
            route="!".join([*hops, self._context.uuid[:8]]),
            userid=message.userid,
            rolemask=message.rolemask,
            rank=self._context.rank,
        )
        return answer

    def _stats(self, service: Service, request: Request) -> Any:
        return service.stats()

    def _clear(self, service: Service, request: Request) -> Any:
        service.clear_stats()
        return DONE

    def _rusage(self, service: Service, request: Request) -> Any:
        return rusage(request.field("who", str, "self") if request.message.payload_part else "self")

    def _debug(self, service: Service, request: Request) -> Any:
        """``{"op": "setbit" | "clrbit" | "set" | "clr", "flags"}`` -> ``{"flags"}``: for the service to look at."""
        op, flags, before = request.field("op", str), request.field("flags", int), service.debug_flags
        after = {"setbit": before | flags, "clrbit": before & ~flags, "set": flags, "clr": 0}.get(op)
        if after is None:
            raise ProtocolError(f"{request.topic}: op {op[:16]!r} is not known")
        service.debug_flags = (after & 0xFFFFFFFF ^ 1 << 31) - (1 << 31)  # a C int
        return {"flags": service.debug_flags}

    def _disconnect(self, service: Service, request: Request) -> Any:
        sender = request.sender
        for job in [job for job in self._jobs[service.name] if job.request.sender == sender]:
            job.call_off()
        service.disconnected(sender)
        return LATER

    def _cancel(self, service: Service, request: Request) -> Any:
        sender, matchtag = request.sender, request.field("matchtag", int)
        for job in list(self._jobs[service.name]):
            if job.request.sender == sender and job.request.message.matchtag == matchtag:
                job.call_off()
        service.cancelled(sender, matchtag)
        return LATER


_COMMON: Final = {
    "ping": (Dispatcher._ping, int(Role.USER)),
    "stats-get": (Dispatcher._stats, int(Role.USER)),
    "stats-clear": (Dispatcher._clear, int(Role.NONE)),
    "rusage": (Dispatcher._rusage, int(Role.USER)),
    "debug": (Dispatcher._debug, int(Role.NONE)),
    "disconnect": (Dispatcher._disconnect, int(Role.ALL)),
    "cancel": (Dispatcher._cancel, int(Role.ALL)),
}
"""Method -> (handler, allow mask). Disconnect and cancel are for whoever may call anything: a guest's stream ends
with the guest. As in deployed software they are never answered when they succeed."""

_WHO: Final = {
    "self": resource.RUSAGE_SELF,
    "children": resource.RUSAGE_CHILDREN,
    "thread": getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF),
}


def rusage(who: str = "self") -> dict[str, Any]:
    """What getrusage(2) says of ``self``, ``children`` or ``thread``: times in seconds, its own field names.

    Raises:
        RpcError: EINVAL; another ``who``.
    """
    if who not in _WHO:
        raise RpcError(errno.EINVAL, f"{who[:64]} is unsupported")
    usage = resource.getrusage(_WHO[who])
    return {name[3:]: getattr(usage, name) for name in dir(usage) if name.startswith("ru_")}
