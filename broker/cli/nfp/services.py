"""``headgate nfp services``: the services of a broker, its workers with what they manage, its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from broker.cli import options
from broker.cli.exits import Failed
from broker.cli.nfp.session import short, with_session
from broker.cli.screen import Screen, duration, watched
from broker.nfp.client import NfpClient
from broker.nfp.outcome import END_STATES

EXAMPLES = (
    "headgate nfp services",
    "headgate nfp services dummy --watch       one service, again and again",
    "headgate nfp services --json | jq -r '.workers[].name'",
    "headgate nfp services --clients",
)
SERVICE_HEADS = ("service", "workers", "alive", "idle", "queued", "running")
WORKER_HEADS = ("worker", "service", "status", "busy", "waiting", *END_STATES, "alive", "resources")
NARROW_WORKER_HEADS = ("worker", "service", "status", "busy", "waiting", "done", "failed")
CLIENT_HEADS = ("client", "there", "open jobs", "kept", "last seen", "holder")


def show(screen: Screen, found: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Print what a broker has at one time; deployed NorFab's tells names and who is alive, no load."""
    if screen.as_json:
        screen.value(found)
        return
    screen.table(SERVICE_HEADS, [service_row(one) for one in found["services"]], _service_style)
    if found["workers"]:
        screen.line("")
        rows = [worker_row(one) for one in found["workers"]]
        screen.table(WORKER_HEADS, rows, _worker_style, NARROW_WORKER_HEADS)
    if "clients" in found:
        screen.line("")
        screen.table(CLIENT_HEADS, [client_row(one) for one in found["clients"]])


def service_row(service: dict[str, Any]) -> tuple[str, ...]:
    """A row under ``SERVICE_HEADS``."""
    counts = (str(service.get(name, "")) for name in ("alive", "idle", "queued", "running"))
    return (str(service["name"]), str(len(service["workers"])), *counts)


def _service_style(row: Sequence[str]) -> str:
    return "red" if row[2] == "0" else "yellow" if row[4] not in ("", "0") else ""


def worker_row(worker: dict[str, Any]) -> tuple[str, ...]:
    """A row under ``WORKER_HEADS``."""
    credits_ = worker.get("credits")
    busy = f"{worker.get('busy', 0)} / {credits_}" if credits_ is not None else ""
    alive = worker.get("alive_s", worker.get("alive (s)"))
    resources = worker.get("resources")
    names = ", ".join(map(str, resources)) if isinstance(resources, list) else str(resources or "")
    return (
        str(worker["name"]),
        str(worker["service"]),
        str(worker.get("state") or worker.get("status") or ""),
        busy,
        str(worker.get("waiting", "")),
        *(str(worker.get(state, "")) for state in END_STATES),
        duration(float(alive)) if alive not in (None, "") else "",
        short(names, 60),
    )


def _worker_style(row: Sequence[str]) -> str:
    return "" if row[2] == "alive" else "red"


def client_row(client: dict[str, Any]) -> tuple[str, ...]:
    """A row under ``CLIENT_HEADS``."""
    seen = float(client["seen_s"])
    return (
        str(client["name"]),
        "yes" if client["present"] else "no",
        str(client["jobs"]),
        str(client["kept"]),
        f"{duration(seen)} ago" if seen >= 0 else "",
        short(client["holder"], 48),
    )


@with_session("services")
async def services(
    client: NfpClient,
    screen: Screen,
    *,
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="Only this one.")] = "",
    clients: Annotated[
        bool, typer.Option("--clients", help="Show clients, too (your own; an owner all).")
    ] = False,
    watch: options.Watch = False,
    interval: options.Every = 1.0,
) -> None:
    """Print services, their workers with load and resources, and clients.

    Workers are alive, lost (their connection broke a moment ago) or expected (known from before a restart). Exit code 1
    when there is no such service.
    """

    async def look(_before: object) -> dict[str, Any]:
        offered = [one for one in await client.services() if service in ("", one["name"])]
        found = {"services": offered, "workers": await client.workers(service)}
        return {**found, "clients": await client.mmi("show_clients")} if clients else found

    found = await watched(screen, look, lambda each: show(screen, each), interval if watch else None)
    if service and not found["services"]:
        raise Failed(f"no worker offers {service[:64]!r}, and no job waits for it", verb="nfp services")


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("nfp services", services, EXAMPLES, argv)
