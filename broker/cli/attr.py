"""``headgate attr``: get, set, list and remove attributes of a broker."""

from __future__ import annotations

import errno
from typing import Annotated, Any

import typer

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.session import Session, at_each
from broker.client import Handle
from broker.errors import RpcError

EXAMPLES = (
    "headgate attr get size",
    "headgate attr list",
    "headgate attr list --rank 3 --json",
    "headgate attr set log-stderr-level 7",
    "headgate attr set vendor.note 'pump 3 is new'      names of one's own begin with vendor. or test.",
    "headgate attr rm vendor.note",
)
IMMUTABLE = 1
"""Flag of ``attr.get``: the value never changes."""

app = options.application("attr")
Name = Annotated[str, typer.Argument(metavar="NAME")]


@app.callback()
def attr() -> None:
    """Get, set, list and remove attributes of a broker."""


async def look_up(handle: Handle, name: str, nodeid: int) -> dict[str, Any] | None:
    """Ask for one attribute: its name, value and whether it never changes; None when it is gone or has no value."""
    try:
        answer = (await handle.rpc("attr.get", {"name": name}, nodeid=nodeid)).json()
    except RpcError:
        return None
    return {"name": name, "value": answer.get("value"), "immutable": bool(answer.get("flags", 0) & IMMUTABLE)}


@app.command("get")
def get(
    name: Name,
    rank: options.Rank = None,
    uri: options.Uri = None,
    as_json: options.AsJson = False,
    timeout: options.Timeout = options.ANSWER_S,
) -> int:
    """Print the value of one attribute; exit code 1 when there is none of that name."""
    session = Session(uri, as_json, timeout)

    async def work(handle: Handle) -> int:
        asked = {"name": name}
        try:
            answer = await handle.rpc(
                "attr.get", asked, nodeid=options.nodeid(rank), timeout_s=session.timeout_s
            )
        except RpcError as error:
            if error.errno != errno.ENOENT:
                raise
            raise RpcError(error.errno, f"no attribute {name!r}", error.topic) from error
        value = answer.json().get("value")
        session.screen.record({"name": name, "value": value}, str(value))
        return OK

    return session.run(work)


@app.command("list")
def list_(
    rank: options.Rank = None,
    uri: options.Uri = None,
    as_json: options.AsJson = False,
    timeout: options.Timeout = options.ANSWER_S,
) -> int:
    """Print every attribute with its value."""
    session = Session(uri, as_json, timeout)
    nodeid = options.nodeid(rank)

    async def everything(handle: Handle) -> list[dict[str, Any]]:
        names = (await handle.rpc("attr.list", {}, nodeid=nodeid)).json()["names"]
        found = await at_each(sorted(names), lambda name: look_up(handle, name, nodeid))
        return [each for each in found if each is not None]

    async def work(handle: Handle) -> int:
        found = await session.within(everything(handle), "attr.list")
        rows = [
            (each["name"], str(each["value"]), "" if each["immutable"] else "may change") for each in found
        ]
        session.screen.records(("name", "value", ""), found, rows)
        return OK

    return session.run(work)


@app.command("set")
def set_(
    name: Name,
    value: Annotated[str, typer.Argument(metavar="VALUE")],
    rank: options.Rank = None,
    uri: options.Uri = None,
    timeout: options.Timeout = options.ANSWER_S,
) -> int:
    """Give an attribute another value (the owner may)."""
    return _ask("attr.set", {"name": name, "value": value}, rank, Session(uri, False, timeout))


@app.command("rm")
def rm(
    name: Name,
    rank: options.Rank = None,
    uri: options.Uri = None,
    timeout: options.Timeout = options.ANSWER_S,
) -> int:
    """Remove an attribute (the owner may)."""
    return _ask("attr.rm", {"name": name}, rank, Session(uri, False, timeout))


def _ask(topic: str, payload: dict[str, str], rank: int | None, session: Session) -> int:
    async def work(handle: Handle) -> int:
        await handle.rpc(topic, payload, nodeid=options.nodeid(rank), timeout_s=session.timeout_s)
        return OK

    return session.run(work)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run_app("attr", app, EXAMPLES, argv)
