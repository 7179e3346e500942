"""What an inventory's ``topology`` wants to be started: a broker and workers, with their settings.

::

    broker:
      endpoint: tcp://127.0.0.1:5555
      zmq_auth: true               # false: plaintext
      shared_key: ...              # the broker's public key, for workers of a broker that is started elsewhere
    workers:
      greet-*: [{service: greet, worker: greet.py}]
    topology:
      broker: true
      workers: [greet-1, {greet-2: {depends_on: [greet-1]}}]
      workers_start_interval: 0.5  # seconds

The keys are deployed NorFab's; ``worker`` (``FILE.py[:NAME]``, relative to the inventory, or ``MODULE:NAME``) is ours
and says where a worker's code is. A worker without it is NorFab's own, or a plugin of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from broker.errors import ConfigError
from broker.nfp.inventory.datastore import Datastore
from broker.nfp.inventory.reading import Document, Path
from broker.nfp.names import FILESHARING
from broker.nfp.peer.keys import check_name

T = TypeVar("T")
ENDPOINT: Final = "tcp://127.0.0.1:5555"
_ASSIGNMENT: Final = re.compile(
    r"""\s*(?:export\s+)?(\w+)\s*=\s*(?:'([^']*)'|"([^"]*)"|([^'"\s#].*?)?)\s*(?:(?<=\s)#.*)?$"""
)
"""A line of a ``.env`` file: quotes are left out, as is a comment behind the value."""


class _Options(msgspec.Struct, forbid_unknown_fields=True):
    """Of one entry of ``topology.workers``."""

    depends_on: list[str] = []


class _Section(msgspec.Struct, forbid_unknown_fields=True):
    """``topology``."""

    broker: bool = True
    workers: list[str | dict[str, _Options | None]] | None = None
    workers_start_interval: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    workers_init_timeout: Any = None
    """NorFab's; here nobody is given up for being slow."""


class _Broker(msgspec.Struct):
    """``broker``, as far as it is followed."""

    endpoint: str | None = None
    zmq_auth: bool = True
    shared_key: str | None = None


class _Data(msgspec.Struct):
    """What ``workers`` has for one, as far as a start needs it."""

    service: str | None = None
    worker: str | None = None
    max_concurrent_jobs: Annotated[int, msgspec.Meta(ge=1)] | None = None
    base_dir: str | None = None


class TopologyWorker(NamedTuple):
    """A worker that the topology names."""

    name: str
    service: str
    """"": the one that its code names."""
    code: str
    """``FILE.py[:NAME]`` or ``MODULE:NAME``; "" for a worker of NorFab's."""
    jobs: int | None
    """Jobs at a time (``max_concurrent_jobs``); None: as its code says."""
    depends_on: tuple[str, ...]
    """Workers that have to be registered first."""
    where: str
    """``FILE:LINE``, for errors."""


class Topology(NamedTuple):
    """What is to be started."""

    broker: bool
    endpoint: str
    """Of the broker; "" when the inventory does not say."""
    curve: bool
    server_key: str | None
    files: str | None
    """The folder that NorFab's file worker shares; our broker does that itself."""
    workers: tuple[TopologyWorker, ...]
    interval_s: float
    """Between the starts of two workers."""

    def only(self, names: list[str]) -> Topology:
        """The same with these workers only, without what they depend on of the others.

        Raises:
            ConfigError: there is no worker of such a name.
        """
        there = [each.name for each in self.workers]
        for name in names:
            if name not in there:
                raise ConfigError(
                    f"no worker {name!r} in the topology, there is: {', '.join(there) or 'none'}"
                )
        return self._replace(
            workers=tuple(
                each._replace(depends_on=tuple(other for other in each.depends_on if other in names))
                for each in self.workers
                if each.name in names
            )
        )


def load_environment(folder: str, *, override: bool = True) -> None:
    """Take NAME=VALUE lines of a file ``.env`` in ``folder`` into the environment, as deployed NorFab does.

    ``override``: they go before what the environment says already.

    Raises:
        ConfigError: it cannot be read.
    """
    path = os.path.join(folder, ".env")
    if not os.path.isfile(path):
        return
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    for found in filter(None, map(_ASSIGNMENT.match, lines)):
        name, *values = found.groups()
        if override or name not in os.environ:
            os.environ[name] = next(filter(None, values), "")


def read_topology(datastore: Datastore) -> Topology:
    """What ``datastore``, which is loaded, wants to be started.

    Raises:
        ConfigError: file, line and what is wrong.
    """
    main = datastore.document
    folder = os.path.dirname(main.source.name)
    broker = _converted(main, ("broker",), main.value.get("broker"), _Broker)
    section = _converted(main, ("topology",), main.value.get("topology"), _Section)
    workers: list[TopologyWorker] = []
    files = None
    for name, depends_on, path in _named(main, section):
        data = _converted(main, path, datastore.get_inventory(name), _Data, f"worker {name!r}: ")
        if data.service == FILESHARING and not data.worker:
            files = os.path.join(folder, data.base_dir or "")
            continue
        if not data.worker and not data.service:
            said = "the inventory has neither worker: FILE.py, the code of a worker of ours, nor service:"
            raise main.fault(path, f"worker {name!r}: {said}")
        code = data.worker or ""
        if code.partition(":")[0].endswith(".py") or os.sep in code:
            code = os.path.join(folder, code)
        where = str(main.fault(path, "")).rpartition(": ")[0]
        jobs = data.max_concurrent_jobs
        workers.append(TopologyWorker(name, data.service or "", code, jobs, depends_on, where))
    _check_dependencies(main, workers)
    return Topology(
        section.broker,
        broker.endpoint or "",
        broker.zmq_auth,
        broker.shared_key or None,
        files,
        tuple(workers),
        section.workers_start_interval,
    )


def _converted(main: Document, path: Path, value: Any, type_: type[T], whose: str = "") -> T:
    """``value``, which is at ``path``, as a ``type_``; nothing is one of defaults."""
    try:
        return msgspec.convert({} if value is None else value, type_)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$")
        below = [int(at) if at else key for at, key in re.findall(r"\[(\d+)\]|\.(\w+)", place)]
        named = ".".join(map(str, below if whose else (*path, *below)))
        raise main.fault((*path, *below), f"{whose}{named}: {said}") from error


def _named(main: Document, section: _Section) -> Iterator[tuple[str, tuple[str, ...], Path]]:
    """Name, dependencies and place of each entry of ``topology.workers``."""
    seen: set[str] = set()
    for at, entry in enumerate(section.workers or ()):
        path: Path = ("topology", "workers", at)
        for name, options in ({entry: None} if isinstance(entry, str) else entry).items():
            try:
                check_name(name)
            except ConfigError as error:
                raise main.fault(path, str(error)) from error
            if name in seen:
                raise main.fault(path, f"{name!r} again: each worker once")
            seen.add(name)
            yield name, tuple(options.depends_on) if options else (), path


def _check_dependencies(main: Document, workers: list[TopologyWorker]) -> None:
    """Each exists, and none waits for itself."""
    there = {each.name for each in workers}
    for each in workers:
        for other in each.depends_on:
            if other not in there:
                raise ConfigError(
                    f"{each.where}: {each.name!r} depends on {other!r}, which the topology lacks"
                )
    try:
        TopologicalSorter({each.name: each.depends_on for each in workers}).prepare()
    except CycleError as error:
        circle = ", ".join(dict.fromkeys(reversed(error.args[1])))
        text = f"these workers depend on each other in a circle: {circle}"
        raise main.fault(("topology", "workers"), text) from error
