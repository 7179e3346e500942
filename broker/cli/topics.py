"""What ``headgate rpc`` can call, for completion: services of clients anywhere, and methods that were called before."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final

from broker.cli import address
from broker.client import connect
from broker.errors import HeadgateError, RpcError

PATIENCE_S: Final = 1.0
"""Somebody waits for the shell: what has not come by then is not offered."""


def offered(before: Sequence[str]) -> list[tuple[str, str]]:
    """(topic, what it is); ``before`` are the words of the verb so far, of which ``--uri`` counts."""
    given = dict(itertools.pairwise(before))
    try:
        return asyncio.run(_ask(address.choose(given.get("--uri") or given.get("-u"))))
    except (HeadgateError, TimeoutError, OSError):
        return []


async def _ask(uri: str) -> list[tuple[str, str]]:
    options = address.link_options(uri, connect_timeout_s=PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S), connect(uri, options=options, retries=0) as handle:
        methods = (await handle.rpc("broker.calls")).json()["methods"]
        try:
            services = (await handle.rpc("service.providers", nodeid=0)).json()["services"]
        except RpcError:  # rank 0 knows nothing of this
            services = {}
    found = {f"{name}.": f"at rank {', '.join(map(str, ranks))}" for name, ranks in services.items()}
    return sorted(
        {**found, **{name: f"called {each['calls']} times" for name, each in methods.items()}}.items()
    )
