"""``headgate services``: what clients provide, anywhere in the tree."""

from __future__ import annotations

from typing import Any, Final

from broker.cli import options
from broker.cli.callrates import ask
from broker.cli.exits import OK
from broker.cli.screen import Screen
from broker.cli.session import Session
from broker.cli.tree import providers
from broker.client import Handle
from broker.errors import RpcError

EXAMPLES = ("headgate services", "headgate services --json")
SHOWN_RANKS: Final = 16


async def _known(handle: Handle, screen: Screen) -> dict[str, Any]:
    """What rank 0 knows, which is all; else what our own broker knows, which is what is at it and below it."""
    answer = await providers(handle)
    if answer is None:
        answer = (await handle.rpc("service.providers")).json()
        screen.note("services", "rank 0 does not tell; this is what our broker knows")
    return answer


async def _provider_names(handle: Handle, ranks: list[int]) -> dict[int, dict[str, str]]:
    """Rank -> service -> its provider's name; nothing of ranks that do not tell."""
    try:
        answers = await ask(handle, ranks)
    except RpcError:
        return {}
    told = {rank: answer.services for rank, answer in answers.items() if not isinstance(answer, str)}
    return {rank: {name: each.provider for name, each in of.items()} for rank, of in told.items()}


async def _fetch(handle: Handle, screen: Screen) -> tuple[list[dict[str, Any]], int]:
    """The services, and how many pairs of a service and a rank nobody knows."""
    answer = await _known(handle, screen)
    services: dict[str, list[int]] = answer["services"]
    names = await _provider_names(handle, sorted({rank for ranks in services.values() for rank in ranks}))
    found = [
        {
            "service": name,
            "ranks": ranks,
            "providers": {str(rank): names[rank][name] for rank in ranks if name in names.get(rank, {})},
        }
        for name, ranks in sorted(services.items())
    ]
    return found, answer["left_out"]


def services(
    uri: options.Uri = None, as_json: options.AsJson = False, timeout: options.Timeout = options.ANSWER_S
) -> int:
    """List the services that clients provide, the ranks where they do, and who does.

    Built-in services, which every rank has, are not among them: headgate stats --services has those, too.
    """
    session = Session(uri, as_json, timeout)

    async def work(handle: Handle) -> int:
        found, left_out = await session.within(_fetch(handle, session.screen), "service.providers")
        rows = [
            (
                each["service"],
                ", ".join(map(str, each["ranks"][:SHOWN_RANKS])),
                ", ".join(dict.fromkeys(each["providers"].values())),
            )
            for each in found
        ]
        session.screen.records(("service", "ranks", "providers"), found, rows)
        if left_out:
            session.screen.note("services", f"{left_out} more are beyond what brokers tell of")
        return OK

    return session.run(work)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("services", services, EXAMPLES, argv)
