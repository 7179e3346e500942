"""One handler for each kind of request; each runs as a task of the service until it has answered."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec

from broker.client import Request
from broker.errors import RpcError
from broker.nfp import bodies
from broker.nfp.contract import JobEvent
from broker.nfp.dispatch.search import JobSearch
from broker.nfp.dispatch.views import FoundJob, JobView, ResultView
from broker.nfp.management.jobs import explained_slots, listed
from broker.nfp.names import ASKED_BY_MMI, EVENTS, Command
from broker.nfp.principal import Principal, of_flux
from broker.nfp.server.broker import NfpBroker
from broker.nfp.service.callers import Caller, Callers
from broker.nfp.service.job_stream import JobStream
from broker.nfp.service.payloads import (
    Asked,
    JobAnswer,
    OneJob,
    WhichJobs,
    WhichWorkers,
    asked,
    counted,
    job_row,
    service_row,
    summary,
    worker_row,
)
from broker.nfp.store.writer import NotStored
from broker.nfp.targets import Target
from broker.wire.payload import read_request

T = TypeVar("T")
ANSWER_S: Final = 30.0
"""How long the NFP broker may take to answer what it answers itself: long enough for a slow disk."""
_ENDS: Final = frozenset({"finished", "closed", "expired", "cancelled"})
_SAID: Final = frozenset({"progress", "input_request", "input_response", "result_ready"})


class Handlers:
    """What ``nfp.*`` does.

    Args:
        broker: the NFP broker.
        writable: returns when the link to the Flux broker takes more.
        leaving: whether the service goes, or its link has: callers that end now have not left by themselves.
    """

    def __init__(
        self, broker: NfpBroker, writable: Callable[[], Awaitable[None]], leaving: Callable[[], bool]
    ) -> None:
        self._leaving = leaving
        self._broker = broker
        self._writable = writable
        self._callers = Callers(broker)
        self._attached: dict[str, list[tuple[Caller, JobStream]]] = {}

    def table(self) -> dict[str, Callable[[Request], Awaitable[dict[str, Any] | None]]]:
        """Method -> handler for everybody, but for ``nfp.SERVICE.TASK``: that is ``run``."""
        return {
            "run": self.run,
            "jobs.list": self.jobs_list,
            "jobs.show": self.jobs_show,
            "jobs.count": self.jobs_count,
            "jobs.result": self.jobs_result,
            "jobs.attach": self.jobs_attach,
            "jobs.cancel": self.jobs_cancel,
            "jobs.answer": self.jobs_answer,
            "services.list": self.services_list,
            "workers.list": self.workers_list,
        }

    def close(self) -> None:
        """Forget all callers."""
        self._callers.close()

    # -- jobs ----------------------------------------------------------------------------------

    async def run(self, request: Request) -> dict[str, Any] | None:
        """``nfp.SERVICE.TASK`` and ``nfp.run``."""
        what = asked(request.topic, request.payload)
        if what.service == EVENTS and what.task == "subscribe":
            raise RpcError(errno.EINVAL, "subscribe to the events nfp.job.UUID.KIND of this broker instead")
        caller = self._callers.caller(_principal(request))
        uuid = what.job.uuid or uuid4().hex
        body = bodies.request(what.task, what.job.args, what.job.kwargs, what.job.timeout)
        if self._is_awaited(caller, uuid, what, body) and (found := await self._find(uuid)) is not None:
            return await self._attach(request, caller, found.view)
        stream = JobStream(uuid, what.service, what.target)
        with caller.receiving(stream):
            caller.bodies[uuid] = (what.service, what.target, body)
            command = Command.MMI if what.service in ASKED_BY_MMI else Command.POST
            caller.send(command, stream, what.target, body)
            return await self._tell(request, caller, stream, cancel=what.job.cancel_with_caller)

    def _is_awaited(self, caller: Caller, uuid: str, what: Asked, body: bytes) -> bool:
        """Whether somebody waits for the same job here already: its answers go to both, and are not to be mixed up.

        Raises:
            RpcError: EEXIST, it is another job.
        """
        known = caller.bodies.get(uuid)
        if known is not None and known != (what.service, what.target, body):
            raise RpcError(errno.EEXIST, f"uuid {uuid[:64]} is in use for another job")
        return known is not None

    async def _tell(
        self, request: Request, caller: Caller, stream: JobStream, *, cancel: bool = False
    ) -> dict[str, Any] | None:
        """Answer ``request`` with what ``stream`` gets."""
        try:
            async for record in stream:
                if request.streaming:
                    request.respond(record)
                    await self._writable()
        except asyncio.CancelledError:
            if cancel and not self._leaving() and not stream.over:
                caller.cancel(stream)
            raise
        if (error := stream.error()) is not None:
            raise error
        if request.streaming:
            return None
        return summary(stream.uuid, stream.outcome.results, stream.outcome.failures)

    async def jobs_attach(self, request: Request) -> dict[str, Any] | None:
        """``nfp.jobs.attach``."""
        caller, view, _ = await self._job_of(request)
        return await self._attach(request, caller, view)

    async def _attach(self, request: Request, caller: Caller, view: JobView) -> dict[str, Any] | None:
        stream = _stream_of(view)
        stream.joined()
        pushed = view.client == caller.name  # its packets come here anyway
        with caller.receiving(stream):
            if not pushed:
                self._attached.setdefault(view.uuid, []).append((caller, stream))
            try:
                self._look(caller, stream)
                return await self._tell(request, caller, stream)
            finally:
                if not pushed:
                    self._detach(caller, stream)

    def _detach(self, caller: Caller, stream: JobStream) -> None:
        mine = self._attached[stream.uuid]
        mine.remove((caller, stream))
        if not mine:
            del self._attached[stream.uuid]

    def happened(self, event: JobEvent) -> None:
        """Pass on what happens to jobs that other peers submitted; results are asked for as they are recorded."""
        for caller, stream in self._attached.get(event.uuid, ()):
            if event.kind in _SAID:
                stream.event(bytes(event.body))
            elif event.kind == "stream":
                stream.chunk(bytes(event.body))
            elif event.kind in _ENDS:  # later: the dispatcher is in the middle of it
                asyncio.get_running_loop().call_soon(self._look, caller, stream)

    async def jobs_result(self, request: Request) -> dict[str, Any]:
        """``nfp.jobs.result``."""
        caller, view, _ = await self._job_of(request, results=True)
        stream = _stream_of(view)
        recorded = sum(slot.state == "final" for slot in view.slots)
        with caller.receiving(stream):
            stream.closed(recorded)
            if recorded:
                caller.send(Command.GET, stream, _whole(view))
            await self._until(lambda: stream.over, stream, "results")
        outcome = stream.outcome
        return {"state": view.state, **summary(view.uuid, outcome.results, outcome.failures)}

    async def jobs_cancel(self, request: Request) -> dict[str, Any]:
        """``nfp.jobs.cancel``."""
        caller, view, _ = await self._job_of(request)
        if view.state != "open":
            return {"uuid": view.uuid, "state": view.state}
        stream = _stream_of(view)
        with caller.receiving(stream):
            caller.cancel(stream)
            await self._until(lambda: stream.answered > 0, stream, "cancellation")
        failure = stream.outcome.error
        if failure is not None and failure.status != 417:
            raise stream.error() or RpcError(errno.EIO, failure.text)
        after = await self._find(view.uuid)
        return {"uuid": view.uuid, "state": after.view.state if after is not None else "cancelled"}

    async def jobs_answer(self, request: Request) -> dict[str, Any]:
        """``nfp.jobs.answer``; the task's next event says that it came."""
        said = read_request(JobAnswer, request.payload)
        caller, view, _ = await self._job_of(request, said)
        workers = (said.worker,) if said.worker else view.asked
        if not workers or view.state != "open":
            raise RpcError(errno.EINVAL, f"job {view.uuid} waits for no input")
        answer = {"input_id": said.input_id, "value": said.value, "cancel": said.cancel, "metadata": {}}
        body = msgspec.json.encode(answer)
        caller.send(Command.PUT, _stream_of(view), Target("list", tuple(workers)), body)
        return {"uuid": view.uuid, "workers": list(workers)}

    async def _job_of(
        self, request: Request, said: OneJob | None = None, *, results: bool = False
    ) -> tuple[Caller, JobView, list[ResultView]]:
        """Who asks, and the job; ``results``: its results are all that is asked for.

        Raises:
            RpcError: ENOENT, there is none that the caller may see; EIO, it cannot be read.
        """
        uuid = (said or read_request(OneJob, request.payload)).uuid
        principal = _principal(request)
        found = await self._find(uuid)
        allowed = self._broker.dispatcher.may_read if results else Principal.may_see
        if found is None or not allowed(principal, found.view.holder):
            raise RpcError(errno.ENOENT, f"no job {uuid[:64]!r} that you may see")
        return self._callers.caller(principal), found.view, found.results

    def _look(self, caller: Caller, stream: JobStream) -> None:
        """Ask for the results that are there; the stream then waits for no more, if the job is over."""
        self._broker.dispatcher.find(stream.uuid, _now(), partial(self._looked, caller, stream))

    def _looked(self, caller: Caller, stream: JobStream, found: FoundJob | str | None) -> None:
        if isinstance(found, str):
            stream.failed(found)
            return
        view = found.view if found is not None else None
        recorded = 0 if view is None else sum(slot.state == "final" for slot in view.slots)
        if view is None or view.state != "open":
            stream.closed(recorded)
        if view is not None and recorded and not stream.over:
            caller.send(Command.GET, stream, _whole(view))

    async def _find(self, uuid: str) -> FoundJob | None:
        """The job, which may have to be read from the store; None when it is not known.

        Raises:
            RpcError: EIO, it cannot be read.
        """
        found: FoundJob | str | None = await _answer(partial(self._broker.dispatcher.find, uuid, _now()))
        if isinstance(found, str):
            raise RpcError(errno.EIO, found)
        return found

    async def _until(self, done: Callable[[], bool], stream: JobStream, what: str) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                while not done():
                    await stream.changed()
        except TimeoutError as error:
            text = f"job {stream.uuid}: no {what} within {ANSWER_S:g} s"
            raise RpcError(errno.ETIMEDOUT, text) from error

    # -- views ---------------------------------------------------------------------------------

    async def calls(self, _request: Request) -> dict[str, Any]:
        """``nfp.calls``."""
        return {"figures": self._broker.dispatcher.tasks.told(self._broker.clock.now(), time.time())}

    async def jobs_list(self, request: Request) -> dict[str, Any]:
        """``nfp.jobs.list``."""
        which = read_request(WhichJobs, request.payload)
        return listed(await self._search(request, which, which.limit))

    async def jobs_show(self, request: Request) -> dict[str, Any]:
        """``nfp.jobs.show``."""
        _, view, results = await self._job_of(request, results=True)
        return {**job_row(view, results), "slots": explained_slots(view, results)}

    async def jobs_count(self, request: Request) -> dict[str, Any]:
        """``nfp.jobs.count``."""
        return counted(await self._search(request, read_request(WhichJobs, request.payload), 0))

    async def _search(self, request: Request, which: WhichJobs, limit: int) -> JobSearch:
        principal = _principal(request)
        dispatcher = self._broker.dispatcher
        search = dispatcher.search(which.filter(principal), principal.may_see, limit, _now(), job_row)
        outcome = await _answer(partial(self._broker.job_reader.finish, search))
        if isinstance(outcome, NotStored):
            raise RpcError(errno.EIO, str(outcome))
        return search

    async def services_list(self, _request: Request) -> dict[str, Any]:
        """``nfp.services.list``."""
        return {"services": [service_row(view) for view in self._broker.dispatcher.services()]}

    async def workers_list(self, request: Request) -> dict[str, Any]:
        """``nfp.workers.list``."""
        which, principal = read_request(WhichWorkers, request.payload), _principal(request)
        views = self._broker.dispatcher.workers(_now())
        rows = [worker_row(view, principal) for view in views if which.service in ("", view.service)]
        return {"workers": rows}


async def _answer(ask: Callable[[Callable[[T], None]], None]) -> T:
    """What ``ask`` calls the function with that it is given."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    ask(lambda said: None if answer.done() else answer.set_result(said))
    return await answer


def _now() -> float:
    return asyncio.get_running_loop().time()


def _principal(request: Request) -> Principal:
    return of_flux(request.userid, request.rolemask)


def _whole(view: JobView) -> Target:
    """Every worker of a job, as a GET wants it."""
    return view.target if view.target.kind != "name" else Target("list", view.target.names)


def _stream_of(view: JobView) -> JobStream:
    """The stream of a job that was submitted elsewhere: it knows whom to wait for."""
    stream = JobStream(view.uuid, view.service, view.target)
    stream.outcome.workers = tuple(slot.slot for slot in view.slots if slot.slot)
    return stream
