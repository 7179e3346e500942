"""``headgate nfp manage``: ask a broker about itself and tell it what to do (MMI, ``broker/nfp/MANAGEMENT.md``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from broker.cli import options
from broker.cli.exits import FAILED, OK
from broker.cli.nfp.jobs import JOB_HEADS, job_row
from broker.cli.nfp.services import (
    CLIENT_HEADS,
    SERVICE_HEADS,
    WORKER_HEADS,
    client_row,
    service_row,
    worker_row,
)
from broker.cli.nfp.session import short, with_session
from broker.cli.screen import Screen, compact
from broker.nfp.client import NfpClient, RequestFailed
from broker.nfp.names import MMI_BROKER, MMI_WORKER, Code

EXAMPLES = (
    "headgate nfp manage show                   the broker: address, time, workers, counters",
    "headgate nfp manage show workers --json | jq -r .name",
    "headgate nfp manage restart                its jobs are kept, workers and clients come back",
    "headgate nfp manage disconnect w1          w1 has to register anew",
    "headgate nfp manage unpin w1               another key may use the name w1",
    "headgate nfp manage reload                 read the inventory again",
    "headgate nfp manage logs --level warning",
    "headgate nfp manage worker restart w1",
)

app = options.application("nfp manage")
command = with_session("manage")


class BrokerPart(StrEnum):
    """What a broker can show."""

    BROKER = "broker"
    CLIENTS = "clients"
    SERVICES = "services"
    WORKERS = "workers"
    JOBS = "jobs"
    VERSION = "version"
    INVENTORY = "inventory"
    STATUS = "status"
    STATS = "stats"


class Function(StrEnum):
    """What a worker may be asked."""

    SHOW_BROKER = "show_broker"
    SHOW_WORKERS = "show_workers"
    SHOW_CLIENTS = "show_clients"
    RESTART = "restart"
    SHUTDOWN = "shutdown"
    DISCONNECT = "disconnect"


TABLES: Final = {
    BrokerPart.CLIENTS: (CLIENT_HEADS, client_row),
    BrokerPart.SERVICES: (SERVICE_HEADS, service_row),
    BrokerPart.WORKERS: (WORKER_HEADS, worker_row),
    BrokerPart.JOBS: (JOB_HEADS, job_row),
}
"""What is a list of things."""
TASKS: Final = {
    BrokerPart.VERSION: "show_broker_version",
    BrokerPart.INVENTORY: "show_broker_inventory",
    BrokerPart.STATUS: "get_status",
    BrokerPart.STATS: "get_stats",
}
"""Tasks that are not named ``show_`` and what they show."""


async def ask(client: NfpClient, task: str, **kwargs: Any) -> Any:
    """What management answers.

    Raises:
        RequestFailed: an error, or a broker of NorFab's that does not know the task, which it says as an answer.
    """
    told = await client.mmi(task, kwargs=kwargs)
    if isinstance(told, str):
        raise RequestFailed(f"{MMI_BROKER}: {told}", Code.UNKNOWN)
    return told


@app.callback()
def manage() -> None:
    """Ask a broker about itself, and tell it what to do.

    Restart, shutdown, disconnect, unpin, reload and logs are for owners of the broker, unless its rules let others. A
    request is sent once: an answer that is lost with the connection is an error, and what was asked may be done.
    """


@app.command("show")
@command
async def show(
    client: NfpClient,
    screen: Screen,
    *,
    what: Annotated[BrokerPart, typer.Argument(help="What to show.")] = BrokerPart.BROKER,
    service: Annotated[
        str, typer.Option("--service", "-s", metavar="NAME", help="Services, workers, jobs: of this one.")
    ] = "",
) -> None:
    """Show a broker, its clients, services, workers, jobs, versions, inventory, status or statistics."""
    told: Any
    if what is BrokerPart.JOBS:
        told = await client.jobs(service=service)
    else:
        task = TASKS.get(what, f"show_{what.value}")
        told = await ask(client, task, **({"service": service} if service else {}))
    if what in TABLES:
        heads, row = TABLES[what]
        found = [each for each in told if each.get("name") or each.get("uuid")]
        screen.records(heads, found, [row(each) for each in found])
    elif screen.as_json or what is BrokerPart.INVENTORY:
        screen.value(told)
    else:
        screen.table((what.value, ""), [(name, short(value, 200)) for name, value in flat(told)])


def flat(told: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested objects, with names such as ``workers.alive``.

    >>> list(flat({"name": "b", "workers": {"alive": 1}, "endpoints": ["e"]}))
    [('name', 'b'), ('workers.alive', 1), ('endpoints', ['e'])]
    """
    for name, value in told.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


@app.command("restart")
@command
async def restart(client: NfpClient, screen: Screen) -> None:
    """Start the broker anew: its jobs are kept, its workers and clients come back by themselves."""
    _status(screen, await ask(client, "restart"))


@app.command("shutdown")
@command
async def shutdown(client: NfpClient, screen: Screen) -> None:
    """End the broker."""
    _status(screen, await ask(client, "shutdown"))


def _status(screen: Screen, told: Mapping[str, Any]) -> None:
    screen.record(told, str(told.get("status", told)))


@app.command("disconnect")
@command
async def disconnect(
    client: NfpClient,
    screen: Screen,
    *,
    workers: Annotated[
        list[str] | None, typer.Argument(metavar="WORKER", help="Which ones; none named: all.")
    ] = None,
) -> int:
    """Send DISCONNECT to workers, which register anew; exit code 1 when one that was named is not there."""
    told = await ask(client, "disconnect", workers=workers or [])
    gone = [str(name) for name in told["disconnected"]]
    screen.record(told, gone or ["no worker was there"])
    return FAILED if set(workers or ()) - set(gone) else OK


@app.command("unpin")
@command
async def unpin(
    client: NfpClient,
    screen: Screen,
    *,
    peer: Annotated[str, typer.Argument(metavar="NAME", help="Of a worker or client.")],
) -> int:
    """Forget to which key a name belongs: the next one who uses it gets it. Exit code 1 when nobody had it."""
    told = await ask(client, "unpin", name=peer)
    screen.record(told, f"{peer} {'is free' if told['unpinned'] else 'belonged to no key'}")
    return OK if told["unpinned"] else FAILED


@app.command("reload")
@command
async def reload(client: NfpClient, screen: Screen) -> None:
    """Have the broker read its inventory again; one with an error in it is not taken, and the error is shown."""
    told = await ask(client, "reload")
    screen.record(told, [f"{name} {short(value)}" for name, value in flat(told)] or ["reloaded"])


@app.command("logs")
@command
async def logs(
    client: NfpClient,
    screen: Screen,
    *,
    last: Annotated[int, typer.Option("--last", min=0, metavar="N", help="So many; 0: all.")] = 100,
    level: Annotated[str, typer.Option("--level", metavar="LEVEL", help="Of this level only.")] = "",
    logger: Annotated[
        str, typer.Option("--logger", metavar="NAME", help="Of this logger and those below.")
    ] = "",
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="From then on: ISO 8601, UTC.")] = "",
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="Until then, likewise.")] = "",
) -> None:
    """Show the broker's latest log records, the newest last."""
    told = await ask(client, "get_logs", last=last, level=level, logger=logger, since=since, until=until)
    for line in told:
        screen.record(line, f"{line['ts']} {line['level']} {line['message']}")


@app.command("worker")
@command
async def worker(
    client: NfpClient,
    screen: Screen,
    *,
    function: Annotated[Function, typer.Argument(help="What to ask for.")],
    workers: Annotated[list[str], typer.Argument(metavar="WORKER", help="Names of workers.")],
) -> int:
    """Ask workers about themselves, or tell them to restart, shut down or reconnect (mmi.service.worker).

    Exit code 1 when one of them did not answer, or refused.
    """
    told = await client.mmi(function.value, service=MMI_WORKER, target=workers)
    silent = [name for name in workers if name not in told]
    if silent:
        names = ", ".join(silent)
        screen.note("nfp", f"no answer of {names}: not there, or has no management interface")
    code = FAILED if silent else OK
    for name, said in told.items():
        refused = isinstance(said, dict) and bool(said.get("error"))
        code = FAILED if refused else code
        screen.record({"worker": name, "answer": said}, f"{name}: {compact(said)}")
    return code


def main(argv: list[str]) -> int:
    """Entry point of the verb; without a word it shows the broker."""
    return options.run_app("nfp manage", app, EXAMPLES, argv, usual="show")
