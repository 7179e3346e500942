"""``headgate pipeline stream`` beside ``headgate up``: a process that makes tables of its journal as it grows.

It is started again when it ends, with pauses, and ends with us, however we end.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
from typing import TYPE_CHECKING, Final

from broker import extras, interpreter
from broker.children.child import Child, Program, telling
from broker.children.supervisor import Step, Supervisor
from broker.cli.exits import UsageError
from broker.errors import ConfigError

if TYPE_CHECKING:
    from broker.node.assembly import Node

log = logging.getLogger("headgate")
LEAVE_S: Final = 20.0
"""How long it may take to end the batch that it is at, and its JVM."""
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


class Following:
    """The process.

    Args:
        journal: that it follows. warehouse: of the tables. folder: where a socket is made for its word.
    """

    def __init__(self, journal: str, warehouse: str, folder: str) -> None:
        self.warehouse = warehouse
        words = [*interpreter.command("broker.cli.main"), "pipeline", "stream"]
        words += ["--journal", os.path.abspath(journal), "--warehouse", warehouse]
        place = os.path.join(folder, "local-pipeline")
        self._child = Child(Program("pipeline", lambda: words), telling(log), place)

    async def start(self, _node: Node) -> None:
        """Start it, and again whenever it ends."""
        self._child.start()

    async def stop(self) -> None:
        """End it; harmless twice."""
        await Supervisor([self._child]).end([self._child], Step([self._child], signal.SIGTERM, LEAVE_S))

    def where(self) -> list[str]:
        """Lines that say where the tables are."""
        words = f"headgate pipeline describe --warehouse {shlex.quote(self.warehouse)}"
        return [f"tables of the journal, half a minute behind it or more: {self.warehouse}", f"  {words}"]

    def variables(self) -> dict[str, str]:
        """What the environment of another terminal has to say, so that ``headgate pipeline`` finds them."""
        return {VARIABLE: self.warehouse}
