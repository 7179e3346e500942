"""The metrics that are served, read off running programs of ours: name -> (type, what it says)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from broker.cli.nfp.embedded import Wing
from broker.exposition import render
from broker.nfp.jobs import Counts
from broker.nfp.jobs.config import TaskStats
from broker.nfp.server.broker import NfpBroker
from broker.node.assembly import Node
from broker.oslo.service import metrics as oslo
from broker.settings import NfpSection, loads
from gateway.web import metrics
from tests.live.gateways import live

Served = dict[str, tuple[str, str]]


def served(folder: Path) -> Served:
    """Of a broker with a journal, and of a gateway with a certificate; ``folder`` is for their files."""
    return {**of_broker(folder), **asyncio.run(_of_gateway(folder)), **of_oslo(), **of_nfp()}


def of_nfp() -> Served:
    """Of an NFP broker in the process of rank 0, of which only what is counted is here."""
    wing = Wing(NfpSection(), "")
    dispatcher: Any = SimpleNamespace(counts=Counts(), services=list, tasks=TaskStats())
    wing.broker = cast(NfpBroker, SimpleNamespace(dispatcher=dispatcher, recording=None))
    return parsed(render(wing.samples()))


def of_oslo() -> Served:
    """Of a node's proxy: every family is there before any room has answered."""
    return parsed(render(oslo.samples({"directory": {}})))


def of_broker(folder: Path) -> Served:
    """Of a broker with a journal, which need not run for that."""
    settings = loads(
        f'[broker]\nrundir = "{folder}/run"\n[journal]\nenabled = true\ndirectory = "{folder}/journal"\n'
    )

    async def asked() -> str:
        return Node(settings.at_rank(0)).metrics.text()

    return parsed(asyncio.run(asked()))


async def _of_gateway(folder: Path) -> Served:
    async with live(folder) as running:
        gateway = running.gateway
        found = metrics.samples(
            gateway.sessions, gateway.delivery, gateway.identity, gateway.admission, None, [1.0], {}
        )
    return parsed(metrics.render(found).decode())


def parsed(text: str) -> Served:
    """From Prometheus text: ``# HELP NAME TEXT`` and ``# TYPE NAME KIND``."""
    helps: dict[str, str] = {}
    found: Served = {}
    for line in text.splitlines():
        words = line.split(" ", 3)
        if line.startswith("# HELP "):
            helps[words[2]] = words[3]
        elif line.startswith("# TYPE "):
            found[words[2]] = (words[3], helps[words[2]])
    return found


def table(found: Served) -> str:
    """As the guide has it."""
    rows = [f"| `{name}` | {kind} | {text} |" for name, (kind, text) in found.items()]
    return "\n".join(["| metric | type | says |", "| --- | --- | --- |", *rows])
