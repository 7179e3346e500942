"""``headgate nfp manage``: ask a broker about itself and tell it what to do (MMI, ``broker/nfp/MANAGEMENT.md``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from broker.cli import options
from broker.cli.exits import FAILED, OK
from broker.cli.nfp.session import short, with_session
from broker.cli.screen import Screen, compact
from broker.nfp.client import NfpClient, RequestFailed
from broker.nfp.names import MMI_BROKER, MMI_WORKER, Code

EXAMPLES = (
    "headgate nfp manage show                   the broker: address, time, workers, counters",
    "headgate nfp manage restart                its jobs are kept, workers and clients come back",
    "headgate nfp manage disconnect w1          w1 has to register anew",
    "headgate nfp manage unpin w1               another key may use the name w1",
    "headgate nfp manage reload                 read the inventory again",
    "headgate nfp manage logs --level warning",
    "headgate nfp manage worker restart w1",
)

app = options.application("nfp manage")
command = with_session("manage")
Function = StrEnum(
    "Function", ["show_broker", "show_workers", "show_clients", "restart", "shutdown", "disconnect"]
)
"""What a worker may be asked."""


BrokerPart = StrEnum("BrokerPart", ["broker", "version", "inventory", "status", "stats"])
"""What a broker can show of itself; its services, workers, clients and jobs are verbs of their own."""
_SHOWN_BY: Final = {"broker": "show_broker", "status": "get_status", "stats": "get_stats"}
"""The tasks that show it; the others are ``show_broker_PART``."""


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
    what: Annotated[BrokerPart, typer.Argument(help="What to show.")] = BrokerPart.broker,
) -> None:
    """Show a broker, its versions, inventory, status or statistics.

    What it has to do is shown by `headgate nfp services` and `headgate nfp jobs`.
    """
    told = await ask(client, _SHOWN_BY.get(what, f"show_broker_{what}"))
    if screen.as_json or what is BrokerPart.inventory:
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
    await _leave(client, screen, "restart")


@app.command("shutdown")
@command
async def shutdown(client: NfpClient, screen: Screen) -> None:
    """End the broker."""
    await _leave(client, screen, "shutdown")


async def _leave(client: NfpClient, screen: Screen, task: str) -> None:
    told = await ask(client, task)
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
