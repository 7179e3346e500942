"""``jobs.service.broker``: the broker's jobs. A user sees their own, an owner all; DELETE cancels, not this.
``show`` is for whoever may fetch the job's results.

Tasks, all by keyword, every field but ``show``'s may be left out:

``list``   service, task, state, worker, client, holder, text, since, until, limit (100)
           -> {"jobs": [job], "total", "more"}, the newest first
``show``   uuid, results (true) -> the job with "parts"; results false: without what they say
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
import time
from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from broker.nfp.contract import Call
from broker.nfp.jobs.views import JobFilter, JobSearch, JobView, PartView
from broker.nfp.management.questions import Refused, Table, Word, arguments, split
from broker.nfp.opening import read_any
from broker.nfp.outcome import DONE, END_STATES, FAILED, Explained, explain
from broker.nfp.principal import Principal, Standing, told_userid
from broker.nfp.targets import render

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker

SEARCHES_MAX: Final = 4
"""Searches at a time, whoever asks; the others wait. Each holds the ids of all jobs."""
LIST_MAX: Final = 1000
"""Jobs in one answer: some hundred KiB."""
EXPLAINED_MAX_BYTES: Final = 64 << 10
"""A longer result or body is told by its size only; results are fetched with GET."""
TEXT_CHARS_MAX: Final = 4096
"""Of a text that is looked for: each job's arguments are compared with it."""
IN_SHORT_CHARS: Final = 500
"""Of results and errors in a list."""
STATES: Final = ("open", *END_STATES)
Tell = Callable[[JobView], dict[str, Any]]
Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]


class JobsWanted(msgspec.Struct, forbid_unknown_fields=True):
    """Which jobs are looked for, as NFP's side and Flux's ask; see ``JobFilter``."""

    state: str | list[str] = ""
    service: Word = ""
    task: Word = ""
    worker: Word = ""
    client: Word = ""
    holder: Text = ""
    text: Text = ""
    since: float | None = None
    until: float | None = None
    mine: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=LIST_MAX)] = 100

    def filter(self, principal: Principal) -> JobFilter:
        """Return what is looked for.

        Raises:
            Refused: a state is none.
        """
        states, now = frozenset(split(self.state)), time.time()
        if wrong := sorted(states.difference(STATES)):
            raise Refused(f"state {wrong[0][:64]!r}, expected one of {', '.join(STATES)}")
        return JobFilter(
            states=states,
            service=self.service,
            task=self.task,
            worker=self.worker,
            client=self.client,
            holder=principal.holder if self.mine else self.holder,
            text=self.text,
            since_s=now - self.since if self.since is not None else inf,
            until_s=now - self.until if self.until is not None else -inf,
        )


class _OneJob(msgspec.Struct):
    uuid: str = ""
    results: bool = True


async def _list(broker: NfpBroker, call: Call) -> dict[str, Any]:
    wanted = arguments(call, JobsWanted)
    return listed(await search(broker, call.peer.principal, wanted, wanted.limit, job_row))


async def _count(broker: NfpBroker, call: Call) -> dict[str, Any]:
    found = await search(broker, call.peer.principal, arguments(call, JobsWanted), 0, job_row)
    return {
        "total": found.total,
        "states": dict(found.states),
        "services": dict(found.services),
        "more": False,
    }


async def search(
    broker: NfpBroker, principal: Principal, wanted: JobsWanted, limit: int, tell: Tell
) -> JobSearch:
    """Return the end of a search, between whose steps the loop does something else.

    Raises:
        Refused: what is wanted makes no sense. NotStored: the store cannot be read.
    """
    which = wanted.filter(principal)
    async with broker.searches:
        found = broker.dispatcher.search(which, principal.may_see, limit, broker.clock.now(), tell)
        for _ in found.steps():
            await asyncio.sleep(0)
    return found


def listed(found: JobSearch) -> dict[str, Any]:
    """What a search found; ``more``: there are further ones, ``total`` in all."""
    return {"jobs": found.found, "total": found.total, "more": found.total > len(found.found)}


def _show(broker: NfpBroker, call: Call) -> dict[str, Any]:
    asked = arguments(call, _OneJob)
    found = broker.dispatcher.find(asked.uuid, broker.clock.now())
    if found is None or not broker.access.may_read(call.peer.principal, found.holder):
        raise Refused(f"job {asked.uuid[:64]!r} is not known")  # somebody else's is no more known than none
    return shown(found, whole=asked.results)


TASKS: Final[Table] = {
    "list": (Standing.GUEST, _list),
    "show": (Standing.GUEST, _show),
    "count": (Standing.GUEST, _count),
}


def job_row(job: JobView) -> dict[str, Any]:
    """Tell of a job what a list says: whose, when, how long, its arguments, and how it went, in short."""
    said = [(part.worker or part.name, _explain(part)) for part in job.parts if part.ended]
    named = len(job.parts) > 1
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
        "age_s": round(job.age_s, 3),
        "remaining_s": round(job.remaining_s, 3),
        "workers": [part.worker or part.name for part in job.parts],
        "attempts": sum(part.attempt for part in job.parts),
        "submitted": round(time.time() - job.age_s, 3),
        "took_s": round(job.took_s, 3),
        "arguments": arguments_of(job.body),
        "result": _in_short(
            _line(worker, _written(told.result), named) for worker, told in said if not told.error
        ),
        "error": _in_short(_line(worker, told.error, named) for worker, told in said if told.error),
    }


def shown(job: JobView, *, whole: bool = True) -> dict[str, Any]:
    """Tell of a job and its parts; as a ``whole``, ended ones say ``result``, ``error`` and ``traceback``."""
    parts = [part.row() | (_explain(part)._asdict() if whole and part.ended else {}) for part in job.parts]
    return {**job_row(job), "parts": parts}


def _explain(part: PartView) -> Explained:
    """What the recorded result of a part says."""
    if len(part.body) <= EXPLAINED_MAX_BYTES:
        return explain(part.status, part.body)
    failed = "failed; the result is too long to be shown" if part.ended != DONE else ""
    return Explained(f"({len(part.body)} bytes)", failed)


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
