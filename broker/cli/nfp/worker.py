"""``headgate nfp worker``: offer the tasks of a Python file as a service.

The process becomes the worker; it loads neither typer nor rich.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import io
import logging
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from broker import supervision
from broker.cli.exits import FAILED, OK, UsageError
from broker.cli.parsing import Parser
from broker.errors import ConfigError
from broker.loglines import Stderr
from broker.nfp.peer.keys import PLAINTEXT, check_name
from broker.nfp.worker import Worker
from broker.nfp.worker.worker import check_service
from broker.tasks import run_to_end

log = logging.getLogger("headgate")
_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"
_POLL_S: Final = 0.02
_EPILOG = """\
examples:
  headgate nfp worker greet.py                                   the one Worker in that file
  headgate nfp worker greet.py:worker --name greet-1
  headgate nfp worker mypackage.workers:inventory --broker tcp://nfp.example:5555 --server-key broker.key

greet.py:
  from broker.nfp.worker import Worker
  worker = Worker("greet")
  @worker.task
  def hello(who="world"):
      return f"hello {who}"

What the file says is used unless an option says otherwise. SIGTERM and SIGINT: running jobs are finished first; a
second one leaves at once.
Exit codes: 0 told to leave, 2 wrong options, or there is no such file, module or Worker, 78 the file cannot be loaded,
or a wrong configuration
"""


def arguments() -> Parser:
    """The options of the verb."""
    parser = Parser(
        "nfp worker",
        "Offer the tasks of a Worker, in a Python file or module, until told to leave.",
        _EPILOG,
    )
    add = parser.add_argument
    add("worker", metavar="FILE.py[:NAME] | MODULE:NAME", help="Where the Worker object is.")
    add(
        "-b",
        "--broker",
        action="append",
        metavar="E",
        help="The broker (default tcp://127.0.0.1:5555); given again: further ones, used in order.",
    )
    add(
        "-n",
        "--name",
        metavar="NAME",
        help="The worker's name (default: SERVICE-HOST, then SERVICE-HOST-2 ...).",
    )
    add("--service", metavar="NAME", help="The service to offer (default: what the file says).")
    add("--server-key", metavar="KEY", help="The broker's public key: Z85, or its .key file.")
    add("--no-curve", action="store_true", help="Speak plaintext, whatever keys there are.")
    add("--key-secret", metavar="FILE", help="Our CURVE certificate (default: made in the base directory).")
    add("--base-dir", metavar="DIR", help="Jobs and keys (default: ~/.local/state/headgate/nfp).")
    add("--no-store", action="store_true", help="Keep jobs in memory only.")
    add(
        "--keep",
        type=float,
        metavar="SECONDS",
        help="How long results are kept that a broker has recorded (default 86400).",
    )
    add("--inventory", action="store_true", help="Wait for what the broker's inventory has for this worker.")
    add("-j", "--jobs", type=int, metavar="N", help="Jobs at a time (default 5; the NFP text wants 1).")
    add("--resource", action="append", metavar="NAME", help="Something it manages; may be given again.")
    add(
        "--drain",
        type=float,
        metavar="SECONDS",
        help="How long running jobs may take at the end (default 30).",
    )
    add("--insecure", action="store_true", help="Allow plaintext to another machine.")
    add("-q", "--quiet", action="store_true", help="Say nothing at the start, log warnings only.")
    return parser


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    given = arguments().parse_args(argv)
    worker = find(given.worker)
    settle(worker, given)
    logging.basicConfig(
        level=logging.WARNING if given.quiet else logging.INFO, handlers=[Stderr(logging.Formatter(_FORMAT))]
    )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what a task prints is there at once, in a pipe, too
    worker.take_name()
    if not given.quiet:
        # what is on stdout is the tasks' own
        print("\n".join([*worker.summary(), "Ctrl-C ends it"]), file=sys.stderr)
    if run_to_end(_serve(worker), again="restart") == "restart":
        log.info("%s: starts anew", worker.name)
        supervision.start_again()
        return FAILED
    return OK


async def _serve(worker: Worker) -> str:
    """Work until told to leave; whoever looks after this process hears when the worker is registered."""
    _tell_ready(worker, asyncio.get_running_loop())
    return await worker.serve()


def _tell_ready(worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
    if worker.connected:
        supervision.announce(loop.call_later, "READY=1")
    else:
        loop.call_later(_POLL_S, _tell_ready, worker, loop)


def settle(worker: Worker, given: argparse.Namespace) -> None:
    """Let the options go before what the file says.

    Raises:
        ConfigError: one of them cannot be. UsageError: two contradict each other.
    """
    if given.no_curve and given.server_key:
        raise UsageError("--no-curve and --server-key: expected one of them")
    wanted = {
        "service": check_service(given.service) if given.service else None,
        "name": check_name(given.name) if given.name else None,
        "brokers": given.broker,
        "server_key": PLAINTEXT if given.no_curve else given.server_key or None,
        "key": given.key_secret or None,
        "state_dir": Path(given.base_dir) if given.base_dir else None,
        "store": False if given.no_store else None,
        "keep_s": given.keep and max(0.0, given.keep),
        "slots": given.jobs,
        "drain_s": given.drain and max(0.0, given.drain),
    }
    for name, value in wanted.items():
        if value is not None:
            setattr(worker, name, value)
    worker.ask_inventory = worker.ask_inventory or given.inventory
    worker.insecure = worker.insecure or given.insecure
    worker.resources += given.resource or []


# -- finding the Worker ---------------------------------------------------------------------------


def find(where: str) -> Worker:
    """The Worker that ``where`` names.

    Raises:
        UsageError: no such file, module or name, or several Workers to choose from. ConfigError: the code fails.
    """
    place, colon, name = where.rpartition(":")
    if not colon:
        place, name = where, ""
    module = _loaded(place)
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, Worker):
            kind = "nothing" if found is None else f"a {type(found).__name__}"
            raise UsageError(f"{where}: {name} is {kind}, expected a Worker{_choice(module)}")
        return found
    workers = _workers(module)
    if len(workers) != 1:
        raise UsageError(f"{place}: {len(workers)} Workers, expected one{_choice(module)}")
    return next(iter(workers.values()))


def _workers(module: ModuleType) -> dict[str, Worker]:
    named = {name: value for name, value in vars(module).items() if isinstance(value, Worker)}
    return {name: worker for name, worker in named.items() if not name.startswith("_")} or named


def _choice(module: ModuleType) -> str:
    names = ", ".join(_workers(module))
    return f" (there is: {names})" if names else " (there is none: `worker = Worker(SERVICE)` makes one)"


def _loaded(place: str) -> ModuleType:
    """The module of that name, or that the file is, run as ``python FILE.py`` does."""
    path = Path(place)
    is_file = path.suffix == ".py" or os.sep in place
    if is_file and not path.is_file():
        raise UsageError(f"{path}: no such file")
    sys.path.insert(0, str(path.resolve().parent) if is_file else os.getcwd())
    try:
        return _run_file(path) if is_file else importlib.import_module(place)
    except UsageError:
        raise
    except Exception as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if not is_file and absent and (place == absent or place.startswith(absent + ".")):
            raise UsageError(f"{place}: no such module, expected FILE.py[:NAME] or MODULE:NAME") from error
        said = str(error) if absent and not is_file else f"{type(error).__name__}: {error}"
        raise ConfigError(f"{place} cannot be loaded: {said}") from error


def _run_file(path: Path) -> ModuleType:
    name = path.stem.replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: not a Python file, expected FILE.py[:NAME] or MODULE:NAME")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module
