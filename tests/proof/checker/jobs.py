"""C11: jobs of NFP. At least one run, exactly one recorded result for each worker a job is for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.proof.checker.entries import Job, Line
from tests.proof.checker.places import Way
from tests.proof.checker.story import Story
from tests.proof.checker.trouble import FOREVER
from tests.proof.checker.verdict import Verdict

DONE: Final = "200"
REFUSED: Final = "500"
"""Status of a job that the broker could not take, for instance because its disk is full."""
GIVEN_UP: Final = frozenset({"408"})
"""Status of a job whose time was over, or whose worker died with one that must not run twice."""


def judge(story: Story, verdict: Verdict) -> None:
    """Hold every job against C11."""
    workers = _workers(story)
    for job in story.jobs.values():
        verdict.messages["jobs"] += 1
        verdict.messages["results of jobs"] += len(job.done)
        _runs(story, job, verdict)
        _results(story, job, verdict)
        _live(story, job, workers[_service(job)], verdict)


def _runs(story: Story, job: Job, verdict: Verdict) -> None:
    """The same worker does not run a job twice at a time; one that must not run twice does not; attempts count up."""
    begins = [line for line in job.runs if line["begin"]]
    verdict.messages["runs of jobs"] += len(begins)
    if job.once:
        for worker in {line["worker"] for line in begins}:
            count = sum(1 for line in begins if line["worker"] == worker)
            if count > 1:
                verdict.add("C11", f"{job.id} must not run twice and ran {count} times", job.t, job.id)
        if job.workers is None and len(begins) > 1:
            verdict.add("C11", f"{job.id} must not run twice and ran {len(begins)} times", job.t, job.id)
    for worker in {line["worker"] for line in job.runs}:
        _one_at_a_time(story, job, worker, verdict)
    for line in begins:
        if job.workers is not None and line["worker"] not in job.workers:
            verdict.add("C11", f"{job.id} ran on {line['worker']}, for whom it was not", line["t"], job.id)
        if line["t"] < job.t:
            verdict.add("C11", f"{job.id} ran before it was submitted", line["t"], job.id)


def _one_at_a_time(story: Story, job: Job, worker: str, verdict: Verdict) -> None:
    """Runs of one worker are in the order of its file; a killed one ends its run without a word."""
    lines = [line for line in job.runs if line["worker"] == worker]
    running: Line | None = None
    attempt = 0
    for line in lines:
        if not line["begin"]:
            if running is None:
                verdict.add(
                    "C11", f"{worker} ended a run of {job.id} that it did not begin", line["t"], job.id
                )
            running = None
            continue
        if running is not None and not _ended_between(story, line["who"], running["t"], line["t"]):
            verdict.add("C11", f"{worker} ran {job.id} twice at a time", line["t"], job.id)
        if line["attempt"] < attempt:
            what = f"{worker} ran attempt {line['attempt']} of {job.id} after attempt {attempt}"
            verdict.add("C11", what, line["t"], job.id)
        running, attempt = line, line["attempt"]


def _ended_between(story: Story, who: str, begin: float, end: float) -> bool:
    """Whether a party was killed in that time: a connection of it ended unsaid."""
    return any(
        conn.who == who and not conn.said and begin <= conn.end <= end for conn in story.conns.values()
    )


def _results(story: Story, job: Job, verdict: Verdict) -> None:
    """One result for each worker, told as it is stored; none of an acknowledged job is missing."""
    told, stored = _by_worker(job, job.done, verdict), _by_worker(job, job.recorded, verdict)
    for worker in told.keys() & stored.keys():
        if told[worker] != stored[worker]:
            what = (
                f"{job.id}: {worker or 'its worker'} was told as {told[worker]}, stored is {stored[worker]}"
            )
            verdict.add("C11", what, job.t, job.id)
    statuses = {**stored, **told}
    for worker, status in statuses.items():
        ran = any(not line["begin"] and (not worker or line["worker"] == worker) for line in job.runs)
        if status == DONE and not ran:
            verdict.add(
                "C11",
                f"{job.id} succeeded on {worker or 'a worker'} and never ran to its end there",
                job.t,
                job.id,
            )
        if status not in GIVEN_UP | {DONE} and not (status == REFUSED and _may_be_refused(story, job)):
            verdict.add("C11", f"{job.id} ended with {status}", job.t, job.id)
    wanted = 1 if job.workers is None else len(job.workers)
    if job.kept < FOREVER and len(statuses) != wanted:
        what = f"{job.id} was acknowledged and has {len(statuses)} of {wanted} results"
        verdict.add("C11", what, job.t, job.id)
    if job.kept < FOREVER:
        verdict.judged["jobs acknowledged"] += 1


def _may_be_refused(story: Story, job: Job) -> bool:
    """Whether it was not acknowledged, and a fault touched the client's way to the broker."""
    ended = max((line["t"] for line in job.done), default=job.t)
    return job.kept == FOREVER and story.trouble.touched(job.conn.way, job.t, ended)


def _by_worker(job: Job, lines: Iterable[Line], verdict: Verdict) -> dict[str, str]:
    """Worker -> status. A job for any worker has one result, whoever it is of."""
    found: dict[str, str] = {}
    for line in lines:
        worker = str(line.get("worker", "")) if job.workers is not None else ""
        if worker in found:
            what = f"{job.id} has two results ({line['ev']}) of {worker or 'its worker'}"
            verdict.add("C11", what, line["t"], job.id)
        found[worker] = str(line["status"])
    return found


def _live(story: Story, job: Job, workers: Way, verdict: Verdict) -> None:
    """Where nothing is touched, at the client and at every worker that could have it, a job runs once and succeeds."""
    ended = max((line["t"] for line in job.done), default=FOREVER)
    way = job.conn.way | workers
    if ended == FOREVER or not job.conn.covers(job.t, ended) or story.trouble.touched(way, job.t, ended):
        verdict.judged["jobs near a fault"] += 1
        return
    verdict.judged["jobs live"] += 1
    begins = sum(1 for line in job.runs if line["begin"])
    wanted = 1 if job.workers is None else len(job.workers)
    if begins != wanted:
        verdict.add("C11", f"{job.id} ran {begins} times on a live way", job.t, job.id)
    for line in job.done:
        if str(line["status"]) != DONE:
            verdict.add("C11", f"{job.id} ended with {line['status']} on a live way", line["t"], job.id)


def _workers(story: Story) -> dict[str, Way]:
    """Service -> the parties that ever ran a job of it, and their ways to the broker."""
    found: dict[str, set[str]] = {}
    for job in story.jobs.values():
        found.setdefault(_service(job), set()).update(line["who"] for line in job.runs)
    ways: dict[str, Way] = {}
    for service, who in found.items():
        ways[service] = Way(frozenset(who))
        for conn in story.conns.values():
            if conn.who in who:
                ways[service] |= conn.way
    return ways


def _service(job: Job) -> str:
    return job.to.partition(".")[0]
