"""``jobs.service.broker``: the broker's jobs. A user sees their own, an owner all; DELETE cancels, not this.
``show`` is for whoever may fetch the job's results.

Tasks, all by keyword, every field but ``show``'s may be left out:

``list``   service, task, state, worker, client, holder, limit (100) -> {"jobs": [job], "more"}, the newest first
``show``   uuid, results (true) -> the job with "slots" and "results"
``count``  as list, without limit -> {"total", "states": {state: n}, "services": {service: n}, "more"}

A job: {"uuid", "service", "task", "target", "holder", "userid", "client", "state", "age_s", "remaining_s", "workers",
"attempts", "asked", "failed"}. ``more`` is true when there may be further ones, ``userid`` null for a job of a key that
stands for none. ``failed`` are the workers whose part failed. States are those of ``outcome``, and open.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.nesting import read_json
from broker.nfp.contract import Call
from broker.nfp.dispatch.views import JobView, ResultView
from broker.nfp.management.internal_service import InternalService, Refused, number, text
from broker.nfp.names import JOBS
from broker.nfp.outcome import END_STATES, FAILED
from broker.nfp.principal import Standing, told_userid
from broker.nfp.targets import render

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker

LIST_MAX: Final = 1000
"""Jobs in one answer."""
LOOKED_AT_MAX: Final = 10_000
"""Jobs one request looks at, the newest ones: the loop has others to serve."""
RESULTS_MAX_BYTES: Final = 4 << 20
"""Results told with a job; larger ones are fetched with GET."""
STATES: Final = ("open", *END_STATES)


class JobService(InternalService):
    """The service over ``broker``."""

    def __init__(self, broker: NfpBroker) -> None:
        self._broker = broker
        super().__init__(
            JOBS,
            {
                "list": (Standing.GUEST, self._list),
                "show": (Standing.GUEST, self._show),
                "count": (Standing.GUEST, self._count),
            },
        )

    def _list(self, call: Call) -> dict[str, Any]:
        limit = number(call, "limit", 100, 1, LIST_MAX)
        newest = _Newest(self._broker)
        found = list(islice(_matching(call, newest), limit + 1))
        return {
            "jobs": [shown(job) for job in found[:limit]],
            "more": len(found) > limit or newest.more,
        }

    def _count(self, call: Call) -> dict[str, Any]:
        states: Counter[str] = Counter()
        services: Counter[str] = Counter()
        newest = _Newest(self._broker)
        for job in _matching(call, newest):
            states[job.state] += 1
            services[job.service] += 1
        return {
            "total": states.total(),
            "states": dict(states),
            "services": dict(services),
            "more": newest.more,
        }

    def _show(self, call: Call) -> dict[str, Any]:
        uuid = text(call, "uuid")
        dispatcher = self._broker.dispatcher
        job = dispatcher.job(uuid, self._broker.clock.now()) if uuid else None
        if job is None or not self._broker.access.may_read(call.peer.principal, job.holder):
            raise Refused(f"job {uuid[:64]!r} is not known")  # somebody else's is no more known than none
        told = shown(job)
        told["slots"] = [slot._asdict() for slot in job.slots]
        if call.kwargs.get("results", True):
            told["results"] = _results(dispatcher.results(uuid))
        return told


class _Newest:
    """The newest jobs; ``more`` once there turned out to be older ones that are not looked at."""

    def __init__(self, broker: NfpBroker) -> None:
        self._jobs = broker.dispatcher.jobs(broker.clock.now(), newest_first=True)
        self.more = False

    def __iter__(self) -> Iterator[JobView]:
        yield from islice(self._jobs, LOOKED_AT_MAX)
        self.more = next(self._jobs, None) is not None


def _matching(call: Call, jobs: Iterable[JobView]) -> Iterator[JobView]:
    state, holder, worker = text(call, "state"), text(call, "holder"), text(call, "worker")
    if state and state not in STATES:
        raise Refused(f"state {state[:64]!r}, expected one of {', '.join(STATES)}")
    service, task, client = text(call, "service"), text(call, "task"), text(call, "client")
    may_see = call.peer.principal.may_see
    for job in jobs:
        if (
            may_see(job.holder)
            and service in ("", "all", job.service)
            and task in ("", job.task)
            and state in ("", job.state)
            and client in ("", job.client)
            and holder in ("", job.holder)
            and (not worker or any(slot.worker == worker for slot in job.slots))
        ):
            yield job


def shown(job: JobView) -> dict[str, Any]:
    """A job as it is told."""
    return {
        "uuid": job.uuid,
        "service": job.service,
        "task": job.task,
        "target": render(job.target, array=False),
        "holder": job.holder,
        "userid": told_userid(job.userid),
        "client": job.client,
        "state": job.state,
        "age_s": round(job.age_s, 3),
        "remaining_s": round(job.remaining_s, 3),
        "workers": [slot.worker or slot.slot for slot in job.slots],
        "attempts": sum(slot.attempt for slot in job.slots),
        "asked": list(job.asked),
        "failed": failed_workers(job),
    }


def failed_workers(job: JobView) -> list[str]:
    """Return the workers whose part of it failed."""
    return [slot.worker or slot.slot for slot in job.slots if slot.ended == FAILED]


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
