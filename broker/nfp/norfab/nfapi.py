"""NorFab's ``NorFab``: an inventory, what its topology has started, clients."""

from __future__ import annotations

import atexit
import hashlib
import importlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from broker import interpreter
from broker.children.child import Child, Program, Restarts
from broker.children.supervisor import Step, Supervisor
from broker.errors import ConfigError
from broker.loopthread import LoopThread
from broker.nfp.inventory import load_environment
from broker.nfp.norfab.client import Inventory, NFPClient
from broker.nfp.peer.brokers import DEFAULT
from broker.tasks import first_of

log = logging.getLogger("headgate")
PYTHON: Final = "NORFAB_PYTHON"
"""Environment: an interpreter that has deployed NorFab, for workers of the topology that are NorFab's own."""
START_S: Final = 300.0
"""How long the broker and all workers may take to be there, as in NorFab."""
SAID_MAX: Final = 20
"""Its last lines that are told when it does not come up."""
STOP_S: Final = 60.0
"""How long they may take to leave: workers finish what they run."""


class NorFab:
    """NorFab's class of this name: an inventory, the broker and the workers of its topology, clients.

    Args:
        inventory: path of the inventory. inventory_data: the inventory itself. base_dir: its folder.
        run_broker, run_workers: what ``start`` starts: True as the topology says, False nothing, or names of workers.
        load_env_override: whether a ``.env`` beside the inventory goes before what the environment says already.
        log_level, configure_logging, logging_name: with ``configure_logging`` messages go to stderr.

    Attributes:
        client: the first one that was made.

    Raises:
        ConfigError: the inventory cannot be used.
    """

    def __init__(
        self,
        inventory: str = "./inventory.yaml",
        inventory_data: dict[str, Any] | None = None,
        base_dir: str | None = None,
        log_level: str | None = None,
        run_broker: bool = True,
        run_workers: bool | list[str] = True,
        load_env_override: bool = True,
        configure_logging: bool = False,
        logging_name: str = "nfapi",
    ) -> None:
        if configure_logging:
            logging.basicConfig(level=log_level or "WARNING")
        folder = base_dir or os.getcwd() if inventory_data else os.path.dirname(os.path.abspath(inventory))
        load_environment(folder, override=load_env_override)
        self.inventory = Inventory(inventory, inventory_data, base_dir)
        self.broker_endpoint = str(self.inventory.broker.get("endpoint") or DEFAULT)
        self.run_broker, self.run_workers = run_broker, run_workers
        self.client: NFPClient | None = None
        self.exiting = False
        self._clients: list[NFPClient] = []
        self._running: _Topology | None = None
        self._started = False

    def __enter__(self) -> Self:
        self.start()
        self.make_client()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()

    def start(self, run_broker: bool | None = None, run_workers: bool | list[str] | None = None) -> None:
        """Start the broker and the workers of the topology (``headgate nfp up``); returns once they are there.

        Raises:
            RuntimeError: called twice. ConfigError: they cannot be started; the text says why.
        """
        if self._started or self.exiting:
            raise RuntimeError("NorFab.start() was called before: one start an instance")
        self._started = True
        topology = self.inventory.topology
        wanted = self.run_workers if run_workers is None else run_workers
        workers = topology.get("workers") if wanted is True else wanted
        broker = (self.run_broker if run_broker is None else run_broker) and topology.get("broker") is True
        if broker or workers:
            names = [] if wanted is True else [name.strip() for name in workers or () if name.strip()]
            self._running = _Topology(self.inventory, bool(broker), bool(workers), names)
            atexit.register(self.destroy)
        self._call_hooks("startup")

    def make_client(self, broker_endpoint: str | None = None, name: str | None = None) -> NFPClient:
        """A client of the broker; its default name is the script's with a digest of the present folder."""
        if name is None:
            script = os.path.splitext(os.path.basename(sys.argv[0]))[0]
            digest = hashlib.sha256(os.path.abspath(os.getcwd()).encode()).hexdigest()[:6]
            name = f"{script}_{digest}_NFPClient" if script else f"{digest}_NFPClient"
        client = NFPClient(self.inventory, broker_endpoint or self.broker_endpoint, name)
        self._clients.append(client)
        self.client = self.client or client
        return client

    def run(self) -> None:
        """Return once somebody has called ``destroy``, at Ctrl-C, or at once when nothing was started."""
        while self._running is not None and not self.exiting:
            time.sleep(0.1)

    def destroy(self) -> None:
        """End the clients, then what ``start`` has started. Harmless twice."""
        if self.exiting:
            return
        self._call_hooks("exit")
        self.exiting = True
        for client in self._clients:
            client.destroy()
        if self._running is not None:
            self._running.stop()
        atexit.unregister(self.destroy)

    def _call_hooks(self, when: str) -> None:
        """Call the functions that the inventory's ``hooks`` name, ``MODULE:FUNCTION``."""
        for hook in self.inventory.hooks.get(when) or ():
            for folder in (os.getcwd(), self.inventory.base_dir):
                if folder not in sys.path:
                    sys.path.append(folder)
            module, _, function = str(hook["function"]).partition(":")
            call = getattr(importlib.import_module(module), function)
            call(self, *hook.get("args", ()), **hook.get("kwargs", {}))


class _Topology:
    """``headgate nfp up`` in a process of its own, which ends with ``stop``, and with this process however that ends.

    Raises:
        ConfigError: it did not come up; the text is what it said.
    """

    def __init__(self, inventory: Inventory, broker: bool, workers: bool, names: list[str]) -> None:
        self._written = "" if inventory.path else _write(inventory)
        python = os.environ.get(PYTHON)
        words = [*interpreter.command("headgate"), "nfp", "up", inventory.path or self._written]
        words.append("--no-env")  # it was read, as load_env_override says
        words += [] if broker else ["--no-broker"]
        words += [] if workers else ["--no-workers"]
        words += [word for name in names for word in ("--worker", name)]
        words += ["--norfab", python] if python else []
        self._said: deque[str] = deque(maxlen=SAID_MAX)
        self._folder = tempfile.TemporaryDirectory(prefix="headgate-norfab-")
        program = Program("headgate nfp up", lambda: words, restarts=Restarts(ends_max=1))
        self._child = Child(program, self._hear, os.path.join(self._folder.name, "up"))
        self._thread = LoopThread()
        patience_s = float(inventory.topology.get("workers_init_timeout") or START_S)
        self._thread.run(self._start(patience_s))
        if not self._child.ready:
            self.stop()
            said = "\n".join(self._said) or f"not there within {patience_s:g} s"
            hint = f" ({PYTHON} in the environment is --norfab)" if "--norfab" in said else ""
            raise ConfigError(
                f"the broker and the workers of the inventory could not be started: {said}{hint}"
            )

    async def _start(self, patience_s: float) -> None:
        self._child.start()
        await first_of(self._child.settled.wait(), seconds=patience_s)

    def _hear(self, name: str, event: str, text: str) -> None:
        log.info("%s: %s", name, text)
        if event == "line":
            self._said.append(text)

    def stop(self) -> None:
        """Have them leave in order, and wait for it."""
        child = self._child
        self._thread.run(Supervisor([child]).end([child], Step([child], signal.SIGTERM, STOP_S)))
        self._thread.stop()
        self._folder.cleanup()
        if self._written:
            Path(self._written).unlink(missing_ok=True)


def _write(inventory: Inventory) -> str:
    """An inventory that is no file as one; beside the files that it may name."""
    with tempfile.NamedTemporaryFile(
        "w", dir=inventory.base_dir, prefix=".inventory-", suffix=".yaml", delete=False
    ) as file:
        json.dump(inventory.data, file)  # YAML, too
    return file.name
