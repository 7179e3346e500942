"""``headgate nfp up``: the broker and the workers that an inventory's topology names, as processes of this machine."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final
from urllib.parse import quote

from broker import home, interpreter, supervision
from broker.children.child import Child, Program, Tell
from broker.children.supervisor import HURRY_S, Step, Supervisor, all_left
from broker.cli.nfp import norfab_worker
from broker.cli.nfp.broker import arguments as broker_arguments
from broker.cli.nfp.broker import section_of
from broker.cli.parsing import Parser
from broker.endings import CONFIG, FAILED, OK, TEMPFAIL, USAGE
from broker.endpoints import parse
from broker.errors import ConfigError
from broker.listening import contact
from broker.nfp.inventory import Datastore, Topology, TopologyWorker, load_environment, read_topology
from broker.nfp.inventory.topology import ENDPOINT
from broker.nfp.peer.keys import broker_key, default_base_dir, found_broker_key
from broker.obstacles import obstacle
from broker.outlet import take_over
from broker.settings import NfpSection
from broker.tasks import first_of, run_to_end

BROKER: Final = "broker"
"""What the broker is called on the terminal and in the folder of logs."""
DRAIN_S: Final = 30.0
KILL_S: Final = 10.0
"""How long a process may live after the time that it has for its end."""
SPARE_S: Final = 10.0
"""How much longer than its running jobs a process may take to end before it is killed."""
LOG_BYTES_MAX: Final = 16 << 20
"""Of one file; an older one is kept beside it."""

_EPILOG: Final = """\
Examples:
  headgate nfp up                                the inventory.yaml of this folder
  headgate nfp up lab/inventory.yaml --worker greet-1
  headgate nfp up --no-broker                    workers only, for the broker at broker.endpoint
  headgate nfp up --norfab .venv/bin/python      with NorFab's own workers, run by an interpreter that has NorFab

inventory.yaml:
  broker:
    endpoint: tcp://127.0.0.1:5555
  workers:
    greet-*:
      - service: greet
        worker: greet.py   # FILE.py[:NAME] or MODULE:NAME
        max_concurrent_jobs: 8
  topology:
    broker: true
    workers:
      - greet-1
      - greet-2: {depends_on: [greet-1]}

Everything else below `workers` reaches the worker as its inventory. NAME=VALUE lines of a file .env beside the
inventory go before what the environment says, as in NorFab. Who ends is started again, after a pause that
grows to half a minute; who cannot be configured, or ends five times in a row without ever having been ready, is left.
SIGTERM and Ctrl-C: workers finish what they run, then the broker leaves; a second one ends all at once.
Exit codes: 0 told to leave, 1 the broker or the last worker failed, 2 wrong options, 75 what stood in
their way may pass, 78 wrong configuration
"""


def arguments() -> Parser:
    """The options of the verb."""
    parser = Parser(
        "nfp up",
        "Start the broker and the workers that the topology of an inventory names, and look after them.",
        _EPILOG,
    )
    add = parser.add_argument
    add("inventory", nargs="?", default="inventory.yaml", metavar="FILE", help="Default: inventory.yaml.")
    add("--no-broker", action="store_true", help="Start workers only, whatever the topology says.")
    add("--no-workers", action="store_true", help="Start the broker only.")
    add("-w", "--worker", action="append", metavar="NAME", help="Only this worker; may be given again.")
    add("--server-key", metavar="KEY", help="Key of a broker that is elsewhere (default: broker.shared_key).")
    add("--base-dir", metavar="DIR", help="Keys, jobs and files (default: ~/.local/state/headgate/nfp).")
    add(
        "--norfab",
        metavar="PYTHON",
        help="An interpreter that has NorFab, to run workers that are NorFab's own.",
    )
    add("--no-env", action="store_true", help="Do not read the file .env beside the inventory.")
    add("--no-store", action="store_true", help="Keep nothing: jobs end with the broker and the workers.")
    add("--no-curve", action="store_true", help="Speak plaintext, as broker.zmq_auth: false does.")
    add("--insecure", action="store_true", help="Allow plaintext to and from other machines.")
    add(
        "--drain",
        type=float,
        default=DRAIN_S,
        metavar="SECONDS",
        help="For running jobs at the end (default 30).",
    )
    add("-c", "--config", metavar="FILE", help="TOML with a section [nfp], for the broker.")
    add("-s", "--set", action="append", default=[], metavar="nfp.KEY=VALUE", help="A setting of the broker.")
    add("--json", action="store_true", help="Print an object a line: time, name, event, text.")
    return parser


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    parser = arguments()
    given = parser.parse_args(argv)
    if given.no_broker and given.no_workers:
        parser.error("--no-broker and --no-workers: expected one of them")
    if not given.no_env:
        load_environment(os.path.dirname(os.path.abspath(given.inventory)))
    take_over("stderr")
    datastore = Datastore(given.inventory)
    datastore.load()
    topology = wanted(given, read_topology(datastore))
    commands = Commands(given, topology)
    programs = commands.programs()
    if not programs:
        raise ConfigError(
            f"{given.inventory}: nothing to start: topology has no workers, and no broker is wanted"
        )
    logs = commands.base_dir / "logs"
    told = OutputPrinter(logs, as_json=given.json)
    told("", "logs", f"logs in {logs}")
    try:
        with tempfile.TemporaryDirectory(prefix="headgate-nfp-up-") as folder:
            patience_s = given.drain + SPARE_S
            processes = Processes(
                programs, told, folder, interval_s=topology.interval_s, patience_s=patience_s
            )
            return run_to_end(processes.run())
    finally:
        told.close()


# -- what is started ------------------------------------------------------------------------------


def wanted(given: argparse.Namespace, topology: Topology) -> Topology:
    """The part of ``topology`` that the options ask for.

    Raises:
        ConfigError: they name a worker that is not there.
    """
    if given.no_workers or given.worker:
        topology = topology.only([] if given.no_workers else given.worker)
    return topology._replace(broker=topology.broker and not given.no_broker)


class Commands:
    """The programs that a topology and the options ask for.

    Raises:
        ConfigError: a worker cannot be started by us, or an address or key is none.
    """

    def __init__(self, given: argparse.Namespace, topology: Topology) -> None:
        self._given = given
        self._topology = topology
        self._inventory = os.path.abspath(given.inventory)
        self.base_dir = Path(os.path.abspath(given.base_dir)) if given.base_dir else default_base_dir()
        self._curve = topology.curve and not given.no_curve
        self._insecure: bool = given.insecure
        endpoint = topology.endpoint or ENDPOINT
        if topology.broker:
            section = self._settings()
            self.base_dir = Path(section.base_dir)
            self._curve, self._insecure = section.curve, section.insecure
            endpoint = section.worker_endpoint or section.endpoint
        place = parse(endpoint)
        self._contact = contact(place, place)
        self._key = ""
        if self._curve and (key := given.server_key or topology.server_key):
            self._key = broker_key(key)

    def programs(self) -> list[Program]:
        """The broker, where one is wanted, and the workers that wait for it."""
        programs = [Program(BROKER, self._broker, needed=True)] if self._topology.broker else []
        return programs + [self._program(worker) for worker in self._topology.workers]

    def _program(self, worker: TopologyWorker) -> Program:
        if worker.name == BROKER:
            raise ConfigError(f"{worker.where}: a worker cannot be called {BROKER!r} here")
        if not worker.code and not self._given.norfab:
            raise ConfigError(
                f"{worker.where}: worker {worker.name!r} of the service {worker.service!r} is NorFab's own or a plugin "
                "of it: name an interpreter that has NorFab with --norfab, leave it to `nfcli -w`, or say "
                f"worker: FILE.py in `workers` where a worker of ours is to do it"
            )
        before = (BROKER, *worker.depends_on) if self._topology.broker else worker.depends_on
        words = self._norfab if not worker.code else self._worker
        environ = {"PYTHONPATH": os.pathsep.join(self._path())} if worker.code else {}
        return Program(worker.name, lambda: words(worker), before, environ)

    def _path(self) -> list[str]:
        """Where modules are looked for: beside the inventory first."""
        return [os.path.dirname(self._inventory), *filter(None, [os.environ.get("PYTHONPATH")])]

    def _settings(self) -> NfpSection:
        """The broker's: of its file and of all options, which it takes as ``headgate nfp broker`` does."""
        section = section_of(broker_arguments().parse_args(self._options()))
        for place in (section.endpoint, section.worker_endpoint or section.endpoint):
            if place.endswith(":*"):
                raise ConfigError(f"nfp.endpoint {place}: expected a port, workers have to find the broker")
        return section

    def _broker(self) -> list[str]:
        words = [*interpreter.command("headgate"), "nfp", "broker", *self._options()]
        return words if "--base-dir" in words else [*words, "--base-dir", str(self.base_dir)]

    def _options(self) -> list[str]:
        given, topology = self._given, self._topology
        words = ["--inventory", self._inventory]
        words += ["--endpoint", topology.endpoint] if topology.endpoint else []
        words += ["--base-dir", str(self.base_dir)] if given.base_dir else []
        words += ["--files", topology.files] if topology.files else []
        words += ["--config", given.config] if given.config else []
        for each in given.set:
            words += ["--set", each]
        return words + self._shared()

    def _worker(self, worker: TopologyWorker) -> list[str]:
        words = [*interpreter.command("headgate"), "nfp", "worker", worker.code, "--name", worker.name]
        words += ["--broker", self._contact, "--base-dir", str(self.base_dir), "--inventory"]
        words += ["--drain", f"{self._given.drain:g}"]
        words += ["--service", worker.service] if worker.service else []
        words += ["--jobs", str(worker.jobs)] if worker.jobs else []
        words += ["--server-key", self._key] if self._key and not self._topology.broker else []
        return words + self._shared()

    def _shared(self) -> list[str]:
        found = [("--no-curve", not self._curve), ("--insecure", self._insecure)]
        return [word for word, wanted in (*found, ("--no-store", self._given.no_store)) if wanted]

    def _norfab(self, worker: TopologyWorker) -> list[str]:
        key = self._key
        if self._curve and (self._topology.broker or not key):
            key = found_broker_key(self.base_dir) or key
        script = norfab_worker.__file__
        return [self._given.norfab, "-P", script, self._inventory, worker.name, self._contact, key]


# -- what looks after it: the broker begins and ends the others; without it there are none ---------


class Processes(Supervisor):
    """The processes of a broker and of its workers.

    Args:
        programs: in the order of their start. tell: see ``Tell``; ``up`` and ``leaving`` have the name "".
            folder: for sockets. interval_s: between two starts.
            patience_s: how long all but those that are needed, and then these, may take to leave.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        tell: Tell,
        folder: str,
        *,
        interval_s: float = 0.0,
        patience_s: float = KILL_S,
    ) -> None:
        super().__init__(
            [Child(each, tell, os.path.join(folder, str(at))) for at, each in enumerate(programs)],
            interval_s,
        )
        self._tell = tell
        self._patience_s = patience_s

    async def run(self) -> int:
        """Run until told to leave, or until what matters is left; returns an exit code."""
        self.on_signals()
        loop = asyncio.get_running_loop()
        supervision.watch(loop.call_later)
        children = self.children.values()
        first = [child for child in children if child.program.needed]
        await first_of(self._begin(), all_left(first or children), self.leaving.wait())
        told = self.leaving.is_set()
        self.leaving.set()
        if any(not child.left.is_set() for child in children):
            self._tell("", "leaving", "ends all, workers first")
        supervision.leaving(2 * (self._patience_s + HURRY_S))
        for share in ([child for child in children if child not in first], first):
            await self.end(share, Step(share, signal.SIGTERM, self._patience_s))
        codes = {child.code for child in first or children}
        if told or codes == {OK}:
            return OK
        if codes <= {CONFIG, USAGE}:
            return CONFIG
        return TEMPFAIL if codes == {TEMPFAIL} else FAILED

    async def _begin(self) -> None:
        """Start all, tell what is there, and do not end by itself."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.start()
        ready = [name for name, child in self.children.items() if child.ready]
        absent = [name for name in self.children if name not in ready]
        said = f"up after {loop.time() - began:.2f} s: {', '.join(ready) or 'nobody'}"
        self._tell("", "up", f"{said}; not there: {', '.join(absent)}" if absent else said)
        supervision.announce(loop.call_later, "READY=1")
        await self.leaving.wait()


# -- what is told ---------------------------------------------------------------------------------


class OutputPrinter:
    """Tells what happens: on the terminal, and what a process prints in a file of its own.

    A terminal that stands still does not hold up those who print (``outlet``): what it does not take is in the files.

    Args:
        folder: of the files, made when it is not there. as_json: objects, one a line.

    Raises:
        ConfigError: the folder cannot be used.
    """

    def __init__(self, folder: Path, *, as_json: bool) -> None:
        try:
            home.make(folder)
        except OSError as error:
            raise obstacle(f"{folder}: cannot make the folder: {error.strerror}", error) from error
        self._folder = folder
        self._as_json = as_json
        self._files: dict[str, _File] = {}
        self._screen = take_over("stdout", self._dropped)

    def __call__(self, name: str, event: str, text: str) -> None:
        """See ``Tell`` of ``children.child``."""
        now = _now()
        if name:
            self._keep(name, text if event == "line" else f"{now} -- {text}")
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            self._screen.write(self._told(now, name, event, text))

    def _told(self, now: str, name: str, event: str, text: str) -> str:
        if self._as_json:
            return json.dumps({"time": now, "name": name, "event": event, "text": text}) + "\n"
        return f"{name} {'|' if event == 'line' else '-'} {text}\n" if name else f"{text}\n"

    def _dropped(self, lines: int) -> str:
        return self._told(_now(), "", "dropped", f"{lines} lines were dropped here: nobody read them")

    def close(self) -> None:
        """Let what waits be written, if the terminal takes it."""
        with contextlib.suppress(OSError, ValueError):
            self._screen.flush()
        for file in self._files.values():
            file.close()

    def _keep(self, name: str, line: str) -> None:
        file = self._files.get(name)
        if file is None:
            path = self._folder / f"{quote(name, safe=' ')}.log"
            file = self._files[name] = _File(path, maxBytes=LOG_BYTES_MAX, backupCount=1)
        file.emit(logging.makeLogRecord({"msg": line}))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class _File(RotatingFileHandler):
    """A file of lines."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - a name of logging
        """Go on: a full disk costs lines, not processes."""
