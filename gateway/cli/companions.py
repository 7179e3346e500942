"""Programs beside ``headgate up``: ``headgate pipeline stream``, which makes tables of its journal, and the demo.

Each is a process that is started again when it ends, with pauses, and ends with us, however we end.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from broker import extras, interpreter
from broker.children.child import Child, Program, telling
from broker.children.supervisor import Step, Supervisor
from broker.cli.exits import UsageError
from broker.errors import ConfigError

if TYPE_CHECKING:
    from broker.node.assembly import Node

log = logging.getLogger("headgate")
BATCH_S: Final = 20.0
"""How long the pipeline may take to end the batch that it is at, and its JVM."""
LEAVE_S: Final = 2.0
VARIABLE: Final = "HEADGATE_WAREHOUSE"


def check(journal: str | None) -> None:
    """What ``--pipeline`` needs, before anything is started.

    Raises:
        UsageError: no journal. ConfigError: a library or Java is missing; it says all that is.
    """
    from gateway.cli.pipeline import needed
    from gateway.pipeline.session import java_missing

    if not journal:
        raise UsageError("--pipeline makes tables of a journal: --journal DIR is missing")
    if lacks := extras.absent(needed("stream")):
        raise ConfigError(f"--pipeline: {extras.lacking(*lacks)}")
    if why := java_missing():
        raise ConfigError(f"--pipeline: {why}")


class Companion:
    """One of them.

    Args:
        name: for people. words: the command line. folder: where a socket is made for its word.
        leave_s: how long it may take to leave.
        lines: say where it is found. variables: what the environment of another terminal has to say.
        environ: further variables of its own.
    """

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        folder: str,
        leave_s: float,
        lines: Sequence[str],
        variables: Mapping[str, str],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        place = os.path.join(folder, f"local-{name}")
        self._child = Child(Program(name, lambda: words, environ=environ or {}), telling(log), place)
        self._leave_s = leave_s
        self._lines = lines
        self._variables = variables

    async def start(self, _node: Node) -> None:
        """Start it, and again whenever it ends."""
        self._child.start()

    async def stop(self) -> None:
        """End it; harmless twice."""
        await Supervisor([self._child]).end([self._child], Step([self._child], signal.SIGTERM, self._leave_s))

    def where(self) -> list[str]:
        """See ``wings.Wing``."""
        return list(self._lines)

    def variables(self) -> dict[str, str]:
        """See ``wings.Wing``."""
        return dict(self._variables)


def pipeline(journal: str, warehouse: str, folder: str) -> Companion:
    """``headgate pipeline stream`` of this journal into this warehouse."""
    words = [*interpreter.command("broker.cli.main"), "pipeline", "stream"]
    words += ["--journal", os.path.abspath(journal), "--warehouse", warehouse]
    shown = f"headgate pipeline describe --warehouse {shlex.quote(warehouse)}"
    lines = [f"tables of the journal, half a minute behind it or more: {warehouse}", f"  {shown}"]
    return Companion("pipeline", words, folder, BATCH_S, lines, {VARIABLE: warehouse})


def demo(uris: Sequence[str], pids: Sequence[int], gateway: str, token: str, folder: str) -> Companion:
    """Programs that use the tree (``gateway.demo``), and how to break it.

    Args:
        uris: of each rank.
        pids: of each rank but 0.
        gateway: its address.
        token: of the owner; "" there is none, and nobody comes by the gateway.
        folder: as of ``Companion``.
    """
    web = gateway.replace("http", "ws", 1) if token else ""
    words = [*interpreter.command("gateway.demo"), web, *uris]
    lines = ["programs of a shop use it; break something, and look at the dashboard:"]
    lines += ["""  headgate rpc --anywhere shop.break '{"seconds": 30}'    # all orders fail"""]
    if pids:
        rank, pid = len(pids), pids[-1]
        lines += [
            f"  kill -STOP {pid}    # rank {rank}, which has the shop, freezes; kill -CONT {pid} wakes it"
        ]
    return Companion("demo", words, folder, LEAVE_S, lines, {}, {"HEADGATE_TOKEN": token})
