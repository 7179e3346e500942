"""``headgate nfp jobs``: list, show and cancel jobs in the broker's store, take up their results."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from broker.cli import options
from broker.cli.exits import FAILED, OK
from broker.cli.nfp.run import until_done
from broker.cli.nfp.session import connected, short
from broker.cli.screen import Screen, duration
from broker.nfp.client import NfpClient, RequestFailed
from broker.nfp.client.limits import JOB_TIMEOUT_S
from broker.nfp.names import JOBS

EXAMPLES = (
    "headgate nfp jobs                          the newest ones: yours; for an owner all",
    "headgate nfp jobs list --state open --service dummy",
    "headgate nfp jobs show 5f0c...             who ran it, how often it was given out",
    "headgate nfp jobs result 5f0c...           wait for its results and print them",
    "headgate nfp jobs cancel 5f0c...",
)
JOB_HEADS: Final = ("id", "service", "task", "target", "state", "age", "workers", "client")
STYLES: Final = {"open": "yellow", "done": "green", "failed": "red", "expired": "red", "cancelled": "dim"}

app = options.application("nfp jobs")
command = connected("jobs", submits=True)
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
        str, typer.Option("--state", metavar="STATE", help="open, done, failed, cancelled or expired.")
    ] = "",
    worker: Annotated[str, typer.Option("--worker", metavar="NAME", help="Given to this worker.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")] = 50,
) -> int:
    """List jobs, the newest first."""
    found = await client.jobs(service=service, task=task, state=state, worker=worker, limit=limit)
    if screen.as_json:
        screen.records(JOB_HEADS, found, [])
    else:
        rows = [job_row(job) for job in found]
        screen.table(JOB_HEADS, rows, lambda row: STYLES.get(row[4].split()[-1], ""))
    return OK


def job_row(job: dict[str, Any]) -> tuple[str, ...]:
    """A row under ``JOB_HEADS``."""
    return (
        str(job["uuid"]),
        str(job["service"]),
        str(job["task"]),
        short(job["target"], 30),
        _state(job),
        duration(float(job["age_s"])),
        short(", ".join(worker for worker in job["workers"] if worker), 40),
        short(job["client"], 30),
    )


def _state(job: dict[str, Any]) -> str:
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
) -> int:
    """Print what the broker knows about a job, without its results."""
    told = await client.mmi("show", service=JOBS, kwargs={"uuid": uuid, "results": False})
    if screen.as_json:
        screen.value(told)
    else:
        _show(screen, told)
    return OK


def _show(screen: Screen, told: dict[str, Any]) -> None:
    plain = {label: value for label, value in told.items() if label not in ("slots", "workers")}
    screen.table(("job", ""), [(label, short(value)) for label, value in plain.items()])
    heads = ("worker", "state", "attempt", "status", "bytes")
    rows = [
        (
            slot["worker"] or slot["slot"] or "(any)",
            slot["state"],
            str(slot["attempt"]),
            str(slot["status"] or ""),
            str(slot["size"]),
        )
        for slot in told.get("slots") or ()
    ]
    screen.table(heads, rows)


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
            print(f"headgate nfp jobs: {error}", file=sys.stderr)
            code = FAILED
            continue
        confirmed = await job.cancel()
        code = code if confirmed else FAILED
        said = "cancelled" if confirmed else f"not cancelled: {job.status}"
        screen.record({"uuid": uuid, "cancelled": confirmed}, f"{uuid} {said}")
    return code


def main(argv: list[str]) -> int:
    """Entry point of the verb; without a word it lists."""
    words = argv
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        words = ["list", *words]
    return options.run_app("nfp jobs", app, EXAMPLES, words)
