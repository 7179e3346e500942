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
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from broker.errors import ConfigError
from broker.nfp.inventory.datastore import Datastore
from broker.nfp.inventory.reading import Document, Path
from broker.nfp.names import FILESHARING
from broker.nfp.peer.keys import check_name

ENDPOINT: Final = "tcp://127.0.0.1:5555"
_KEYS: Final = ("broker", "workers", "workers_start_interval", "workers_init_timeout")


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


def read_topology(datastore: Datastore) -> Topology:
    """What ``datastore``, which is loaded, wants to be started.

    Raises:
        ConfigError: file, line and what is wrong.
    """
    main = datastore.document
    broker = _mapping(main, ("broker",))
    section = _mapping(main, ("topology",))
    for key in section:
        if key not in _KEYS:
            raise main.fault(("topology", key), f"topology has no {key!r}, expected {', '.join(_KEYS)}")
    interval_s = section.get("workers_start_interval", 0)
    if isinstance(interval_s, bool) or not isinstance(interval_s, (int, float)) or interval_s < 0:
        raise main.fault(("topology", "workers_start_interval"), "expected seconds, 0 or more")
    workers: list[TopologyWorker] = []
    files = None
    for name, depends_on, path in _named(main, section.get("workers")):
        data = datastore.get_inventory(name) or {}
        if data.get("service") == FILESHARING and "worker" not in data:
            files = _text(main, path, name, data, "base_dir") or os.path.dirname(main.source.name)
        else:
            workers.append(_worker(main, path, name, depends_on, data))
    _check_dependencies(main, workers)
    return Topology(
        _flag(main, ("topology", "broker"), section),
        _setting(main, broker, "endpoint") or ENDPOINT,
        _flag(main, ("broker", "zmq_auth"), broker),
        _setting(main, broker, "shared_key") or None,
        files and os.path.join(os.path.dirname(main.source.name), files),
        tuple(workers),
        float(interval_s),
    )


def _named(main: Document, entries: Any) -> Iterator[tuple[str, tuple[str, ...], Path]]:
    """Name, dependencies and place of each entry of ``topology.workers``."""
    if entries is not None and not isinstance(entries, list):
        raise main.fault(("topology", "workers"), "topology.workers is no list, expected names of workers")
    seen: set[str] = set()
    for at, entry in enumerate(entries or ()):
        path: Path = ("topology", "workers", at)
        found = {entry: None} if isinstance(entry, str) else entry
        if not isinstance(found, dict) or not found:
            raise main.fault(path, "expected a worker's name, or {NAME: {depends_on: [NAMES]}}")
        for name, options in found.items():
            try:
                check_name(name)
            except ConfigError as error:
                raise main.fault(path, str(error)) from error
            if name in seen:
                raise main.fault(path, f"{name!r} again: each worker once")
            seen.add(name)
            yield name, _depends_on(main, path, name, options), path


def _depends_on(main: Document, path: Path, name: str, options: Any) -> tuple[str, ...]:
    given = options if isinstance(options, dict) else {"": options} if options is not None else {}
    names = given.get("depends_on") or []
    texts = isinstance(names, list) and all(isinstance(each, str) for each in names)
    if not texts or any(key != "depends_on" for key in given):
        raise main.fault(path, f"{name!r}: expected {{depends_on: [NAMES]}}")
    return tuple(names)


def _worker(
    main: Document, path: Path, name: str, depends_on: tuple[str, ...], data: Mapping[str, Any]
) -> TopologyWorker:
    code = _text(main, path, name, data, "worker")
    service = _text(main, path, name, data, "service")
    if not code and not service:
        said = f"worker {name!r}: the inventory has neither worker: FILE.py, the code of a worker of ours, nor service:"
        raise main.fault(path, said)
    jobs = data.get("max_concurrent_jobs")
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise main.fault(path, f"worker {name!r}: max_concurrent_jobs is no number from 1 on")
    place, _, _ = code.partition(":")
    if place.endswith(".py") or os.sep in place:
        code = os.path.join(os.path.dirname(main.source.name), code)
    line = str(main.fault(path, "")).rpartition(": ")[0]
    return TopologyWorker(name, service, code, jobs, depends_on, line)


def _check_dependencies(main: Document, workers: list[TopologyWorker]) -> None:
    """Each exists, and none waits for itself."""
    left = {each.name: set(each.depends_on) for each in workers}
    for each in workers:
        for other in each.depends_on:
            if other not in left:
                raise ConfigError(
                    f"{each.where}: {each.name!r} depends on {other!r}, which the topology lacks"
                )
    while left:
        free = [name for name, others in left.items() if not others & left.keys()]
        if not free:
            circle = ", ".join(left)
            raise main.fault(
                ("topology", "workers"), f"these workers depend on each other in a circle: {circle}"
            )
        for name in free:
            del left[name]


def _mapping(main: Document, path: Path) -> dict[str, Any]:
    found = main.value.get(str(path[0])) or {}
    if not isinstance(found, dict):
        raise main.fault(path, f"{path[0]} is no mapping")
    return found


def _flag(main: Document, path: Path, section: Mapping[str, Any]) -> bool:
    value = section.get(str(path[-1]), True)
    if not isinstance(value, bool):
        raise main.fault(path, f"{path[-1]}: expected true or false")
    return value


def _setting(main: Document, broker: Mapping[str, Any], key: str) -> str:
    value = broker.get(key) or ""
    if not isinstance(value, str):
        raise main.fault(("broker", key), f"broker.{key}: expected a text")
    return value


def _text(main: Document, path: Path, name: str, data: Mapping[str, Any], key: str) -> str:
    value = data.get(key) or ""
    if not isinstance(value, str):
        raise main.fault(path, f"worker {name!r}: {key} is no text")
    return value
