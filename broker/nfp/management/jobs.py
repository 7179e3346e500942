"""``jobs.service.broker``: the broker's jobs. A user sees their own, an owner all; DELETE cancels, not this.
``show`` is for whoever may fetch the job's results.

Tasks, all by keyword, every field but ``show``'s may be left out:

``list``   service, task, state, worker, client, holder, text, since, until, limit (100)
           -> {"jobs": [job], "total", "more"}, the newest first
``show``   uuid, results (true) -> the job with "parts" and "results"
``count``  as list, without limit -> {"total", "states": {state: n}, "services": {service: n}, "more"}

``state`` may be several, ``text`` is looked for in ids, arguments and errors, ``since`` and ``until`` are of the
submission, in seconds since 1970. ``total`` counts all jobs that are meant, ``more`` says that not all are there.

A job: {"uuid", "service", "task", "target", "holder", "userid", "client", "state", "age_s", "remaining_s", "workers",
"attempts", "asked", "failed", "submitted", "took_s", "arguments", "result", "error"}. ``userid`` is null for a job of a
key that stands for none. ``failed`` are the workers whose part failed. States are those of ``outcome``, and open.
``arguments`` are {"args", "kwargs"}, null when they are too long to be kept; ``result`` and ``error`` are texts, in
short. A part of ``show`` has its ``result``, ``error`` and ``traceback`` in full.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.nesting import read_json
from broker.nfp.contract import Call, NotStored
from broker.nfp.jobs.search import JobFilter, JobSearch
from broker.nfp.jobs.views import JobView, ResultView
from broker.nfp.management.internal_service import Deferred, InternalService, Refused, number, text, words
from broker.nfp.names import JOBS, Code
from broker.nfp.opening import read_any
from broker.nfp.outcome import DONE, END_STATES, FAILED, Explained, explain, part_state
from broker.nfp.principal import Standing, told_userid
from broker.nfp.targets import render
from broker.tasks import Tasks

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker

LIST_MAX: Final = 1000
"""Jobs in one answer."""
RESULTS_MAX_BYTES: Final = 4 << 20
"""Results told with a job; larger ones are fetched with GET."""
EXPLAINED_MAX_BYTES: Final = 64 << 10
"""A longer result or body is told by its size only."""
IN_SHORT_CHARS: Final = 500
"""Of results and errors in a list."""
STATES: Final = ("open", *END_STATES)
_Then = Callable[[JobSearch | NotStored], None]


class JobService(InternalService):
    """The service over ``broker``."""

    def __init__(self, broker: NfpBroker) -> None:
        self._broker = broker
        self._searches = Tasks()
        super().__init__(
            JOBS,
            {
                "list": (Standing.GUEST, self._list),
                "show": (Standing.GUEST, self._show),
                "count": (Standing.GUEST, self._count),
            },
        )

    async def stop(self) -> None:
        """End the searches under way. Harmless twice."""
        await self._searches.stop()

    def _list(self, call: Call) -> Any:
        limit = number(call, "limit", 100, 1, LIST_MAX)
        return self._search(call, limit, listed)

    def _count(self, call: Call) -> Any:
        return self._search(call, 0, _counted)

    def _search(self, call: Call, limit: int, told: Callable[[JobSearch], dict[str, Any]]) -> Any:
        may_see, now = call.peer.principal.may_see, self._broker.clock.now()
        search = self._broker.dispatcher.search(_filter(call), may_see, limit, now, _row)
        return Deferred(partial(self._take, search), partial(_searched, told))

    def _take(self, search: JobSearch, then: _Then) -> None:
        """Take the steps of ``search``, the loop doing something else in between; at once where one is enough."""
        steps = search.steps()
        try:
            next(steps)
        except StopIteration:
            then(search)
        except NotStored as error:
            then(error)
        else:
            self._searches.spawn("nfp search", _go_on(steps, search, then))

    def _show(self, call: Call) -> dict[str, Any]:
        uuid = text(call, "uuid")
        try:
            found = self._broker.dispatcher.find(uuid, self._broker.clock.now())
        except NotStored as error:
            raise Refused(str(error), Code.ERROR) from error
        if found is None or not self._broker.access.may_read(call.peer.principal, found.view.holder):
            raise Refused(f"job {uuid[:64]!r} is not known")  # somebody else's is no more known than none
        job, results = found
        told = _row(job, results)
        wanted = bool(call.kwargs.get("results", True))
        told["parts"] = explained_parts(job, results if wanted else [])
        if wanted:
            told["results"] = _results(results)
        return told


async def _go_on(steps: Iterator[None], search: JobSearch, then: _Then) -> None:
    try:
        for _ in steps:
            await asyncio.sleep(0)
    except NotStored as error:
        then(error)
    else:
        then(search)


def _row(job: JobView, results: list[ResultView]) -> dict[str, Any]:
    return {**shown(job), **described(job, results)}


def _searched(told: Callable[[JobSearch], dict[str, Any]], outcome: JobSearch | NotStored) -> dict[str, Any]:
    if isinstance(outcome, NotStored):
        raise Refused(str(outcome), Code.ERROR)
    return told(outcome)


def listed(search: JobSearch) -> dict[str, Any]:
    """What a search found; ``more``: there are further ones, ``total`` in all."""
    jobs = search.found
    return {"jobs": jobs, "total": search.total, "more": search.total > len(jobs)}


def _counted(search: JobSearch) -> dict[str, Any]:
    return {
        "total": search.total,
        "states": dict(search.states),
        "services": dict(search.services),
        "more": False,
    }


def _filter(call: Call) -> JobFilter:
    names = ("service", "task", "worker", "client", "holder", "text")
    since, until = (_moment(call, name) for name in ("since", "until"))
    try:
        states = chosen_states(words(call, "state"))
        return job_filter(states, since, until, **{name: text(call, name) for name in names})
    except ValueError as error:
        raise Refused(str(error)) from None


def _moment(call: Call, name: str) -> float | None:
    value = call.kwargs.get(name)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise Refused(f"{name} is {value!r:.64}, expected seconds since 1970")


def chosen_states(names: Iterable[str]) -> frozenset[str]:
    """Return the states that somebody named.

    Raises:
        ValueError: one of them is none.
    """
    states = frozenset(names)
    if wrong := sorted(states.difference(STATES)):
        raise ValueError(f"state {wrong[0][:64]!r}, expected one of {', '.join(STATES)}")
    return states


def job_filter(states: frozenset[str], since: float | None, until: float | None, **more: str) -> JobFilter:
    """Return a filter; ``since`` and ``until`` are wall clock seconds."""
    now = time.time()
    return JobFilter(
        states=states,
        since_s=now - since if since is not None else None,
        until_s=now - until if until is not None else None,
        **more,
    )


def shown(job: JobView) -> dict[str, Any]:
    """Tell of a job what clients of NFP read, without its results."""
    return {
        **told_everywhere(job),
        "age_s": round(job.age_s, 3),
        "remaining_s": round(job.remaining_s, 3),
        "workers": [part.worker or part.name for part in job.parts],
        "attempts": sum(part.attempt for part in job.parts),
    }


def told_everywhere(job: JobView) -> dict[str, Any]:
    """Tell of a job what NFP's side and Flux's have in common; ``failed`` are the workers whose part failed."""
    return {
        "uuid": job.uuid,
        "service": job.service,
        "task": job.task,
        "target": render(job.target, array=False),
        "holder": job.holder,
        "userid": told_userid(job.userid),
        "client": job.client,
        "state": job.state,
        "asked": list(job.asked),
        "failed": [part.worker or part.name for part in job.parts if part.ended == FAILED],
    }


def described(job: JobView, results: list[ResultView]) -> dict[str, Any]:
    """Return what a list says of a job besides ``shown``: when, how long, its arguments, and how it went, in short."""
    said = [(result, _explain(result)) for result in results]
    named = len(job.parts) > 1
    return {
        "submitted": round(time.time() - job.age_s, 3),
        "took_s": round(job.took_s, 3),
        "arguments": arguments_of(job.body),
        "result": _in_short(
            _line(one.worker, _written(told.result), named) for one, told in said if not told.error
        ),
        "error": _in_short(_line(one.worker, told.error, named) for one, told in said if told.error),
    }


def _explain(result: ResultView) -> Explained:
    if len(result.body) > EXPLAINED_MAX_BYTES:
        failed = part_state(result.status, result.body) != DONE
        return Explained(
            f"({len(result.body)} bytes)", "failed; the result is too long to be shown" if failed else ""
        )
    return explain(result.status, result.body)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _line(worker: str, said: str, named: bool) -> str:
    return f"{worker}: {said}" if named else said


def _in_short(lines: Iterable[str]) -> str:
    said = "\n".join(lines)
    return said if len(said) <= IN_SHORT_CHARS else f"{said[: IN_SHORT_CHARS - 1]}…"


def arguments_of(body: bytes) -> Any:
    """Return ``{"args", "kwargs"}`` of a job's body, its text when it is no JSON object; None when it is not known."""
    if not body or len(body) > EXPLAINED_MAX_BYTES:
        return None
    said = read_any(body)
    if not isinstance(said, dict):
        return body.decode("utf-8", "replace")
    args, kwargs = said.get("args"), said.get("kwargs")
    return {
        "args": args if isinstance(args, list) else [],
        "kwargs": kwargs if isinstance(kwargs, dict) else {},
    }


def explained_parts(job: JobView, results: list[ResultView]) -> list[dict[str, Any]]:
    """Return the parts of a job; those with a result of ``results`` say ``result``, ``error`` and ``traceback``."""
    told = []
    left = iter(results)
    for part in job.parts:
        line: dict[str, Any] = part._asdict()
        if part.ended and (result := next(left, None)) is not None:
            line |= _explain(result)._asdict()
        told.append(line)
    return told


def _results(results: list[ResultView]) -> list[dict[str, Any]]:
    told = []
    room = RESULTS_MAX_BYTES
    for result in results:
        room -= len(result.body)
        line: dict[str, Any] = {"worker": result.worker, "status": result.status, "size": len(result.body)}
        if room >= 0:
            line["body"] = _as_json(result.body)
        told.append(line)
    return told


def _as_json(body: bytes) -> Any:
    try:
        return read_json(body)
    except (msgspec.MsgspecError, UnicodeError):
        return {"base64": base64.b64encode(body).decode()}
