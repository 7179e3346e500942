"""The compose file of a shape, for docker compose and podman-compose; ``deploy/compose.yaml`` is one.

Text from a ``Shape``. Anchors keep what all members have in common in one place. Nothing in it depends on the
order in which members start: a broker without its settings leaves with 78 and is started again, a peer that is away is
dialled again, and names are resolved at each attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from broker.errors import ConfigError
from broker.obstacles import obstacle
from gateway.cluster.files import GATEWAY_PORT
from gateway.cluster.shape import Shape

TASKS: Final = "compose/tasks.py"
"""The workers' tasks, beside the compose file."""
WORKERS: Final = ("worker-1", "worker-2")
PROXIES: Final = ("oslo-1", "oslo-2")
REDIS: Final = "redis:7.2-bookworm"
FILE: Final = "compose.yaml"
_MARK: Final = "# Written by `headgate cluster compose`"

_HEAD: Final = """\
# A test cluster, a tree of {size} brokers (kary:{fanout}), and with it:
#   {beside}
# Written by `headgate cluster compose`, which writes it in any size.
#
#   docker build -t {image} .                     in the source tree; podman: podman build --format docker ...
#   docker compose up -d                          in this folder, as all below; podman: podman-compose up -d
#   docker compose logs init                      the first time it prints a token: log in with it at
#                                                 http://127.0.0.1:{port}
#   docker compose exec broker-0 headgate status
#   docker compose --profile spark up -d          tables of what passes, as it passes
#   docker compose down -v                        with --profile spark if it was up
#
# Faults: docker compose kill and pause, docker network disconnect; docs/guides/clusters.md has them.
#
# It is for tests: all members share one volume of keys, so each of them could be any other. Nothing but the gateway's
# port is published, on the loopback.
#
# Variables: HEADGATE_IMAGE, HEADGATE_SPARK_IMAGE, HEADGATE_REDIS_IMAGE, HEADGATE_PORT, and HEADGATE_GATEWAY_IMAGE:
# with the image that has Spark the dashboard shows the history that Spark made, too.

name: "{name}"

# No capability, no way to get one, nothing to write to but memory and volumes. /run/headgate is made in /run at start.
x-member: &member
  image: "${{HEADGATE_IMAGE:-{image}}}"
  user: "10001:10001"
  read_only: true
  cap_drop: [ALL]
  security_opt: [no-new-privileges]
  tmpfs: ["/run:mode=1777", "/tmp:mode=1777"]
  pids_limit: 512
  restart: on-failure
  # longer than broker.drain_s and gateway.drain_s
  stop_grace_period: 30s
"""

_BROKER: Final = """
# A broker finds its rank by its host name. Until init has written the settings it leaves with 78 and is started again.
# One that is told to leave takes those below it along, and they end with 0: so any end but a stop by hand is no end.
x-broker: &broker
  <<: *member
  restart: unless-stopped
  # the journals of all ranks lie in one folder, which is what Spark reads
  command: [broker, --config, /keys/broker.toml, --journal, /var/lib/headgate/journal]
  volumes: ["keys:/keys:ro", "journal:/var/lib/headgate/journal"]
  networks: [tree]
"""

_INIT: Final = """
services:
  # makes what is missing: a second run changes nothing, one with a larger size adds ranks
  init:
    <<: *member
    command: {command}
    volumes: ["keys:/keys"]
    network_mode: none
    healthcheck:
      disable: true

  # its /run is a volume{why}
  broker-0:
    <<: *broker
    hostname: "{host}"
    tmpfs: ["/tmp:mode=1777"]
    volumes: ["keys:/keys:ro", "run:/run", "journal:/var/lib/headgate/journal"]
"""

_RANK: Final = """\
  broker-{rank}:
    <<: *broker
    hostname: "{host}"
"""

_GATEWAY: Final = """
  gateway:
    <<: *member
    image: "${{HEADGATE_GATEWAY_IMAGE:-${{HEADGATE_IMAGE:-{image}}}}}"
    command: [gateway, --config, /keys/gateway.toml, --history, /var/lib/headgate/warehouse/live]
    volumes: ["keys:/keys:ro", "gateway:/var/lib/headgate", "warehouse:/var/lib/headgate/warehouse:ro"]
    networks: [tree, web]
    ports: ["127.0.0.1:${{HEADGATE_PORT:-{port}}}:{inside}"]
    healthcheck:
      test: ["CMD", "headgate", "health", "--url", "http://127.0.0.1:{inside}"]
      interval: 10s
      timeout: 5s
      start_period: 20s
      retries: 3
"""

_NFP: Final = """
  # a broker of NFP, reachable on the tree as nfp.SERVICE.TASK by way of rank 0's socket
  nfp:
    <<: *member
    hostname: nfp
    command: [nfp, broker, --config, /keys/nfp.toml, --uri, "local:///run/tree/headgate/local-0"]
    volumes: ["keys:/keys:ro", "run:/run/tree:ro", "nfp:/var/lib/headgate"]
    networks: [jobs]
    healthcheck:
      test: ["CMD", "headgate", "health", "--nfp", "/keys/nfp.toml"]
      interval: 30s
      timeout: 10s
      start_period: 20s
      retries: 3
"""

_WORKER: Final = """
  {worker}:
    <<: *member
    hostname: {worker}
    command: [nfp, worker, /etc/headgate/tasks.py, --broker, "tcp://nfp:5555", --server-key, /keys/nfp/broker.key]
    # a name belongs to the key that used it first: keys of workers stay
    volumes: ["keys:/keys:ro", "workers:/var/lib/headgate", "./{tasks}:/etc/headgate/tasks.py:ro"]
    networks: [jobs]
    healthcheck:
      disable: true
"""

_OSLO: Final = """
  # the proxy of one node of oslo.messaging; servers and clients of that node use its folder, /run/headgate/oslo
  {proxy}:
    <<: *member
    hostname: {proxy}
    command: {command}
    volumes: {volumes}
    networks: [oslo]
    healthcheck:
      test: ["CMD", "headgate", "health", "--oslo"]
      interval: 30s
      timeout: 10s
      start_period: 20s
      retries: 3
"""

_REDIS: Final = """
  # the directory that the proxies share; nothing is kept, they announce themselves again
  redis:
    image: "${{HEADGATE_REDIS_IMAGE:-{redis}}}"
    command: [redis-server, --save, "", --appendonly, "no", --protected-mode, "no"]
    user: "999:999"
    read_only: true
    cap_drop: [ALL]
    security_opt: [no-new-privileges]
    tmpfs: ["/data:mode=1777"]
    restart: on-failure
    networks: [oslo]
    healthcheck:
      test: ["CMD", "redis-cli", "ping"]
      interval: 10s
      timeout: 5s
      retries: 3
"""

_SPARK: Final = """
  # tables of the journal as it grows; its libraries are unpacked into /tmp and run from there
  spark:
    <<: *member
    image: "${HEADGATE_SPARK_IMAGE:-headgate-spark}"
    profiles: [spark]
    command:
      - pipeline
      - stream
      - --journal=/var/lib/headgate/journal
      - --warehouse=/var/lib/headgate/warehouse/live
      - --master=local[2]
    tmpfs: ["/run:mode=1777", "/tmp:mode=1777,exec"]
    pids_limit: 2048
    volumes: ["journal:/var/lib/headgate/journal:ro", "warehouse:/var/lib/headgate/warehouse"]
    network_mode: none
    healthcheck:
      disable: true

  # puts the many small files of the stream together, once an hour; as long as there are none it is started again
  compact:
    <<: *member
    image: "${HEADGATE_SPARK_IMAGE:-headgate-spark}"
    profiles: [spark]
    command: [pipeline, compact, --warehouse=/var/lib/headgate/warehouse/live, --every=3600]
    volumes: ["warehouse:/var/lib/headgate/warehouse"]
    network_mode: none
    healthcheck:
      disable: true
"""

TASKS_PY: Final = '''\
"""Tasks of the workers in the test cluster: `headgate nfp run demo hello -k who=me`."""

import os
import time

from broker.nfp.worker import Worker

worker = Worker("demo")


@worker.task
def hello(who="world"):
    """Greet somebody."""
    return f"hello {who}, from {os.uname().nodename}"


@worker.task
def add(left=1, right=1):
    """Add two numbers."""
    return left + right


@worker.task
def sleep(seconds=1.0):
    """Take a while."""
    time.sleep(seconds)
    return seconds
'''
"""What ``TASKS`` holds."""


def write(shape: Shape, folder: Path) -> list[Path]:
    """Put the compose file of ``shape`` into a folder, anew each time, and tasks for its workers where there are none.

    Returns:
        What was written.

    Raises:
        ConfigError: a compose file is there that is none of ours, or the operating system says no.
    """
    file, tasks = folder / FILE, folder / TASKS
    texts = {file: render(shape)}
    try:
        if file.exists() and _MARK not in file.read_text(encoding="utf-8", errors="replace"):
            raise ConfigError(f"{file}: not written by `headgate cluster compose`, so it is left alone")
        if shape.nfp and not tasks.exists():
            texts[tasks] = TASKS_PY
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o644)  # the workers' user is not ours
    except OSError as error:
        raise obstacle(f"{folder}: {error.strerror}", error) from error
    return list(texts)


def render(shape: Shape) -> str:
    """The compose file of ``shape``, YAML.

    Its services are ``init``, ``broker-RANK``, and as far as the shape has them ``gateway``, ``nfp``, ``worker-1``,
    ``worker-2``, ``oslo-1``, ``oslo-2``, ``redis``; with the profile ``spark`` that and ``compact``.
    """
    clients = [name for name, there in (("nfp", shape.nfp), ("oslo-1", shape.oslo)) if there]
    parts = [
        _HEAD.format(
            size=shape.size,
            fanout=shape.fanout,
            beside=_beside(shape),
            image=shape.image,
            name=shape.name,
            port=GATEWAY_PORT,
        ),
        _BROKER,
        _INIT.format(
            command=_list(init(shape)),
            host=shape.host(0),
            why=f", for {' and '.join(clients)} to reach its socket" if clients else "",
        ),
    ]
    parts += [_RANK.format(rank=rank, host=shape.host(rank)) for rank in shape.ranks() if rank]
    if shape.gateway:
        parts.append(_GATEWAY.format(image=shape.image, port=GATEWAY_PORT, inside=GATEWAY_PORT))
    if shape.nfp:
        parts.append(_NFP)
        parts += [_WORKER.format(worker=worker, tasks=TASKS) for worker in WORKERS]
    if shape.oslo:
        parts += [_oslo(proxy, bridge=proxy == PROXIES[0]) for proxy in PROXIES]
        parts.append(_REDIS.format(redis=REDIS))
    parts += [_SPARK, _names("networks", networks(shape)), _names("volumes", volumes(shape))]
    return "".join(parts)


def init(shape: Shape) -> list[str]:
    """The command of the service ``init``: the same shape, in the volume of keys."""
    usual = Shape(shape.name, shape.size)
    given = {
        name: getattr(shape, name)
        for name in ("fanout", "host_pattern", "port", "client_port")
        if getattr(shape, name) != getattr(usual, name)
    }
    words = ["cluster", "init", "/keys", "--size", str(shape.size)]
    for name, value in given.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    words += [] if shape.gateway else ["--no-gateway"]
    return words + [f"--{name}" for name, there in (("nfp", shape.nfp), ("oslo", shape.oslo)) if there]


def networks(shape: Shape) -> list[str]:
    """Names of the networks: brokers and gateway, the gateway's way out, workers, proxies."""
    there = {"tree": True, "web": shape.gateway, "jobs": shape.nfp, "oslo": shape.oslo}
    return [name for name, wanted in there.items() if wanted]


def volumes(shape: Shape) -> list[str]:
    """Names of the volumes: keys, rank 0's sockets, journals, tables; state of the others."""
    there = {
        "keys": True,
        "run": True,
        "journal": True,
        "warehouse": True,
        "gateway": shape.gateway,
        "nfp": shape.nfp,
        "workers": shape.nfp,
    }
    return [name for name, wanted in there.items() if wanted]


def _oslo(proxy: str, *, bridge: bool) -> str:
    command = [
        "oslo",
        "proxy",
        "--config",
        "/keys/oslo.toml",
        "--node",
        proxy,
        "--redis",
        "redis://redis:6379/0",
    ]
    mounts = ["keys:/keys:ro"]
    if bridge:
        command += ["--uri", "local:///run/tree/headgate/local-0"]
        mounts.append("run:/run/tree:ro")
    return _OSLO.format(proxy=proxy, command=_list(command), volumes=_list(mounts))


def _beside(shape: Shape) -> str:
    wanted = {
        "a gateway with the dashboard": shape.gateway,
        "an NFP broker with two workers": shape.nfp,
        "two oslo proxies with Redis": shape.oslo,
        "Spark on demand": True,
    }
    return ", ".join(what for what, there in wanted.items() if there)


def _names(heading: str, names: Iterable[str]) -> str:
    return f"\n{heading}:\n" + "".join(f"  {name}:\n" for name in names)


def _list(words: Iterable[str]) -> str:
    """A list of YAML in one line; every word is quoted, so that none is a number or a flag.

    >>> _list(["a", "7"])
    '["a", "7"]'
    """
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"
