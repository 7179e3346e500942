"""``headgate nfp run``: have a task run by workers, follow it, print its results."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from broker.cli import options
from broker.cli.content import keywords, value_of
from broker.cli.exits import OK, UsageError
from broker.cli.nfp.following import until_done
from broker.cli.nfp.session import NfpSession, with_session
from broker.cli.screen import Screen
from broker.nfp.client import Job, NfpClient
from broker.nfp.client.job import JOB_TIMEOUT_S
from broker.nfp.names import ASKED_BY_MMI

EXAMPLES = (
    "headgate nfp run dummy ping",
    "headgate nfp run dummy ping -k n=3 --target any",
    """headgate nfp run nornir cli 'show clock' --target w1,w2 --json | jq .result""",
    "headgate nfp run mmi.service.broker show_broker",
    "headgate nfp run dummy slow --detach        prints the job's id; `headgate nfp jobs result ID` later",
)


@with_session("run", submits=True)
def run(
    session: NfpSession,
    service: Annotated[str, typer.Argument(metavar="SERVICE")],
    task: Annotated[str, typer.Argument(metavar="TASK")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENT", help="JSON where it is some, else text.")
    ] = None,
    kwargs: Annotated[
        list[str] | None,
        typer.Option(
            "--kwargs", "-k", metavar="NAME=VALUE|JSON", help="Keyword arguments; may be given again."
        ),
    ] = None,
    target: Annotated[
        str, typer.Option("--target", "-t", metavar="all|any|NAME[,NAME]...", help="Which workers.")
    ] = "all",
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Until then all results must be here."),
    ] = JOB_TIMEOUT_S,
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="Show events as they come. Default: on a terminal."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave once the broker has the job; print its id.")
    ] = False,
    uuid: Annotated[
        str, typer.Option("--uuid", metavar="ID", help="The job's id. A known one is not run twice.")
    ] = "",
) -> int:
    """Have a task run by workers of a service and print their results.

    Exit code 1 when a task failed or the job did not end well, 4 when results are missing at the deadline. Ctrl-C asks
    what to do with the job; without a terminal it cancels it. Services of the broker itself, such as
    mmi.service.broker, take no jobs: they are asked once and answer at once; `headgate nfp manage` has them as verbs.
    """
    if detach and service in ASKED_BY_MMI:
        raise UsageError(f"--detach: {service} takes no jobs, it answers at once")
    words = [value_of(word) for word in args or []]
    named = keywords(kwargs or (), "--kwargs", "NAME=VALUE")
    shown = sys.stderr.isatty() and not session.screen.as_json if progress is None else progress

    async def work(client: NfpClient) -> int:
        job = await client.submit(
            service, task, args=words, kwargs=named, target=target, timeout_s=timeout, uuid=uuid
        )
        if detach:
            return await _detach(job, session.screen)
        return await until_done(job, session.screen, shown=shown)

    return session.run(work, timeout)


async def _detach(job: Job, screen: Screen) -> int:
    await job.accepted()
    if job.error is not None:
        raise job.error
    screen.record({"uuid": job.uuid, "status": job.status}, job.uuid)
    return OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("nfp run", run, EXAMPLES, argv)
