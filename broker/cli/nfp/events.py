"""``headgate nfp events``: what happens to jobs, as it happens."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from broker.cli import options
from broker.cli.nfp.session import short, with_session
from broker.cli.screen import Screen, local_clock
from broker.nfp.client import Event, NfpClient
from broker.nfp.client.events import GAP

EXAMPLES = (
    "headgate nfp events                              every job one may see, until Ctrl-C",
    "headgate nfp events --service dummy --kind closed --kind expired",
    "headgate nfp events --uuid 5f0c... --since 0     what the broker still has about one job, then live",
    "headgate nfp events --count 1 --kind finished    wait for one",
)
STYLES: Final = {
    "finished": "green",
    "closed": "dim",
    "returned": "yellow",
    "expired": "red",
    "cancelled": "red",
    "input_request": "bold yellow",
}


def text_of(event: Event) -> str:
    """An event in one line for people."""
    said: dict[str, Any] = event.body if isinstance(event.body, dict) else {}
    when = local_clock(float(said.get("time") or 0))
    task = f"{event.service}.{said.get('task') or '?'}"
    status = f" {said['status']}" if said.get("status") else ""
    words = (
        str(event.sequence),
        when,
        event.uuid,
        task,
        event.kind + status,
        event.worker,
        short(event.message),
    )
    return " ".join(word for word in words if word)


def show(screen: Screen, event: Event) -> None:
    """Print one event; what is missing is told on stderr."""
    if event.kind == GAP:
        lost = f"{event.lost} events are missing here" if event.lost else "events are missing here"
        why = event.message or "the broker sent more than was read"
        screen.note("nfp events", f"{lost}: {why}")
    else:
        screen.record(event.body, text_of(event), STYLES.get(event.kind, ""))


@with_session("events")
async def events(
    client: NfpClient,
    screen: Screen,
    *,
    service: Annotated[str, typer.Option("--service", "-s", metavar="NAME", help="Of this service.")] = "",
    uuid: Annotated[str, typer.Option("--uuid", metavar="ID", help="Of this job.")] = "",
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="submitted, queued, dispatched, accepted, progress, input_request, input_response, result_ready, "
            "stream, returned, finished, closed, expired, cancelled, published; may be given again.",
        ),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(
            "--since", min=0, metavar="N", help="First those behind number N; 0: all that are kept."
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-c", min=0, help="Leave after this many; 0: never.")] = 0,
) -> None:
    """Print what happens to jobs: number, time, job, task, what happened, worker, text.

    Of your own jobs; an owner sees all. A lost connection is made again, and nothing is left out that the broker still
    has.
    """
    left, lost = count, 0
    async with client.subscribe(uuid=uuid, service=service, kinds=kinds or (), since=since) as reader:
        async for event in reader:
            if reader.lost > lost:
                said = f"{reader.lost - lost} events were lost here: printing is too slow"
                screen.note("nfp events", said)
                lost = reader.lost
            show(screen, event)
            left -= 1
            if left == 0:
                break


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("nfp events", events, EXAMPLES, argv)
