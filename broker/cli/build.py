"""Which build of Headgate runs: the compiled wheel, or the pure Python that does the same more slowly."""

from __future__ import annotations

import platform
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from typing import Final

SAMPLES: Final = (
    "broker.name_stats",
    "broker.ingress.stamping",
    "broker.nfp.jobs.dispatcher",
    "broker.nfp.frames",
    "broker.node.broker",
    "broker.oslo.directory.peer",
    "broker.oslo.frames",
    "broker.oslo.proxy.call",
    "broker.oslo.reactor.loop",
    "broker.oslo.client.calls",
    "broker.routing.router",
    "broker.transport.batching",
    "broker.transport.zeromq.codec",
    "broker.transport.zeromq.connection",
    "broker.wire.decoding",
    "broker.wire.message",
    "gateway.codecs.binary",
    "gateway.events.run",
    "gateway.sessions.calls",
    "gateway.websocket.frames",
)
"""Some modules of each room that is compiled; all of them have a line ``# compiled: mypyc``."""


def compiled(module: str) -> bool:
    """Whether importing ``module`` loads an extension; it is not imported, only the packages around it are."""
    spec = find_spec(module)
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))


def build() -> str:
    """The build in words, with the interpreter: ``compiled, CPython 3.11.7``."""
    count = sum(map(compiled, SAMPLES))
    kind = {0: "pure Python", len(SAMPLES): "compiled"}.get(
        count, f"partly compiled: {count} of {len(SAMPLES)} modules looked at"
    )
    return f"{kind}, {platform.python_implementation()} {platform.python_version()}"
