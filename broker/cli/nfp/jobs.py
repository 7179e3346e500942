"""``headgate nfp jobs``: list, show and cancel jobs in the broker's store, take up their results."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from broker.cli import options
from broker.cli.exits import FAILED, OK
from broker.cli.journal.shared_options import clock, moment_ns
from broker.cli.nfp.following import until_done
from broker.cli.nfp.session import short, with_session
from broker.cli.screen import Screen, compact, duration
from broker.nfp.client import NfpClient, RequestFailed
from broker.nfp.client.job import JOB_TIMEOUT_S
from broker.nfp.names import JOBS
from broker.nfp.outcome import END_STATES

EXAMPLES = (
    "headgate nfp jobs                          the newest ones: yours; for an owner all",
    "headgate nfp jobs list --state open --service dummy",
    "headgate nfp jobs list --state failed --since 1h --text 'no such device'",
    "headgate nfp jobs show 5f0c...             its arguments, who ran it, result, error, traceback",
    "headgate nfp jobs result 5f0c...           wait for its results and print them",
    "headgate nfp jobs cancel 5f0c...",
)
JOB_HEADS: Final = (
    "id",
    "service",
    "task",
    "target",
    "state",
    "age",
    "took",
    "workers",
    "client",
    "arguments",
    "result or error",
)
NARROW_HEADS: Final = ("id", "task", "state", "age", "workers", "result or error")
STATES: Final = ("open", *END_STATES)
STYLES: Final = {"open": "yellow", "done": "green", "failed": "red", "expired": "red", "cancelled": "dim"}

app = options.application("nfp jobs")
command = with_session("jobs", submits=True)
Uuid = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]
Service = Annotated[
    str,
    typer.Option(
        "--service", "-s", metavar="NAME", help="Whose job it is: needed at brokers that keep no jobs."
    ),
]


@app.callback()
def jobs() -> None:
    """List, show and cancel jobs, take up their results."""


@app.command("list")
@command
async def list_(
    client: NfpClient,
    screen: Screen,
    service: Annotated[str, typer.Option("--service", "-s", metavar="NAME", help="Of this service.")] = "",
    task: Annotated[str, typer.Option("--task", metavar="NAME", help="With this task.")] = "",
    state: Annotated[
        str,
        typer.Option(
            "--state", metavar="STATE", help=f"{', '.join(STATES)}; several with commas: failed,expired."
        ),
    ] = "",
    worker: Annotated[str, typer.Option("--worker", metavar="NAME", help="Given to this worker.")] = "",
    of: Annotated[str, typer.Option("--client", metavar="NAME", help="Submitted by this client.")] = "",
    text: Annotated[
        str, typer.Option("--text", metavar="TEXT", help="With this in the id, the arguments or an error.")
    ] = "",
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Submitted from 2026-01-31T12:00 (UTC), or 10m ago."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Submitted before this time.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")] = 50,
) -> None:
    """List jobs, the newest first: what was asked, how long it took, and how it ended.

    How many more there are is told on stderr.
    """
    wanted: dict[str, Any] = {"service": service, "task": task, "state": state, "worker": worker}
    wanted |= {"client": of, "text": text}
    for name, word in (("since", since), ("until", until)):
        moment = moment_ns(word, f"--{name}")
        if moment is not None:
            wanted[name] = moment / 1e9
    asked = {name: value for name, value in wanted.items() if value != ""}
    told = await client.mmi("list", service=JOBS, kwargs={**asked, "limit": limit})
    found = told["jobs"]
    screen.records(JOB_HEADS, found, [job_row(job) for job in found], NARROW_HEADS, _style)
    more = told.get("total", len(found)) - len(found)
    if more > 0:
        screen.note("nfp jobs", f"{more} more; --limit shows up to 1000")
    elif told.get("more"):
        screen.note("nfp jobs", "older jobs were not looked at")


def _style(row: Sequence[str]) -> str:
    return STYLES.get(row[JOB_HEADS.index("state")].split()[-1], "")


def job_row(job: Mapping[str, Any]) -> tuple[str, ...]:
    """A row under ``JOB_HEADS``."""
    took = job.get("took_s")
    return (
        str(job["uuid"]),
        str(job["service"]),
        str(job["task"]),
        short(job["target"], 30),
        _state(job),
        duration(float(job["age_s"])),
        duration(float(took)) if took is not None else "",
        short(", ".join(worker for worker in job["workers"] if worker), 40),
        short(job["client"], 30),
        short(_arguments(job.get("arguments")), 50),
        short(" ".join(str(job.get("error") or job.get("result") or "").split()), 70),
    )


def _arguments(said: Any) -> str:
    """As they would be written in a call: ``1, device="r1"``."""
    if not isinstance(said, dict):
        return str(said or "")
    if not isinstance(said.get("args"), list) or not isinstance(said.get("kwargs"), dict):
        return compact(said)  # anybody may submit anything
    named = [f"{name}={compact(value)}" for name, value in said["kwargs"].items()]
    return ", ".join([*map(compact, said["args"]), *named])


def _state(job: Mapping[str, Any]) -> str:
    """In a few words, the state last; of a job of several workers, how many failed."""
    if job.get("asked"):
        return f"{job['state']} (asks)"
    failed, workers = len(job.get("failed") or ()), len(job["workers"])
    return f"{failed} of {workers} failed" if failed and workers > 1 else str(job["state"])


@app.command("show")
@command
async def show(
    client: NfpClient,
    screen: Screen,
    uuid: Uuid,
) -> None:
    """Print what the broker knows about a job: who asked for what, who ran it, results, errors and tracebacks."""
    told = await client.mmi("show", service=JOBS, kwargs={"uuid": uuid})
    if screen.as_json:
        screen.value(told)
    else:
        _show(screen, told)


def _show(screen: Screen, told: dict[str, Any]) -> None:
    apart = ("parts", "workers", "results", "result", "error", "arguments")
    plain = {label: value for label, value in told.items() if label not in apart}
    if told.get("submitted") is not None:
        plain["submitted"] = clock(int(told["submitted"] * 1e9))
    plain["arguments"] = _arguments(told.get("arguments"))
    screen.table(("job", ""), [(label, short(value, 500)) for label, value in plain.items()])
    heads = ("worker", "state", "attempt", "status", "bytes")
    parts = told.get("parts") or ()
    rows = [
        (
            _who(part),
            part.get("ended") or part["state"],
            str(part["attempt"]),
            str(part["status"] or ""),
            str(part["size"]),
        )
        for part in parts
    ]
    screen.table(heads, rows)
    for part in parts:
        _show_end(screen, part)


def _who(part: Mapping[str, Any]) -> str:
    return str(part["worker"] or part["name"] or "(any)")


def _show_end(screen: Screen, part: Mapping[str, Any]) -> None:
    """The result of one worker, what went wrong, and where."""
    result, error, traceback = (part.get(name) for name in ("result", "error", "traceback"))
    if error:
        screen.line(f"{_who(part)}: {part['ended']}: {error}", "red")
    if traceback:
        screen.line(str(traceback).rstrip())
    if result is not None:
        screen.line(f"{_who(part)}: {result if isinstance(result, str) else compact(result)}")


@app.command("result")
@command
async def result(
    client: NfpClient,
    screen: Screen,
    uuid: Uuid,
    service: Service = "",
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Wait so long for them.")
    ] = JOB_TIMEOUT_S,
) -> int:
    """Wait for the results of a job and print them."""
    job = await client.attach(uuid, service=service, timeout_s=timeout)
    return await until_done(job, screen, shown=sys.stderr.isatty() and not screen.as_json)


@app.command("cancel")
@command
async def cancel(
    client: NfpClient,
    screen: Screen,
    uuids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of jobs.")],
    service: Service = "",
) -> int:
    """Cancel jobs; exit code 1 when one of them was over already, or the broker did not confirm."""
    code = OK
    for uuid in uuids:
        try:
            job = await client.attach(uuid, service=service)
        except RequestFailed as error:  # the others are to be cancelled all the same
            screen.note("nfp jobs", str(error))
            code = FAILED
            continue
        confirmed = await job.cancel()
        code = code if confirmed else FAILED
        said = "cancelled" if confirmed else f"not cancelled: {job.status}"
        screen.record({"uuid": uuid, "cancelled": confirmed}, f"{uuid} {said}")
    return code


def main(argv: list[str]) -> int:
    """Entry point of the verb; without a word it lists."""
    return options.run_app("nfp jobs", app, EXAMPLES, argv, usual="list")
