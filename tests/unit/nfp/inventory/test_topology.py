"""What an inventory wants to be started, with NorFab's keys and ours; what is wrong is told with file and line."""

from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.nfp.inventory import Datastore, Topology, TopologyWorker, read_topology
from tests.tables import for_each

WHOLE = """\
broker:
  endpoint: tcp://127.0.0.1:5999
  zmq_auth: false
  shared_key: KEY
workers:
  greet-*:
    - service: greet
      worker: code/greet.py:one
      max_concurrent_jobs: 8
  greet-2: [{worker: "pack.age:two"}]
  nornir-1: [{service: nornir}]
  filesharing-worker-1: [{service: filesharing, base_dir: shared}]
topology:
  broker: false
  workers_start_interval: 0.5
  workers_init_timeout: 300
  workers:
    - greet-1
    - greet-2: {depends_on: [greet-1]}
    - filesharing-worker-1
    - nornir-1: {}
    - greet-3:
"""

CIRCLE = """\
workers: {"*": [{service: s}]}
topology:
  workers: [{w: {depends_on: [x]}}, {x: {depends_on: [y]}}, {y: {depends_on: [w]}}, z]
"""


def read(folder: Path, text: str) -> Topology:
    path = folder / "inventory.yaml"
    path.write_text(text)
    datastore = Datastore(path, environ={})
    datastore.load()
    return read_topology(datastore)


def test_a_topology(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE)
    code = f"{tmp_path}/code/greet.py:one"
    place = f"{tmp_path}/inventory.yaml"
    assert found == Topology(
        broker=False,
        endpoint="tcp://127.0.0.1:5999",
        curve=False,
        server_key="KEY",
        files=f"{tmp_path}/shared",
        workers=(
            TopologyWorker("greet-1", "greet", code, 8, (), f"{place}:18"),
            TopologyWorker("greet-2", "greet", "pack.age:two", 8, ("greet-1",), f"{place}:19"),
            TopologyWorker("nornir-1", "nornir", "", None, (), f"{place}:21"),
            TopologyWorker("greet-3", "greet", code, 8, (), f"{place}:22"),
        ),
        interval_s=0.5,
    )


def test_some_of_the_workers(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE)
    assert [(each.name, each.depends_on) for each in found.only(["greet-2"]).workers] == [("greet-2", ())]
    assert found.only(["greet-2", "greet-1"]).workers == found.workers[:2]
    assert found.only([]).workers == ()
    with pytest.raises(ConfigError, match="no worker 'x' in the topology, there is: greet-1, greet-2"):
        found.only(["x"])


@for_each("text", ["", "broker:\nworkers:\ntopology:", "topology: {}"])
def test_nothing_said_is_a_broker(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == Topology(True, "", True, None, None, (), 0.0)


@for_each(
    ("text", "line", "said"),
    [
        ("a: 1\ntopology: [w]", 2, "topology: Expected `object`, got `array`"),
        ("a: 1\nbroker: [w]", 2, "broker: Expected `object`, got `array`"),
        ("topology:\n  worker: [w]", 1, "topology: Object contains unknown field `worker`"),
        ("topology:\n  broker: 1", 2, "topology.broker: Expected `bool`, got `int`"),
        ("broker:\n  zmq_auth: no way", 2, "broker.zmq_auth: Expected `bool`, got `str`"),
        ("broker:\n  endpoint: 5555", 2, "broker.endpoint: Expected `str | null`, got `int`"),
        ("topology:\n  workers_start_interval: -1", 2, "workers_start_interval: Expected `float` >= 0.0"),
        ("topology:\n  workers: w", 2, "topology.workers: Expected `array | null`, got `str`"),
        ("topology:\n  workers:\n  - a\n  - 5", 4, "topology.workers.1: Expected `str | object`, got `int`"),
        ("topology:\n  workers:\n  - ''", 3, "expected 1 to 255"),
        ("topology:\n  workers:\n  - w: {needs: [a]}", 3, "unknown field `needs`"),
        ("topology:\n  workers:\n  - w: {depends_on: a}", 3, "Expected `array`, got `str`"),
        ("topology:\n  workers:\n  - w: 5", 3, "Expected `object | null`, got `int`"),
        ("workers: {w: [{service: s}]}\ntopology:\n  workers:\n  - w\n  - w", 5, "'w' again"),
        ("topology:\n  workers:\n  - w", 3, "worker 'w': the inventory has neither worker: FILE.py"),
        (
            "workers: {w: [{worker: 5}]}\ntopology:\n  workers:\n  - w",
            4,
            "worker 'w': worker: Expected `str | null`, got `int`",
        ),
        (
            "workers: {w: [{worker: a.py, max_concurrent_jobs: 0}]}\ntopology:\n  workers:\n  - w",
            4,
            "worker 'w': max_concurrent_jobs: Expected `int` >= 1",
        ),
        (
            "workers: {w: [{service: s}]}\ntopology:\n  workers:\n  - w: {depends_on: [x]}",
            4,
            "'w' depends on 'x', which the topology lacks",
        ),
        (
            CIRCLE,
            3,
            "depend on each other in a circle: w, x, y",
        ),
    ],
)
def test_faults(tmp_path: Path, text: str, line: int, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/inventory.yaml:{line}: ")
    assert said in str(caught.value)
