"""``headgate status``: the tree and the health of every rank."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from broker.cli import options, tree
from broker.cli.exits import OK
from broker.cli.screen import Screen, duration, watched
from broker.cli.session import Session, looked
from broker.client import Handle
from broker.errors import RpcError

EXAMPLES = (
    "headgate status",
    "headgate status --watch              drawn anew every second, until Ctrl-C",
    "headgate status --json | jq .state",
)


async def look(handle: Handle) -> dict[str, Any]:
    """What there is to say about the instance: state, size, versions, tree."""
    names = ("size", "version", "headgate.version", "tbon.topo")
    root, state, *values = await asyncio.gather(
        tree.fetch(handle), _state(handle), *(_attr(handle, n) for n in names)
    )
    size, version, ours, topology = values
    return {
        "state": state.get("state", "unknown"),
        "duration": state.get("duration"),
        "size": int(size) if size.isdecimal() else 0,
        "topology": topology,
        "version": version,
        "headgate_version": ours or None,
        "tree": root,
    }


async def _state(handle: Handle) -> dict[str, Any]:
    try:
        return (await handle.rpc("state-machine.get", nodeid=0)).json()
    except RpcError:
        return {}  # a broker without states is still worth drawing


async def _attr(handle: Handle, name: str) -> str:
    try:
        return await handle.attr(name)
    except RpcError:
        return ""  # real flux-core has no headgate.version


def headline(seen: dict[str, Any]) -> str:
    """The line above the tree."""
    since = f" for {duration(seen['duration'])}" if seen["duration"] is not None else ""
    ours = f"headgate {seen['headgate_version']}, as " if seen["headgate_version"] else ""
    counts = ", ".join(f"{number} {status}" for status, number in tree.count(seen["tree"]).items())
    topology = f", {seen['topology']}" if seen["topology"] else ""
    brokers = "1 broker" if seen["size"] == 1 else f"{seen['size']} brokers"
    return f"{seen['state']}{since}: {brokers}{topology} ({counts}); {ours}flux-core {seen['version']}"


def show(screen: Screen, seen: dict[str, Any]) -> None:
    """Print one look."""
    if screen.as_json:
        screen.value({**seen, "tree": seen["tree"].value()})
        return
    screen.line(headline(seen), "bold")
    for branches, member in tree.drawn(seen["tree"]):
        if screen.rich:
            screen.draw(_coloured(branches, member))
        else:
            screen.line(branches + member.text())


def _coloured(branches: str, member: tree.Member) -> Any:
    from rich.text import Text

    style = tree.STYLES.get(member.status, "")
    text = Text()
    text.append(branches, "dim")
    text.append(str(member.rank), "bold")
    text.append(member.text().removeprefix(str(member.rank)), style)
    return text


def status(
    watch: options.Watch = False,
    interval: options.Every = 1.0,
    uri: options.Uri = None,
    as_json: options.AsJson = False,
    timeout: options.Timeout = options.ANSWER_S,
) -> int:
    """Draw the tree of the instance with the health of every rank.

    full: the broker and all below it are there; partial: some below are not there yet; degraded: some below are lost;
    lost: it went without a word; offline: it said goodbye, or was never there; silent: it does not answer.
    """
    session = Session(uri, as_json, timeout)

    async def work(handle: Handle) -> int:
        async def take(_before: object) -> dict[str, Any]:
            return await looked(handle, lambda: session.within(look(handle), "status"), watch)

        await watched(session.screen, take, partial(show, session.screen), interval if watch else None)
        return OK

    return session.run(work)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("status", status, EXAMPLES, argv)
