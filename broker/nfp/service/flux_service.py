"""The service ``nfp`` on a Flux broker: one handler for each kind of request, and job events through its link.

Each handler runs as a task of the service until it has answered. Concurrency: one event loop, that of the NFP broker.
Jobs do not depend on the link: while it is gone they go on, and callers find them again by uuid.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from functools import partial
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec

from broker.client import Request
from broker.client.bridge import EVERYBODY, OTHERWISE, TRUSTED, Bridge, Methods, Publisher, word_of
from broker.errors import RpcError
from broker.identity import USERID_UNKNOWN, Role
from broker.nfp import bodies
from broker.nfp.client.events import Event
from broker.nfp.client.job import Job
from broker.nfp.contract import JobEvent, NotStored
from broker.nfp.frames import Packet
from broker.nfp.jobs.views import JobView
from broker.nfp.management.event_bus import BufferedEvent
from broker.nfp.management.jobs import STATES, JobsWanted, job_row, listed, search, shown
from broker.nfp.management.mmi import service_rows, worker_row, workers_of
from broker.nfp.names import ASKED_BY_MMI, EVENTS, Command, Sender
from broker.nfp.principal import Principal, of_flux, recipient
from broker.nfp.server.broker import NfpBroker
from broker.nfp.service.callers import Caller, Callers
from broker.nfp.service.payloads import (
    SERVICE,
    Asked,
    JobAnswer,
    OneJob,
    WhichWorkers,
    error_of,
    read_job,
    summarize,
    tell_records,
)
from broker.nfp.targets import Target
from broker.transport.link import Options
from broker.wire.message import PRIVATE
from broker.wire.payload import read_request

T = TypeVar("T")
ANSWER_S: Final = 30.0
"""How long the NFP broker may take to answer what it answers itself: long enough for a slow disk."""
_ENDS: Final = frozenset({"finished", "closed", "expired", "cancelled"})
_SAID: Final = {
    "progress": Command.EVENT,
    "input_request": Command.EVENT,
    "input_response": Command.EVENT,
    "result_ready": Command.EVENT,
    "stream": Command.STREAM,
}
"""What a worker says on the way, as it said it."""
_SILENT: Final = frozenset({"stream", "published"})
"""What is not published on the Flux broker."""


class FluxService:
    """The NFP broker as a service of a Flux broker.

    Args:
        broker: the NFP broker.
        uri: the Flux broker; the connection has to be its owner's.
        announce: publish job events.
        options: what the transport should know; None: its defaults.

    Attributes:
        publisher: counts of events.
        bridge: to the Flux broker.
    """

    def __init__(
        self, broker: NfpBroker, uri: str, *, announce: bool = True, options: Options | None = None
    ) -> None:
        self.publisher = Publisher()
        self.bridge = Bridge("NFP", SERVICE, uri, options, self.publisher if announce else None)
        self._broker = broker
        self._announce = announce
        self._callers = Callers(broker)
        self._end_publishing: Callable[[], None] | None = None

    async def start(self) -> None:
        """Connect and register.

        Raises:
            LinkError: nobody is there, or it refuses. RpcError: EEXIST, another NFP broker is there; EPERM,
            we are a guest there.
        """
        await self.bridge.start(self.table())
        if self._announce:
            self._end_publishing = self._broker.event_bus.listen(partial(publish_event, self.publisher))

    async def stop(self) -> None:
        """Answer what waits with ECANCELED, leave; jobs go on. Harmless twice."""
        if self._end_publishing is not None:
            self._end_publishing()
        await self.bridge.stop()
        self._callers.close()

    def table(self) -> Methods:
        """What is called by which name; rules of NFP decide what a caller may have done."""
        everybody = {
            OTHERWISE: self.run,  # nfp.SERVICE.TASK
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
        return {name: (handler, EVERYBODY) for name, handler in everybody.items()} | {
            "calls": (self.calls, TRUSTED)
        }

    # -- jobs ----------------------------------------------------------------------------------

    async def run(self, request: Request) -> dict[str, Any] | None:
        """``nfp.SERVICE.TASK`` and ``nfp.run``."""
        what = read_job(request.topic, request.payload)
        if what.service == EVENTS and what.task == "subscribe":
            raise RpcError(errno.EINVAL, "subscribe to the events nfp.job.UUID.KIND of this broker instead")
        caller = self._callers.find(_principal(request))
        uuid = what.job.uuid or uuid4().hex
        body = bodies.request(what.task, what.job.args, what.job.kwargs, what.job.timeout)
        if _is_awaited(caller, uuid, what, body) and (found := self._find(uuid)) is not None:
            return await self._attach(request, caller, found)
        with caller.follow(uuid, what.service, what.task, what.target, body) as job:
            caller.send(job, Command.MMI if what.service in ASKED_BY_MMI else Command.POST, body)
            return await self._tell(request, caller, job, cancel=what.job.cancel_with_caller)

    async def _tell(
        self, request: Request, caller: Caller, job: Job, *, cancel: bool = False
    ) -> dict[str, Any] | None:
        """Answer ``request`` with what comes of ``job``."""
        try:
            async with aclosing(tell_records(job)) as records:
                async for record in records:
                    if request.streaming:
                        request.respond(record)
                        await self.bridge.writable()
        except asyncio.CancelledError:
            if cancel and not self.bridge.leaving and not job.done:
                caller.delete(job)
            raise
        if (error := error_of(job)) is not None:
            raise error
        return None if request.streaming else summarize(job)

    async def jobs_attach(self, request: Request) -> dict[str, Any] | None:
        """``nfp.jobs.attach``."""
        caller, view = self._job_of(request)
        return await self._attach(request, caller, view)

    async def _attach(self, request: Request, caller: Caller, view: JobView) -> dict[str, Any] | None:
        with _follow(caller, view) as job, ExitStack() as until_told:
            job.note(Event("dispatched", body={"workers": job.workers}))
            if view.client != caller.name:  # else its packets come here anyway
                pass_on = partial(self._pass_on, caller, job)
                until_told.callback(self._broker.event_bus.listen(pass_on, view.uuid))
            self._look(caller, job)
            return await self._tell(request, caller, job)

    def _pass_on(self, caller: Caller, job: Job, event: JobEvent, _entry: BufferedEvent) -> None:
        """Pass on what happens to a job of another peer; results are asked for as they are recorded."""
        if (command := _SAID.get(event.kind)) is not None:
            job.take(Packet(Sender.BROKER, command, uuid=event.uuid, body=event.body))
        elif event.kind in _ENDS:  # later: the dispatcher is in the middle of it
            asyncio.get_running_loop().call_soon(self._look, caller, job)

    async def jobs_result(self, request: Request) -> dict[str, Any]:
        """``nfp.jobs.result``."""
        caller, view = self._job_of(request, results=True)
        with _follow(caller, view) as job:
            self._ask_results(caller, job, view, over=True)
            await _within(job.wait(), job, "results")
        return {"state": view.state, **summarize(job)}

    async def jobs_cancel(self, request: Request) -> dict[str, Any]:
        """``nfp.jobs.cancel``."""
        caller, view = self._job_of(request)
        if view.state != "open":
            return {"uuid": view.uuid, "state": view.state}
        with _follow(caller, view) as job:
            cancelled = await _within(caller.cancel(job), job, "cancellation")
            if not cancelled and job.error is not None and (error := error_of(job)):
                raise error
        after = self._find(view.uuid)
        return {"uuid": view.uuid, "state": after.state if after is not None else "cancelled"}

    async def jobs_answer(self, request: Request) -> dict[str, Any]:
        """``nfp.jobs.answer``; the task's next event says that it came."""
        said = read_request(JobAnswer, request.payload)
        caller, view = self._job_of(request, said)
        workers = (said.worker,) if said.worker else view.asked
        if not workers or view.state != "open":
            raise RpcError(errno.EINVAL, f"job {view.uuid} waits for no input")
        answer = {"input_id": said.input_id, "value": said.value, "cancel": said.cancel, "metadata": {}}
        with _follow(caller, view) as job:
            target = Target("list", tuple(workers))
            caller.send(job, Command.PUT, msgspec.json.encode(answer), target)
        return {"uuid": view.uuid, "workers": list(workers)}

    def _job_of(
        self, request: Request, said: OneJob | None = None, *, results: bool = False
    ) -> tuple[Caller, JobView]:
        """Who asks, and the job; ``results``: its results are all that is asked for.

        Raises:
            RpcError: ENOENT, there is none that the caller may see. NotStored: it cannot be read.
        """
        uuid = (said or read_request(OneJob, request.payload)).uuid
        principal = _principal(request)
        found = self._find(uuid)
        allowed = self._broker.dispatcher.may_read if results else Principal.may_see
        if found is None or not allowed(principal, found.holder):
            raise RpcError(errno.ENOENT, f"no job {uuid[:64]!r} that you may see")
        return self._callers.find(principal), found

    def _look(self, caller: Caller, job: Job) -> None:
        """Ask for the results that are there; the request then waits for no more, if the job is over."""
        try:
            found = self._find(job.uuid)
        except NotStored as error:
            job.give_up(error)
            return
        if found is None:
            caller.expect(job, 0)
        else:
            self._ask_results(caller, job, found, over=found.state != "open")

    def _ask_results(self, caller: Caller, job: Job, view: JobView, *, over: bool) -> None:
        """Ask for the results that are recorded; ``over``: the request waits for no more than these."""
        recorded = sum(part.state == "final" for part in view.parts)
        if over:
            caller.expect(job, recorded)
        if recorded and not job.done:
            named = view.target.kind == "name"  # a GET wants a list
            caller.send(job, Command.GET, target=Target("list", view.target.names) if named else view.target)

    def _find(self, uuid: str) -> JobView | None:
        return self._broker.dispatcher.find(uuid, self._broker.clock.now())

    # -- views ---------------------------------------------------------------------------------

    async def calls(self, _request: Request) -> dict[str, Any]:
        """``nfp.calls``."""
        return {"figures": self._broker.dispatcher.tasks.told(self._broker.clock.now(), time.time())}

    async def jobs_list(self, request: Request) -> dict[str, Any]:
        """``nfp.jobs.list``."""
        wanted = read_request(JobsWanted, request.payload)
        return listed(await search(self._broker, _principal(request), wanted, wanted.limit, _row))

    async def jobs_show(self, request: Request) -> dict[str, Any]:
        """``nfp.jobs.show``."""
        _, view = self._job_of(request, results=True)
        return shown(view)

    async def jobs_count(self, request: Request) -> dict[str, Any]:
        """``nfp.jobs.count``."""
        wanted = read_request(JobsWanted, request.payload)
        states = (await search(self._broker, _principal(request), wanted, 0, _row)).states
        return {**{state: states[state] for state in STATES}, "more": False}

    async def services_list(self, _request: Request) -> dict[str, Any]:
        """``nfp.services.list``."""
        return {"services": service_rows(self._broker)}

    async def workers_list(self, request: Request) -> dict[str, Any]:
        """``nfp.workers.list``."""
        which, owner = read_request(WhichWorkers, request.payload), _principal(request).owner
        workers = workers_of(self._broker, which.service)
        return {"workers": [worker_row(worker, owner=owner) for worker in workers]}


def _row(view: JobView) -> dict[str, Any]:
    return {**job_row(view), "parts": [part.row() for part in view.parts]}


async def _within(waiting: Awaitable[T], job: Job, what: str) -> T:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await waiting
    except TimeoutError as error:
        text = f"job {job.uuid}: no {what} within {ANSWER_S:g} s"
        raise RpcError(errno.ETIMEDOUT, text) from error


def _principal(request: Request) -> Principal:
    return of_flux(request.userid, request.rolemask)


def _is_awaited(caller: Caller, uuid: str, what: Asked, body: bytes) -> bool:
    """Whether somebody waits for the same job here already: its answers go to both, and are not to be mixed up.

    Raises:
        RpcError: EEXIST, it is another job.
    """
    for job in caller.jobs.get(uuid, ()):
        submission = job.submission
        if submission.body:
            if (job.service, job.target, submission.body) != (what.service, what.target, body):
                raise RpcError(errno.EEXIST, f"uuid {uuid[:64]} is in use for another job")
            return True
    return False


@contextmanager
def _follow(caller: Caller, view: JobView) -> Iterator[Job]:
    """A job that was submitted elsewhere, followed in the block: it is known whom to wait for."""
    with caller.follow(view.uuid, view.service, view.task, view.target, view.body) as job:
        job.outcome.workers = tuple(part.name for part in view.parts if part.name)
        yield job


# -- events ------------------------------------------------------------------------------------


def publish_event(publisher: Publisher, event: JobEvent, entry: BufferedEvent) -> None:
    """Publish what happens to a job as the event ``nfp.job.UUID.KIND``; never waits.

    It is private and stamped with the userid whose job it is, so that owners and that user receive it and nobody else,
    and with the role owner, which says that it comes from here: nobody else may publish such a topic (RFC 12, "Event
    Privacy"; an owner's link may pass such a stamp). A job of a key without userid, or of nobody, is told to owners
    only. The payload is what subscribers on the NFP side read. Streams and what is no job's are not published.
    """
    if event.kind in _SILENT or not publisher.has_room():
        return
    userid = recipient(event.userid)  # where that is None, the link's own, the owner's, is filled in
    publisher.publish(
        topic_of(event),
        entry.told(),
        flags=PRIVATE,
        userid=USERID_UNKNOWN if userid is None else userid,
        rolemask=0 if userid is None else int(Role.OWNER | Role.USER),
    )


def topic_of(happening: JobEvent) -> str:
    """The topic; any text may be a job id.

    >>> topic_of(JobEvent("closed", "a.b c", "s", "t", "h", 1))
    'nfp.job.a%2Eb%20c.closed'
    """
    return f"nfp.job.{word_of(happening.uuid)}.{happening.kind}"
