"""Who carries oslo.messaging's messages: our pipelines, RabbitMQ, and ``fake:`` in one process; and their applications.

The client is on another node than its servers: it reaches our proxy as it reaches RabbitMQ, by TCP on loopback.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import zmq

from broker.oslo.frames import Kind, encode
from broker.oslo.names import Pipeline, control_file
from tests.bench import processes
from tests.live import rabbit
from tests.live.oslo_wire import hear

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-oslo" / "bin" / "python"
ANSWER_S = 90.0
STATUS_MS = 2000
SETTLE_S = 1.0
"""After servers have started: what still opens connections shall not be measured."""


def missing() -> str:
    """Why nothing of oslo.messaging can be measured; "" when it can."""
    return "" if PYTHON.exists() else "oslo.messaging is not installed in .venv-oslo (make bench installs it)"


class Peer:
    """A process that answers each line of JSON with one; ``log`` takes what it says otherwise."""

    def __init__(self, argv: Sequence[object], log: Path, **environment: str) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [str(word) for word in argv],
                cwd=ROOT,
                env=os.environ | environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> dict[str, Any]:
        """The next line.

        Raises:
            RuntimeError: it ended, or reports an error; with the end of its log.
        """
        assert self.process.stdout is not None
        waiting = select.poll()  # nothing can be buffered: each line is answered by one
        waiting.register(self.process.stdout, select.POLLIN)
        if not waiting.poll(1000 * ANSWER_S):
            raise RuntimeError(f"no answer within {ANSWER_S:.0f} s; its log ends with: {self._last_words()}")
        line = self.process.stdout.readline()
        answer: dict[str, Any] = (
            json.loads(line) if line else {"error": f"ended with code {self.process.wait()}"}
        )
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}; its log ends with: {self._last_words()}")
        done: dict[str, Any] = answer.get("ok", answer)
        return done

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]

    def tell(self, **words: object) -> None:
        """Say what to do; ``hear`` gives the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def ask(self, **words: object) -> dict[str, Any]:
        self.tell(**words)
        return self.hear()

    def stop(self) -> None:
        processes.stop(self.process)


@contextlib.contextmanager
def stopping(peers: Sequence[Peer]) -> Iterator[Sequence[Peer]]:
    """End all at the same time, which is quicker than one after the other."""
    try:
        yield peers
    finally:
        for peer in peers:
            if peer.process.stdin is not None:
                peer.process.stdin.close()
        for peer in peers:
            peer.stop()


class Carrier:
    """Something that carries messages; ``server_url`` and ``client_url`` are for oslo.messaging."""

    name: ClassVar[str] = ""
    together: ClassVar[bool] = False
    """Client and servers in one process."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hgo-", dir="/tmp"))
        self.server_url = self.client_url = ""
        self.pids: list[int] = []

    @classmethod
    def missing(cls) -> str:
        return missing()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def start(self) -> None:
        """Start it and learn its URLs."""

    def stop(self) -> None:
        """End it; harmless twice."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def side(self, url: str, name: str) -> Peer:
        """An application (``oslo_side``); not waited for."""
        return Peer([PYTHON, "-m", "tests.bench.oslo_side", url], self.folder / f"{name}.log")


class Fake(Carrier):
    """What oslo.messaging's own code costs: its driver for tests hands messages over in memory."""

    name = "fake:"
    together = True

    def start(self) -> None:
        self.server_url = self.client_url = "fake://"


class RabbitMq(Carrier):
    """Debian's RabbitMQ, plaintext on loopback."""

    name = "RabbitMQ"

    def __init__(self) -> None:
        super().__init__()
        self._broker = rabbit.Rabbit()

    @classmethod
    def missing(cls) -> str:
        return missing() or rabbit.missing()

    def start(self) -> None:
        self._broker.start()
        self.server_url = self.client_url = self._broker.url
        self.pids = self._broker.pids

    def stop(self) -> None:
        self._broker.stop()
        super().stop()


class Pipelines(Carrier):
    """Our node proxy, plaintext on loopback, all pipelines in one process.

    Args:
        host: loopback address of the node.
        directories: ``tcp://host:port`` of other nodes' directories.
    """

    name = "headgate"

    def __init__(self, host: str = "127.0.0.1", directories: Sequence[str] = ()) -> None:
        super().__init__()
        self.host = host
        self.directories = tuple(directories)
        directory, *ports = rabbit.free_ports(1 + len(Pipeline))
        self.directory_port = directory
        self.ports: Mapping[Pipeline, int] = dict(zip(Pipeline, ports, strict=True))
        self.proxy: Peer | None = None

    @property
    def directory(self) -> str:
        """Endpoint of its directory."""
        return f"tcp://{self.host}:{self.directory_port}"

    def launch(self) -> None:
        """Start without waiting until it is ready."""
        node = {
            "ipc_dir": str(self.folder / "ipc"),
            "node": f"node-{self.host}",
            "host": self.host,
            "advertise": self.host,
            "ports": dict(self.ports),
            "directory_port": self.directory_port,
            "directories": self.directories,
        }
        argv = [sys.executable, "-m", "tests.bench.oslo_node", json.dumps(node)]
        self.proxy = Peer(argv, self.folder / "proxy.log")
        self.server_url = f"zmq:///?rpc_zmq_ipc_dir={self.folder}/ipc"
        self.client_url = f"zmq://{self.host}:{self.directory_port}/?rpc_zmq_ipc_dir={self.folder}/elsewhere"
        self.pids = [self.proxy.pid]

    def start(self) -> None:
        self.launch()
        self.await_ready()

    def await_ready(self) -> None:
        assert self.proxy is not None
        self.proxy.hear()

    def counts(self) -> dict[str, dict[str, int]]:
        """What each pipeline of the proxy counted, by its STATUS."""
        found: dict[str, dict[str, int]] = {}
        with zmq.Context() as context:
            for pipeline in Pipeline:
                with context.socket(zmq.DEALER) as sock:
                    sock.linger = 0
                    sock.connect(f"ipc://{self.folder}/ipc/{control_file(pipeline)}")
                    sock.send_multipart([encode(Kind.STATUS), b""])
                    if sock.poll(STATUS_MS):
                        told = json.loads(hear(sock)[1])
                        found[pipeline] = {name: n for name, n in told["counts"].items() if n}
        return found

    def stop(self) -> None:
        if self.proxy is not None:
            self.proxy.stop()
            self.proxy = None
        super().stop()


class Raw:
    """An echo by hand over three processes (``oslo_raw``): how long a call may take at best."""

    name = "raw echo"

    def __init__(self, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hgo-", dir="/tmp")))
        self._log = folder / "log"
        self._stack = stack
        port = self._peer("relay", folder)["port"]
        self._peer("server", folder)
        self._peer("client", port)

    def _peer(self, part: str, *words: object) -> dict[str, Any]:
        self.client = Peer([sys.executable, "-m", "tests.bench.oslo_raw", part, *words], self._log)
        self._stack.callback(self.client.stop)
        return self.client.hear()

    def calls(self, seconds: float, size: int) -> dict[str, Any]:
        return self.client.ask(seconds=seconds, size=size)


class Team:
    """A carrier with a client and ``count`` server processes (one process in all where the carrier wants it so)."""

    def __init__(self, stack: ExitStack, kind: type[Carrier], count: int = 1) -> None:
        self.carrier = stack.enter_context(kind())
        self.name = self.carrier.name
        carrier = self.carrier
        if carrier.together:
            peers = [carrier.side(carrier.client_url, "side")]
        else:
            peers = [carrier.side(carrier.client_url, "client")]
            peers += [carrier.side(carrier.server_url, f"servers-{number}") for number in range(count)]
        stack.enter_context(stopping(peers))
        for peer in peers:
            peer.hear()
        self.client = peers[0]
        self.servers = peers[1:] or peers

    @property
    def pids(self) -> list[int]:
        """Of applications and carrier."""
        return [*{self.client.pid, *(peer.pid for peer in self.servers)}, *self.carrier.pids]

    def serve(self, topic: str, count: int) -> None:
        """Start ``count`` rpc-servers, as many in each process as in any other, and call one."""
        share = -(-count // len(self.servers))
        names = [f"{topic}-{number}" for number in range(count)]
        for number, peer in enumerate(self.servers):
            if mine := names[number * share : (number + 1) * share]:
                peer.ask(do="serve", topic=topic, servers=mine)
        self.client.ask(do="reach", topic=topic)

    def settle(self) -> None:
        time.sleep(SETTLE_S)
